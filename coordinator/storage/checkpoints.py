"""Global states on disk: one safetensors file each, named by its SHA-256.

Source: docs/protocol.md 10.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from chorale.runtime.files import sync_directory, write_hashed
from chorale.spec.state import GlobalState, state_from_file, state_parts
from crypto.errors import RemoteProtocolError

SUFFIX = ".safetensors"
# newest states kept of a job, besides its best and its last: a silo may still be downloading the one before
KEPT_CHECKPOINTS = 3


class Checkpoints:
    """A folder per job; a file is either whole under its final name or not there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, job_digest: bytes, state_digest: bytes) -> Path:
        return self._folder(job_digest) / f"{state_digest.hex()}{SUFFIX}"

    def put(self, job_digest: bytes, state: GlobalState) -> bytes:
        """Durable once it returns. Gives the digest of the state."""
        folder = self._folder(job_digest)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return write_hashed(folder, state_parts(state), suffix=SUFFIX)

    def load(self, job_digest: bytes, state_digest: bytes) -> GlobalState:
        return state_from_file(self.path(job_digest, state_digest))

    def adopt(self, job_digest: bytes, state_digest: bytes, received: Path) -> None:
        """Take over a received file whose digest its sender signed.

        Raises RemoteProtocolError if the bytes are others. Source: docs/protocol.md 8.
        """
        with received.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").digest()
            if actual != state_digest:
                raise RemoteProtocolError("initial state: its digest is not the one in the signed job")
            os.fsync(file.fileno())
        path = self.path(job_digest, state_digest)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        received.replace(path)
        sync_directory(path.parent)

    def keep_only(self, job_digest: bytes, state_digests: Iterable[bytes]) -> None:
        """Remove the job's other files."""
        kept = {self.path(job_digest, digest).name for digest in state_digests}
        for path in self._folder(job_digest).glob(f"*{SUFFIX}"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _folder(self, job_digest: bytes) -> Path:
        return self._directory / job_digest.hex()
