"""What a silo keeps of a job between rounds: named arrays, one file a job, moved by applied rounds alone.

A phase reads the state that was taken over last and proposes the next. The proposal is *pending* until the
phase was applied; then it becomes the state, in one rename. A silo that was not in the sum, or whose round
was not applied, keeps what it had, and an input that is computed again starts from the same arrays.
A proposal is adopted with its own input alone: that of the newest attempt up to the one that was applied.
Source: docs/protocol.md 7.8, 10.8.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from chorale.observability.logs import get_logger
from chorale.runtime.files import sync_directory, write_atomic
from chorale.spec.state import state_from_file, state_parts
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, PolicyRefusal, RemoteProtocolError
from silo_agent.training.objective import LocalState

SUFFIX = ".safetensors"
ENDED = ".ended"  # an empty file: the job's local state is gone for good

log = get_logger("silo_agent.local_storage.local_state")


class LocalStates:
    """One folder of a silo."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, job_digest: bytes) -> LocalState:
        """The job's state as it was taken over last.

        Raises PolicyRefusal for a job that ended here, ConfigError for a file that is no state.
        """
        if self._file(job_digest, ENDED).exists():
            raise PolicyRefusal(f"job {job_digest.hex()[:12]}: ended here, and its local state is gone")
        path = self._file(job_digest)
        try:
            return LocalState(state_from_file(path) if path.exists() else None)
        except (RemoteProtocolError, OSError) as error:
            raise ConfigError(f"local state: {path.name}: {error}") from error

    def hold(self, key: PhaseKey, local: LocalState) -> None:
        """Durable before anything of the phase's input leaves; what is pending of other phases is dropped."""
        if local.proposed is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._drop_pending(key.job_digest, but=set(self._held(key)))
        try:
            write_atomic(self._pending(key), state_parts(local.proposed))
        except RemoteProtocolError as error:
            raise ConfigError(f"local {error}") from error

    def give_up(self, key: PhaseKey) -> None:
        """What is pending for the phase was of an input that never leaves."""
        self._pending(key).unlink(missing_ok=True)

    def settle(self, key: PhaseKey, *, is_applied: bool) -> bool:
        """The phase has ended; whether the pending state was taken over.

        is_applied: this silo computed what the sum did, and t silos signed that its input is in the sum.
        Security: what the state moves to was written before the input left.
        """
        held = self._held(key)
        sent = [attempt for attempt in held.values() if attempt <= key.attempt]
        pending = next((path for path, attempt in held.items() if sent and attempt == max(sent)), None)
        for path in held:
            if path != pending or not is_applied:
                path.unlink()
        if pending is None or not is_applied:
            return False
        pending.replace(self._file(key.job_digest))
        sync_directory(self._directory)
        log.info("local state taken over", job=key.job_digest.hex()[:12], round=key.round, phase=key.phase)
        return True

    def end(self, job_digest: bytes) -> None:
        """Delete the job's state. The job is not served again: it would not continue from its own state."""
        path = self._file(job_digest)
        has_pending = any(self._directory.glob(f"{job_digest.hex()}.*{SUFFIX}"))
        if not (path.exists() or has_pending):
            return
        write_atomic(self._file(job_digest, ENDED), b"")
        path.unlink(missing_ok=True)
        self._drop_pending(job_digest)

    def _drop_pending(self, job_digest: bytes, *, but: Collection[Path] = ()) -> None:
        for path in self._directory.glob(f"{job_digest.hex()}.*{SUFFIX}"):
            if path not in but:
                path.unlink()
        for torn in self._directory.glob(f".{job_digest.hex()}.*.tmp"):  # of a process that was killed
            torn.unlink()

    def _file(self, job_digest: bytes, suffix: str = SUFFIX) -> Path:
        return self._directory / f"{job_digest.hex()}{suffix}"

    def _pending(self, key: PhaseKey) -> Path:
        return self._directory / f"{_phase(key)}.{key.attempt}{SUFFIX}"

    def _held(self, key: PhaseKey) -> dict[Path, int]:
        """What is pending for a phase, with the attempt that each was computed for."""
        paths = self._directory.glob(f"{_phase(key)}.*{SUFFIX}")
        return {path: int(path.name.removesuffix(SUFFIX).rpartition(".")[2]) for path in paths}


def _phase(key: PhaseKey) -> str:
    return f"{key.job_digest.hex()}.{key.round}.{key.phase}"
