"""One target under atheris, in a process of its own: `python -m tests.fuzz.explore NAME FLAG... FOLDER...`

The flags are libFuzzer's. Coverage is counted in our own packages and in the YAML reader, which is Python.
What the target should not raise ends the process; the input is then a file where `-artifact_prefix` says.
"""

from __future__ import annotations

import random
import resource
import sys
import warnings
from pathlib import Path

import atheris

COUNTED = ["crypto", "strategies", "chorale", "coordinator", "silo_agent", "yaml"]
ROOM_BYTES = 1 << 30  # beyond what the process has at its start; MemoryError is a finding

with atheris.instrument_imports(include=COUNTED):
    from tests.fuzz.targets import TARGETS

from tests.fuzz import mutate  # noqa: E402 - the others before it are to be counted


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    change = target.mutate or mutate.raw

    def custom(data: bytes, max_bytes: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.2:
            return bytes(atheris.Mutate(data, max_bytes))
        for _ in range(chance.choice((1, 1, 2, 4))):
            data = change(data, chance)
        return data[:max_bytes]

    warnings.simplefilter("ignore")  # of libraries, about what they read
    for seed in target.seeds():  # whatever is made once is made before memory is counted
        target.try_on(seed)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    atheris.Setup(sys.argv, lambda data: target.try_on(data) and None, custom_mutator=custom)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
