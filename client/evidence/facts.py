"""The facts of an archive: declared once, and shown by terminal, README.md, facts.json and console page.

They follow from the signed job, its arrays' shapes and what silos signed, for maker and reader alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from chorale.evidence import CoordinatorStatement, read_document
from chorale.job import Job
from chorale.privacy.job_releases import planned_phases
from chorale.privacy.promise import promise_of
from chorale.privacy.quantity_noise import noised
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec, any_context
from chorale.spec.selection import draws
from chorale.spec.state import GlobalState
from client.evidence.phases import Chain, PhaseProof, shapes_of
from crypto.errors import EvidenceMismatch
from crypto.fixed_point.layout import Quantity
from crypto.session.cohort import MAX_DRAW_RISK, draw_risk

RELATIVE = 1e-6  # of two computations of one number on different machines
EPSILON = "Epsilon planned"
Rows = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that an archive says and that is not there word by word in a signed file.

    colluders: a third of the silos that the job names: what its phases have to withstand. draw_colluders: so
    many of them that a drawn round names more than a third of its own with a chance of MAX_DRAW_RISK at most;
    None without drawn rounds.
    missing: silos of the job that a phase's roster lacks, each with those phases.
    """

    job: str
    name: str
    federation: str
    purpose: str | None
    reference: str | None
    operator: str
    method: str
    model_name: str
    task: str
    silos: tuple[str, ...]
    rounds: int
    colluders: int
    draw_colluders: int | None
    phases: tuple[PhaseProof, ...]
    weakest: PhaseProof | None
    missing: Mapping[str, tuple[str, ...]]
    states_signed_by_silos: int
    least_silos_in_a_sum: int
    model_sha256: str
    model_round: int
    model_numbers: int
    first_state_sha256: str
    epsilon: Mapping[str, Any] | None
    quantities: Mapping[str, Any]

    @property
    def result(self) -> str:
        """How far the archive proves anything, in a sentence."""
        weakest, bears = f"the weakest phase is {self._weakest_told()}", self.draw_colluders
        if bears is None or bears >= self.colluders:
            return weakest
        return f"{weakest}; drawn rounds withstand {bears} of the job's silos, not a third, {self.colluders}"

    @property
    def unproved(self) -> tuple[PhaseProof, ...]:
        return tuple(each for each in self.phases if each.is_unproved)

    def rows(self) -> Rows:
        """What terminal, README.md and page show of all phases together, as name and sentence."""
        unsigned = [each.title for each in self.phases if not each.signers]
        rows = [
            ("Missing silos", self._missing_told()),
            ("Weakest phase", self._weakest_told()),
            ("Job", f"{self.job[:12]} {self.name} by {self.operator}, federation {self.federation}"),
            ("Purpose", _quoted(self.purpose)),
            ("Reference", _quoted(self.reference)),
            ("Phases", f"{len(self.phases)}, in order and without a gap"),
            ("States signed by silos", f"{self.states_signed_by_silos}"),
            ("Signed by nobody", ", ".join(unsigned) or "none"),
            ("Model", f"after round {self.model_round}, SHA-256 {self.model_sha256}"),
            (EPSILON, self.epsilon_told()),
        ]
        if self.draw_colluders is not None:
            rows.insert(2, ("Drawn rounds", self._draw_told(self.draw_colluders)))
        if self.unproved:
            rows.insert(0, ("Unproved", ", ".join(each.title for each in self.unproved)))
        return rows

    def phase_rows(self) -> Rows:
        """Each phase with its own numbers."""
        return [(each.title, in_words(each, len(self.silos))) for each in self.phases]

    def _weakest_told(self) -> str:
        if self.weakest is None:
            return "none: silos signed no phase"
        return f"{self.weakest.title}: {in_words(self.weakest, len(self.silos))}"

    def _missing_told(self) -> str:
        if not self.missing:
            return f"none: all {len(self.silos)} silos of the job are on the roster of every phase"
        each = (f"{name} from the roster of {_span(titles)}" for name, titles in self.missing.items())
        return f"{'; '.join(each)}. Under a roster with them a phase may have ended otherwise"

    def _draw_told(self, bears: int) -> str:
        return (
            f"each withstands the number beside it for certain, and {bears} of the job's {len(self.silos)} "
            f"silos but for a chance of at most {float(MAX_DRAW_RISK):g}, of all rounds together; of more "
            "that lie together one round may name too many, and its state is then what they like"
        )

    def epsilon_told(self) -> str:
        """What noise promises, in a sentence."""
        epsilon = self.epsilon
        if epsilon is None:
            return "none: the sums may show single records, and no epsilon bounds what they tell"
        collude = epsilon["if_all_other_silos_collude"]
        worst = "nothing is promised" if collude is None else f"epsilon {collude:.4g}"
        return (
            f"{epsilon['planned']:.4g} at delta {epsilon['delta']:g} for each {epsilon['for_each']}, against "
            f"the coordinator and {epsilon['against_the_coordinator_and_silos']} silos; if all other silos "
            f"collude: {worst}"
        )


