"""What happens to a job before it is sent: file read, code tried, noise solved for, first state made."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Generic

from chorale.pinned_code import pinned
from chorale.privacy.promise import promise_of
from chorale.privacy.solve import Spec, solve
from chorale.runtime.files import read_limited
from chorale.spec.fields import check_federation, check_not_over
from chorale.spec.first_state import SEED_ALONE
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec
from chorale.spec.model_file import RECALIBRATED, read_model
from chorale.spec.selection import draws, expected_cohort_changes, is_by_groups, redraws
from chorale.spec.settings_file import MAX_BYTES, check_values, parse_mapping
from chorale.spec.state import GlobalState, state_digest, state_from_bytes, state_to_bytes
from chorale.spec.training.class_rows import rows_in_words
from client.errors import about, require_extra, with_hint
from client.written import check_written
from crypto.errors import ConfigError, PolicyRefusal
from crypto.session.cohort import default_colluders, draw_risk
from strategies.base import MODEL
from strategies.expected import got

# not_after of a simulated job that names none: its digest must not change
NEVER = datetime(2100, 1, 1, tzinfo=UTC)
DEFAULT_LIFE = timedelta(days=30)  # not_after of a job file that names none
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission(Generic[Spec]):
    """A job that is complete but for its signature.

    state: its initial global state, file bytes. promised: lines that say what a private job promises.
    notes: lines that say what silos' policies must allow for it to run.
    """

    spec: Spec
    state: bytes
    promised: tuple[str, ...] = ()
    notes: tuple[str, ...]


def prepared(
    spec: JobSpec, *, source: str, federation: str | None, init: Path | None = None, now: datetime
) -> Submission[JobSpec]:
    """The job with its code's digests, its nonce, its noise and its initial state.

    source: the file, for errors. federation: the operator's; None: of any. init: a safetensors file with the
    starting weights; None draws them from the job. Raises ConfigError.
    """
    with about(source):
        check_basics(spec, federation=federation, now=now)  # before torch is loaded
        spec = with_code(spec)
    of_start = start_notes(spec, init)
    spec = spec.filled(nonce=spec.nonce or secrets.token_hex(16), initial_state=None)
    with about(source) if init is None else nullcontext():
        state = initial_bytes(spec, init, base=spec.base())
    complete, promised = solved(spec, state)
    if init is None and complete != spec:  # the first state follows from the noise, too
        state = initial_bytes(complete, None, base=complete.base())
    digest = state_digest(state)
    spec = complete.filled(nonce=complete.nonce, initial_state=digest)
    spec.check_submittable(now=now)
    given = (
        "--init: silos refuse a given initial state unless initial_state in their policy says given or "
        f"lists {digest.hex()}"
    )
    notes = [
        *draw_notes(spec),
        *rate_notes(spec),
        *of_start,
        *([] if init is None else [given]),
        *sums_notes(spec),
    ]
    return Submission(spec=spec, state=state, promised=tuple(promised), notes=tuple(notes))


def read_spec(file: Path, *, not_after: datetime | None = None, silos: Sequence[str] = ()) -> JobSpec:
    """The job file; not_after is filled in where it is left out, by default in 30 days. silos: in place of
    the file's, if there are any. Raises ConfigError."""
    values = parse_mapping(read_limited(file, MAX_BYTES), source=str(file))
    return spec_of(values, source=str(file), not_after=not_after, silos=silos)


def spec_of(
    values: Mapping[str, object], *, source: str, not_after: datetime | None = None, silos: Sequence[str] = ()
) -> JobSpec:
    """The same of a file's fields. source: what errors call them."""
    if "kind" in values:
        message = f"{source}: kind: expected a training, which has none, got {got(values['kind'])}"
        raise with_hint(ConfigError(message), "an analysis: chorale analysis submit")
    spec = check_values(JobSpec, filled_in(values, not_after=not_after, silos=silos), source=source)
    with about(source):
        check_written(values, spec)
    return spec


def filled_in(
    values: Mapping[str, object], *, not_after: datetime | None = None, silos: Sequence[str] = ()
) -> dict[str, object]:
    """A file's fields of any kind of job, as `read_spec` says."""
    filled = {"not_after": not_after or datetime.now(UTC).replace(microsecond=0) + DEFAULT_LIFE}
    return {**filled, **values, **({"silos": list(silos)} if silos else {})}


