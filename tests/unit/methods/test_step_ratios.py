"""No alarm over honest silos: every preset, cuts of very uneven silos, several rounds; and one over a lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.step_ratio import ArraySteps
from silo_agent.rounds.inputs.own_steps import own_lengths, step_lengths
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.data.partition import cut_dirichlet, cut_iid, cut_shards
from silo_agent.training.models.starting import initial_state
from silo_agent.training.phase_input import PhaseRequest
from simulation.engine import Simulation, unsigned_job
from strategies.base import Arrays
from strategies.presets import PRESETS
from tests.support import simulation
from tests.support.objectives import make_job

SILOS = ("a", "b", "c", "d", "e")
TRAINED = 1000  # of the digits; the next ones are hold-outs
RATE, RATES = (
    0.05,
    {"fedbabu": 0.5, "spherefed": 0.5, "dot_regression": 0.5, "feddr_plus": 0.5, "fedgela": 0.1},
)
MAX_RATIO = Policy.model_fields["max_step_ratio"].default
MEASURED = sorted({name: name for name in PRESETS if not name.endswith("_ft")})  # these train like the others
ALWAYS = ("fedavg", "fedetf", "scaffold")  # the others take a minute together
Cut = Callable[[np.random.Generator], list[np.ndarray]]
_DIGITS = load_digits()
IMAGES = (_DIGITS.data / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
LABELS = _DIGITS.target.astype(np.int64)


def _halving(draw: np.random.Generator) -> list[np.ndarray]:
    """500 samples, 250 and so on."""
    return np.split(draw.permutation(TRAINED), [500, 750, 875, 937])


CUTS: Mapping[str, Cut] = {
    "even": lambda draw: list(cut_iid(*_labels(), silos=5, rng=draw).train),
    "two classes a silo": lambda draw: list(
        cut_shards(*_labels(), classes=10, silos=5, shards_per_silo=2, rng=draw).train
    ),
    "dirichlet": lambda draw: list(
        cut_dirichlet(*_labels(), classes=10, silos=5, alpha=0.1, min_samples=10, rng=draw).train
    ),
    "halving sizes": _halving,
}


def _labels() -> tuple[np.ndarray, np.ndarray]:
    return LABELS[:TRAINED], LABELS[TRAINED:]


def silos(cut: str) -> list[SiloData]:
    holdout = Samples(features=IMAGES[TRAINED : TRAINED + 50], labels=LABELS[TRAINED : TRAINED + 50])
    return [
        SiloData(
            train=Samples(features=IMAGES[:TRAINED][places], labels=LABELS[:TRAINED][places]),
            holdout=holdout,
            name="digits",
        )
        for places in CUTS[cut](np.random.default_rng(3))
    ]


class Watched:
    """What each silo of a job sees of the state's steps; `alarms` are (silo, round, phase, array, ratio)."""

    def __init__(self, spec: JobSpec, before: Arrays) -> None:
        self.job = unsigned_job(spec, before)
        self.before = dict(before)
        self.alarms: list[tuple[int, int, str, str, float]] = []
        self._histories: dict[tuple[int, str], ArraySteps] = {}

    def see(self, step: simulation.Simulated, *, after: Arrays | None = None) -> None:
        after = step.state if after is None else after
        key = PhaseKey(job_digest=self.job.digest, round=step.round, phase=step.phase, attempt=1)
        if step.phase in self.job.strategy.opening:
            self.before = dict(after)
            return
        context = PhaseRequest.of(self.job, key, self.before, members=len(step.values)).context
        steps = step_lengths(self.job, step.phase, self.before, after)
        for silo, values in enumerate(step.values):
            own = own_lengths(self.job, key, context, values)
            for name in steps.keys() & own.keys():
                history = self._histories.get((silo, name), ArraySteps())
                lengths = {"step": steps[name], "own": own[name]}
                if history.is_too_long(**lengths, max_ratio=MAX_RATIO):
                    self.alarms.append(
                        (silo, step.round, step.phase, name, steps[name] / max(own[name], 1e-30))
                    )
                self._histories[silo, name] = history.after(**lengths)
        self.before = dict(after)


