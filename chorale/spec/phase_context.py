"""What a phase may depend on, as coordinator and silo each gather it from job and global state."""

from __future__ import annotations

from chorale.spec.job_spec import JobSpec
from chorale.spec.state import GlobalState, buffer_names, trained_names
from strategies.base import PhaseContext


def phase_context(
    spec: JobSpec,
    round: int,
    state: GlobalState,
    members: int,
    *,
    public_seed: bytes,
    tests_model: bool = True,
) -> PhaseContext:
    """All that a phase's quantities and server step may depend on."""
    method = spec.method
    return PhaseContext(
        round=round,
        members=members,
        classes=spec.classes,
        state=state,
        trained=tuple(name for name in trained_names(state) if method.trains(name)),
        buffers=buffer_names(state) if method.averages_buffers else (),
        update_bound=spec.update_bound,
        update_bits=spec.update_bits,
        update_clip=None if spec.privacy is None else spec.privacy.update_clip(members),
        public_seed=public_seed,
        min_weight=spec.min_weight,
        tests_model=tests_model,
        options=method.options,
    )
