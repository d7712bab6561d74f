"""What the coordinator reported of a job so far, and the figures that follow from it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from chorale.job import SignedJob
from chorale.results import APPLIED, finite
from chorale.spec.job_spec import JobSpec
from chorale.spec.selection import MAX_ROUNDS
from chorale.spec.settings_file import parse_mapping
from chorale.v1.operations_pb2 import JobEvent, ListSilosReply
from chorale.v1.records_pb2 import JobSummary, LeftOut, PhaseRecord
from client.errors import JobNotDone, printable
from crypto.errors import BudgetExhausted, ConfigError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.session.cohort import drawn_count
from strategies.figure import Figure, figure_in, parts_of
from strategies.parts.closing.fine_tuning import FINE_TUNE
from strategies.phases.arms import ARM, MAX_ARMS, OF_ARM, WINNER
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL
from strategies.phases.training import TRAIN

ACCURACY, TESTED = "accuracy", "tested"
MAX_RECORDS = 10 * MAX_ROUNDS  # of a job whose text this release does not read, or that is not known yet
MAX_RECORDS_BYTES = 64 << 20  # as much as the statement of a job's evidence may have, which says the same

# why a silo was left out, and at which stage, for people; programs read the codes (docs/protocol.md 9)
REASON_WORDS = {
    "disconnected": "connection lost",
    "no-answer": "no answer in time",
    "sits-out": "not asked, after a complaint",
    "lied": "sent false shares",
    "complained": "complained of another silo",
    Refusal.JOB_INVALID: "holds the job invalid",
    Refusal.JOB_NOT_APPROVED: "no approval yet",
    Refusal.REJECTED: "rejected",
    Refusal.SETTINGS: "settings that wait for its institution",
    Refusal.POLICY: "refused by its policy",
    Refusal.BUDGET: "privacy budget used up",
    Refusal.LEDGER: "its ledger was put back from a backup",
    Refusal.DATA: "data do not fit the job",
    Refusal.CONFIGURATION: "its data settings are wrong, or its memory too small",
    Refusal.CODE: "other code than the job's",
    Refusal.ROSTER: "another roster",
    Refusal.NOT_NAMED: "not one of the job's silos",
    Refusal.NOT_ENROLLED: "not enrolled in the job yet",
    Refusal.TERMS: "other terms than it computed itself",
    Refusal.STATE: "global state does not follow from the last sum",
    Refusal.LATER_STATE: "knows a later state of the job",
    Refusal.COHORT_TOO_SMALL: "too few silos for its policy",
    Refusal.LEFT_OUT: "not in the sum",
    Refusal.ADVERT: "another silo's first message does not hold",
    Refusal.ENVELOPE: "another silo's shares do not hold",
    Refusal.SIGNATURES: "signatures of other silos do not hold",
    Refusal.ALREADY_REVEALED: "revealed this sum before",
    Refusal.OVERLAPPING_COHORT: "too much the same silos as in another sum",
    Refusal.SUM: "the sum fails its check",
    Refusal.STATE_USED_UP: "takes no further sum over this state",
    Refusal.STAGE: "message out of turn",
    Refusal.MALFORMED: "malformed message",
    Refusal.INTERNAL: "a fault of its own: its log says which",
}
CUT_SHORT = ("refused", "budget")  # refusals that end a phase while other silos still have time to answer
STAGE_WORDS = {  # while silos are waited for, the reason says it all
    "waiting": "",
    "advertise": "as keys were exchanged",
    "share": "as shares were exchanged",
    "masked": "during its upload",
    "consistency": "as silos signed who is in the sum",
    "unmask": "as masks were taken off",
}


@dataclass(slots=True)
class JobHistory:
    """What the coordinator reported of one job so far. signed: the job, as its operator signed it."""

    signed: SignedJob | None = None
    summary: JobSummary = field(default_factory=JobSummary)
    records: list[PhaseRecord] = field(default_factory=list)
    _known: set[tuple[int, str]] = field(init=False, repr=False)
    _draws: tuple[SignedJob | None, bool] = field(init=False, repr=False, default=(None, False))
    _taken: list[int] = field(init=False, repr=False)  # rounds whose training was applied, in order
    _bytes: int = field(init=False, repr=False, default=0)
    _most: int = field(init=False, repr=False, default=MAX_RECORDS)

    def __post_init__(self) -> None:
        self._known = {(record.round, record.phase) for record in self.records}
        self._taken = sorted(each.round for each in self.of_kind(TRAIN) if each.result == APPLIED)

    def add(self, event: JobEvent) -> PhaseRecord | None:
        """Take in one event; the record, if it was one that is not known yet.

        Raises RemoteProtocolError for a round that no job has, because figures stand by round, and for more
        phases than the signed job can have, or more bytes: readers keep all of them.
        """
        kind = event.WhichOneof("kind")
        if kind == "job":
            self.signed = SignedJob.from_wire(event.job)
            self._most = _most_records(self.signed.spec_bytes)
        if kind == "summary":
            self.summary = event.summary
        if kind != "record":
            return None
        new = event.record
        if (new.round, new.phase) in self._known:
            return None
        if new.round > MAX_ROUNDS:
            raise RemoteProtocolError(f"coordinator: round {new.round}: a job has at most {MAX_ROUNDS}")
        self._bytes += new.ByteSize()
        if len(self._known) >= self._most or self._bytes > MAX_RECORDS_BYTES:
            raise RemoteProtocolError(
                f"coordinator: it tells of more than the {self._most} phases that this job can have, or of "
                f"more than {MAX_RECORDS_BYTES} bytes"
            )
        self._known.add((new.round, new.phase))
        self.records.append(new)
        if kind_of(new) == TRAIN and new.result == APPLIED:
            insort(self._taken, new.round)
        return new

    def of_kind(self, kind: str) -> list[PhaseRecord]:
        return [record for record in self.records if kind_of(record) == kind]

    def title(self, record: PhaseRecord) -> str:
        """Of a phase: `round 3/10`, or `step 3 of 50` in a job of steps; outside rounds its kind."""
        if kind_of(record) != TRAIN:
            return kind_of(record)
        if not self.summary.steps:
            return f"round {record.round}/{self.summary.rounds}"
        return f"step {bisect_left(self._taken, record.round) + 1} of {self.summary.steps}"

    @property
    def main(self) -> str:
        """The figure that the job's task tells first."""
        return self.summary.main_figure or ACCURACY

    @property
    def draws_rounds(self) -> bool:
        """Whether a round trains, and tests the model it starts from, at drawn silos alone."""
        if self.signed is not None and self._draws[0] is not self.signed:
            self._draws = self.signed, _draws_rounds(self.signed)
        return self._draws[1]

    def closing(self, figure: str) -> Figure | None:
        """A figure of the last model, from the closing evaluation: accuracy, or how many samples it tested.
        None if there was none."""
        closing = [record for record in self.of_kind(EVALUATE) if record.result == APPLIED]
        return figure_in(closing[-1].figures, figure) if closing else None

    @property
    def searched(self) -> str:
        """Which arm of a search is left; "" before that, and in a job without one."""
        spec = None if self.signed is None else _readable(self.signed.spec_bytes)
        if spec is None or spec.search is None:
            return ""
        winners = [
            each
            for record in self.of_kind(TRAIN)
            if (each := arm_in(record.figures, WINNER, spec)) is not None
        ]
        return spec.search.winner_in_words(winners[-1]) if winners else ""

    def arm_after(self, round: int, spec: JobSpec) -> int | None:
        """Of a search, whose model stood first after the round; None without one."""
        if not spec.arms:
            return None
        records = [record for record in self.of_kind(TRAIN) if record.result == APPLIED]
        next_ones = [arm_in(each.figures, ARM, spec) for each in records if each.round > round]
        last_ones = [arm_in(each.figures, name, spec) for each in records[-1:] for name in (WINNER, ARM)]
        return next((arm for arm in (*next_ones, *last_ones) if arm is not None), 0)

    @property
    def last_model_round(self) -> int:
        """The last round that moved the model: the closing evaluation is of the model after it."""
        return self._taken[-1] if self._taken else 0


