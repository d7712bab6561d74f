"""What groups that take turns cost against a new draw each round, and what sums of either tell.

    python -m research.draws      # two minutes of CPU

Learning: FedAvg on the digits, 20 silos of which a round names 5, as mean accuracy on the whole hold-out over
the last LAST rounds, four turns of the groups. Telling: the same silos, trained in several ways;
the model's moves are solved for each silo's own update by least squares. Source: docs/decisions/0030.

R = rounds, S = silos, P = parameters.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data, load_partition
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.models.starting import initial_state
from simulation.engine import Simulation
from strategies.base import MODEL

SILOS, NAMED, ROUNDS, LAST, SEEDS = 20, 5, 40, 16, (1, 2, 3, 4, 5)
CUTS: Mapping[str, Mapping[str, Any]] = {
    "2 shards": {"kind": "shards", "shards_per_silo": 2},
    "Dirichlet 0.1": {"kind": "dirichlet", "alpha": 0.1, "min_samples": 10},
    "Dirichlet 0.5": {"kind": "dirichlet", "alpha": 0.5, "min_samples": 10},
}
WHOLE = {"local_epochs": 1, "batch_size": 512}  # one step a round
TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "one step at rate 1e-06": {**WHOLE, "learning_rate": 1e-6},
    "one step at rate 0.001": {**WHOLE, "learning_rate": 1e-3},
    "one step at rate 0.1": {**WHOLE, "learning_rate": 0.1},
    "three epochs in batches of 32 at rate 0.1": {},
}
DRAWS = ("rounds", "groups")
DIGITS = {"format": "digits", "name": "digits"}
OPEN = Policy(federation="bench", count_granularity=1, assumed_colluders=0, max_cohort_changes=1_000)


def job(draw: str, seed: int, **training: Any) -> JobSpec:
    """FedAvg, at rate 0.1 unless `training` says otherwise. seed: of the model and the shuffles."""
    values = {
        "name": "draws",
        "federation": "bench",
        "silos": [f"silo-{place:02d}" for place in range(SILOS)],
        "not_after": "2099-01-01T00:00:00Z",
        "rounds": ROUNDS,
        "fraction": NAMED / SILOS,
        "draw": draw,
        "model": {"name": "mlp", "hidden": [64], "seed": seed},
        "training": {"learning_rate": 0.1, "local_epochs": 3, "batch_size": 32, **training},
        "classes": 10,
        "input_shape": [1, 8, 8],
        "seed": seed,
    }
    return JobSpec.model_validate(values)


def data_of(spec: JobSpec, cut: str, seed: int) -> dict[str, SiloData]:
    partition = {**CUTS[cut], "silos": SILOS, "index": 0, "seed": seed}
    settings = DataSettings.model_validate({**DIGITS, "partition": partition})
    return dict(zip(spec.silos, load_partition(settings, spec), strict=True))


def accuracy(draw: str, cut: str, seed: int) -> float:
    """Over the last rounds, in percent."""
    spec = job(draw, seed)
    whole = load_data(DataSettings.model_validate(DIGITS), spec).holdout
    simulation = Simulation(spec, data_of(spec, cut, seed), policy=OPEN, device="cpu", test_set=whole)
    return 100 * statistics.mean(each.figures["test_accuracy"] for each in [*simulation.run()][-LAST:])


def mean_cosine(draw: str, training: Mapping[str, Any]) -> float:
    """The mean over silos of the cosine between a silo's own update and what the sums say it is."""
    spec = job(draw, 1, **training)
    data, before = data_of(spec, "2 shards", 1), flat(initial_state(spec))
    simulation, who_RS, moves_RP = Simulation(spec, data, policy=OPEN, device="cpu"), [], []
    for each in simulation.run():
        after = flat(simulation.state)
        who_RS.append([name in each.silos for name in spec.silos])
        moves_RP.append(after - before)
        before = after
    weights_S = np.array([len(data[name].train.labels) for name in spec.silos])
    share_RS = np.array(who_RS) * weights_S
    share_RS = share_RS / share_RS.sum(axis=1, keepdims=True)
    found_SP = np.linalg.lstsq(share_RS, np.stack(moves_RP), rcond=None)[0]
    alone_SP = [own_update(spec, data, name) for name in spec.silos]
    return statistics.mean(map(cosine, found_SP, alone_SP))


def own_update(spec: JobSpec, data: Mapping[str, SiloData], name: str) -> NDArray[Any]:
    """Of the first model, by a job of three silos that all have this one's data. Shapes: -> (P,)."""
    start = initial_state(spec)
    three = spec.model_copy(update={"silos": spec.silos[:3], "fraction": 1.0, "draw": None, "rounds": 1})
    same = dict.fromkeys(three.silos, data[name])
    simulation = Simulation(three, same, policy=OPEN, device="cpu", state=start)
    list(simulation.run())
    update_P: NDArray[Any] = flat(simulation.state) - flat(start)
    return update_P


def flat(state: Mapping[str, Any]) -> NDArray[Any]:
    arrays = [np.ravel(state[name]) for name in sorted(state) if name.startswith(MODEL)]
    return np.concatenate(arrays).astype(np.float64)


def cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def lines() -> Iterator[str]:
    yield f"accuracy in percent, {len(SEEDS)} seeds: new draws / groups / difference +- standard error"
    for cut in CUTS:
        redrawn, groups = ([accuracy(draw, cut, seed) for seed in SEEDS] for draw in DRAWS)
        apart = [one - other for one, other in zip(groups, redrawn, strict=True)]
        error = statistics.stdev(apart) / math.sqrt(len(apart))
        yield (
            f"{cut}: {statistics.mean(redrawn):.1f} / {statistics.mean(groups):.1f} / "
            f"{statistics.mean(apart):+.1f} +- {error:.1f}"
        )
    yield "cosine of a silo's own update and what the sums say it is, mean of the silos: new draws / groups"
    for words, training in TRAININGS.items():
        yield f"{words}: {' / '.join(f'{mean_cosine(draw, training):.2f}' for draw in DRAWS)}"


def main() -> int:
    for line in lines():
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
