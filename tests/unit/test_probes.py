"""research/accuracy/mechanism/probes.py against a calculation by hand, from sums over silos alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from research.accuracy.arms import ARMS
from research.accuracy.federated import OPEN_POLICY
from research.accuracy.mechanism import __main__ as mechanism
from research.accuracy.mechanism.probes import PAIRS, SIDES, Watched, in_memory, probed, trained_arrays
from research.accuracy.trials import Split, Trial
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.objective import Objective, Work
from silo_agent.training.torch_objective import TorchObjective
from simulation.engine import Simulation
from strategies.base import Array, Arrays
from strategies.phases.training import TRAIN

Matrix = NDArray[np.float64]
ROOT = Path(__file__).parents[2]


def trial(arm: str = "feddw") -> Trial:
    return Trial(
        suite="tiny",
        setting="uneven",
        arm=arm,
        tested=Split.TEST,
        seed=3,
        learning_rate=0.1,
        silos=3,
        strategy=ARMS[arm].at(ARMS[arm].published),
        partition={"kind": "iid"},
        data={"format": "npz", "name": "numbers"},
        job={
            "classes": 3,
            "input_shape": [2],
            "rounds": 2,
            "model": {"name": "mlp", "hidden": [8]},
            "training": {"batch_size": 8, "local_epochs": 3, "optimizer": "sgd", "momentum": 0.0},
        },
    )


def silos() -> dict[str, SiloData]:
    """The first silo holds classes 0 and 1, the second 1 and 2, the third all; ten test samples each."""
    generator = np.random.default_rng(7)
    made = {}
    for place, held in enumerate(((0, 1), (1, 2), (0, 1, 2))):
        labels = np.resize(np.array(held), 24 + 6 * place)
        tested = np.arange(10) % 3
        made[f"silo-{place}"] = SiloData(
            train=Samples(features=features(labels, generator), labels=labels),
            holdout=Samples(features=features(tested, generator), labels=tested),
            name="numbers",
        )
    return made


def features(labels: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.float32]:
    centers = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    return (centers[labels] + 0.3 * generator.normal(size=(len(labels), 2))).astype(np.float32)


@dataclass(slots=True)
class Kept:
    """The built-in training, and what each silo received and ended with."""

    objective: Objective = field(default_factory=lambda: TorchObjective(device="cpu"))
    received: list[Arrays] = field(default_factory=list)
    trained: list[Arrays] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def compute(self, work: Work) -> Mapping[str, Array]:
        values = self.objective.compute(work)
        if work.phase_kind == TRAIN and work.round == 1:
            self.received.append(work.state)
            self.trained.append(trained_arrays(work, values))
            self.weights.append(work.weight)
        return values


def answers(arrays: Arrays, inputs: Array) -> tuple[Matrix, Matrix, Matrix]:
    """Features, logits and head of the mlp, in numpy. Shapes: (N, 8), (N, 3), (3, 8)."""
    found = {name.removeprefix("model/"): np.asarray(each, float) for name, each in arrays.items()}
    head = found["head.weight"]
    hidden = np.maximum(inputs @ found["body.1.weight"].T + found["body.1.bias"], 0.0)
    return hidden, hidden @ head.T + found.get("head.bias", np.zeros(3)), head


def softmax(values: Matrix) -> Matrix:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def test_figures_are_those_of_a_calculation_by_hand() -> None:
    """Omega, alignment, drift and gap from each silo's model itself, which the probe never has together."""
    kept, data = Kept(), silos()
    run = Simulation(trial().spec(), data, policy=OPEN_POLICY, objective=kept)
    next(run.run())
    # what the probe takes for a silo's model is what the federation averages
    mean = sum(
        weight * np.asarray(one["model/head.weight"])
        for weight, one in zip(kept.weights, kept.trained, strict=True)
    )
    np.testing.assert_allclose(run.state["model/head.weight"], mean, atol=1e-6)

    held = [in_memory(each.holdout) for each in data.values()]
    inputs, labels = (
        np.concatenate([getattr(each, name) for each in held]) for name in ("features", "labels")
    )
    cosines: dict[bool, list[float]] = {True: [], False: []}
    drifts: dict[bool, list[float]] = {True: [], False: []}
    moves: dict[tuple[str, bool], list[float]] = {}
    omega, counts, after, heads = np.zeros((3, 3)), np.zeros(3), list[Matrix](), list[Matrix]()
    for before, trained, own in zip(kept.received, kept.trained, data.values(), strict=True):
        train = in_memory(own.train)
        features_ND, logits, head = answers(trained, inputs)
        came_ND, came_logits, _ = answers(before, inputs)
        ours, theirs = softmax(came_logits), softmax(logits)
        for place, label in enumerate(labels):
            one, vector = features_ND[place], head[label]
            is_observed = bool(np.isin(label, train.labels))
            cosines[is_observed].append(one @ vector / np.linalg.norm(one) / np.linalg.norm(vector))
            drifts[is_observed].append(float((ours[place] * np.log(ours[place] / theirs[place])).sum()))
            came, norms = came_ND[place], [float(np.linalg.norm(each)) for each in (came_ND[place], one)]
            for name, value in (
                ("distance", float(np.linalg.norm(one - came))),
                ("angle", float(np.degrees(np.arccos(one @ came / norms[0] / norms[1])))),
                ("norm", norms[1] - norms[0]),
            ):
                moves.setdefault((name, is_observed), []).append(value)
        np.add.at(omega, train.labels, softmax(answers(trained, train.features)[1]))
        counts += np.bincount(train.labels, minlength=3)
        after.append(softmax(head @ head.T))
        heads.append(head / np.linalg.norm(head, axis=1, keepdims=True))
    (found, _) = probed(trial(), data, rounds=(1, 2))
    expected = {
        "alignment_after observed": np.mean(cosines[True]),
        "alignment_after unobserved": np.mean(cosines[False]),
        "drift observed": np.mean(drifts[True]),
        "drift unobserved": np.mean(drifts[False]),
        "gap after": np.mean([(omega / counts[:, None] - one) ** 2 for one in after]),
        "cosine of heads": np.mean([(one * two).sum(axis=1) for one, two in combinations(heads, 2)]),
        **{f"{name} {SIDES[not flag]}": np.mean(values) for (name, flag), values in moves.items()},
    }
    assert {name: found.figures[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert len(cosines[False]) == 9 + 12  # the first silo lacks class 2, the second class 0


def test_watching_a_training_changes_no_bit_of_it() -> None:
    states = []
    for objective in (None, Watched(test=in_memory(silos()["silo-0"].holdout), rounds=(1, 2))):
        run = Simulation(trial().spec(), silos(), policy=OPEN_POLICY, objective=objective, device="cpu")
        list(run.run())
        states.append(run.state)
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def lines(gain: float) -> list[dict[str, object]]:
    """FedDr+ loses so much less alignment on unobserved classes than its control."""
    generator = np.random.default_rng(1)
    level = {f"{name} {side}": 0.5 for name in PAIRS for side in SIDES} | {
        "gap before": 0.1,
        "gap after": 0.1,
    }
    made: list[dict[str, object]] = []
    for arm, lost in (("feddr_plus", 0.2 - gain), ("feddr_plus_no_fd", 0.2)):
        for seed in mechanism.SEEDS:
            figures = {**level, "alignment_after unobserved": 0.5 - lost + generator.normal(0.0, 0.001)}
            rounds = [{"round": round, "figures": figures} for round in mechanism.ROUNDS]
            made.append(
                {"setting": "2 shards", "arm": arm, "seed": seed, "rounds": rounds, "source": "ab / 01"}
            )
    return made


HEAD = {"date": "2026-11-23", "machine": "a machine", "command": "a command"}


@pytest.mark.parametrize(
    ("gain", "said"), [(0.1, "less (-0.10"), (-0.1, "more (+0.09"), (0.0, "undecided (-0.00")]
)
def test_sentence_of_a_mechanism_follows_from_the_interval(gain: float, said: str) -> None:
    text = mechanism.page_text([HEAD, *lines(gain)])
    assert f"alignment lost on unobserved classes, 2 shards: round 1 {said}" in text
    assert "accuracy lost on unobserved classes, 2 shards: round 1 no difference in any seed" in text
    assert "FedCSD against" not in text  # nothing has run


def test_page_says_what_the_committed_probes_say() -> None:
    page = (ROOT / "docs" / "evidence.md").read_text()
    committed = ROOT / "research" / "evidence" / "mechanism.jsonl"
    expected = "Not measured yet."
    if committed.exists():
        expected = mechanism.page_text([json.loads(line) for line in committed.read_text().splitlines()])
    begin, end = "<!-- bench:mechanism -->\n", "\n<!-- /bench:mechanism -->"
    assert page.partition(begin)[2].partition(end)[0] == expected
