"""Where a silo's data lies: fields of its own settings file, never of a job."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chorale.spec.fields import EntryPoint


class DataFormat(StrEnum):
    DIGITS = "digits"
    MNIST = "mnist"
    NPZ = "npz"
    IMAGE_FOLDER = "image-folder"
    CSV = "csv"
    CIFAR10 = "cifar10"
    CIFAR100 = "cifar100"
    MODULE = "module"


class PartitionKind(StrEnum):
    IID = "iid"
    SHARDS = "shards"
    DIRICHLET = "dirichlet"


class PartitionSettings(BaseModel):
    """Cuts one data set into silos, for runs on one machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: PartitionKind = Field(description="iid, shards or dirichlet")
    silos: int = Field(ge=1, le=10_000, description="into how many parts the data set is cut")
    index: int = Field(ge=0, description="which part is this silo's, from 0")
    seed: int = Field(default=0, ge=0, lt=2**63, description="the same for all silos of one run")
    shards_per_silo: int = Field(
        default=2, ge=1, le=1_000, description="shards: s, label-sorted pieces a silo gets"
    )
    alpha: float = Field(
        default=0.5, gt=0, le=1e6, description="dirichlet: concentration; smaller is less even"
    )
    balance: bool = Field(default=False, description="dirichlet: silos that hold their even part get no more")
    min_samples: int = Field(default=10, ge=1, description="redraw while a silo has fewer samples")

    @model_validator(mode="after")
    def _index_is_a_silo(self) -> Self:
        if self.index >= self.silos:
            raise ValueError(f"index: expected 0 to {self.silos - 1}, got {self.index}")
        return self


class DataSettings(BaseModel):
    """The silo's data set, its hold-out and, on one machine, its part of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: DataFormat = Field(description="how the data is stored")
    path: Path | None = Field(default=None, description="file or folder; not for digits and module")
    module: EntryPoint | None = Field(
        default=None, description="module: package.module:function of this machine"
    )
    columns_in_file: tuple[str, ...] | None = Field(
        default=None, description="csv: names of the columns in order, for a file without a header line"
    )
    missing: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="csv: further texts that mean 'missing' in a column, besides empty, ?, NA and nan; "
        "a number means it however the file writes it",
    )
    labels: dict[str, int] = Field(
        default_factory=dict,
        description="csv: class of each text in the label column; empty: it holds the class",
    )
    partition: PartitionSettings | None = Field(default=None, description="this silo's part, on one machine")
    holdout: float = Field(
        default=0.2, ge=0.0, lt=1.0, description="share of the samples kept for evaluation"
    )
    name: str = Field(
        default="data",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="data set id in the ledger: change it only when the data is another",
    )

    @model_validator(mode="after")
    def _source_is_given(self) -> Self:
        needs_module = self.format is DataFormat.MODULE
        needs_path = self.format not in (DataFormat.MODULE, DataFormat.DIGITS)
        if needs_module != (self.module is not None):
            raise ValueError("module: expected with format: module, and only with it")
        if needs_path != (self.path is not None):
            raise ValueError(
                f"path: format {self.format.value} {'needs one' if needs_path else 'takes none'}"
            )
        return self