def job(preset: str, **fields: object) -> JobSpec:
    rate = RATES.get(preset, RATES.get(preset.split("_")[0], RATE))
    training = {"local_epochs": 2, "batch_size": 16, "learning_rate": rate}
    return make_job({"preset": preset}, rounds=6, silos=SILOS, training=training, **fields)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "preset",
    [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.gate) for name in MEASURED],
)
def test_honest_silos_raise_no_alarm(preset: str, cut: str) -> None:
    spec = job(preset)
    watched = Watched(spec, initial_state(spec))
    for step in simulation.simulate(spec, silos(cut)):
        watched.see(step)
    assert watched.alarms == []


@pytest.mark.parametrize("preset", ["fedproto", "feddw", "fedcsd"])
def test_a_silo_that_holds_none_of_the_sent_classes_raises_no_alarm(preset: str) -> None:
    """Its own rows stay, so its data set was stopped, and the refusal told the coordinator why."""
    spec, nine = job(preset), LABELS[:TRAINED] == 9
    watched = Watched(spec, initial_state(spec))
    parts = [*np.array_split(np.flatnonzero(~nine), len(SILOS) - 1), np.flatnonzero(nine)]
    data = [
        replace(each, train=Samples(features=IMAGES[:TRAINED][places], labels=LABELS[:TRAINED][places]))
        for each, places in zip(silos("even"), parts, strict=True)
    ]
    summed = set[str]()
    for step in simulation.simulate(spec, data, min_class_holders=2):
        watched.see(step)
        summed |= step.values[0].keys()
    assert summed & {"feature_sums", "soft_labels", "prototypes"}
    assert watched.alarms == []


@pytest.mark.parametrize("privacy", [{"clip_norm": 0.5, "noise_multiplier": 1.0}])
def test_a_private_job_compares_with_clip_and_noise_alone(privacy: dict[str, float]) -> None:
    spec = job("fedavg", privacy={"sums": privacy, "statistics_noise_multiplier": 1.0})
    state = initial_state(spec)
    of = unsigned_job(spec, state)
    key = PhaseKey(job_digest=of.digest, round=1, phase="train", attempt=1)
    context = PhaseRequest.of(of, key, state, members=5).context
    lengths = own_lengths(of, key, context, {"weight": np.array(0.2)})
    assert lengths == own_lengths(of, key, context, {"weight": np.array(0.2), "delta": np.full(3, 1e9)})
    deviation = context.noise["delta"]
    size = state["model/head.weight"].size
    assert lengths["model/head.weight"] == pytest.approx(0.5 + deviation * (np.sqrt(size) + 9.0))
    noise = np.random.default_rng(1).normal(size=size) * deviation
    assert 0.5 + np.linalg.norm(noise) <= lengths["model/head.weight"]


OWN_RECORDS = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.2}
SHARED = {"records": {**OWN_RECORDS, "noise": "sum"}}
ADAPTIVE = {"preset": "fedopt", "options": {"server_optimizer": "adam"}}


@pytest.mark.parametrize(
    ("privacy", "fields"),
    [
        ({"sums": {"clip_norm": 0.5, "noise_multiplier": 1.0}}, {"rounds": 4}),
        ({"records": OWN_RECORDS}, {"rounds": 4}),
        ({"records": OWN_RECORDS}, {"rounds": 4, "strategy": ADAPTIVE}),
        (SHARED, {"steps": 12, "training": {"momentum": 0.9}}),
        (SHARED, {"steps": 12, "training": {"optimizer": "adam", "learning_rate": 0.01}}),
        (SHARED, {"steps": 12, "strategy": ADAPTIVE}),
    ],
    ids=["sums", "records", "records, fedopt adam", "shared", "shared, adam", "shared, fedopt adam"],
)
@pytest.mark.parametrize("cut", ["even", "halving sizes"])
def test_private_silos_raise_no_alarm(
    privacy: dict[str, object], fields: dict[str, object], cut: str
) -> None:
    """The engine's own sums, with all noise."""
    training = {"local_epochs": 1, "batch_size": 40, "learning_rate": 0.5, "momentum": 0.0}
    spec = make_job(
        silos=SILOS,
        privacy={**privacy, "statistics_noise_multiplier": 1.0},
        **{**fields, "training": training | fields.get("training", {})},
    )
    run = Simulation(spec, dict(zip(SILOS, silos(cut), strict=True)), device="cpu")
    before, histories = dict(run.state), dict[str, ArraySteps]()
    for result in run.run():
        assert result.result == "applied"
        key = PhaseKey(job_digest=run.job.digest, round=result.round, phase="train", attempt=1)
        context = PhaseRequest.of(run.job, key, before, members=5).context
        values = {"weight": np.array(0.2)} if spec.steps is None else {"gradient": np.zeros(1, np.int64)}
        own = own_lengths(run.job, key, context, values)
        steps = step_lengths(run.job, "train", before, run.state)
        assert own.keys() == steps.keys()
        for name, step in steps.items():
            history, lengths = histories.get(name, ArraySteps()), {"step": step, "own": own[name]}
            assert step > 0
            assert not history.is_too_long(**lengths, max_ratio=MAX_RATIO)
            histories[name] = history.after(**lengths)
        before = dict(run.state)


