"""A search: a short list of values for a few fields of a job, each combination an arm of it.

The job's own values are those of its first arm. Source: docs/decisions/0038-search.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from chorale.spec.fields import Finite, SpecPart
from chorale.spec.privacy_spec import PrivacySpec
from chorale.spec.selection import MAX_ROUNDS
from crypto.errors import ConfigError
from strategies.expected import got
from strategies.methods import Strategy
from strategies.phases.arms import MAX_ARMS, Halving, judging_metrics

STEPS = ("training.local_epochs", "training.local_steps")
FIELDS = ("training.learning_rate", *STEPS)
OPTION = "strategy.options."
MIN_ROUNDS = 2  # of a rung: its last round tests what the one before trained

Values = Annotated[tuple[Finite, ...], Field(min_length=1, max_length=MAX_ARMS)]


class SearchSpec(SpecPart):
    """Which fields, and how arms are judged."""

    values: dict[str, Values] = Field(
        min_length=1,
        max_length=4,
        description=f"by field, of {', '.join(FIELDS)} and {OPTION}<name>; each combination is an arm, 2 to "
        f"{MAX_ARMS} of them, and the job's own values are those of the first",
    )
    rounds: int | None = Field(
        default=None,
        ge=MIN_ROUNDS,
        le=MAX_ROUNDS,
        description="rounds after which the better half of the arms stays; null: so many that the search "
        "costs at most as much as the job without it",
    )
    metric: str = Field(
        default="loss",
        min_length=1,
        max_length=63,
        description="what arms are judged by, on the hold-outs: loss, or a share of counts such as accuracy, "
        "which carries less noise in a private job",
    )
    best: Literal["lowest", "highest"] = Field(
        default="lowest", description="which of its values is the best; required where metric is not loss"
    )

    @model_validator(mode="before")
    @classmethod
    def _says_which_is_best(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("metric", "loss") != "loss" and "best" not in values:
            raise ValueError(f"best: a value is required with metric {values['metric']}: lowest or highest")
        return values

    @property
    def combinations(self) -> list[dict[str, float]]:
        """Each arm's values by field, in order."""
        return [
            dict(zip(self.values, each, strict=True)) for each in itertools.product(*self.values.values())
        ]

    def live_by_rung(self) -> list[int]:
        """How many arms each rung trains, before the one that is left."""
        live, counts = len(self.combinations), []
        while live > 1:
            counts.append(live)
            live //= 2
        return counts

    def rounds_by_arms(self, rounds: int) -> list[tuple[int, int]]:
        """Of a job of so many rounds that loses none: how many rounds train how many arms, in order."""
        found, left = list[tuple[int, int]](), rounds
        for live in self.live_by_rung():
            found.append((min(self.rung, left), live))
            left -= found[-1][0]
        return [(times, live) for times, live in (*found, (left, 1)) if times]

    @property
    def rung(self) -> int:
        assert self.rounds is not None  # the job is read with it
        return self.rounds

    def in_words(self, rounds: int) -> str:
        """For people who approve or plan. rounds: of the job."""
        what = "; ".join(
            f"{field} {', '.join(f'{value:g}' for value in values)}" for field, values in self.values.items()
        )
        counts = ", ".join(str(live) for live in self.live_by_rung())
        cost = sum(each * live for each, live in self.rounds_by_arms(rounds)) / rounds
        return (
            f"search: {len(self.combinations)} arms ({what}), by {self.best} {self.metric}; "
            f"{self.rung} rounds each of {counts} arms, then one: {cost:.2g} times the rounds and bytes of "
            "one arm alone"
        )

    def arm_in_words(self, arm: int) -> str:
        """An arm in words: `arm 2 of 5, training.learning_rate 0.3`."""
        arms = self.combinations
        values = (f"{field} {value:g}" for field, value in arms[arm].items())
        return f"arm {arm} of {len(arms)}, {', '.join(values)}"

    def winner_in_words(self, arm: int) -> str:
        return f"search: {self.arm_in_words(arm)} won"


