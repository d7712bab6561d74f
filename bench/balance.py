"""What share of the time a simulation's workers are at work, by the samples of the silos that rounds draw.

    python -m bench.balance --data ../shared/data/fashion_mnist

Each worker takes a second for a sample. `dealt once`: each silo belongs to one worker, as it did at first;
`asked for`: workers take the largest silo that is left (simulation/pool.py). Means over the draws.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.options import Parser, whole
from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from silo_agent.training.data.loading import load_partition
from silo_agent.training.data.settings import DataSettings
from simulation.pool import Phase, Pool
from simulation.silos import Answer
from strategies.base import Arrays

KEY = PhaseKey(job_digest=bytes(32), round=1, phase="train", attempt=1)
WORKERS = (2, 4, 8)


class TimedWorker:
    """Answers at once, and counts the seconds that it would have taken."""

    def __init__(self, samples: Mapping[str, int]) -> None:
        self._samples = samples
        self._silo = ""
        self.seconds = 0

    def ask(self, phase: Phase, silo: str, kept: Arrays) -> None:
        self._silo = silo
        self.seconds += self._samples[silo]

    def answer(self) -> Answer:
        return Answer(silo=self._silo)


class TimedPool(Pool[TimedWorker]):
    """Of such workers: the one that would be done first has answered."""

    def __init__(self, samples: Mapping[str, int], workers: int) -> None:
        super().__init__(samples)
        self._workers = [TimedWorker(samples) for _ in range(workers)]

    def ready(self, busy: Sequence[TimedWorker]) -> list[TimedWorker]:
        return [min(busy, key=lambda worker: worker.seconds)]

    def close(self) -> None:
        """Nothing was started."""

    def balance(self, drawn: Sequence[str]) -> float:
        """Of one round that draws these silos."""
        self.answers(KEY, {}, drawn, {}, as_words=False)
        return busy_share([worker.seconds for worker in self._workers])


def dealt_once(samples: Mapping[str, int], workers: int) -> dict[str, int]:
    """The worker of each silo: by falling number of samples, each to the worker with the fewest so far."""
    held, worker_of = [0] * workers, dict[str, int]()
    for name in sorted(samples, key=lambda name: (-samples[name], name)):
        worker_of[name] = min(range(workers), key=lambda worker: (held[worker], worker))
        held[worker_of[name]] += samples[name]
    return worker_of


def busy_share(seconds: Sequence[int]) -> float:
    return sum(seconds) / (len(seconds) * max(seconds))


def main(arguments: Sequence[str] | None = None) -> int:
    """A line for each number of workers."""
    options = _options(arguments)
    samples = _samples(options)
    rng, names = np.random.default_rng(0), list(samples)
    draws = [rng.choice(names, options.drawn, replace=False).tolist() for _ in range(options.draws)]
    print(f"{'workers':<10}{'dealt once':>12}{'asked for':>12}")
    for workers in WORKERS:
        worker_of = dealt_once(samples, workers)
        before, after = [], []
        for drawn in draws:
            seconds = [0] * workers
            for name in drawn:
                seconds[worker_of[name]] += samples[name]
            before.append(busy_share(seconds))
            after.append(TimedPool(samples, workers).balance(drawn))
        print(f"{workers:<10}{np.mean(before):>12.2f}{np.mean(after):>12.2f}")
    return 0


def _samples(options: argparse.Namespace) -> dict[str, int]:
    """Training samples of each silo, as `chorale simulate` cuts them."""
    names = [f"silo-{place}" for place in range(1, options.silos + 1)]
    spec = JobSpec.model_validate(
        {
            "name": "balance",
            "federation": "bench",
            "silos": names,
            "rounds": 1,
            "model": {"name": "mlp"},
            "classes": 10,
            "input_shape": [1, 28, 28],
            "training": {"learning_rate": 0.1},
            "not_after": "2100-01-01T00:00:00Z",
        }
    )
    cut = {"kind": "dirichlet", "alpha": options.alpha, "silos": options.silos, "index": 0, "seed": 0}
    settings = DataSettings.model_validate({"format": "mnist", "path": options.data, "partition": cut})
    return {name: len(data.train) for name, data in zip(names, load_partition(settings, spec), strict=True)}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("balance", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of (Fashion-)MNIST's files")
    parser.add_argument("--silos", type=whole(3, 1_000), default=100)
    parser.add_argument("--drawn", type=whole(1, 1_000), default=10, help="silos of a round")
    parser.add_argument("--draws", type=whole(1, 100_000), default=1_000)
    parser.add_argument("--alpha", type=float, default=0.5, help="of the Dirichlet cut")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
