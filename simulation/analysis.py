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
from functools import partial

from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, PolicyRefusal
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.analysis.table import DescribedTable
from silo_agent.training.phase_input import PhaseRequest, described_values, encoded
from simulation.engine import unsigned_job
from simulation.results import PhaseReport
from simulation.silos import Answer, rounding_bytes
from simulation.sums import SecureSum, needs_words, phase_sums, result_of
from strategies.analysis.method import FIRST_STATE


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
        self._secure = SecureSum.of(spec) if is_secure else None

    def run(self) -> Iterator[PhaseReport]:
        """Every phase, once it was applied. Raises SimulationFailed for one that ends the analysis."""
        step: tuple[int, str] | None = (0, self.job.opening)
        while step is not None:
            yield self._run_phase(*step)
            step = self.job.next_after(*step)

    def _run_phase(self, round: int, phase: str) -> PhaseReport:
        key = PhaseKey(job_digest=self.job.digest, round=round, phase=phase, attempt=1)
        request = PhaseRequest.of(self.job, key, self.state, members=len(self._tables))
        answers = [self._answer(request, name) for name in sorted(self._tables)]
        result = result_of(request, answers, partial(phase_sums, secure=self._secure))
        if result.state is not None:
            self.state = dict(result.state)
        report = PhaseReport.of(phase, answers, result)
        report.check_applied()
        return report

    def _answer(self, request: PhaseRequest, silo: str) -> Answer:
        try:
            values = described_values(request, rules=self._policy, load_table=lambda: self._tables[silo])
            encoder = encoded(request, values, random=rounding_bytes(request.key, silo))
        except PolicyRefusal as refusal:
            return Answer(silo=silo, refused=refusal.code.value, message=str(refusal))
        as_words = self._secure is not None or needs_words(request.layout)
        words = encoder.encode() if as_words else None
        return Answer(silo=silo, values=values, encoded=words, clipped=encoder.clipped_total)