def arm_in(figures: Mapping[str, float], name: str, spec: JobSpec) -> int | None:
    """An arm by a figure, which a coordinator may make up."""
    found = figures.get(name)
    return int(found) if found is not None and found in range(len(spec.arms)) else None


def _readable(spec_bytes: bytes) -> JobSpec | None:
    """None for an analysis, and for a job of another release, whose text this one does not read."""
    try:
        return JobSpec.from_yaml(spec_bytes, source="job")
    except ConfigError:
        return None


def _most_records(spec_bytes: bytes) -> int:
    """How many phases a job can come to: each kind of them, as often as it may be tried, in each round."""
    spec = _readable(spec_bytes)
    if spec is None:
        return MAX_RECORDS
    return min(MAX_RECORDS, len(spec.method.phases) * spec.max_attempts * (spec.rounds + 1))


def reason_in_words(left: LeftOut) -> str:
    """Why a silo was left out, by code: `policy: max_rounds`, `rejected: "not before May"`, `no-answer`."""
    return printable(": ".join([left.reason, *_details(left)]))


def left_out_in_words(left: LeftOut, record: PhaseRecord) -> str:
    """The same in words, and at which stage: `connection lost during its upload`.

    record: of the phase, whose end says whether a silo without an answer had its time.
    """
    if (left.reason, left.stage) == ("no-answer", "waiting") and record.reason in CUT_SHORT:
        return "no answer yet"
    reason, stage = REASON_WORDS.get(left.reason, left.reason), STAGE_WORDS.get(left.stage, left.stage)
    return printable(" ".join(filter(None, [": ".join([reason, *_details(left)]), stage])))


