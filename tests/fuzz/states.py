"""Target: what a silo makes of a global state before it computes an input, in every phase of every method."""

from __future__ import annotations

import functools
import random

from chorale.job import Job, sign_job
from chorale.spec.state import state_digest, state_from_bytes, state_to_bytes
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.disclosure.ledger.state_uses import StateUse
from tests.fuzz import mutate, world
from tests.fuzz.target import Target
from tests.support import next_states

VARIANTS = tuple(next_states.VARIANTS)


@functools.cache
def _job(variant: str) -> Job:
    spec = next_states.job_spec(variant).model_copy(update={"silos": (*world.SILOS, "spare")})
    return Job(spec=spec, signed=sign_job(spec.to_yaml(), world.operator()), operator="ops")


@functools.cache
def _phases(variant: str) -> tuple[PhaseKey, ...]:
    """The last of each kind."""
    job = _job(variant)
    last = {kind: round for round, kind in next_states.phases(job.spec)}
    names = {kind: f"{kind}.0" if job.names_everyone(kind) else kind for kind in last}
    return tuple(
        PhaseKey(job_digest=job.digest, round=round, phase=names[kind], attempt=1)
        for kind, round in last.items()
    )


def _read(data: bytes) -> None:
    """The first byte chooses the method, the others are the state."""
    variant = VARIANTS[data[0] % len(VARIANTS)] if data else VARIANTS[0]
    job, state = _job(variant), state_from_bytes(data[1:])
    refused, taken = None, 0
    for key in _phases(variant):
        try:
            terms = job.terms(
                roster=world.federation().roster,
                round=key.round,
                phase=key.phase,
                attempt=key.attempt,
                state=state,
                state_digest=state_digest(data[1:]),
            )
            job.context(key, state, terms.rule.members)
            StateUse.of(job, key, state, rule=terms.rule, assumed_colluders=1)
            taken += 1
        except (ConfigError, RemoteProtocolError) as error:
            refused = error
    if refused is not None and not taken:
        raise refused


@functools.cache
def _seeds() -> tuple[bytes, ...]:
    """The last state of every method."""
    states = []
    for place, variant in enumerate(VARIANTS):
        *_, last = next_states.steps(variant)
        states.append(bytes((place,)) + state_to_bytes(last.state))
    return tuple(states)


def _mutate(data: bytes, chance: random.Random) -> bytes:
    return data[:1] + mutate.either(mutate.raw, mutate.headed, mutate.headed)(data[1:], chance)


TARGETS = (
    Target(
        name="job-state",
        read=_read,
        seeds=_seeds,
        refuses=(RemoteProtocolError, ConfigError),
        mutate=_mutate,
        max_bytes=1 << 14,
    ),
)
