"""Generated images that are read by place, for a process of their own too.

    python -m tests.support.scans memory MEGABYTES WORKERS
    python -m tests.support.scans wait

`memory` trains a round on images of ten times MEGABYTES, and says how much memory that took at most. `wait`
has two processes read for it, prints who they are and waits.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale_models import Data
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import make_job, make_work

SIDE = 40
given: dict[str, Any] = {}  # what `data` returns


class Scans:
    """Images that follow from their places; of float32 they take as much memory as in the job's form.

    bad: a sample or an exception in place of some of them.
    """

    def __init__(
        self,
        count: int,
        *,
        shape: tuple[int, ...] = (SIDE, SIDE),
        dtype: Any = np.uint8,
        bad: dict[int, Any] | None = None,
    ) -> None:
        self.count, self.shape, self.dtype, self.bad = count, shape, dtype, bad or {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> tuple[NDArray[Any], Any]:
        if place in self.bad:
            if isinstance(self.bad[place], Exception):
                raise self.bad[place]
            found: tuple[NDArray[Any], Any] = self.bad[place]
            return found
        image = np.random.default_rng(place).integers(0, 256, self.shape, np.uint8)
        return image.astype(self.dtype), place % 10


def data(settings: DataSettings) -> Data:
    return Data(**given)


def settings_of(**settings: Any) -> DataSettings:
    return DataSettings(format="module", module=f"{__name__}:data", **settings)


def trained_on(count: int, *, megabytes: int, workers: int) -> None:
    """Every phase of a round of FedDW: presence, a test of the received model, training, statistics."""
    job = make_job({"preset": "feddw"}, input_shape=(3, 64, 64), training={"local_epochs": 1})
    given["train"] = Scans(count, shape=(3, 64, 64), dtype=np.float32)
    loaded = load_data(settings_of(cache_megabytes=megabytes, workers=workers), job)
    for kind in ("class-presence", "train"):
        TorchObjective(device="cpu").compute(make_work(job, loaded, kind=kind))


def most_resident_bytes() -> int:
    """Of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    if sys.argv[1] == "wait":
        given["train"] = Scans(700)
        loaded = load_data(settings_of(cache_megabytes=1, workers=2), make_job(input_shape=(1, SIDE, SIDE)))
        _say([child.pid for child in multiprocessing.active_children()])
        time.sleep(600)
        assert loaded
        return
    megabytes, workers = map(int, sys.argv[2:])
    trained_on(64, megabytes=megabytes, workers=0)  # all that training loads by itself
    before = most_resident_bytes()
    trained_on(10 * (megabytes << 20) // (3 * 64 * 64 * 4), megabytes=megabytes, workers=workers)
    _say({"before": before, "after": most_resident_bytes()})


if __name__ == "__main__":
    main()
