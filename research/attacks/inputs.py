"""One silo's input to a phase as it enters the masks: the product's values, encoding and noise."""

from __future__ import annotations

from collections.abc import Mapping

from chorale.privacy.quantity_noise import noised
from chorale.spec.job_spec import JobSpec, phase_context
from crypto import prg
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from crypto.fixed_point.ring import Encoded
from silo_agent.training.data.base import SiloData
from silo_agent.training.machine.seeding import training_seed
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import TOTAL, Array, Arrays

SEED = bytes(prg.KEY_BYTES)  # of projections, which 32-bit updates have none of


def phase_layout(spec: JobSpec, kind: str, state: Arrays, *, members: int) -> Layout:
    """What both sides compute of a phase, noise included."""
    context = phase_context(spec, 1, dict(state), members, public_seed=SEED)
    quantities = spec.method.phase(kind).quantities(context)
    return Layout(quantities=noised(quantities, spec, members), members=members)


def silo_values(
    spec: JobSpec, kind: str, state: Arrays, data: SiloData, *, members: int, place: int = 0, round: int = 1
) -> dict[str, Array]:
    """What the built-in objective of a silo gives for a phase."""
    context = phase_context(spec, round, dict(state), members, public_seed=SEED)
    share = len(data.train) / float(state[TOTAL])
    work = Work(
        spec=spec,
        phase_kind=kind,
        round=round,
        silo=spec.silos[place],
        state=state,
        context=context,
        data=data,
        weight=share if spec.privacy is None else spec.privacy.declared_weight(members),
        seed=training_seed(job_seed=spec.seed, silo=spec.silos[place], round=round),
        is_cancelled=lambda: False,
    )
    return dict(TorchObjective(device="cpu").compute(work))


def encoded(values: Mapping[str, Array], layout: Layout) -> Encoded:
    """The words of an input as a silo makes them: clipped, rounded, noised. What the layout does not sum, a
    private job's `clipped` or a test's surplus, is left out."""
    wanted = {each.name for each in layout.quantities}
    return Encoder({name: array for name, array in values.items() if name in wanted}, layout=layout).encode()