def _quoted(text: str | None) -> str:
    return "none" if text is None else json.dumps(text, ensure_ascii=False)


def in_words(phase: PhaseProof, silos: int) -> str:
    """One phase, in a sentence. silos: of the job."""
    roster = f"under roster {phase.roster_version}"
    if not phase.signers:
        return f"signed by nobody, {phase.named} silos named {roster}"
    verdict = "unproved: " if phase.is_unproved else ""
    silent = f" (not {', '.join(phase.silent)})" if phase.silent else ""
    missing = f", without {', '.join(phase.missing)} of the job" if phase.missing else ""
    return (
        f"{verdict}{len(phase.signers)} of {phase.named} named silos signed{silent} {roster}{missing}: "
        f"withstands {phase.withstands} colluders of the job's {silos} silos, {phase.required} needed"
    )


def facts_of(job: Job, statement: CoordinatorStatement, chain: Chain) -> Facts:
    """The coordinator's statement gives arrays' shapes, the total of samples and which model is meant."""
    spec, shapes = job.spec, shapes_of(statement.arrays, statement.phases)
    silos, signed = len(spec.silos), [each for each in chain.phases if each.signers]
    return Facts(
        job=job.digest.hex(),
        name=spec.name,
        federation=spec.federation,
        purpose=spec.purpose,
        reference=spec.reference,
        operator=job.operator,
        method=job.strategy.name,
        model_name=_model_name(spec),
        task=_task_name(spec),
        silos=spec.silos,
        rounds=spec.rounds,
        colluders=silos // 3,
        draw_colluders=_draw_colluders(job, chain),
        phases=chain.phases,
        weakest=min(signed, key=_strength, default=None),
        missing={
            name: tuple(each.title for each in chain.phases if name in each.missing)
            for name in spec.silos
            if any(name in each.missing for each in chain.phases)
        },
        states_signed_by_silos=len(signed),
        least_silos_in_a_sum=min((each.summed for each in signed), default=0),
        model_sha256=statement.model,
        model_round=statement.model_round,
        model_numbers=sum(array.size for name, array in shapes.items() if name.startswith("model/")),
        first_state_sha256=str(spec.initial_state),
        epsilon=_epsilon(job, shapes),
        quantities={
            kind: {
                "times": times,
                "silos": silos,
                "summed": [_quantity_facts(each, silos) for each in _quantities(job, kind, shapes, silos)],
            }
            for kind, silos, times in planned_phases(spec)
        },
    )


def _model_name(spec: AnySpec) -> str:
    """ "" of an analysis, which has none."""
    return spec.model.name if isinstance(spec, JobSpec) else ""


def _task_name(spec: AnySpec) -> str:
    if isinstance(spec, JobSpec):
        return "classification" if spec.task is None else spec.task.name
    return spec.kind


