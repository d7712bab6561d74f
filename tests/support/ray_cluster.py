"""Two machines of Ray on loopback: prints their address, and ends them when its own input ends."""

from __future__ import annotations

import sys

from bench.peers.two_nodes import two_machines

STORE_BYTES = 100 << 20


def main() -> None:
    with two_machines(cpus=1, store_bytes=STORE_BYTES) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
