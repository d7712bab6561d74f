"""What a revealed sum leads to: figures, the next state, and the part of the sum that silos fetch.

To compute it twice changes nothing: files are named by their digests. Everything here blocks and runs in a
worker thread. Source: docs/protocol.md 4.12, 5.10, 7.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from chorale.job import IMPLAUSIBLE, Job
from chorale.observability.logs import get_logger
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey
from coordinator.jobs.aggregate import RevealedFile
from coordinator.storage.checkpoints import Checkpoints
from coordinator.storage.sum_files import SumFiles
from crypto.fixed_point.plausible import ImplausibleSum
from crypto.masking.stored_sum import StoredParts, StoredSum
from crypto.session.messages import SessionTerms
from strategies.base import PhaseResult
from strategies.phases.enrollment import draw_seed_in

log = get_logger("coordinator.jobs.outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """digest: of the global state after the phase. draw_seed: what that holds. revealed: what silos compute
    it from; None where they are not asked: nothing is tagged, or no honest silos give such a sum."""

    result: PhaseResult
    digest: bytes
    draw_seed: bytes = b""
    revealed: RevealedFile | None = None


def outcome_of(
    job: Job,
    key: PhaseKey,
    terms: SessionTerms,
    state: GlobalState,
    *,
    files: SumFiles,
    revealed: RevealedFile | None,
    survivors: int,
    self_mask_seeds: Mapping[str, bytes] | None,
    checkpoints: Checkpoints,
) -> Outcome:
    """files: where the revealed sum is. revealed: the part of it that silos fetch, if there is one."""
    context = replace(job.context(key, state, len(terms.names)), survivors=survivors)
    sums = StoredParts(layout=terms.layout, tagged=files.tagged, untagged=files.untagged)
    try:
        sums.check_plausible(survivors)
    except ImplausibleSum as error:  # silos, who see the tagged part alone, would not apply that either
        log.warning("implausible sum", reason=str(error), job=job.id, round=key.round, phase=key.phase)
        return Outcome(result=PhaseResult(state=None, reason=IMPLAUSIBLE), digest=terms.state_digest)
    figures = dict(job.figures(key.phase, context, sums))
    if any(quantity.noise is not None for quantity in terms.layout.quantities):
        figures["wrap_probability"] = terms.layout.wrap_probability
    if revealed is None or terms.layout.tagged is None:
        tables = job.tables(key.phase, context, sums)
        result = PhaseResult(state={}, figures=figures, tables=tables)
        return Outcome(result=result, digest=terms.state_digest)
    result = job.outcome(
        key.phase,
        context,
        StoredSum(revealed.path, layout=terms.layout.tagged),
        survivors=survivors,
        self_mask_seeds=self_mask_seeds,
    )
    following, digest = result.state or state, terms.state_digest
    if following is not state:
        digest = checkpoints.put(job.digest, following)
    return Outcome(
        # the state is on disk: the next phase need not hold it
        result=replace(
            result, state=None if result.state is None else {}, figures={**result.figures, **figures}
        ),
        digest=digest,
        draw_seed=draw_seed_in(following),
        revealed=revealed,
    )
