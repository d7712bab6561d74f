"""One step's sum in a whole session, read by a coordinator with floor(m/3) silos and every silo's sum key.

The adversary takes the colluders' words off the revealed sum. With a sum key the tags follow from the sum, so
that they tell it nothing more: the silos' own check computes them from the sum and the key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bench.federation import make_federation
from bench.session import NOW, Session
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.masking.masks import vectors_from_stream
from crypto.noise.sensitivity import clipped_sensitivity
from research.attacks.inputs import phase_layout
from research.privacy_audit.bounds import CONFIDENCE, noise_at_most
from research.privacy_audit.quantities import audited_job
from silo_agent.training.models.starting import initial_state
from strategies.base import TOTAL

SILOS = 6
HIDDEN = (256,)
GRADIENT = "gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collusion:
    """numbers: of the sum. promised: the noise multiplier of the job. measured: the largest that what is left
    of the sum allows, where all silos took part. colluders: whose words were taken off."""

    silos: int
    colluders: int
    numbers: int
    promised: float
    measured: float
    confidence: float = CONFIDENCE


def measure() -> Collusion:
    """Raises RemoteProtocolError if a tag says more than the sum and the key."""
    spec = audited_job("fedavg", silos=SILOS, hidden=HIDDEN)
    state = {**initial_state(spec), TOTAL: np.array(1)}
    layout = phase_layout(spec, "train", state, members=SILOS)
    (quantity,) = layout.quantities
    assert quantity.noise is not None
    assert quantity.sensitivity_l2 is not None
    assert spec.privacy is not None
    assert spec.privacy.records is not None
    session = Session(make_federation(SILOS, now=NOW), layout=layout)
    inputs = {
        name: Encoder({GRADIENT: np.zeros(quantity.size, np.int64)}, layout=layout).encode()
        for name in session.terms.names
    }
    session.share()
    total = ring.zeros(layout)
    for name, words in inputs.items():
        stream = b"".join(session.masker(name).stream(words))
        ring.add_into(total, vectors_from_stream(layout, stream))
    session.reveal().unmask(total)
    session.check(total)
    for name in session.terms.names[: SILOS // 3]:
        for ring_bits, word_L in inputs[name].vectors.items():
            total[ring_bits][: word_L.size] -= word_L
    left_P = np.asarray(ring.decode(total, layout=layout)[GRADIENT]).ravel()
    moved = clipped_sensitivity(
        quantity.sensitivity_l2, scale=quantity.noise.scale, coordinates=quantity.size
    )
    return Collusion(
        silos=SILOS,
        colluders=SILOS // 3,
        numbers=quantity.size,
        promised=spec.privacy.records.noise_multiplier or math.nan,
        measured=noise_at_most(left_P * quantity.noise.scale) / moved.l2,
    )
