"""What a job names beside numbers: its model, adapters in it, and its task, Chorale's own or of an installed
distribution.

Code never travels. A job names a distribution, its version and the digest of its files; each silo compares
its own copy before it accepts the job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema, model_validator

from chorale.spec.fields import DataSetName, Finite, Positive, Sha256, SpecPart, checked, in_words
from crypto.errors import ConfigError
from strategies.expected import did_you_mean
from strategies.tasks.base import DeclaredTask, Sum, Target, TaskSizes
from strategies.tasks.declared_tasks import task_of
from strategies.tasks.stated import StatedTask

PlugInName = DataSetName
QUANTITY_FORM = "1 to 63 lower-case letters, digits and underscores of which the first is a letter"
QuantityName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$"), in_words(QUANTITY_FORM)]
_DISTRIBUTION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}==[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}$")
Distribution = Annotated[
    str,
    BeforeValidator(partial(checked, _DISTRIBUTION, "name==version, such as hospital-models==1.2.0")),
    WithJsonSchema({"type": "string", "pattern": _DISTRIBUTION.pattern}),
]
OptionValue = bool | int | Finite | Annotated[str, Field(max_length=1_000)]
OptionValues = Annotated[
    OptionValue | Annotated[tuple[OptionValue, ...], Field(max_length=1_000)] | None,
    in_words(
        "a finite number, true or false, text of up to 1000 characters, a list of up to 1000 such, or null"
    ),
]

SHALLOW_MODELS = ("mlp", "cnn", "lenet", "lenet_linear", "alexnet", "trees")
DEEP_MODELS = (  # hard to train without normalization
    "vgg11",
    "vgg13",
    "convnet7",
    "resnet18",
    "resnet18_imagenet",
    "resnet50",
    "resnet50_imagenet",
    "senet18",
    "mobilenet",
    "mobilenet_v2",
    "mobilenet_v2_relu",
)
OWN_MODELS = (*SHALLOW_MODELS, *DEEP_MODELS)
CUSTOM = "custom"
MAX_PER_RECORD = 1e15  # beyond it no scale leaves room in 64 bits for noise, and its square is no number
LORA_B = ".lora_B."  # in the names of arrays that start at zero
MARK = ".lora_"  # in the names of an adapter's arrays
LayerName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_.]{1,200}$"),
    in_words("1 to 200 letters, digits, dots and underscores"),
]


class FromSpec(SpecPart):
    """A mapping with the key `from`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)


class CodeSpec(SpecPart):
    """An installed distribution whose code a job runs. Code never travels: each silo compares its own
    copy."""

    distribution: Distribution = Field(description="name and version, such as hospital-models==1.2.0")
    sha256: Sha256 | None = Field(
        default=None,
        description="of its installed files; `job submit` fills it in from the operator's own copy",
    )


class PlugInSpec(FromSpec):
    """What a job names of an installed distribution: an entry point, and the numbers that it takes."""

    name: PlugInName = Field(description="name of the entry point")
    source: Distribution | None = Field(
        default=None,
        alias="from",
        description="installed distribution and version, such as hospital-models==1.2.0; null: Chorale's own",
    )
    options: dict[str, OptionValues] = Field(
        default_factory=dict, max_length=64, description="keyword arguments of the function or class"
    )


class GivenPartSpec(FromSpec):
    """A loss or regularizer of an installed distribution. What the server does with the sums stays
    Chorale's."""

    name: PlugInName = Field(description="name of the entry point")
    source: Distribution = Field(
        alias="from", description="installed distribution and version, such as hospital-losses==1.0.0"
    )
    options: dict[str, OptionValues] = Field(
        default_factory=dict, max_length=64, description="keyword arguments of the class"
    )
    is_mean: bool | None = Field(
        default=None,
        description="whether it is a mean over records; `job submit` fills it in, silos compare it",
    )


