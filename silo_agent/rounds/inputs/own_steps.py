"""How far one silo by itself moves the arrays that training reads: what it compares the state's steps with.

The server's own step is taken of the silo's values alone, as if all silos had sent them. So it covers what
the server does with a sum: rates and momentum, control variates, buffers, teachers, statistics by class.
A private job's lengths follow from clip and noise, never from data. Source: docs/protocol.md 6.11.
"""

# P = trained parameters, C = classes, B = numbers of a piece

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from chorale.job import ArmOfJob, Job
from chorale.privacy.quantity_noise import dp_sgd_steps
from chorale.transport.wire import PhaseKey
from crypto.fixed_point.layout import CLIPPED
from strategies.base import METHOD, MODEL, Array, Arrays, PhaseContext, Pieces, blocks
from strategies.phases.step import GRADIENT

WEIGHT = "weight"
# P(|Z| > this sqrt(size)) of a standard normal vector Z: below 2^-40 for any size (chi-squared tail)
NORMAL_TAIL = 9.0


def step_lengths(job: Job, phase: str, before: Arrays, after: Arrays) -> dict[str, float]:
    """L2 norm of what each array that training reads moved by; one that was not there before was zero. Of a
    search those of each arm that is left, compared with what the same arm was."""
    earlier = {arm.arm: arm.state for arm in job.arms(phase, before)}
    lengths = {}
    for arm in job.arms(phase, after):
        for name in arm.job.strategy.training_arrays(arm.state):
            moved = _distance(arm.state[name], earlier[arm.arm].get(name))
            lengths[_named(arm, name)] = moved
    return lengths


def own_lengths(
    job: Job, key: PhaseKey, context: PhaseContext, values: Mapping[str, Array]
) -> dict[str, float]:
    """L2 norm of what each array would move by if every silo had sent these values; of a search, of each arm
    by itself. NaN for an arm whose training came to no number here: others may well have moved it."""
    lengths: dict[str, float] = {}
    if job.method.recipe.growth is not None:
        return {}  # which input a node splits on is no length; a leaf is bounded by its sums
    for arm in job.arms(key.phase, context.state):
        of_arm = arm.values(values)
        found = _own_lengths(arm.job, key, arm.context(context), of_arm)
        # Security: of a private job lengths follow from no data
        is_judged = arm.arm is not None and job.spec.privacy is None
        if is_judged and "delta" in of_arm and not np.any(of_arm["delta"]):
            found = dict.fromkeys(found, math.nan)
        lengths |= {_named(arm, name): length for name, length in found.items()}
    return lengths


def _named(arm: ArmOfJob, name: str) -> str:
    """The same in all rounds of an arm, whether it leads or not."""
    return name if arm.arm is None else f"arm/{arm.arm}/{name}"


def _own_lengths(
    job: Job, key: PhaseKey, context: PhaseContext, values: Mapping[str, Array]
) -> dict[str, float]:
    """Of a job without search.

    A silo with fewer samples than the job's mean one takes fewer local steps than the others, unless the job
    counts steps; its length is scaled by as much. Rows of classes that it does not hold stay where they are
    in its own step, so rows count as if all had moved like those that did; where none did, an array has no
    length: to compare with zero would stop the silo, and so tell that it holds none of the classes that
    others sent. Empty where the server would not apply them.
    """
    if job.spec.privacy is not None:
        return _private_lengths(job, context) if values.keys() & {WEIGHT, GRADIENT} else {}
    own_weight = float(values[WEIGHT]) if WEIGHT in values else 1.0 / context.members
    if own_weight <= 0.0:
        return {}
    scale, fewer_samples = 1.0 / own_weight, 1.0
    if WEIGHT in values and job.training.training.local_steps is None:
        fewer_samples = max(1.0, scale / len(job.spec.silos))
    result = job.next_state(key.phase, context, _Scaled(values, scale), survivors=1)
    if result.state is None:
        return {}
    after = {name: result.state[name] for name in job.strategy.training_arrays(result.state)}
    found = {name: _by_class(name, array, context) for name, array in after.items()}
    lengths = {name: length for name, length in found.items() if length is not None}
    lengths |= _lifted(lengths, after, [MODEL + name for name in context.trained], classes=context.classes)
    copies = {name.partition("/")[0] for name in _under(METHOD, after) if "/" in name}
    for copy in copies:  # of the model, such as a teacher
        prefix = f"{METHOD}{copy}/"
        names = [prefix + name for name in _under(prefix, after)]
        lengths |= _lifted(lengths, after, names, classes=context.classes)
    stretch = job.method.recipe.server_update.stretch
    longer = fewer_samples * (1.0 if stretch is None else stretch(context.members))
    return {name: longer * length for name, length in lengths.items()}