def check_basics(spec: AnySpec, *, federation: str | None, now: datetime) -> None:
    """Of any kind of job, as `prepared` says. Raises ConfigError."""
    if federation not in (None, spec.federation):
        expected = f"expected {federation}, as in the operator's settings"
        raise ConfigError(f"federation: {expected}, got {spec.federation}")
    check_federation(spec.name, len(spec.silos))
    check_not_over(spec.name, spec.not_after, now=now)


def with_code(spec: JobSpec) -> JobSpec:
    """The job with the digests of its distributions and what their code declares, tried out once here.

    Raises ConfigError where one is not installed here, or its code does not do what the job needs.
    """
    if not spec.distributions:
        return spec
    require_extra("silo", "torch", what=f"trying the code of {spec.distributions[0]} once")
    from silo_agent.training.plug_ins import checked

    return checked(pinned(spec))


def solved(spec: Spec, state: bytes) -> tuple[Spec, list[str]]:
    """The job with all its noise, and lines that say what it promises; none of one without privacy.

    Raises ConfigError where no noise meets the target, or the given noise does not.
    """
    if spec.privacy is None:
        return spec, []
    require_extra("privacy", "dp_accounting", what="computing what noise costs")
    shapes, unsolved = state_from_bytes(state), spec.privacy.unsolved
    spec = solve(spec, shapes)
    promise = promise_of(spec, shapes)
    solved_for = f" (solved for: {', '.join(unsolved)})" if unsolved else ""
    first, *others = promise.lines()
    return spec, [first + solved_for, *others]


def draw_notes(spec: JobSpec) -> list[str]:
    """What a draw of silos risks, and whether silos under the default policy refuse it; others may differ."""
    if not spec.draws_rounds:
        return []
    from silo_agent.disclosure.policy.policy import Policy

    silos, members = len(spec.silos), spec.named_per_round
    colluders = default_colluders(silos)
    risk = float(draw_risk(silos, members, colluders=colluders, draws=draws(spec)))
    notes = [
        f"fraction {spec.fraction:g}: if {colluders} of {silos} silos collude, a round names more than "
        f"{members // 3} of them with a chance of at most {risk:.2g} over the job"
    ]
    if not is_by_groups(spec) and spec.rounds >= silos and spec.privacy is None:
        notes.append(
            f"each of {spec.rounds} rounds draws a new set of silos: where the model moves slowly, their "
            "sums tell of single silos, and those of draw: groups do not"
        )
    try:
        Policy(federation=spec.federation).check_draw(spec)
    except PolicyRefusal as refusal:
        notes.append(f"silos with the default policy refuse this job: {refusal}")
    return notes


def rate_notes(spec: JobSpec) -> list[str]:
    """Where a learning rate was never seen to work; nothing where it is not known."""
    rates = spec.known_rates
    if rates is None or spec.rounds == 0:
        return []
    found = dict.fromkeys(each.learning_rate_at(1) for each in spec.arms or (spec,))
    return [
        f"training.learning_rate {rate:g}: {spec.strategy.name} was seen to learn at {rates.least:g} to "
        f"{rates.most:g} alone; its own rate is {rates.default:g}"
        for rate in found
        if not rates.least <= rate <= rates.most
    ]


def start_notes(spec: JobSpec, init: Path | None) -> list[str]:
    """What the weights of a job without given ones are."""
    if init is not None or spec.initial_state is not None:
        return []
    if spec.model.source is not None:
        return [
            f"model {spec.model.name} of {spec.model.source}: the values that its code gives its weights are "
            "not used: silos draw the first weights from the job; --init gives others"
        ]
    if spec.trains != "head":
        return []
    return [
        "trains head: without --init the head is trained on features of random weights, which stay as they "
        "are drawn"
    ]


