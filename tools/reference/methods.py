"""docs/reference/methods.md: presets, parts, options, tasks, and where papers and their code differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from chorale.spec.strategy_spec import PartsSpec
from crypto.fixed_point.layout import RING_BITS
from strategies.base import TOTAL, PhaseContext
from strategies.declared_parts import PARTS
from strategies.methods import Strategy, parts_with_options, strategy_for
from strategies.parts.heads import HEAD
from strategies.parts.regularizers import SECOND_WEIGHT
from strategies.presets import FEDAVG, PRESETS
from strategies.published import PUBLISHED
from strategies.recipe import Recipe
from strategies.tasks.base import LOSS_SUM, TESTED, Sum, TaskSizes
from strategies.tasks.declared_tasks import TASKS, task_of
from tools.reference.markdown import page, table

# what every method sums: the update and its weight, evaluation, enrollment
COMMON = {"silos", "samples", "delta", "buffers", "weight", "correct", "tested", "loss_sum", "clipped"}
CLASSES, WIDTH = 3, 4
SIDES = {CLASSES: "C", WIDTH: "D", CLASSES * WIDTH: "P", WIDTH * (WIDTH + 1) // 2: "D(D+1)/2"}

TASK_CLASSES = 5
LENGTHS = {math.sqrt(TASK_CLASSES): "sqrt(C)", math.sqrt(3): "sqrt(3)"}

PRESETS_NOTE = """\
*Parts* are those that differ from FedAvg's. *Phases* are those before the first round; in each round; after
the last. *Also summed*: FedAvg itself sums p * delta, p, BatchNorm's running means and variances if there
are any, the evaluation (correct, tested, loss), clipped values, and before the first round the number of
silos and of samples. C = classes, D = feature width, P = trained parameters. *Policy*: the fields by which a
silo's policy refuses such a job unless they say `allow`. *Rate*: the learning rate of a job that names none,
and between which it was seen to learn ([evidence.md](../evidence.md#rates-of-the-presets))."""
MIXES = "`mu` and `beta` come with every regularizer in the mixes additive and convex; `tau` also with `kd`."
MOVED = "In brackets: by how much one record moves a sum (L2), which a private job's noise is scaled by."

Row = tuple[str, ...]


def method_rows() -> Iterator[Row]:
    """Preset, parts that are not FedAvg's, phases, what is also summed, what a policy has to allow, rates,
    options with their defaults."""
    for name, recipe in PRESETS.items():
        method = strategy_for(name, {})
        yield (
            f"`{name}`",
            _joined(_parts(recipe)),
            "; ".join(", ".join(kinds) for kinds in (method.opening, method.round_phases, method.closing)),
            _joined(dict.fromkeys(_beside(method))),
            _joined(allowances(method)),
            _rates(recipe),
            _joined(_options(method)),
        )


def allowances(method: Strategy) -> Iterator[str]:
    """Fields of a policy that refuse the method by default, in a job without noise."""
    summed = method.quantities(has_buffers=True, update_bits=RING_BITS[0])
    if any(quantity.discloses.is_by_class for quantity in summed):
        yield "`class_statistics`"
    if method.recipe.keeps_local_state:
        yield "`local_state`"


def part_rows() -> Iterator[Row]:
    """Part, what it is, its values with the default first."""
    for field, parts in PARTS.items():
        default = FEDAVG.parts.get(field, "null")
        others = [f"`{part}`" for part in parts if part is not default]
        yield (
            f"`{field}`",
            str(PartsSpec.model_fields[field].description),
            ", ".join([f"`{default}`", *others]),
        )


def option_rows() -> Iterator[Row]:
    """Option, what it is, presets that have it; of one that no preset has, the parts."""
    declared = [
        (name, str(info.description), f"{field} `{part}` (default {_shown(info.default)})")
        for field, parts in PARTS.items()
        if field != "second_regularizer"
        for part in parts
        for name, info in part.options.model_fields.items()
    ]
    declared += [
        (name, str(info.description), f"every `second_regularizer` (default {_shown(info.default)})")
        for name, info in SECOND_WEIGHT.options.model_fields.items()
    ]
    presets: dict[str, list[str]] = {}
    for preset, recipe in PRESETS.items():
        for part in parts_with_options(recipe):
            for name in part.options.model_fields:
                presets.setdefault(name, []).append(f"`{preset}`")
    meanings = {name: meaning for name, meaning, _ in declared}
    for name in sorted(meanings):
        parts_with_it = ", ".join(part for each, _, part in declared if each == name)
        yield f"`{name}`", meanings[name], ", ".join(presets.get(name, [f"none: {parts_with_it}"]))


def published_rows() -> Iterator[Row]:
    """Preset, where its paper says it, what its authors' code does, where, and what of it no job can say."""
    for name, both in sorted(PUBLISHED.items()):
        yield f"`{name}`", both.of_paper, both.differs, both.of_code or "-", both.left_out or "-"


def task_rows() -> Iterator[Row]:
    """Task, main figure, round sums and the closing ones of each metric, with what one record moves."""
    range_of_targets = {"regression": {"low": 0.0, "high": 1.0}}
    for word in TASKS:
        shape = (4,) if word == "next-token" else (1, 4, 4)
        sizes, options = TaskSizes(classes=TASK_CLASSES, input_shape=shape), range_of_targets.get(word, {})
        task = task_of(word, sizes, options=options, metrics=())
        of_rounds = [each for each in task.round_sums if each not in (TESTED, LOSS_SUM)]
        further = [
            f"`{metric}`: {_joined(map(_sum, make().sums))}"
            + (", by class" if any(each.is_by_class for each in make().sums) else "")
            for metric, make in task.further.items()
        ]
        yield f"`{word}`", f"`{task.main}`", _joined(map(_sum, of_rounds)), "; ".join(further) or "-"


def _sum(each: Sum) -> str:
    moved = LENGTHS.get(each.per_record, f"{each.per_record:g}")
    return f"`{each.name}` [{moved}]"


def rules() -> Iterator[str]:
    """Why a job with some combination of parts is refused."""
    needs = (need for parts in PARTS.values() for part in parts for need in part.needs)
    suffixes = {need.reason: " (`allow_unusual` passes over it)" if need.is_advice else "" for need in needs}
    return (reason + unusual for reason, unusual in suffixes.items())


def _rates(recipe: Recipe) -> str:
    rates = recipe.rates
    return "-" if rates is None else f"{rates.default:g} ({rates.least:g} to {rates.most:g})"


def _parts(recipe: Recipe) -> Iterator[str]:
    for field, part in recipe.parts.items():
        if part is not FEDAVG.parts.get(field):
            yield f"{field} `{part}`"


def _options(method: Strategy) -> Iterator[str]:
    values: dict[str, object] = {}
    for part in parts_with_options(method.recipe):
        values |= method.options_of(part.options).model_dump(mode="json")
    return (f"`{name}` {_shown(values[name])}" for name in sorted(values))


def _beside(method: Strategy) -> Iterator[str]:
    """Of all phases, each once. Shapes in C classes, D features and P trained parameters."""
    state = {HEAD: np.zeros((CLASSES, WIDTH), np.float32), TOTAL: np.array(100)}
    context = PhaseContext(
        round=1, members=4, classes=CLASSES, state=state, trained=("head.weight",), options=method.options
    )
    for phase in method.phases.values():
        for quantity in phase.quantities(context):
            if quantity.name not in COMMON:
                shape = ", ".join(SIDES[side] for side in quantity.shape)
                yield f"{quantity.name} ({shape})"


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _joined(words: Iterable[str]) -> str:
    return ", ".join(words) or "-"


def methods_page() -> str:
    """[methods.md](../methods.md) says what each is for."""
    return page(
        "Presets, parts and options",
        "What each means is in [methods.md](../methods.md), with the papers.",
        "## Presets",
        PRESETS_NOTE,
        table(
            ["Preset", "Parts", "Phases", "Also summed", "Policy", "Rate", "Options and defaults"],
            method_rows(),
        ),
        "## Parts",
        "The default comes first.",
        table(["Part", "What it is", "Values"], part_rows()),
        "What does not go together:",
        "\n".join(f"- {reason}" for reason in rules()),
        "Besides, `ntd` needs three classes, and `fednova` and `scaffold` the local optimizer sgd.",
        "## Options",
        table(["Option", "What it is", "Presets that have it"], option_rows()),
        MIXES,
        "## As published",
        table(["Preset", "Paper", "What the code does instead", "Code", "Not in a job"], published_rows()),
        "## Tasks",
        MOVED,
        table(["Task", "Main figure", "Sums of every round", "`metrics`: closing sums"], task_rows()),
    )
