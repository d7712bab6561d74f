"""What a coordinator reads off one silo's Gram and moment sums, if it gets to see them.

A class of which a silo holds one sample: its column of the moment is that sample's feature, and under a
backbone that can be inverted the feature is the image. Under masks the silo's vector is uniform words. What
the sum of all silos discloses of the sample is what it discloses of every sample of the class.
"""

# D = feature width

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.rows import Row
from research.attacks import chance
from research.attacks.chance import cosine
from research.attacks.digits import Digits, Places, digits, job
from research.attacks.inputs import encoded, phase_layout, silo_values
from research.attacks.sessions import decoded, secure_sum
from silo_agent.training.data.formats.digits import CLASSES
from silo_agent.training.models.starting import initial_state
from strategies.base import TOTAL

SILOS = 5
LONE_CLASS = 3  # of which the attacked silo holds one sample
HELD_OUT = 360
EXACT = 1.0 - 1e-6
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentAttack:
    """Cosines of what was reconstructed with the sample's image at unit length, or its whole moment.

    sum_cosine: of the revealed sum's column with the image. sum_cosine_of_strangers: the mean of the same
    over samples of the class that no silo holds. closer_strangers: the share of them that are nearer to
    the column. masked_*: of the attacked silo's masked vector, taken at face value.
    """

    unmasked_cosine: float
    masked_cosine: float
    masked_cosine_by_chance: float
    masked_chi_square: float
    unmasked_chi_square: float
    chi_square_by_chance: float
    sum_cosine: float
    sum_cosine_of_strangers: float
    closer_strangers: float

    def rows(self) -> list[Row]:
        return [
            Row(
                name="moment, no masks: cosine with the lone image (control)",
                target=EXACT,
                value=self.unmasked_cosine,
                unit="",
                is_at_most=False,
            ),
            Row(
                name="moment, no masks: chi-square of the bytes, 255 degrees (control)",
                target=self.chi_square_by_chance,
                value=self.unmasked_chi_square,
                unit="",
                is_at_most=False,
            ),
            Row(
                name="moment, masks: |cosine| with the silo's moment (false alarm 1e-9)",
                target=self.masked_cosine_by_chance,
                value=abs(self.masked_cosine),
                unit="",
            ),
            Row(
                name="moment, masks: chi-square of the bytes, 255 degrees (false alarm 1e-9)",
                target=self.chi_square_by_chance,
                value=self.masked_chi_square,
                unit="",
            ),
        ]


def measure(*, seed: int = 1) -> MomentAttack:
    """One silo with a single sample of a class among SILOS, through a backbone that leaves images as they
    are but for their length; the objective, the encoding and the session are the product's."""
    data = digits()
    lone, parts, strangers = _cut(data, seed)
    spec = job("spherefed", silos=SILOS, hidden=())
    state = {**initial_state(spec), TOTAL: np.array(sum(map(len, parts)))}
    layout = phase_layout(spec, "calibrate", state, members=SILOS)
    inputs = {
        name: encoded(
            silo_values(spec, "calibrate", state, data.silo(part), members=SILOS, place=place), layout
        )
        for place, (name, part) in enumerate(zip(spec.silos, parts, strict=True))
    }
    victim = spec.silos[0]
    view = secure_sum(inputs, layout)
    bare = decoded(inputs[victim].vectors, layout)["moment"]
    masked = view.taken_at_face_value(victim)["moment"]
    sum_D = np.asarray(view.sums["moment"])[:, LONE_CLASS]
    image_D = data.images(np.array([lone]))[0]
    strange = [cosine(image, sum_D) for image in data.images(strangers)]
    return MomentAttack(
        unmasked_cosine=cosine(bare[:, LONE_CLASS], image_D),
        masked_cosine=cosine(masked, bare),
        masked_cosine_by_chance=chance.largest_chance_cosine(bare.size),
        masked_chi_square=chance.byte_chi_square(view.bytes_of(victim)),
        unmasked_chi_square=chance.byte_chi_square(inputs[victim].vectors[64].tobytes()),
        chi_square_by_chance=chance.largest_chance_chi_square(chance.BYTE_VALUES - 1),
        sum_cosine=cosine(sum_D, image_D),
        sum_cosine_of_strangers=float(np.mean(strange)),
        closer_strangers=float(np.mean(np.array(strange) > cosine(sum_D, image_D))),
    )


def _cut(data: Digits, seed: int) -> tuple[int, list[Places], Places]:
    """The lone sample, the silos' samples, and samples of its class that no silo holds."""
    order_N = data.shuffled(seed)
    held, rest = np.split(order_N, [HELD_OUT])
    parts = np.array_split(rest, SILOS)
    is_lone_class = data.labels(parts[0]) == LONE_CLASS
    lone = int(parts[0][is_lone_class][0])
    parts[0] = np.concatenate([parts[0][~is_lone_class], [lone]])
    assert len(np.unique(data.labels(parts[0]))) == CLASSES
    return lone, parts, held[data.labels(held) == LONE_CLASS]
