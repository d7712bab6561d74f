"""What local training does to the thing that a method is about, summed over silos as a federation would.

Each silo compares the model that it received with the one that it trained, on the same test samples, and
gives sums and counts: of samples whose class it trains on (observed) and of the others. The sums are taken in
the product's ring (`word_sums`): what is read here is what a session would reveal, masks change no bit of it.

    alignment   cos(f(x), v_y): features and the class vectors that are the head's rows     FedDr+, section 3
    distance    |f(x) - f_g(x)|, features before and after                                  FedDr+, Figure 4
    angle       between f(x) and f_g(x), in degrees                                         FedDr+, Figure 4
    norm        |f(x)| - |f_g(x)|                                                           FedDr+, Figure 4
    right       share of samples whose class is the largest logit
    drift       KL(p before || p after) of the softmax, in nats                             FedCSD
    gap         mean of (Omega - softmax(W W^T))^2; Omega: soft labels of the trained models  FedDW, Eq. 11
    cosine of heads   of a class's rows at two silos, mean over classes and pairs           SphereFed, Eq. 2

The last follows from one sum: of rows u_k at unit length, |sum_k u_k|^2 = K + the sum over pairs of cosines.
Before training, gap is of the received head, afterwards the mean over the silos' own heads.
N = samples, C = classes, K = silos, D = feature width; a 2 stands for observed and unobserved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity, log_softmax, normalize, softmax

from crypto.errors import ConfigError
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from research.accuracy.federated import OPEN_POLICY
from research.accuracy.trials import Trial
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.data.base import Samples, SampleSet, SiloData
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import job_model
from silo_agent.training.models.state import load_arrays
from silo_agent.training.objective import Objective, Work
from silo_agent.training.parts.statistics.soft_labels import probability_sums
from silo_agent.training.torch_objective import TorchObjective
from simulation.engine import Simulation
from simulation.sums import word_sums
from strategies.base import MODEL, Array, Arrays
from strategies.phases.training import TRAIN

BOUND = float(1 << 20)  # of a silo's sums; they are of some thousand samples
MOVED = ("distance", "angle", "norm")  # of features, from the received model to the trained one
PAIRS = ("alignment_before", "alignment_after", "right_before", "right_after", "drift", *MOVED)
SIDES = ("observed", "unobserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One round. figures: such as `drift unobserved`, `gap after`."""

    round: int
    figures: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class Watched:
    """The built-in training; after it, in rounds that are watched, a silo's sums. test: the same for all."""

    test: Samples
    rounds: Collection[int]
    objective: Objective = field(default_factory=lambda: TorchObjective(device="cpu"))
    inputs: dict[int, list[dict[str, Array]]] = field(default_factory=dict)
    heads: dict[int, Tensor] = field(default_factory=dict)

    def compute(self, work: Work) -> Mapping[str, Array]:
        values = self.objective.compute(work)
        if work.phase_kind == TRAIN and work.round in self.rounds:
            model = job_model(work.spec)
            load_arrays(model, work.state)
            self.heads[work.round] = model.head.weight.detach().clone()
            sums = _sums(model, work, trained_arrays(work, values), self.test)
            self.inputs.setdefault(work.round, []).append(sums)
        return values


def probed(trial: Trial, silos: Mapping[str, SiloData], *, rounds: Collection[int]) -> list[Probed]:
    """Train it; what the silos' sums say of those rounds. Raises ChoraleError where training fails."""
    held = [in_memory(silo.holdout) for silo in silos.values()]
    test = Samples(
        features=np.concatenate([each.features for each in held]),
        labels=np.concatenate([each.labels for each in held]),
    )
    watched = Watched(test=test, rounds=rounds)
    for _ in Simulation(trial.spec(), silos, policy=OPEN_POLICY, objective=watched).run():
        pass
    return [
        Probed(round=round, figures=_figures(_ring_sum(inputs), watched.heads[round], silos=len(inputs)))
        for round, inputs in watched.inputs.items()
    ]


def in_memory(samples: SampleSet) -> Samples:
    """Raises ConfigError for samples that are read one by one."""
    if not isinstance(samples, Samples):
        raise ConfigError("probes: expected a data set that is in memory")
    return samples


def trained_arrays(work: Work, values: Mapping[str, Array]) -> Arrays:
    """The state that this silo's training ended in, from what it gives to the sum: p * delta."""
    delta_P = np.asarray(values["delta"], np.float32) / np.float32(work.weight)
    arrays, start = dict(work.state), 0
    for name in work.context.trained:
        received = np.asarray(work.state[MODEL + name])
        arrays[MODEL + name] = received + delta_P[start : start + received.size].reshape(received.shape)
        start += received.size
    return arrays


