"""Global states and revealed sums on this silo's disk, each a file named by its SHA-256."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

from chorale.runtime.files import write_hashed
from chorale.spec.state import GlobalState, state_parts

STATE_SUFFIX = ".safetensors"
SUM_SUFFIX = ".sum"


class StateFiles:
    """One folder; a file is either whole under its final name or not there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in directory.glob(f"*{SUM_SUFFIX}"):
            left.unlink()  # of a process that was killed; it may not be whole

    def state(self, digest: bytes) -> Path:
        return self._directory / f"{digest.hex()}{STATE_SUFFIX}"

    def sum(self, digest: bytes) -> Path:
        return self._directory / f"{digest.hex()}{SUM_SUFFIX}"

    def take(self, path: Path, digest: bytes) -> None:
        """Have a state of this disk here too, under its digest."""
        if not self.state(digest).exists():
            os.link(path, self.state(digest))

    def put(self, state: GlobalState) -> bytes:
        """Durable once it returns. Gives the digest of the state."""
        return write_hashed(self._directory, state_parts(state), suffix=STATE_SUFFIX)

    def keep_only(self, digests: Set[bytes]) -> None:
        """Delete every other file, what is left of transfers included."""
        kept = {digest.hex() for digest in digests}
        for path in self._directory.iterdir():
            if path.name.partition(".")[0] not in kept:
                path.unlink(missing_ok=True)