def _under(prefix: str, arrays: Arrays) -> list[str]:
    """Names that begin so, without it."""
    return [name.removeprefix(prefix) for name in arrays if name.startswith(prefix)]


def _lifted(
    lengths: Mapping[str, float], after: Arrays, names: Sequence[str], *, classes: int
) -> dict[str, float]:
    """Lengths of one model's arrays. A few values may hardly move at one silo by chance: they count as if
    they moved as the mean value does, and no more than one a class, such as the head's bias, as the whole
    model: they follow how often classes occur, and no record fits into them."""
    whole = math.sqrt(sum(lengths[name] ** 2 for name in names))
    values = sum(after[name].size for name in names)
    lifted = {}
    for name in names:
        share = 1.0 if after[name].size <= classes else after[name].size / values
        lifted[name] = max(lengths[name], whole * math.sqrt(share))
    return lifted


def _by_class(name: str, after: Array, context: PhaseContext) -> float | None:
    before = context.state.get(name)
    length = _distance(after, before)
    is_by_class = name.startswith(METHOD) and "/" not in name.removeprefix(METHOD)
    if not is_by_class or after.shape[:1] != (context.classes,):
        return length
    start = np.zeros_like(after) if before is None else before
    changed = int(np.count_nonzero((after != start).reshape(context.classes, -1).any(axis=1)))
    return length * math.sqrt(context.classes / changed) if changed else None


def _private_lengths(job: Job, context: PhaseContext) -> dict[str, float]:
    """Of the model's arrays: the longest update that clip and noise allow, through the server's rate.

    An optimizer that adapts to each parameter moves it by about its rate, whatever the update. Statistics by
    class have no length here: their sums keep the plausible box alone.
    """
    privacy, training, server = job.spec.privacy, job.training.training, job.method.recipe.server_update
    assert privacy is not None
    sizes = {MODEL + name: context.state[MODEL + name].size for name in context.trained}
    rate = job.training.learning_rate_at(max(1, context.round))
    if server.adapts(job.method.options):
        return {name: job.method.server_rate * math.sqrt(size) for name, size in sizes.items()}
    if privacy.has_shared_noise and training.optimizer == "adam":
        return {name: rate * math.sqrt(size) for name, size in sizes.items()}
    usual, clean, deviation = privacy.declared_weight(context.members), math.inf, 0.0
    if privacy.sums is not None:
        clean = privacy.sums.clip_norm
        deviation = context.noise.get("delta", 0.0) / (context.members * usual)
    if privacy.records is not None:
        # each of these steps sums clipped gradients and noise, and divides by the batch size
        steps, clip_norm = dp_sgd_steps(job.training), privacy.records.clip_norm
        noise = clip_norm * (privacy.records.noise_multiplier or 0.0) / training.batch_size
        if privacy.has_shared_noise:
            noise = context.noise[GRADIENT] / (context.members * training.batch_size)
        whole_rate = rate / (1.0 - training.momentum)
        clean = min(clean, whole_rate * clip_norm * steps)
        deviation += whole_rate * noise * math.sqrt(steps)
    return {
        name: job.method.server_rate * (clean + deviation * (math.sqrt(size) + NORMAL_TAIL))
        for name, size in sizes.items()
    }


def _distance(after: Array, before: Array | None) -> float:
    after_N, before_N = after.reshape(-1), None if before is None else before.reshape(-1)
    squares = 0.0
    for block in blocks(after_N.size):
        moved_B = after_N[block].astype(np.float64)
        if before_N is not None:
            moved_B -= before_N[block]
        squares += float(np.dot(moved_B, moved_B))
    return math.sqrt(squares)


class _Scaled(Mapping[str, Array]):
    """One silo's values as sums of silos that all sent them, in float64; a vector is not copied whole."""

    def __init__(self, values: Mapping[str, Array], scale: float) -> None:
        self._values = {name: np.asarray(value) for name, value in values.items() if name != CLIPPED}
        self._scale = scale

    def __getitem__(self, name: str) -> Array:
        scaled: Array = self._values[name].astype(np.float64) * self._scale
        return scaled

    def pieces(self, name: str) -> Pieces:
        value_N = self._values[name].reshape(-1)
        return lambda place: value_N[place].astype(np.float64) * self._scale

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