class TargetSpec(SpecPart):
    """What a sample's target is, as `chorale_models.Target`."""

    shape: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        default=(), max_length=4, description="of one target; () is one number"
    )
    is_whole: bool = Field(default=False, description="int64, else float32")
    low: Finite | None = Field(default=None, description="least value; null: any")
    high: Finite | None = Field(default=None, description="largest value; null: any")

    @classmethod
    def of(cls, target: Target) -> TargetSpec:
        low, high = (each if math.isfinite(each) else None for each in (target.low, target.high))
        return cls(shape=target.shape, is_whole=target.is_whole, low=low, high=high)

    @property
    def target(self) -> Target:
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        return Target(shape=self.shape, is_whole=self.is_whole, low=low, high=high)


class SumSpec(SpecPart):
    """One sum of a task of another distribution, as its code declares it (`chorale_models.Sum`)."""

    name: QuantityName = Field(description="what it is called in the sums")
    shape: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        default=(), max_length=4, description="of the array; () is one number"
    )
    bound: Positive = Field(description="largest magnitude of a silo's value")
    per_record: Positive = Field(le=MAX_PER_RECORD, description="L2 norm by which one record moves it")
    is_count: bool = Field(default=False, description="a whole number, summed exactly")
    is_by_class: bool = Field(default=False, description="says something of single classes")
    at_most: Annotated[QuantityName | Literal[""], in_words(f"{QUANTITY_FORM}, or ''")] = Field(
        default="", description="a count of the task that this count never exceeds"
    )


class TaskSpec(PlugInSpec):
    """What the model is trained for: the loss of a sample, and what is summed over the hold-outs."""

    name: PlugInName = Field(default="classification", description="name of the task")
    metrics: tuple[PlugInName, ...] = Field(
        default=(),
        max_length=16,
        description="what the closing evaluation sums besides, such as confusion, curves, calibration, "
        "temperature",
    )
    sums: tuple[SumSpec, ...] | None = Field(
        default=None,
        max_length=64,
        description="of a task of another distribution; `job submit` fills them in",
    )
    ratios: dict[QuantityName, tuple[QuantityName, QuantityName]] | None = Field(
        default=None,
        max_length=64,
        description="metrics of a task of another distribution, each one sum by another; `job submit` fills "
        "them in",
    )
    target: TargetSpec | None = Field(
        default=None, description="targets of a task of another distribution; `job submit` fills it in"
    )
    is_mean: bool | None = Field(
        default=None,
        description="whether the loss of such a task is a mean over records; `job submit` fills it in",
    )

    @property
    def stated(self) -> dict[str, object]:
        """What of a task of another distribution its code says, and silos compare."""
        return {"sums": self.sums, "ratios": self.ratios, "target": self.target, "is_mean": self.is_mean}

    @model_validator(mode="after")
    def _states_what_is_not_ours(self) -> TaskSpec:
        given = [name for name, value in self.stated.items() if value is not None]
        if self.source is None and given:
            raise ValueError(f"{given[0]}: needs `from`")
        if self.source is not None and self.metrics:
            raise ValueError("metrics: not allowed with `from`: the task's own code declares what it sums")
        return self

    def declared(self, sizes: TaskSizes) -> DeclaredTask:
        """The task as both sides know it. Raises ConfigError."""
        if self.source is None:
            return task_of(self.name, sizes, options=self.options, metrics=self.metrics)
        return StatedTask(
            sizes,
            word=self.name,
            target=None if self.target is None else self.target.target,
            sums=tuple(Sum(**each.model_dump()) for each in self.sums or ()),
            ratios={} if self.sums is None else self.ratios or {},
            is_mean=self.is_mean is not False,
        )


class AdaptersSpec(SpecPart):
    """LoRA, Hu et al. 2022 (arXiv 2106.09685): a layer W becomes W + (alpha / rank) B A; B starts at zero.

    The global state holds A and B and the head; the weights beside them never travel.
    """

    rank: int = Field(default=8, ge=1, le=1_024, description="r of LoRA: rows of A, columns of B")
    alpha: float = Field(default=16.0, gt=0, le=10_000, description="B A is scaled by alpha / rank")
    targets: tuple[LayerName, ...] = Field(
        default=(),
        max_length=64,
        description="names of the layers, or their ends such as q_proj; none: the model's own function has "
        "put LoRA layers in",
    )
    base: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the safetensors file of the other weights, which each silo has in its "
        "`base_models` folder; null: drawn by model.seed, for trials",
    )