def test_a_state_that_was_built_raises_an_alarm_at_every_silo() -> None:
    """First-layer rows that all measure one direction; the control is the rounds before."""
    spec = job("fedavg")
    watched = Watched(spec, initial_state(spec))
    steps = list(simulation.simulate(spec, silos("even")))
    for step in steps[:3]:
        watched.see(step)
    assert watched.alarms == []
    built = dict(steps[3].state)
    rows = built["model/body.1.weight"]
    built["model/body.1.weight"] = np.broadcast_to(rows[:1] * 20.0, rows.shape).copy()
    watched.see(steps[3], after=built)
    assert {(silo, name) for silo, _, _, name, _ in watched.alarms} == {
        (silo, "model/body.1.weight") for silo in range(5)
    }


@pytest.mark.parametrize(
    ("weight", "fields", "longer"),
    [
        (0.2, {}, 1.0),
        (0.05, {}, 4.0),  # as many fewer steps as it has fewer samples
        (0.05, {"training": {"local_epochs": None, "local_steps": 5}}, 1.0),  # all take as many steps
        (0.2, {"fraction": 0.6}, 1.0),  # a draw makes no silo smaller
        (0.05, {"fraction": 0.6}, 4.0),
    ],
)
def test_a_silo_with_fewer_samples_than_the_mean_one_allows_longer_steps(
    weight: float, fields: dict[str, Any], longer: float
) -> None:
    spec = make_job({"preset": "fedavg"}, silos=SILOS, **fields)
    state = initial_state(spec)
    of = unsigned_job(spec, state)
    key = PhaseKey(job_digest=of.digest, round=1, phase="train", attempt=1)
    context = PhaseRequest.of(of, key, state, members=spec.named_per_round).context
    moved = np.full(context.trained_values, 0.01 * weight, np.float32)
    sums = {each.name: np.zeros(each.shape) for each in of.layout(key, state, 5).quantities}
    lengths = own_lengths(of, key, context, {**sums, "weight": np.array(weight), "delta": moved})
    size = state["model/body.1.weight"].size
    assert lengths["model/body.1.weight"] == pytest.approx(longer * 0.01 * np.sqrt(size), rel=1e-3)


def test_small_steps_in_one_direction_add_up() -> None:
    history = ArraySteps()
    for _ in range(5):
        assert not history.is_too_long(step=1.0, own=1.0, max_ratio=3.0)
        history = history.after(step=1.0, own=1.0)
    assert not history.is_too_long(step=3.0, own=1.0, max_ratio=3.0)
    assert history.is_too_long(step=3.1, own=1.0, max_ratio=3.0)
    # a silo that stands still lets the others move: half as far as it moved at first
    still = replace(history, own_total=100.0)
    assert not still.is_too_long(step=1.5, own=0.0, max_ratio=3.0)
    assert still.is_too_long(step=1.51, own=0.0, max_ratio=3.0)
    stretched = replace(history, total=3.0 * history.own_total + 1e-6)
    assert stretched.is_too_long(step=3.0, own=1.0, max_ratio=3.0)
