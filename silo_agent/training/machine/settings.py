"""How this machine trains: devices, threads, number types, and an objective of the institution's own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, Field

from chorale.spec.fields import EntryPoint


class Precision(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class MemoryFormat(StrEnum):
    AUTO = "auto"
    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"


class MachineSettings(BaseModel):
    """Fields of a silo's settings file."""

    objective: EntryPoint | None = Field(
        default=None, description="package.module:function to train with instead"
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:(0|[1-9][0-9]?))?)$",
        description="where training runs: auto, cpu, cuda, which is the first GPU, or cuda:1 and so on; "
        "`devices` are counted from there",
    )
    base_models: Path | None = Field(
        default=None,
        description="folder of the weights that jobs with `adapters.base` name, each as SHA-256.safetensors; "
        "null: none",
    )
    torch_threads: int = Field(default=1, ge=1, le=256, description="CPU threads of one training")
    precision: Precision = Field(
        default=Precision.AUTO,
        description="number type of a model's layers: auto, float32 or bfloat16; auto: bfloat16 where a "
        "timed trial finds it faster; parameters, losses and sums stay float32 and float64",
    )
    memory_format: MemoryFormat = Field(
        default=MemoryFormat.AUTO,
        description="memory order of images: auto, contiguous or channels_last; auto: the one that a timed "
        "trial finds faster",
    )
    micro_batch: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        description="most samples that are in the model at a time; a larger batch is taken in parts, whose "
        "gradients are added up; null: whole batches",
    )
    devices: int = Field(
        default=1,
        ge=1,
        le=64,
        description="GPUs, or processes of a CPU, that share each batch of the training of a job without "
        "privacy",
    )

    @property
    def asks_gpu(self) -> bool:
        """Whether a machine without one is refused."""
        return self.device.startswith("cuda")


def first_gpu(device: str) -> int:
    """Of a setting's `device`."""
    return int(device.partition(":")[2] or 0)
