"""A signed job, and the terms of a session as coordinator and silo each compute them from it.

Source: docs/protocol.md 3, 5.1 and 7.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Self

import numpy as np

from chorale.privacy.quantity_noise import noise_deviations, noised
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec, any_context, signed_spec
from chorale.spec.selection import is_by_groups, is_evaluated_after, tests_in
from chorale.spec.settings_file import MAX_BYTES
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey, phase_kind, phase_number, signed_body_from_wire
from chorale.v1 import federation_pb2, session_pb2
from crypto import encoding
from crypto.errors import ConfigError, LocalProtocolError, Refusal, RemoteProtocolError
from crypto.fixed_point.layout import Layout
from crypto.fixed_point.plausible import ImplausibleSum
from crypto.identity.certificates import (
    Anchors,
    Identity,
    Role,
    SignedBody,
    certificate_from_der,
    check_certificate,
    member_of,
    verify,
)
from crypto.identity.roster import Roster
from crypto.masking.stored_sum import StoredSum
from crypto.session.cohort import draw_seed, named_set
from crypto.session.messages import SessionTerms
from strategies.analysis.method import Analysis
from strategies.base import DRAW_SEED, MODEL, Array, Phase, PhaseContext, PhaseResult
from strategies.methods import Strategy
from strategies.phases.arms import context_of_arm, of_arm, state_of, suffix_of
from strategies.phases.enrollment import CLASS_PRESENCE, DRAW_SEED_BYTES, ENROLLMENT, draw_seed_in
from strategies.phases.evaluation import EVALUATE_ALL, EvaluatePhase
from strategies.server_optimizer import steps_taken

PURPOSE = "job"
BASE = re.compile(rb"(.*\n)initial_state: ('?)[0-9a-f]{64}\2\n", re.DOTALL)  # YAML quotes 64 decimal digits
IMPLAUSIBLE = "implausible"
MIN_WEIGHT = 0.1  # of what the silos of a sum bring on average: room for federations of uneven silos
FIRST_REPEAT = 0
MAX_CERTIFICATE_BYTES = 8 << 10  # ours take about 700
HELD_SPECS = 64  # as many jobs as a silo opens at once


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedJob:
    """A job as it travels: the signature covers the digest of the bytes."""

    spec_bytes: bytes
    signature: bytes
    operator_certificate: bytes  # DER

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.spec_bytes).digest()

    @property
    def id(self) -> str:
        """What people call the job by."""
        return self.digest.hex()[:12]

    @property
    def operator(self) -> str:
        """The name in the certificate that came with the signature, which `open_job` checks: whose job it is.

        Raises RemoteProtocolError.
        """
        return member_of(certificate_from_der(self.operator_certificate)).name

    @property
    def base(self) -> bytes | None:
        """SHA-256 of the bytes before the last line, which holds the first state's digest; None if it does
        not. Source: docs/protocol.md 7.12."""
        found = BASE.fullmatch(self.spec_bytes)
        return None if found is None else hashlib.sha256(found[1]).digest()

    def to_wire(self) -> federation_pb2.SignedJob:
        return federation_pb2.SignedJob(
            spec=self.spec_bytes,
            signature=self.signature,
            operator_certificate=self.operator_certificate,
        )

    @classmethod
    def from_wire(cls, wire: federation_pb2.SignedJob) -> SignedJob:
        """Raises RemoteProtocolError for sizes that no signed job has."""
        signed_body_from_wire(
            session_pb2.SignedBody(body=wire.spec, signature=wire.signature), max_bytes=MAX_BYTES
        )
        if not 0 < len(wire.operator_certificate) <= MAX_CERTIFICATE_BYTES:
            raise RemoteProtocolError(
                f"job: expected an operator's certificate of 1 to {MAX_CERTIFICATE_BYTES} bytes, "
                f"got {len(wire.operator_certificate)}"
            )
        return cls(
            spec_bytes=wire.spec,
            signature=wire.signature,
            operator_certificate=wire.operator_certificate,
        )


def sign_job(spec_bytes: bytes, operator: Identity) -> SignedJob:
    """Sign a job file with the operator's key."""
    digest = hashlib.sha256(spec_bytes).digest()
    return SignedJob(
        spec_bytes=spec_bytes,
        signature=operator.sign(PURPOSE, digest).signature,
        operator_certificate=operator.certificate_der,
    )