class ModelSpec(PlugInSpec):
    """Which network is trained; its weights come with the initial state."""

    name: PlugInName = Field(
        description=f"a network of Chorale's: {', '.join(OWN_MODELS)}; or one of the distribution in `from`; "
        "or custom: one of the silos' own objective"
    )
    norm: Literal["batch", "group", "none"] = Field(
        default="none",
        description="normalization layers: batch sends running means as a quantity of their own, group has "
        "none to send; left out, it is none for "
        f"{', '.join(SHALLOW_MODELS)} and custom, batch with fedbn and for the deeper backbones",
    )
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = Field(
        default=(64,), max_length=16, description="widths of an mlp's hidden layers"
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=1 << 63,
        description="of the initial weights; in a submitted job they follow from the whole job",
    )

    @property
    def is_built_in(self) -> bool:
        """Whether every silo can draw the first state itself."""
        return self.source is not None or self.name != CUSTOM

    @model_validator(mode="after")
    def _is_known(self) -> ModelSpec:
        if self.source is None and self.name not in (*OWN_MODELS, CUSTOM):
            raise ValueError(
                f"name: expected one of {', '.join(OWN_MODELS)}, or a model of an installed distribution "
                f"with `from: distribution==version`, got {self.name}{did_you_mean(self.name, OWN_MODELS)}"
            )
        if self.source is None and self.options and self.name != "trees":
            raise ValueError("options: needs `from`: Chorale's own models have the fields norm and hidden")
        given = self.model_fields_set & {"norm", "hidden"}
        if self.source is not None and given and (self.norm, self.hidden) != ("none", (64,)):
            raise ValueError(
                f"{min(given)}: not allowed with `from`: what {self.name} is built with goes into options"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _norm_of_deep_models(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") in DEEP_MODELS and not _source_in(values):
            return {"norm": "batch", **values}
        return values


def _source_in(values: dict[str, Any]) -> bool:
    return (values.get("from") or values.get("source")) is not None


def check_code(
    code: Sequence[CodeSpec] | None,
    distributions: Sequence[str],
    *,
    model: ModelSpec,
    plug_ins: Mapping[str, PlugInSpec | GivenPartSpec],
) -> None:
    """Raises ConfigError where `code` pins others than `from` names, or model custom has parts of its own."""
    pinned = [each.distribution for each in code or ()]
    if code is not None and sorted(pinned) != list(distributions):
        expected = ", ".join(distributions) or "none"
        raise ConfigError(
            f"code: expected the distributions that `from` names ({expected}), got {', '.join(pinned)}"
        )
    foreign = [field for field in plug_ins if field != "model"]
    if model.name == CUSTOM and model.source is None and foreign:
        raise ConfigError(
            f"{foreign[0]}: not allowed with model custom, which each silo's own objective trains"
        )


def check_pinned(
    job: str,
    code: Sequence[CodeSpec] | None,
    distributions: Sequence[str],
    *,
    task: TaskSpec | None,
    parts: Mapping[str, GivenPartSpec | None],
) -> None:
    """Raises ConfigError where what `job submit` fills in of distributions is not there. parts: by field."""
    unpinned = [each.distribution for each in code or () if each.sha256 is None]
    if unpinned or (distributions and code is None):
        missing = (*unpinned, *distributions)[0]
        raise ConfigError(f"job {job}: code: the SHA-256 of {missing} is required in a signed job")
    stated: dict[str, object] = {}
    if task is not None and task.source is not None:
        stated = {f"task.{name}": value for name, value in task.stated.items()}
    stated |= {f"strategy.{field}.is_mean": part.is_mean for field, part in parts.items() if part is not None}
    left_out = [name for name, value in stated.items() if value is None]
    if left_out:
        raise ConfigError(f"job {job}: {left_out[0]} is required in a signed job")