def document_of(facts: Facts) -> dict[str, Any]:
    """facts.json."""
    return dict(json.loads(json.dumps(asdict(facts))))


def _strength(phase: PhaseProof) -> tuple[int, int]:
    return phase.withstands - phase.required, phase.withstands


def _draw_colluders(job: Job, chain: Chain) -> int | None:
    """Of draws from the smallest roster; each round could be drawn under any version of those that there were
    meanwhile, and coordinator and colluders choose which one is shown."""
    spec = job.spec
    if not spec.draws_rounds:
        return None
    silos = len(spec.silos) - max((len(each.missing) for each in chain.phases), default=0)
    drawn = min(spec.named_per_round, silos)
    versions = [each.roster_version for each in chain.phases]
    choices = draws(spec) * (1 + max(versions, default=0) - min(versions, default=0))
    return next(
        bears
        for bears in range(len(spec.silos) // 3, -1, -1)
        if draw_risk(silos, drawn, colluders=bears, draws=choices) <= MAX_DRAW_RISK
    )


def _span(titles: Sequence[str]) -> str:
    return titles[0] if len(titles) == 1 else f"{titles[0]} to {titles[-1]} ({len(titles)} phases)"


def check_facts(document: bytes, expected: Facts) -> Facts:
    """The facts as they stand in the archive, which may differ from ours in the last digits of a number.

    Raises EvidenceMismatch that names the first field that differs.
    """
    found = read_document(document)
    _compare(found, document_of(expected), ())
    return replace(expected, **{name: found[name] for name in ("epsilon", "quantities")})


def _compare(found: Any, expected: Any, place: tuple[str, ...]) -> None:
    where = ": ".join(place)
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in sorted(expected.keys() | found.keys()):
            if (name in expected) != (name in found):
                raise EvidenceMismatch(
                    f"{': '.join((*place, name))}: it is missing, or does not belong there"
                )
            _compare(found[name], expected[name], (*place, name))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(found, expected, strict=True), start=1):
            _compare(one, other, (*place, str(number)))
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(found, expected, rel_tol=RELATIVE):
            raise EvidenceMismatch(f"{where}: the signed job gives {expected:.6g}, it says {found:.6g}")
    elif type(found) is not type(expected) or found != expected:
        gives, says = (json.dumps(each)[:80] for each in (expected, found))
        raise EvidenceMismatch(f"{where}: the signed job gives {gives}, it says {says}")


def _epsilon(job: Job, shapes: GlobalState) -> dict[str, Any] | None:
    """What the plan of a private job costs; None where nothing bounds what its sums tell."""
    if job.spec.privacy is None:
        return None
    promise = promise_of(job.spec, shapes)
    collude = promise.epsilon_if_all_others_collude
    return {
        "planned": promise.epsilon,
        "delta": promise.delta,
        "for_each": promise.unit,
        "against_the_coordinator_and_silos": promise.colluders,
        "if_all_other_silos_collude": None if math.isinf(collude) else collude,
        "updates_for_each_silo": promise.epsilon_updates_per_silo,
        "statistics_for_each_record": promise.epsilon_statistics_per_record,
        "noise_multipliers": dict(promise.multipliers),
    }


def _quantities(job: Job, kind: str, shapes: GlobalState, members: int) -> tuple[Quantity, ...]:
    context = any_context(job.spec, 1, shapes, members)
    return noised(job.strategy.phase(kind).quantities(context), job.spec, members)


def _quantity_facts(quantity: Quantity, members: int) -> dict[str, Any]:
    noise = quantity.noise
    return {
        "name": quantity.name,
        "numbers": quantity.size,
        "bound_of_each": float(quantity.bound),
        "bits_of_each": quantity.ring_bits,
        "what_it_tells": quantity.discloses.value,
        "most_one_record_moves_it": quantity.sensitivity_l2,
        "noise_deviation": None
        if noise is None
        else float(math.sqrt(members * noise.variance) / noise.scale),
        "checked_by_silos": quantity.is_tagged,
    }
