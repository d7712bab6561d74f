"""An analysis from its first phase to its last, over the tables of its silos in one process.

    simulation = AnalysisSimulation(spec, {"silo-1": table, ...})   # DescribedTable each, e.g. of load_table
    for report in simulation.run():                                 # one PhaseReport a phase
        print(report.phase, report.silos)
    DescribedResults.of(spec, simulation.state)                     # client.analysis: the table

What a silo adds to a sum and what the sum does to the state are the functions that agents and coordinator
call. No ledger counts the analysis. Source: docs/simulation.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.state import GlobalState, state_digest, state_to_bytes
from chorale.transport.wire import PhaseKey, phase_kind
from crypto.errors import ConfigError, PolicyRefusal
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.analysis.table import DescribedTable
from silo_agent.training.phase_input import PhaseRequest, described_values, encoded
from simulation.engine import unsigned_job
from simulation.members import enroll
from simulation.results import PhaseReport, SimulationFailed
from simulation.silos import Answer, rounding_bytes
from simulation.sums import SecureSum, needs_words, plain_sums, word_sums
from strategies.analysis.counts import FEW_RECORDS
from strategies.analysis.method import FIRST_STATE
from strategies.base import Array


class AnalysisSimulation:
    """One analysis over these tables; `run` takes it to its end.

    tables: by name, one for each silo of the job. policy: of every silo; None: the defaults, by which a silo
    of few records takes no part. is_secure: sums go through the real sessions and masks. state: after the
    last phase, what was published. Raises ConfigError where job and tables do not go together.
    """

    def __init__(
        self,
        spec: AnalysisSpec,
        tables: Mapping[str, DescribedTable],
        *,
        policy: Policy | None = None,
        is_secure: bool = False,
    ) -> None:
        if odd := sorted(set(spec.silos) ^ set(tables)):
            where = "no table" if odd[0] in spec.silos else "a table, and is no silo of the job"
            raise ConfigError(f"silos: {odd[0]} has {where}")
        self.job = unsigned_job(spec, FIRST_STATE)
        self.state: GlobalState = dict(FIRST_STATE)
        self._tables = dict(tables)
        self._policy = policy or Policy(federation=spec.federation)
        self._secure: SecureSum | None = None
        if is_secure:
            now = datetime.now(UTC)
            members = enroll(spec.silos, federation=spec.federation, now=now)
            self._secure = SecureSum(members=members, now=now)

    def run(self) -> Iterator[PhaseReport]:
        """Every phase, once it was applied. Raises SimulationFailed for one that ends the analysis."""
        step: tuple[int, str] | None = (0, self.job.opening)
        while step is not None:
            yield self._run_phase(*step)
            step = self.job.next_after(*step)

    def _run_phase(self, round: int, phase: str) -> PhaseReport:
        names = tuple(sorted(self._tables))
        key = PhaseKey(job_digest=self.job.digest, round=round, phase=phase, attempt=1)
        request = PhaseRequest.of(self.job, key, self.state, members=len(names))
        answers = [self._answer(request, name) for name in names]
        here = [answer for answer in answers if not answer.refused]
        left_out = {answer.silo: answer.message for answer in answers if answer.refused}
        if len(here) < request.rule.min_survivors:
            first = "".join(f" ({silo}: {why})" for silo, why in list(left_out.items())[:1])
            raise SimulationFailed(f"{phase_kind(phase)}: too-few-silos{first}")
        sums = self._sums(request, names, here)
        context = replace(request.context, survivors=len(here))
        figures = self.job.figures(phase, context, sums)
        tagged = {each.name: sums[each.name] for each in request.layout.quantities if each.is_tagged}
        result = self.job.next_state(phase, request.context, tagged, survivors=len(here))
        if result.state is None:
            few = ": all silos together hold fewer than min_cell" if result.reason == FEW_RECORDS else ""
            raise SimulationFailed(f"{phase_kind(phase)}: {result.reason}{few}")
        self.state = dict(result.state)
        return PhaseReport(
            phase=phase,
            reason="",
            data_share=result.data_share,
            silos=tuple(answer.silo for answer in here),
            left_out=left_out,
            figures={name: float(value) for name, value in {**figures, **result.figures}.items()},
            tables={},
        )

    def _answer(self, request: PhaseRequest, silo: str) -> Answer:
        try:
            values = described_values(request, rules=self._policy, load_table=lambda: self._tables[silo])
            encoder = encoded(request, values, random=rounding_bytes(request.key, silo))
        except PolicyRefusal as refusal:
            return Answer(silo=silo, refused=refusal.code.value, message=str(refusal))
        as_words = self._secure is not None or needs_words(request.layout)
        words = encoder.encode() if as_words else None
        return Answer(silo=silo, values=values, encoded=words, clipped=encoder.clipped_total)

    def _sums(self, request: PhaseRequest, names: tuple[str, ...], here: list[Answer]) -> Mapping[str, Array]:
        words = {answer.silo: answer.encoded for answer in here if answer.encoded is not None}
        if self._secure is None:
            return word_sums(request.layout, words.values()) if words else plain_sums(request.layout, here)
        digest = state_digest(state_to_bytes(request.context.state))
        return self._secure.sums(request, names, words, digest)
