"""The file of a training job: everything a silo needs to know of it, and all it lets decide about its input.

Silos check these values and never infer them. Source: docs/protocol.md 3 and 7.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chorale.spec.analysis_spec import SubgroupsSpec
from chorale.spec.plug_in_specs import AdaptersSpec, CodeSpec, ModelSpec, TaskSpec
from chorale.spec.privacy_spec import PrivacySpec
from chorale.spec.samples.column_specs import Classes, ColumnSpec, LabelColumns
from chorale.spec.samples.image_specs import NormalizeSpec, Transforms
from chorale.spec.samples.scan_specs import ScanSpec
from chorale.spec.selection import MAX_ROUNDS, Draw, KeepSpec, StopSpec
from chorale.spec.shared_fields import SharedFields
from chorale.spec.strategy_spec import StrategySpec, TrainingSpec
from chorale.spec.training.search_spec import SearchSpec


class JobFields(SharedFields):
    """Each further field of a training job as it stands in the file, in its order. What must hold between
    them: `job_spec`."""

    rounds: int = Field(
        ge=0,
        le=MAX_ROUNDS,
        description="of training, used-up ones included; 0: evaluation alone; left out where the job says "
        "steps, and then steps + spare_steps",
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUNDS,
        description="of training with privacy.records.noise sum, in place of rounds: each sums one gradient",
    )
    spare_steps: int | None = Field(
        default=None,
        ge=0,
        le=MAX_ROUNDS,
        description="further steps, paid for in advance, for those whose sum is lost; null: a twentieth of "
        "steps, at least 2",
    )
    keep: KeepSpec | None = Field(
        default=None, description="whose round's model is handed out; null: the last's"
    )
    search: SearchSpec | None = Field(
        default=None,
        description="trains a few values of a few fields side by side, and the best to the end; null: none",
    )
    stop: StopSpec | None = Field(default=None, description="when rounds end early; null: never")
    fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of the silos that each round names, by a draw of what all silos contribute to",
    )
    draw: Draw | None = Field(
        default=None,
        description="what a fraction below 1 draws: each of the rounds (null), or groups, which take turns",
    )
    test_share: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share of what each silo holds out that rounds never test on: it is opened once, by the "
        "closing evaluation; null: a half with keep, stop or search, which choose by the rest, else 0",
    )
    evaluate_all_every: int | None = Field(
        default=None,
        ge=1,
        le=MAX_ROUNDS,
        description="rounds between tests of the model on all silos' hold-outs; null: at the end alone",
    )
    strategy: StrategySpec = Field(default=StrategySpec(), description="the training method")
    allow_unusual: bool | None = Field(
        default=None,
        description="true: parts may go together that a rule calls of little use, for ablations; each rule "
        "that is passed over is shown; null: such jobs are refused",
    )
    allow_silent_statistics: bool | None = Field(
        default=None,
        description="true: the method may run without the rows by class that its statistic needs, where too "
        "few silos hold the classes; null: silos refuse such a job",
    )
    model: ModelSpec = Field(description="the network")
    task: TaskSpec | None = Field(
        default=None, description="what the model is trained for; null: classification, by accuracy and loss"
    )
    subgroups: SubgroupsSpec | None = Field(
        default=None,
        description="column of a table by whose parts the final model is tested, too; it need be no input; "
        "null: none",
    )
    code: tuple[CodeSpec, ...] | None = Field(
        default=None,
        max_length=16,
        description="the distributions that `from` names, with the digests of their files; `job "
        "submit` fills them in",
    )
    classes_as_written: Classes = Field(
        default=0,
        alias="classes",
        description="names of the classes or labels in order, by which silos find them; or how many, where "
        "data hold numbers: labels from 0, intervals of a survival task, tokens of a vocabulary, numbers of "
        "a regression target; 0 where the task has none",
    )
    input_shape: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        min_length=1,
        max_length=4,
        description="shape of one sample: (channels, height, width), or (columns,), which follows from "
        "`columns`",
    )
    input_type: Literal["float32", "int64"] = Field(
        default="float32", description="of a sample's values: numbers, or int64 such as the tokens of a text"
    )
    vocabulary: int | None = Field(
        default=None,
        ge=1,
        le=1 << 31,
        description="values of int64 inputs, 0 to vocabulary - 1; null: `classes` of token tasks, or any",
    )
    normalize: NormalizeSpec | None = Field(
        default=None, description="of images by channel, wherever the model is run; null: as the data are"
    )
    scans: ScanSpec | None = Field(
        default=None,
        description="what the numbers of DICOM and NIfTI mean; null: those of the modality, stretched to "
        "input_shape",
    )
    adapters: AdaptersSpec | None = Field(
        default=None,
        description="trains LoRA adapters and the named head alone, beside weights that stay as they are; "
        "null: all weights are trained",
    )
    augment: Transforms | None = Field(
        default=None,
        description="random transforms of training images, in order and before `normalize`; null: none",
    )
    columns: tuple[ColumnSpec, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1_000,
        description="columns of a table (csv, parquet, sql), in the order of the input",
    )
    label_column: LabelColumns | None = Field(
        default=None,
        description="heading of the label in a table; a list, or a range such as l0..l13, where a label is "
        "several numbers",
    )
    training: TrainingSpec = Field(default=TrainingSpec(), description="local SGD")
    trains: Literal["all", "head"] = Field(
        default="all",
        description="all parameters, or those of the last linear layer alone: the others stay as they are in "
        "the first weights",
    )
    privacy: PrivacySpec | None = Field(
        default=None, description="differential privacy; null: masks alone, and the sums go out as they are"
    )
    update_bound: float = Field(
        default=8.0, gt=0, le=1e6, description="largest p * delta of a parameter; what lies beyond is clipped"
    )
    update_bits: Literal[16, 32, 64] = Field(
        default=32,
        description="bits of a summed parameter; 32 takes the bytes of float32, 16 half of them, rotated and "
        "scaled to the updates of the round before: the first round takes 32",
    )
    min_weight: float = Field(
        default=0.0, ge=0, le=1, description="least share of the federation's data for a round to be applied"
    )
    enrollment_every: int = Field(
        default=10, ge=1, le=100_000, description="rounds that must lie between two repeated enrollments"
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=1 << 63,
        description="of shuffling and dropout in a simulation; a silo draws its own",
    )
