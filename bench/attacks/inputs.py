"""One silo's input to a phase as it enters the masks: the product's values, encoding and noise."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from chorale.job_spec import JobSpec
from chorale.phase_context import phase_context
from chorale.privacy import declared_weight, noised
from crypto import prg, ring
from crypto.layout import Layout
from crypto.noise import SkellamStream
from crypto.ring import Encoded
from crypto.skellam import skellam_law
from silo_agent.data.base import SiloData
from silo_agent.objective import Work
from silo_agent.training import TorchObjective
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
        weight=share if spec.privacy is None else declared_weight(spec, members),
        is_cancelled=lambda: False,
    )
    return dict(TorchObjective(device="cpu").compute(work))


def encoded(values: Mapping[str, Array], layout: Layout) -> Encoded:
    """The words of an input: clipped as a whole where the noise asks for it, rounded, noised."""
    wanted = {each.name for each in layout.quantities}
    clipped = {name: array for name, array in values.items() if name in wanted}
    for quantity in layout.quantities:
        if quantity.noise is not None and quantity.noise.clip_l2 is not None:
            clipped[quantity.name] = _within(clipped[quantity.name], quantity.noise.clip_l2)
    plain = ring.encode(clipped, layout=layout)
    key = os.urandom(prg.KEY_BYTES)
    for place, quantity in enumerate(layout.quantities):
        if quantity.noise is not None:
            words = plain.vectors[quantity.word][layout.slices(quantity.word)[quantity.name]]
            SkellamStream(skellam_law(quantity.noise.variance), key, quantity=place).add_into(0, words)
    return plain


def _within(array: Array, norm: float) -> Array:
    length = float(np.linalg.norm(array.astype(np.float64)))
    return array if length <= norm else array * (norm / length)