@torch.no_grad()
def _sums(model: FederatedModel, work: Work, trained: Arrays, test: Samples) -> dict[str, Array]:
    """A silo's input. model: as received; it ends as the trained one."""
    classes, own = work.spec.classes, in_memory(work.data.train)
    inputs, labels_N = torch.as_tensor(test.features), torch.as_tensor(test.labels)
    is_held_C = np.bincount(own.labels, minlength=classes) > 0
    is_observed_N = torch.as_tensor(is_held_C)[labels_N]
    model.eval()
    before, head = run_model(model, inputs), model.head.weight.clone()
    load_arrays(model, trained)
    after = run_model(model, inputs)
    log_before_NC, log_after_NC = (log_softmax(one.logits_NC.double(), dim=1) for one in (before, after))
    of_samples = {
        "alignment_before": cosine_similarity(before.features_ND, head[labels_N]),
        "alignment_after": cosine_similarity(after.features_ND, model.head.weight[labels_N]),
        "right_before": _is_right(before, labels_N),
        "right_after": _is_right(after, labels_N),
        "drift": (log_before_NC.exp() * (log_before_NC - log_after_NC)).sum(dim=1),
        **dict(zip(MOVED, moved(before.features_ND.double(), after.features_ND.double()), strict=True)),
    }
    own_labels_N = torch.as_tensor(own.labels)
    relations_CC = relations(model.head.weight)
    return {
        "tested": _two(torch.ones(len(test)), is_observed_N).astype(np.int64),
        **{name: _two(values_N, is_observed_N) for name, values_N in of_samples.items()},
        "soft_labels": probability_sums(
            run_model(model, torch.as_tensor(own.features)).logits_NC,
            own_labels_N,
            weights_N=torch.ones(len(own), dtype=torch.float64),
            classes=classes,
        ).numpy(),
        "class_counts": np.bincount(own.labels, minlength=classes),
        "relations": relations_CC.numpy(),
        "relations_square": relations_CC.square().numpy(),
        "unit_rows": normalize(model.head.weight.double(), dim=1).numpy(),
    }


def moved(before_ND: Tensor, after_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distance, angle in degrees and difference in norm of each sample's features. Shapes: -> (N,)."""
    lengths = [torch.linalg.vector_norm(each, dim=1) for each in (before_ND, after_ND)]
    cosine_N = cosine_similarity(before_ND, after_ND).clamp(-1.0, 1.0)
    distance_N = torch.linalg.vector_norm(after_ND - before_ND, dim=1)
    return distance_N, torch.rad2deg(torch.acos(cosine_N)), lengths[1] - lengths[0]


def relations(head_CD: Tensor) -> Tensor:
    """softmax of each row of W W^T. Shapes: -> (C, C) float64."""
    head_CD = head_CD.detach().double()
    return softmax(head_CD @ head_CD.T, dim=1)


def _is_right(outputs: Outputs, labels_N: Tensor) -> Tensor:
    return (outputs.logits_NC.argmax(dim=1) == labels_N).double()


def _two(values_N: Tensor, is_observed_N: Tensor) -> NDArray[np.float64]:
    """Sums over observed and unobserved classes. Shapes: -> (2,)."""
    values_N = values_N.double()
    return np.array([float(values_N[is_observed_N].sum()), float(values_N[~is_observed_N].sum())])


def _ring_sum(inputs: list[dict[str, Array]]) -> Mapping[str, Array]:
    """Of all silos, as words."""
    quantities = tuple(
        Quantity(
            name=name,
            shape=np.shape(value),
            bound=BOUND,
            is_count=np.asarray(value).dtype.kind == "i",
        )
        for name, value in inputs[0].items()
    )
    layout = Layout(members=len(inputs), quantities=quantities)
    return word_sums(layout, (Encoder(each, layout=layout).encode() for each in inputs))


def _figures(sums: Mapping[str, Array], head_CD: Tensor, *, silos: int) -> dict[str, float]:
    """Means from sums and counts. A class that nobody trains on drops out of the gap."""
    tested_2 = np.maximum(sums["tested"], 1)
    means = {name: sums[name] / tested_2 for name in PAIRS}
    found = {
        f"{name} {side}": float(means[name][place]) for name in PAIRS for place, side in enumerate(SIDES)
    }
    counts_C = sums["class_counts"]
    omega_CC = sums["soft_labels"] / np.maximum(counts_C, 1)[:, None]
    # the mean over silos of (Omega - S)^2, which is a sum of sums
    after_CC = omega_CC**2 - 2 * omega_CC * sums["relations"] / silos + sums["relations_square"] / silos
    before_CC = (omega_CC - relations(head_CD).numpy()) ** 2
    is_known_C = counts_C > 0
    found["gap before"] = float(before_CC[is_known_C].mean())
    found["gap after"] = float(after_CC[is_known_C].mean())
    together = float((sums["unit_rows"] ** 2).sum()) / len(head_CD)
    found["cosine of heads"] = (together - silos) / (silos * (silos - 1))
    return {name: float(f"{value:.6g}") for name, value in found.items()}