def _details(left: LeftOut) -> list[str]:
    """The policy field that refused, or what a person typed."""
    return [*([left.rule] if left.rule else []), *([f'"{left.text}"'] if left.text else [])]


def state_in_words(summary: JobSummary) -> str:
    """What a job waits for and at whom, or how it ended; its status, of a coordinator that says no more."""
    return printable(summary.state or summary.status)


def summary_facts(summary: JobSummary) -> dict[str, Any]:
    """A job as `--json` has it. awaited: by silo, what the job waits for there."""
    return {
        "job": summary.job_digest.hex(),
        "name": summary.name,
        "operator": summary.operator,
        "strategy": summary.strategy,
        "status": summary.status,
        "state": summary.state or summary.status,
        "awaited": {each.silo: each.why for each in summary.awaited},
        "progress": summary.progress,
        "reason": summary.reason,
        "silos": list(summary.silos),
        "rounds": summary.rounds,
        "steps": summary.steps or None,
        "rounds_completed": summary.rounds_completed,
        "model_round": summary.model_round,
        "kept": summary.kept or None,
        "main_figure": summary.main_figure,
        "float32_bytes": summary.float32_bytes,
        "submitted_unix_seconds": summary.submitted_unix_seconds,
    }


def silo_facts(reply: ListSilosReply) -> dict[str, Any]:
    """The federation as `--json` has it. Raises RemoteProtocolError for a date that is none."""
    return {
        "roster_version": reply.roster_version,
        "software": _software(reply.software_version, reply.software_digest),
        "silos": [
            {
                "name": silo.name,
                "connected": silo.connected,
                "two_agents": silo.two_agents,
                "certificate": silo.certificate_sha256.hex(),
                "expires": _date(silo.certificate_expires_unix_seconds) if silo.connected else None,
                "software": _software(silo.software_version, silo.software_digest)
                if silo.connected
                else None,
            }
            for silo in reply.silos
        ],
    }