def with_search(values: Mapping[object, object]) -> dict[object, object]:
    """A job's fields, with the first arm's values where it leaves them out, and the rounds of a rung.

    Raises ValueError for values of its own that are not the first arm's.
    """
    filled: dict[Any, Any] = dict(values)
    search = _read(filled.get("search"))
    if search is None:
        return filled  # none, or the job's own check says what is wrong
    first = {field: value for field, value in search.combinations[0].items() if _is_known(field)}
    for field, value in first.items():
        own = _found(filled, _path(field))
        if own is not None and own != value:
            raise ValueError(
                f"{field}: expected none beside search, or its first value {value:g}, got {got(own)}"
            )
    filled = with_values(filled, first)
    rounds, counts = _whole(filled.get("rounds")), search.live_by_rung()
    if search.rounds is None and rounds is not None and counts:
        # so that all arms but the last one cost no more than the job, and half of the rounds are the winner's
        most = min(rounds // (sum(counts) - len(counts)), rounds // (2 * len(counts)))
        filled["search"] = {**search.model_dump(), "rounds": max(MIN_ROUNDS, most)}
    return filled


def with_values(values: Mapping[Any, Any], arm: Mapping[str, float]) -> dict[Any, Any]:
    """A job's fields with those of an arm."""
    filled = dict(values)
    for field, value in arm.items():
        filled = _put(filled, _path(field), value)
    return filled


def check_search(search: SearchSpec, method: Strategy, *, rounds: int, others: Mapping[str, bool]) -> None:
    """Raises ConfigError for arms that are none, and for jobs that train no common model by rounds.

    others: fields of the job that do not go together with a search, and whether it has them.
    """
    unknown = [field for field in search.values if not _is_known(field)]
    if unknown:
        raise ConfigError(
            f"search.values: expected {', '.join(FIELDS)} or {OPTION}<name>, got {got(unknown[0])}"
        )
    arms = search.combinations
    if not 2 <= len(arms) <= MAX_ARMS:
        raise ConfigError(f"search.values: expected 2 to {MAX_ARMS} arms, got {len(arms)}")
    if len({tuple(arm.values()) for arm in arms}) < len(arms):
        raise ConfigError("search.values: expected different arms, got two that are the same")
    for field, has in others.items():
        if has:
            raise ConfigError(f"{field}: not allowed with search, which judges several models by rounds")
    recipe = method.recipe
    if recipe.personalization.beside_evaluation:
        raise ConfigError(
            f"search: expected a method with one common model, {method.name} has models of each silo's own, "
            "and arms are judged by the common one"
        )
    if search.metric not in (known := judging_metrics(method.task)):
        raise ConfigError(f"search.metric: expected one of {', '.join(known)}, got {search.metric}")
    of_rounds = {
        name
        for field, part in recipe.parts.items()
        if field != "closing"
        for name in part.options.model_fields
    }
    for field in search.values:
        option = field.removeprefix(OPTION)
        if option != field and option in {*recipe.closing.options.model_fields} - of_rounds:
            raise ConfigError(
                f"search.values: {field} is read after the rounds alone, where no arm is judged any more"
            )
    rungs = len(search.live_by_rung())
    if search.rung * rungs >= rounds:
        raise ConfigError(
            f"rounds: expected more than {search.rung * rungs} with search, which takes {rungs} times "
            f"{search.rung} rounds (search.rounds), got {rounds}"
        )


def check_private_search(search: SearchSpec, privacy: PrivacySpec) -> None:
    """Raises ConfigError for a private job whose rounds judge no arm, or whose arms take other numbers of
    noised steps."""
    if privacy.has_shared_noise:
        raise ConfigError("search: not allowed with privacy.records.noise: sum, whose steps test no model")
    steps = [field for field in search.values if field in STEPS]
    if steps and privacy.records is not None:
        raise ConfigError(
            f"search.values: {steps[0]} is not allowed with privacy.records, where it decides what an arm "
            "costs: all arms must cost the same"
        )


def halving_of(search: SearchSpec, method: Strategy) -> Halving:
    return Halving(
        rounds=search.rung,
        metric=search.metric,
        is_lowest_best=search.best == "lowest",
        task=method.task,
    )


def _whole(rounds: object) -> int | None:
    """As the job's own field reads it; None for what is no whole number."""
    try:
        return TypeAdapter(int).validate_python(rounds)
    except ValueError:
        return None


def _read(search: object) -> SearchSpec | None:
    """What a file has there; None for nothing, and for what is no search."""
    try:
        return None if search is None else SearchSpec.model_validate(search)
    except ValueError:
        return None


def _is_known(field: str) -> bool:
    return field in FIELDS or field.startswith(OPTION)


def _path(field: str) -> list[str]:
    """An option's name may hold dots."""
    return field.split(".", 2 if field.startswith(OPTION) else 1)


def _found(values: object, path: list[str]) -> object:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _put(values: Mapping[Any, Any], path: list[str], value: float) -> dict[Any, Any]:
    first, *inner = path
    if not inner:
        return {**values, first: value}
    below = values.get(first)
    if below is not None and not isinstance(below, dict):
        return dict(values)  # no mapping: the job's own check says so
    return {**values, first: _put(below or {}, inner, value)}
