"""`chorale ARGUMENTS --address ...` on a Ray of two machines, which it starts here and ends again.

    python -m bench.peers.two_nodes CPUS simulate JOB.yaml --engine ray ...

CPUS: of each machine. A machine of Ray is a raylet on loopback with an object store of its own; all of them
are children of this program, so memory and CPU of the whole can be looked at.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ray.cluster_utils import Cluster

MACHINES = 2
STORE_BYTES = 500 << 20  # of each machine: Fashion-MNIST is 220 MB in float32


@contextmanager
def two_machines(*, cpus: int, store_bytes: int = STORE_BYTES) -> Iterator[str]:
    """Their address."""
    cluster = Cluster()
    try:
        for _ in range(MACHINES):
            cluster.add_node(num_cpus=cpus, object_store_memory=store_bytes, include_dashboard=False)
        yield cluster.address
    finally:
        cluster.shutdown()


def main(arguments: list[str]) -> int:
    """The command's exit code."""
    cpus, *command = arguments
    with two_machines(cpus=int(cpus)) as address:
        own = [sys.executable, "-m", "cli.main", *command, "--address", address]
        return subprocess.run(own, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