def _date(unix_seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        raise RemoteProtocolError(f"coordinator: expected a date, got {unix_seconds}") from None


def _software(version: str, digest: bytes) -> str:
    """What others wrote of themselves, as a part of a line."""
    word = version[:64] if version.isascii() and version.isprintable() else "?"
    return f"{word}, sha256:{digest.hex()[:64] or 'none'}"


def phase_facts(record: PhaseRecord, *, title: str) -> dict[str, Any]:
    """A phase as `--json`, report.json and the pages have it. title: of JobHistory, for people."""
    return {
        "title": title if kind_of(record) == TRAIN else record.phase,
        "round": record.round,
        "phase": record.phase,
        "result": record.result,
        "reason": record.reason,
        "attempts": record.attempts,
        "cohort": list(record.cohort),
        "left_out": left_out_facts(record),
        "data_share": finite(record.data_share),
        "figures": {name: finite(value) for name, value in sorted(record.figures.items())},
        "wall_seconds": finite(record.wall_seconds),
        "approval_seconds": finite(record.approval_seconds),
        "upload_bytes": record.upload_bytes,
        "verified_by": record.verified_by,
        "threshold": record.threshold,
        "state_digest": record.state_digest.hex(),
    }


def left_out_facts(record: PhaseRecord) -> list[dict[str, Any]]:
    """words: for people. rule: policy field that refused. text: what a person who rejected the job typed.
    Both are absent without one."""
    return [
        {
            "round": record.round,
            "silo": left.silo,
            "stage": left.stage,
            "reason": left.reason,
            "words": left_out_in_words(left, record),
            **({"rule": left.rule} if left.rule else {}),
            **({"text": left.text} if left.text else {}),
        }
        for left in record.left_out
    ]


def _draws_rounds(signed: SignedJob) -> bool:
    """Also of a job that this release does not read as a whole."""
    try:
        said = parse_mapping(signed.spec_bytes, source="job")
    except ConfigError:
        return False
    fraction, silos = said.get("fraction", 1.0), said.get("silos", ())
    is_read = isinstance(fraction, int | float) and 0 < fraction < 1 and isinstance(silos, list)
    return is_read and drawn_count(len(silos), fraction) < len(silos)


def kind_of(record: PhaseRecord) -> str:
    return record.phase.partition(".")[0]


def curves_facts(history: JobHistory) -> dict[str, list[dict[str, Any]]]:
    """Curves over the rounds so far, as report.json has them: the main figure, loss and what stands behind
    each point. round: after which a model was the present one; a round tests the model that it starts from.

    drawn_silos: over the hold-outs of each round's silos, in a job that draws them; all_silos: over those of
    all silos that were there. Both are of one model, and never one curve. arms: of a search, those that were
    left in a round, by their number.
    """
    in_rounds, outside = list[dict[str, Any]](), list[dict[str, Any]]()
    last = max((record.round for record in history.of_kind(TRAIN)), default=0)
    for record in history.records:
        kind = kind_of(record)
        if record.result != APPLIED or not {*record.figures} & {history.main, ACCURACY, TESTED}:
            continue
        if kind == TRAIN:
            in_rounds.append(_point(history, record, record.round - 1, share=record.data_share))
        elif kind in (
            EVALUATE_ALL,
            EVALUATE,
        ):  # the closing one is of the last, also where rounds ended early
            outside.append(_point(history, record, record.round if kind == EVALUATE_ALL else last))
    arms = list(_arms(history))
    if history.draws_rounds:
        return {"drawn_silos": in_rounds, "all_silos": outside, "arms": arms}
    joined = sorted([*in_rounds, *outside], key=lambda each: each["round"])
    return {"drawn_silos": [], "all_silos": joined, "arms": arms}


def _point(
    history: JobHistory, record: PhaseRecord, after: int, *, share: float | None = None
) -> dict[str, Any]:
    """share: of all training samples, what these silos hold; None where the sum does not tell it."""
    names = dict.fromkeys((history.main, ACCURACY, "loss", TESTED))
    parts = {part for name in names for part in parts_of(name)}
    return {  # its own keys last: the main figure's name is the coordinator's word
        **dict.fromkeys(names),
        **{part: finite(value) for part, value in record.figures.items() if part in parts},
        "round": after,
        "silos": len(record.cohort),
        "data_share": finite(share),
    }


def _arms(history: JobHistory) -> Iterator[dict[str, Any]]:
    """Each round tests the arms that it starts from."""
    for record in history.of_kind(TRAIN):
        for arm in range(MAX_ARMS if record.result == APPLIED else 0):
            names = {name: f"{name}{OF_ARM}{arm}" for name in (history.main, "loss")}
            if any(name in record.figures for name in names.values()):
                figures = {plain: finite(record.figures.get(name)) for plain, name in names.items()}
                yield {**figures, "round": record.round - 1, ARM: arm}


def figure_by_round(history: JobHistory, figure: str) -> list[Figure | None]:
    """Entry i is that figure of the model after round i + 1; None where no sum measured it.

    A round's sum tests the model it started from, so round r measures the model after r - 1. In a job that
    draws its rounds all of them but the last are over drawn silos: `curves` keeps the two apart.
    """
    trained = history.of_kind(TRAIN)
    measured = {record.round - 1: figure_in(record.figures, figure) for record in trained}
    if not history.draws_rounds:
        between = history.of_kind(EVALUATE_ALL)
        measured |= {record.round: figure_in(record.figures, figure) for record in between}
    last = max((record.round for record in trained), default=0)
    for record in history.of_kind(EVALUATE):  # of the last one, also where rounds ended early
        measured[last] = figure_in(record.figures, figure)
    return [measured.get(round) for round in range(1, last + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalFigures:
    """Of the silos' own models on their own hold-outs: mean and standard deviation over those silos that have
    one, and how many these are. Every silo weighs the same."""

    accuracy: float
    deviation: float
    silos: int

    def __str__(self) -> str:
        return f"{self.accuracy:.4f} +- {self.deviation:.4f} over {self.silos} silos"


def score_word(main: str) -> str:
    """What the silos' own models are told by: accuracy, or the score from 0 to 1 of another task."""
    return ACCURACY if main == ACCURACY else "score"


def personal_figures(history: JobHistory) -> PersonalFigures | None:
    """None where the method has no personal models, or no silo a hold-out to test its own on."""
    closing = [record for record in history.records if kind_of(record) in (EVALUATE, FINE_TUNE)]
    found = [personal_of(record.figures) for record in closing if record.result == APPLIED]
    return next((figures for figures in reversed(found) if figures is not None), None)


def personal_of(figures: Mapping[str, float | None]) -> PersonalFigures | None:
    """Of one phase, or one round of a simulation; None where its sums have none."""
    accuracy, deviation = figures.get("personal_accuracy"), figures.get("personal_accuracy_deviation")
    silos = figures.get("personal_silos")
    if accuracy is None or deviation is None or silos is None:
        return None
    return PersonalFigures(accuracy=accuracy, deviation=deviation, silos=round(silos))


def counted(summary: JobSummary) -> str:
    """How far a job came: `3/10 rounds`, or `3/50 steps`."""
    total, word = (summary.steps, "steps") if summary.steps else (summary.rounds, "rounds")
    return f"{summary.rounds_completed}/{total} {word}"


def check_done(history: JobHistory) -> None:
    """Raises PolicyRefusal, BudgetExhausted or JobNotDone for a job that did not reach its end."""
    summary = history.summary
    if summary.status == "done":
        return
    parts = [printable(summary.status or "unknown"), printable(summary.reason)]
    message = f"job {summary.job_digest.hex()[:12]}: {': '.join(filter(None, parts))}"
    last = history.records[-1:]  # the phase that ended it, unless it was applied
    codes = {left.reason for record in last if record.result != APPLIED for left in record.left_out}
    if Refusal.BUDGET in codes:
        raise BudgetExhausted(message)
    if codes & {Refusal.POLICY, Refusal.REJECTED}:
        raise PolicyRefusal(message)
    raise JobNotDone(message)
