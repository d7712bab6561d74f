"""Two machines of Ray on loopback: prints their address, and ends them when its own input ends."""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

STORE_BYTES = 100 << 20


def main() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
