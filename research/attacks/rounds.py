"""A job's training rounds in one process: the silos' own training, the product's server step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from chorale.spec.job_spec import JobSpec, phase_context
from research.attacks.digits import Digits, Places
from research.attacks.inputs import SEED, silo_values
from silo_agent.training.models.starting import initial_state
from strategies.base import TOTAL, Array, Arrays


def trained_rounds(spec: JobSpec, data: Digits, parts: Sequence[Places]) -> Iterator[Arrays]:
    """The state after each round. Sums are plain ones: masks and fixed point change no model."""
    state: Arrays = {**initial_state(spec), TOTAL: np.array(sum(map(len, parts)))}
    members = len(parts)
    train = spec.method.phase("train")
    for round in range(1, spec.rounds + 1):
        values = [
            silo_values(spec, "train", state, data.silo(part), members=members, place=place, round=round)
            for place, part in enumerate(parts)
        ]
        sums: Mapping[str, Array] = {
            name: np.sum([np.asarray(silo[name], np.float64) for silo in values], axis=0)
            for name in values[0]
        }
        context = phase_context(spec, round, dict(state), members, public_seed=SEED)
        result = train.next_state(context, sums)
        assert result.state is not None
        state = result.state
        yield state