def sums_notes(spec: JobSpec) -> list[str]:
    """What silos' policies refuse by default and this job asks for: sums by class, overlapping cohorts; and
    which class rows they send."""
    notes = []
    by_class = [
        word
        for word, metric in spec.method.task.asked.items()
        if any(each.is_by_class for each in metric.sums)
    ]
    bare = [f"task.metrics: {', '.join(by_class)} are summed by class"] if by_class else []
    if spec.computes_columns:
        computed = [each.name for each in spec.inputs if "computed" in (each.standardize, each.rare)]
        bare.append(f"columns: values of {len(computed)} computed ones, such as {computed[0]}, are summed")
    if spec.privacy is None:
        allowed = "silos refuse the job unless class_statistics in their policy says allow"
        notes += [f"{what} without noise: {allowed}" for what in bare]
    if spec.subgroups is not None:
        notes.append("subgroups: silos refuse the job unless analyses.exact in their policy says allow")
    statistic = spec.method.recipe.statistic
    if statistic is not None and spec.privacy is None and redraws(spec):
        notes.append(
            f"statistic {statistic}: is summed without noise over a new set of silos in each round: silos "
            "refuse the job unless drawn_rounds in their policy says with_statistics, or the job draw: groups"
        )
    if rows := rows_in_words(spec):
        notes.append(f"class rows: {rows}")
    cohort_changes = expected_cohort_changes(spec)
    if cohort_changes > 0:  # with fraction < 1 cohorts differ from round to round
        notes.append(
            f"fraction {spec.fraction:g}: at most {cohort_changes:.3g} overlapping cohorts are expected; "
            "each silo's policy must allow as many (max_cohort_changes)"
        )
    return notes


def absent_notes(spec: AnySpec, connected: Mapping[str, bool]) -> list[str]:
    """A job may wait for members to come; a misspelled one never comes."""
    unknown = [name for name in spec.silos if name not in connected]
    away = [name for name in spec.silos if not connected.get(name, True)]
    notes = []
    if unknown:
        notes.append(f"not on the roster, so not in the job until they are: {', '.join(unknown)}")
    if away:
        notes.append(f"not connected now, the job waits for them: {', '.join(away)}")
    return notes


def initial_bytes(spec: JobSpec, init: Path | None, *, base: bytes = SEED_ALONE) -> bytes:
    """The initial global state as file bytes: the operator's file, or drawn from the job as
    silo_agent/training/models/starting.py does. Raises ConfigError."""
    if init is not None:
        return state_to_bytes(_given(spec, init, base))
    if spec.rounds == 0:
        missing = ConfigError("rounds: 0 evaluates a given model, and none is given")
        raise with_hint(missing, "give it: --init FILE.safetensors")
    if not spec.model.is_built_in:
        message = f"model.name: nothing is drawn for a model that is not built in, got {spec.model.name}"
        raise with_hint(ConfigError(message), "give its starting weights: --init FILE.safetensors")
    from silo_agent.training.models.starting import initial_state, is_declared

    if not is_declared(spec):
        try:
            require_extra("silo", "torch", what="building the model here")
        except ConfigError as error:
            raise with_hint(error, "give --init FILE.safetensors") from None
    return state_to_bytes(initial_state(spec, base=base))


def _given(spec: JobSpec, init: Path, base: bytes) -> GlobalState:
    """A file of ours, whose arrays are named model/..., or a plain state_dict of the author's module."""
    if init.suffix in PICKLES:
        raise with_hint(
            ConfigError(f"{init}: {init.suffix} files can run code when they are read; expected safetensors"),
            f"python -c 'import torch, safetensors.torch as s; s.save_file({{k: v.contiguous() for k, v in "
            f'torch.load("{init}", weights_only=True).items()}}, "{init.with_suffix(".safetensors")}")\'',
        )
    given, facts = read_model(init)
    if RECALIBRATED in facts:
        raise ConfigError(f"{init}: it is recalibrated, which no job knows; expected the file before")
    if any(name.startswith(MODEL) for name in given):
        _check_model(spec, given, source=init)
        # what the job that made the file summed besides stays behind: a job begins with a model alone
        return {name: array for name, array in given.items() if name.startswith(MODEL)}
    if not spec.model.is_built_in:
        raise ConfigError(f"{init}: the arrays of a custom model are named {MODEL}..., got {min(given)}")
    require_extra("silo", "torch", what="a plain state_dict, whose names are compared with the model's,")
    from silo_agent.training.models.plain import given_state

    return given_state(spec, given, base=base, source=str(init))


def _check_model(spec: JobSpec, given: GlobalState, *, source: Path) -> None:
    """A file of another model is refused here and not by every silo; of a network that is not Chorale's,
    where torch is installed."""
    from silo_agent.training.models.starting import is_declared, model_shapes

    if not spec.model.is_built_in or not (is_declared(spec) or find_spec("torch")):
        return
    expected = model_shapes(spec)
    got = {name: array.shape for name, array in given.items() if name.startswith("model/")}
    odd = sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name))
    if odd:
        name = odd[0]
        raise ConfigError(
            f"{source}: {name}: model {spec.model.name} of this job expects "
            f"{expected.get(name, 'no such array')}, got {got.get(name, 'none')}"
        )
