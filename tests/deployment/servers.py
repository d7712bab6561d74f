"""A server of Debian's packages that answers at /-/ready, as Prometheus and its Alertmanager do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support import programs
from tests.support.ports import free_ports
from tests.support.processes import wait_until


@contextmanager
def serving(program: str, *options: str, log: Path) -> Iterator[str]:
    """Its address on loopback, once it is ready; it ends with the block."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [programs.needed(program), *options, f"--web.listen-address={address}"],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    try:
        wait_until(
            lambda: process.poll() is not None or _is_ready(address),
            f"{program} to be ready",
            detail=log.read_text,
        )
        assert process.poll() is None, log.read_text()
        yield address
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(address: str) -> bool:
    try:
        with urlopen(f"http://{address}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
