"""A job's phases in one process, without masks: for claims about methods, not about the protocol.

Quantities, objectives and server steps are the product's own; sums are plain float64 sums, or those of the
ring.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chorale.spec.job_spec import JobSpec
from chorale.spec.state import buffer_names, trained_names
from chorale.transport.wire import phase_kind
from crypto import encoding
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import CLIPPED, Layout, Quantity
from silo_agent.training.data.base import SiloData
from silo_agent.training.machine.seeding import training_seed
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import LocalState, Work
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import PRESENCE, TOTAL, Array, Arrays, PhaseContext
from strategies.update_scale import with_mean_square

Chooses = Callable[[int], Sequence[int]]  # round -> places of the silos that take part


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One phase: what every silo gave, and the state and figures that follow from their sum."""

    round: int
    phase: str
    values: Sequence[Mapping[str, Array]]
    state: Arrays
    figures: Mapping[str, float]
    local: Sequence[Arrays] = ()  # by place, what each silo of the job keeps after the phase


def simulate(
    spec: JobSpec,
    data: Sequence[SiloData],
    *,
    takes_part: Chooses | None = None,
    min_class_holders: int = 1,
    state: Arrays | None = None,
    in_ring: bool = False,
    public_seed: Callable[[int, str], bytes] | None = None,
    device: str = "cpu",
) -> Iterator[Simulated]:
    """Every phase of the job in order; `takes_part` draws the silos of a round, all by default.

    in_ring: encode and decode every sum, so that clipping, rounding and projection are real.
    public_seed: of a round and phase, those of a job that is compared with this one; its own by default.
    """
    silos = [TorchObjective(device=device) for _ in data]
    state = dict(initial_state(spec) if state is None else state)
    everyone = range(len(data))
    local: list[Arrays] = [{} for _ in data]
    for round, phase in phases(spec):
        is_round = phase in spec.method.round_phases
        places = list(takes_part(round) if takes_part and is_round else everyone)
        context = _context(spec, round, phase, state, members=max(len(places), 3))
        if public_seed is not None:
            context = dataclasses.replace(context, public_seed=public_seed(round, phase))
        kept = [LocalState(local[place]) for place in places]
        values = [
            _values(
                spec, silos[place], data[place], place, phase_kind(phase), context, min_class_holders, own
            )
            for place, own in zip(places, kept, strict=True)
        ]
        strategy_phase = spec.method.phase(phase_kind(phase))
        quantities = strategy_phase.quantities(context)
        add = _ring_sums if in_ring else _plain_sums
        sums = add(quantities, context.members, values)
        figures = strategy_phase.figures(context, sums)
        tagged = {each.name: sums[each.name] for each in quantities if each.is_tagged}
        result = strategy_phase.next_state(context, tagged)
        if result.state is not None:
            state = dict(result.state)
            for place, own in zip(places, kept, strict=True):
                local[place] = own.arrays if own.proposed is None else own.proposed
        yield Simulated(
            round=round,
            phase=phase,
            values=values,
            state=state,
            figures={**figures, **result.figures},
            local=tuple(local),
        )


def seeded_work(work: Work) -> Work:
    """With the seed that a simulation gives this silo; an agent draws one that nobody knows."""
    seed = training_seed(job_seed=work.spec.seed, silo=work.silo, round=work.round)
    return dataclasses.replace(work, seed=seed)


def phases(spec: JobSpec) -> Iterator[tuple[int, str]]:
    """Round and phase kind, in the job's order."""
    yield from ((0, kind) for kind in spec.method.opening)
    for round in range(1, spec.rounds + 1):
        yield from ((round, kind) for kind in spec.method.round_phases)
    yield from ((spec.rounds, kind) for kind in spec.method.closing)


def _plain_sums(
    quantities: Sequence[Quantity], members: int, values: Sequence[Mapping[str, Array]]
) -> dict[str, Array]:
    return {
        quantity.name: np.zeros(())
        if quantity.name == CLIPPED
        else np.sum([np.asarray(silo[quantity.name], np.float64) for silo in values], axis=0)
        for quantity in quantities
    }


def _ring_sums(
    quantities: Sequence[Quantity], members: int, values: Sequence[Mapping[str, Array]]
) -> dict[str, Array]:
    layout = Layout(quantities=tuple(quantities), members=members)
    total = ring.zeros(layout)
    for silo in values:
        ring.add_into(total, Encoder(silo, layout=layout).encode().vectors)
    return ring.decode(total, layout=layout)


def _context(spec: JobSpec, round: int, phase: str, state: Arrays, *, members: int) -> PhaseContext:
    trained, buffers = spec.method.summed(trained_names(state), buffer_names(state))
    return PhaseContext(
        round=round,
        members=members,
        classes=spec.classes,
        state=state,
        trained=trained,
        buffers=buffers,
        update_bound=spec.update_bound,
        update_bits=spec.update_bits,
        public_seed=encoding.digest("projection", spec.to_yaml(), round, phase),
        min_weight=spec.min_weight,
        options=spec.method.options,
    )


def _values(
    spec: JobSpec,
    objective: TorchObjective,
    data: SiloData,
    place: int,
    kind: str,
    context: PhaseContext,
    min_class_holders: int,
    local: LocalState,
) -> Mapping[str, Array]:
    samples = len(data.train)
    if kind == "enrollment":
        return {"silos": np.array(1), "samples": np.array(samples)}
    holders_C = context.state.get(PRESENCE)
    work = Work(
        spec=spec,
        phase_kind=kind,
        round=context.round,
        silo=f"silo-{place}",
        state=context.state,
        context=context,
        data=data,
        weight=samples / int(context.state[TOTAL]) if TOTAL in context.state else 0.0,
        seed=training_seed(job_seed=spec.seed, silo=f"silo-{place}", round=context.round),
        is_cancelled=lambda: False,
        class_rows=None if holders_C is None else np.asarray(holders_C >= min_class_holders),
        local=local,
    )
    return with_mean_square(context, objective.compute(work))
