"""What a part of a method is, and a recipe: the parts that a method is made of.

A part is declared once, in strategies/parts/: its word in a job file, its options, the parts that it needs,
how it stands in a private job, and what the coordinator does for it. silo_agent/training/parts/ computes it.
strategies/declared_parts.py lists every declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypeAlias

from strategies.base import (
    Arrays,
    FloatArray,
    Keeper,
    OptionValue,
    PartOptions,
    Phase,
    ServerRule,
    SummedBeside,
    model_in,
)
from strategies.number_stream import NumberStream

Options: TypeAlias = Mapping[str, OptionValue]


def never(options: Options) -> bool:
    return False


def always(options: Options) -> bool:
    return True


def no_rows(options: Options) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a part needs of the rest of the recipe. reason: for the refusal; reads on after `strategy: `.

    is_advice: without it the method still computes what it says, only to little use. A job that says
    `allow_unusual` passes over such a need. No need that keeps a bound or a promise is advice.
    """

    holds: Callable[[Recipe], bool]
    reason: str
    is_advice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderPrivacy:
    """Why a part may be in a private job, or why not. Each but why: the refusal's sentence, "" if it may.

    A private job protects the trained update in one of these ways. *records*: DP-SGD, where one record moves
    the clipped sum of a batch by at most the clip. *shared*: the same with the noise in the sum, where silos
    take no steps of their own. *sums*: the silo's whole update is clipped, and noised in the ring. Sentences
    read on after the part's word. docs/reference/parts.md has them as a table.
    """

    why: str = ""
    records: str = ""
    shared: str = ""
    sums: str = ""


ADDS_NOTHING = UnderPrivacy(why="adds nothing")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """The declaration of a part. There is one object for each, compared by identity.

    word: names it in a job file. under_privacy: None where nothing is stated; a private job then refuses it.
    check_options: raises ConfigError for options with which the part makes no sense in this recipe.
    check_private: the same for options with which a private job cannot bound what one record moves.
    needs_classes: whether it is computed by the one class of each sample. needs_head: whether, with these
    options, it needs the model's last linear layer and that layer's input.
    keeps_local_state: whether silos keep arrays of their own for it between rounds (docs/protocol.md 7.8).
    reads: what silos read for it of the global state besides the model: names of arrays, or prefixes.
    least_rows: of how many classes its sums need rows, with these options: with fewer the method is another
    one. public_rows: the option that puts public rows in place of missing ones; "" where none does.
    """

    word: str
    options: type[PartOptions] = PartOptions
    needs: tuple[Need, ...] = ()
    under_privacy: UnderPrivacy | None = None
    check_options: Callable[[Recipe, Options], None] | None = None
    check_private: Callable[[Options], None] | None = None
    needs_classes: bool = False
    needs_head: Callable[[Options], bool] = never
    keeps_local_state: bool = False
    reads: tuple[str, ...] = ()
    least_rows: Callable[[Options], int] = no_rows
    public_rows: str = ""

    def __str__(self) -> str:
        return self.word


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head(Part):
    """The last linear layer. Only a trained one is summed; a frozen one travels in the state.

    draw: makes a frozen one of classes and feature width. Shapes: -> (C, D). has_unit_rows: one vector of
    unit length for each class.
    """

    draw: Callable[[int, int, NumberStream], FloatArray] | None = None
    has_bias: bool = False
    has_unit_rows: bool = False

    @property
    def is_frozen(self) -> bool:
        return self.draw is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Features(Part):
    """What the head is given: the backbone's output, that at unit length, or a unit projection of it."""

    is_unit: bool = False
    is_projected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loss(Part):
    """What a silo minimizes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Regularizer(Part):
    """What is added to the loss. keeper: what the global state keeps for it. min_classes: fewer leave it
    nothing to do."""

    keeper: Keeper | None = None
    min_classes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mix(Part):
    """How loss and regularizer join. weights: of the loss and of the regularizer. is_perturbed: whether the
    regularizer's gradient moves the weights that the loss is taken at, and is no part of the step.
    """

    weights: Callable[[Options], tuple[float, float]]
    is_perturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerUpdate(Part):
    """What the mean delta does to the model. counts_steps: reads the local steps out of a delta.

    rate: its learning rate, over all rounds in which a delta still moves the model; None: 1.
    stretch: how much longer the step of so many silos may be than one silo's by the rule itself; None: 1.
    is_optimizer: keeps moments of its own. adapts: whether, with these options, it moves each parameter by
    about its rate, however long the delta.
    """

    rule: ServerRule
    rate: Callable[[Options], float] | None = None
    stretch: Callable[[int], float] | None = None
    counts_steps: bool = False
    is_optimizer: bool = False
    adapts: Callable[[Options], bool] = never


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistic(Part):
    """What a method sums by class in every round: with the deltas, or in a phase before the training.

    asks: the arrays from which all that silos send before the training follows.
    """

    beside_training: tuple[SummedBeside, ...] = ()
    before_training: tuple[Phase, ...] = ()
    asks: Callable[[Arrays], Arrays] = model_in


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Personalization(Part):
    """What of the model is each silo's own in every round.

    own: of a model's parameters and running means, by name, those of the silo's own part, which is in no
    sum; None where all is summed. shares_nothing: whether that part is the whole model.
    needs_running_means: whether it is known by these.
    beside_evaluation: what is summed about the silos' own models wherever the global one is tested.
    """

    own: Callable[[Sequence[str], Sequence[str]], set[str]] | None = None
    shares_nothing: bool = False
    needs_running_means: bool = False
    beside_evaluation: tuple[SummedBeside, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Closing(Part):
    """What follows the last round, before the final evaluation and after it.

    least_class_samples: where it sums rows by class, of how many of its samples a silo counts as one that
    holds a class; 0 where it sums none.
    """

    before_evaluation: Callable[[Options], tuple[Phase, ...]] | None = None
    after_evaluation: tuple[Phase, ...] = ()
    least_class_samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Growth(Part):
    """What rounds grow a model by, in place of steps of silos."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Learning rates of a method that was measured: for classification, by sgd with momentum 0.9.

    default: of a job that names none. least, most: between them it was seen to learn, and nowhere else.
    Source: docs/evidence.md, "Rates of the presets".
    """

    default: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A method as the parts it is made of. defaults: its own values of the parts' options. rates: None where
    nothing was measured."""

    head: Head
    features: Features
    loss: Loss
    regularizer: Regularizer
    mix: Mix
    server_update: ServerUpdate
    second_regularizer: Regularizer | None = None
    statistic: Statistic | None = None
    personalization: Personalization
    closing: Closing
    growth: Growth | None = None
    rates: Rates | None = None
    defaults: Options = field(default_factory=lambda: MappingProxyType({}))

    @property
    def parts(self) -> Mapping[str, Part]:
        """By field, in the order of the fields, all that the recipe names."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: part for name, part in named.items() if isinstance(part, Part)}

    @property
    def regularizers(self) -> tuple[Regularizer, ...]:
        """What joins the loss, in order."""
        second = self.second_regularizer
        return (self.regularizer,) if second is None else (self.regularizer, second)

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        """Of what the global state keeps for the regularizers."""
        return tuple(each.keeper for each in self.regularizers if each.keeper is not None)

    @property
    def keeps_local_state(self) -> bool:
        """Whether silos keep arrays of their own between rounds. Source: docs/protocol.md 7.8."""
        return any(part.keeps_local_state for part in self.parts.values())