def open_job(signed: SignedJob, *, roster: Roster, authority: Anchors, now: datetime) -> Job:
    """The job, if an operator on the current roster signed it and it is well-formed and still valid.

    Called again for every session, because rosters change. Raises RemoteProtocolError.
    """
    roster.check_trusted(authority, now)
    certificate = certificate_from_der(signed.operator_certificate)
    check_certificate(
        certificate, authority=authority, role=Role.OPERATOR, federation=roster.federation, now=now
    )
    operator = roster.check_member(certificate)
    body = SignedBody(body=encoding.encode(PURPOSE, signed.digest), signature=signed.signature)
    verify(body, purpose=PURPOSE, certificate=certificate, code=Refusal.JOB_INVALID)
    try:
        spec = _spec_of(signed.spec_bytes)
        spec.check_submittable(now=now)
    except ConfigError as error:
        raise RemoteProtocolError(str(error), code=Refusal.JOB_INVALID) from None
    if spec.federation != roster.federation:
        message = f"job {signed.id}: expected federation {roster.federation}, got {spec.federation}"
        raise RemoteProtocolError(message, code=Refusal.JOB_INVALID)
    return Job(spec=spec, signed=signed, operator=operator.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmOfJob:
    """One arm of a search as the job that it is, with the global state as it is for it. arm: None in a job
    without search. suffix: what its quantities have behind their names."""

    arm: int | None
    suffix: str
    job: Job
    state: GlobalState = field(repr=False)

    def context(self, context: PhaseContext) -> PhaseContext:
        """context: of all arms."""
        if self.arm is None:
            return context
        return context_of_arm(context, self.state, self.job.method.options, self.suffix)

    def values(self, values: Mapping[str, Array]) -> Mapping[str, Array]:
        """Of all arms' values those of this one, under their plain names."""
        return values if self.arm is None else of_arm(values, self.suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that was verified. operator: name of who signed it. strategy: the spec's method, made once."""

    spec: AnySpec
    signed: SignedJob = field(repr=False)
    operator: str
    strategy: Strategy | Analysis = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategy", self.spec.method)

    @classmethod
    def unsigned(cls, spec: AnySpec) -> Self:
        """With no operator behind it: for what follows from its text."""
        signed = SignedJob(spec_bytes=spec.to_yaml(), signature=b"", operator_certificate=b"")
        return cls(spec=spec, signed=signed, operator="")

    def __reduce__(self) -> tuple[Callable[[], Job], tuple[()]]:
        """To another process of a simulation without the strategy, whose tables are views."""
        return partial(Job, spec=self.spec, signed=self.signed, operator=self.operator), ()

    @property
    def digest(self) -> bytes:
        return self.signed.digest

    @property
    def id(self) -> str:
        return self.signed.id

    @property
    def training(self) -> JobSpec:
        """The text of a job that trains."""
        assert isinstance(self.spec, JobSpec)
        return self.spec

    @property
    def method(self) -> Strategy:
        """Of a job that trains."""
        assert isinstance(self.strategy, Strategy)
        return self.strategy

    @property
    def opening(self) -> str:
        """The first phase, in round 0."""
        return f"{self.strategy.opening[0]}.{FIRST_REPEAT}"

    @property
    def closing(self) -> tuple[int, str]:
        """Round and phase that follow the last round, also where rounds ended early."""
        return self.spec.rounds, f"{self.strategy.closing[0]}.{FIRST_REPEAT}"

    def arms(self, phase: str, state: GlobalState) -> list[ArmOfJob]:
        """Those that the phase trains or tests, the leading one first; a job without search is its own.

        Raises ConfigError for a state that no search leads to.
        """
        live = self.strategy.live_arms(phase_kind(phase), state)
        if not live:
            return [ArmOfJob(arm=None, suffix="", job=self, state=state)]
        specs = self.spec.arms
        return [
            ArmOfJob(
                arm=arm,
                suffix=suffix_of(arm, live),
                job=replace(self, spec=specs[arm]),
                state=state_of(state, arm, len(specs)),
            )
            for arm in live
        ]

    def next_after(self, round: int, phase: str, *, steps: int = 0) -> tuple[int, str] | None:
        """Round and phase that follow, or None after the last. steps: those that were applied so far.

        An enrollment that is repeated between rounds leads on to the next round. Source: docs/protocol.md 7.
        """
        kind, strategy = self.phase(phase).kind, self.strategy
        parts = (strategy.opening, strategy.round_phases, strategy.between, strategy.closing)
        kinds = next(kinds for kinds in parts if kind in kinds)
        later = kinds[kinds.index(kind) + 1 :]
        if later and (round == 0 or kind not in strategy.opening):
            return round, later[0] if kind in strategy.round_phases else f"{later[0]}.{FIRST_REPEAT}"
        if kind in strategy.closing:
            return None
        is_over = round >= self.spec.rounds or self._has_taken(steps)
        if kind in strategy.round_phases and is_evaluated_after(self.spec, round) and not is_over:
            return round, f"{EVALUATE_ALL}.{FIRST_REPEAT}"
        return self.closing if is_over else (round + 1, strategy.round_phases[0])

    def position(self, round: int, phase: str) -> tuple[int, int, int]:
        """Where a phase stands in the job: phases that come later compare greater.

        Raises ConfigError for a phase that the job's method does not have.
        """
        kind, strategy = self.phase(phase).kind, self.strategy
        # an enrollment that is repeated between rounds follows the phases of the round whose number it has
        opening = strategy.opening if round == 0 else ()
        again = strategy.opening if round else ()
        order = (*opening, *strategy.round_phases, *strategy.between, *again, *strategy.closing)
        return round, order.index(kind), phase_number(phase)

    def phase(self, name: str) -> Phase:
        """Raises ConfigError for a phase that the job's method does not have."""
        return self.strategy.phase(phase_kind(name))

    def names_everyone(self, phase: str) -> bool:
        """Phases outside rounds name all silos, under any `fraction`."""
        return phase_kind(phase) not in self.strategy.round_phases

    def check_first(self, round: int, phase: str, state: GlobalState) -> None:
        """Raises ConfigError where the first global state is used for more than the opening enrollment, or
        holds more than a model.

        Security: counts, class presence and statistics are sums of this job. In a first state they would be
        somebody's choice, and silos decide by them which rows leave (docs/threat-model.md).
        """
        if (round, phase_kind(phase)) != (0, ENROLLMENT):
            raise ConfigError(f"state: the first one is for {ENROLLMENT} alone, got round {round} {phase}")
        if isinstance(self.spec, AnalysisSpec):
            return  # there is one for all analyses, and `check_submittable` compared its digest
        others = sorted(name for name in state if not name.startswith(MODEL))
        if others:
            raise ConfigError(f"state: expected {MODEL}... alone in the first one, got {others[0]}")

    def opens_draw(self, round: int, phase: str) -> bool:
        """Whether the phase, once applied, fixes what the job's rounds are drawn by."""
        return self.spec.draws_rounds and round == 0 and phase_kind(phase) == ENROLLMENT

    def named(self, silos: Container[str], round: int, phase: str, draw_seed: bytes) -> tuple[str, ...]:
        """The silos that take part in a phase, sorted. silos: those on the roster. draw_seed: what the state
        holds, empty where it holds none.

        Raises ConfigError if the phase is drawn and there is no seed, if it fixes the seed and there is one,
        and if a group lacks a silo. Source: docs/protocol.md 3.2.
        """
        if self.opens_draw(round, phase) and draw_seed:
            # Security: a seed in the first state would be the choice of the job's operator
            raise ConfigError(f"state: {DRAW_SEED}: expected none before the opening enrollment")
        is_drawn = self.spec.draws_rounds and not self.names_everyone(phase)
        if is_drawn and not draw_seed:
            raise ConfigError(f"state: {DRAW_SEED}: expected {DRAW_SEED_BYTES} bytes, got none")
        by_groups = is_by_groups(self.spec)
        names = named_set(
            self.spec.silos,
            on_roster=silos,
            round=round,
            fraction=self.spec.fraction if is_drawn else 1.0,
            draw_seed=draw_seed if is_drawn else None,
            by_groups=by_groups,
        )
        if by_groups and is_drawn and len(names) < self.spec.named_per_round:
            # Security: the draw's risk is that of whole groups; fewer bear fewer colluders
            lacking = self.spec.named_per_round - len(names)
            raise ConfigError(
                f"round {round}: {lacking} of its group's silos not on the roster, expected none"
            )
        return names

    def context(self, key: PhaseKey, state: GlobalState, members: int) -> PhaseContext:
        """All that a phase's quantities and server step may depend on, the noise of its sums included."""
        noise = noise_deviations(self.layout(key, state, members).quantities, members)
        return replace(self._context(key, state, members), noise=noise)

    def outcome(
        self,
        phase: str,
        context: PhaseContext,
        tagged: StoredSum,
        *,
        survivors: int,
        self_mask_seeds: Mapping[str, bytes] | None = None,
    ) -> PhaseResult:
        """What the tagged part of a revealed sum does to the global state, bit for bit the same at every silo
        and at the coordinator: nothing where no honest silos could have given it. docs/protocol.md 4.12, 7.9.
        """
        try:
            tagged.check_plausible(survivors)
        except ImplausibleSum:
            return PhaseResult(state=None, reason=IMPLAUSIBLE)
        return self.next_state(phase, context, tagged, survivors=survivors, self_mask_seeds=self_mask_seeds)

    def next_state(
        self,
        phase: str,
        context: PhaseContext,
        sums: Mapping[str, Array],
        *,
        survivors: int,
        self_mask_seeds: Mapping[str, bytes] | None = None,
    ) -> PhaseResult:
        """What the tagged sums over so many silos do to the global state. The sums are handed over.

        self_mask_seeds: b of each of them, needed where the phase opens the draw.

        Security: the update is divided by the sum of p, and a silo that lies about its p can bring that sum
        close to zero. A sum of p below a tenth of its usual size is not applied.
        Source: docs/protocol.md 7.4.
        """
        privacy = self.spec.privacy
        usual = 1.0 / len(self.spec.silos) if privacy is None else privacy.declared_weight(context.members)
        least = max(context.min_weight, MIN_WEIGHT * survivors * usual)
        guarded = replace(context, min_weight=least, survivors=survivors)
        if self.opens_draw(context.round, phase):
            if self_mask_seeds is None or len(self_mask_seeds) != survivors:
                raise LocalProtocolError(f"job {self.id}: {phase}: expected {survivors} self-mask seeds")
            guarded = replace(guarded, draw_seed=draw_seed(self.digest, self_mask_seeds))
        return self.phase(phase).next_state(guarded, sums)

    def figures(self, phase: str, context: PhaseContext, sums: Mapping[str, Array]) -> Mapping[str, float]:
        """Numbers for the record of a phase, of all its sums; those of `next_state` come in addition.
        context: with the sum's survivors."""
        figures = self.phase(phase).figures(context, sums)
        if phase_kind(phase) != CLASS_PRESENCE:
            return figures
        spec = self.training
        least = spec.min_class_holders(spec.rule(spec.row_members))
        by_default = np.count_nonzero(sums["class_presence"] >= least)
        return {**figures, "classes": float(spec.classes), "class_rows_by_default": float(by_default)}

    def tables(self, phase: str, context: PhaseContext, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        """Arrays for the record of the closing evaluation, as the job's `task.metrics` asks for them."""
        found = self.phase(phase)
        return found.tables(context, sums) if isinstance(found, EvaluatePhase) else {}

    def layout(self, key: PhaseKey, state: GlobalState, members: int) -> Layout:
        """Noise included. Raises ConfigError if a quantity does not fit its word, or if a private job cannot
        protect it."""
        quantities = self.phase(key.phase).quantities(self._context(key, state, members))
        return Layout(quantities=noised(quantities, self.spec, members), members=members)

    def check_phase(self, round: int, phase: str) -> None:
        """A phase's round and repeat counter are among those that the job can come to.

        Without a last repeat a coordinator could ask for sums over states of its own without end.
        Raises ConfigError. Source: docs/protocol.md 7.
        """
        self.phase(phase)  # one that the method has
        if self.names_everyone(phase) != ("." in phase):
            raise ConfigError(
                f"job {self.id}: {phase}: phases outside rounds, and only they, end in a number"
            )
        kind = phase_kind(phase)
        last, is_enrollment = self.spec.rounds, kind == ENROLLMENT
        if kind in self.strategy.between:
            if phase_number(phase) != FIRST_REPEAT or not is_evaluated_after(self.spec, round):
                raise ConfigError(
                    f"job {self.id}: round {round}, {phase}: expected {kind}.{FIRST_REPEAT} after every "
                    f"{self.spec.evaluate_all_every} rounds but the last"
                )
            return
        if not self.names_everyone(phase):
            lowest, highest = 1, last
        elif kind not in self.strategy.opening:
            lowest, highest = last, last
        else:  # only an enrollment comes again between rounds
            lowest, highest = 0, last if is_enrollment else 0
        if not lowest <= round <= highest:
            allowed = f"{lowest} to {highest}" if lowest < highest else f"{highest}"
            raise ConfigError(f"job {self.id}: {phase}: expected round {allowed}, got {round}")
        # a phase outside rounds is tried max_attempts times, an enrollment again every enrollment_every
        occasions = 1 + round // self.spec.enrollment_every if is_enrollment else 1
        max_number = self.spec.max_attempts * occasions - 1
        if "." in phase and phase_number(phase) > max_number:
            raise ConfigError(
                f"job {self.id}: {phase}: expected at most number {max_number} in round {round}"
            )

    def terms(
        self,
        *,
        roster: Roster,
        round: int,
        phase: str,
        attempt: int,
        state: GlobalState,
        state_digest: bytes,
    ) -> SessionTerms:
        """What a session is about. Coordinator and silo each compute it here; no message carries it.

        Raises ConfigError if the roster leaves too few silos, the job has no such phase or round, or the
        state's seed of the draw is not what it must be.
        """
        self.check_phase(round, phase)
        if not self.names_everyone(phase) and self._has_taken(steps_taken(state)):
            raise ConfigError(f"job {self.id}: {phase}: expected no round after {self.spec.steps} steps")
        names = self.named(roster.silo_names, round, phase, draw_seed_in(state))
        key = PhaseKey(job_digest=self.digest, round=round, phase=phase, attempt=attempt)
        return SessionTerms(
            federation=self.spec.federation,
            job_digest=self.digest,
            roster_version=roster.version,
            roster_digest=roster.digest,
            round=round,
            phase=phase,
            attempt=attempt,
            names=names,
            rule=self.spec.rule(len(names)),
            layout=self.layout(key, state, len(names)),
            state_digest=state_digest,
        )

    def _has_taken(self, steps: int) -> bool:
        """Whether so many are all steps of a job that says steps; the spare ones are for those that fail."""
        return self.spec.steps is not None and steps >= self.spec.steps

    def _context(self, key: PhaseKey, state: GlobalState, members: int) -> PhaseContext:
        # no attempt in the seed: later ones sum the same input
        seed = encoding.digest("projection", self.digest, key.round, key.phase)
        tests_model = self.names_everyone(key.phase) or tests_in(self.spec)
        live = self.strategy.live_arms(key.kind, state)
        spec = self.spec.arms[live[0]] if live else self.spec
        return any_context(spec, key.round, state, members, public_seed=seed, tests_model=tests_model)


@lru_cache(maxsize=HELD_SPECS)
def _spec_of(spec_bytes: bytes) -> AnySpec:
    """What the bytes say, read once: they are the same at every phase, and reading takes 15 ms."""
    return signed_spec(spec_bytes, source=f"job {hashlib.sha256(spec_bytes).hexdigest()[:12]}")
