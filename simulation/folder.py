"""What a simulation leaves in its folder: a line a round, the model, and what it goes on from after a kill.

A round counts once `progress.json` names what it led to; the file is replaced in one step, after everything
it names is on disk. Whatever else lies there is of a round that did not end, and is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from chorale.runtime.files import sync_directory, write_atomic
from chorale.spec.state import state_from_file, state_parts
from crypto.errors import ConfigError, RemoteProtocolError
from simulation.engine import Standing
from simulation.results import RoundResult
from strategies.base import Arrays

PROGRESS, ROUNDS, MODEL, LOCK = "progress.json", "rounds.jsonl", "model.safetensors", ".chorale-simulation"
STATES = "states"
Kept = tuple[Arrays, str]  # arrays and the file that holds them


class SimulationFolder:
    """The folder of one simulation. identity: of job, data and options; another one's folder is refused."""

    def __init__(self, directory: Path, *, identity: str) -> None:
        self._directory = directory
        self._identity = identity
        self._local: dict[str, Kept] = {}

    @property
    def rounds_path(self) -> Path:
        return self._directory / ROUNDS

    @property
    def model_path(self) -> Path:
        return self._directory / MODEL

    @contextmanager
    def held(self) -> Iterator[Standing | None]:
        """The folder, held against another simulation; where an earlier one stopped, None at the start.

        Raises ConfigError for a folder of something else.
        """
        with _locked(self._directory):
            yield self._standing()

    def add(self, result: RoundResult, standing: Standing) -> None:
        """A round and where it led: durable once this returns."""
        with self.rounds_path.open("a") as file:
            file.write(json.dumps(result.to_json()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.keep(standing)

    def keep(self, standing: Standing) -> None:
        """Where the simulation is now."""
        states = self._directory / STATES
        states.mkdir(exist_ok=True, mode=0o700)
        stamp = "end" if standing.following is None else "-".join(map(str, standing.following))
        state = f"global-{stamp}.safetensors"
        write_atomic(states / state, state_parts(standing.state))
        for silo, arrays in standing.local.items():
            if arrays and (silo not in self._local or self._local[silo][0] is not arrays):
                self._local[silo] = arrays, f"local-{silo}-{stamp}.safetensors"
                write_atomic(states / self._local[silo][1], state_parts(arrays))
        local = {silo: name for silo, (_, name) in self._local.items()}
        progress = {
            "identity": self._identity,
            "following": standing.following,
            "state": state,
            "local": local,
            "closing": standing.closing,
            "rounds_bytes": self.rounds_path.stat().st_size if self.rounds_path.exists() else 0,
        }
        write_atomic(self._directory / PROGRESS, json.dumps(progress).encode())
        self._tidy({state, *local.values()})

    def finish(self, standing: Standing) -> None:
        """The simulation has ended: its model, beside all else."""
        write_atomic(self.model_path, state_parts(standing.state))
        self.keep(standing)

    def _standing(self) -> Standing | None:
        path = self._directory / PROGRESS
        if not path.exists():
            self.rounds_path.unlink(missing_ok=True)  # of a first round that was not kept
            return None
        progress = _read(path)
        if progress.get("identity") != self._identity:
            raise ConfigError(
                f"--out: {self._directory} holds a simulation of another job, data or options; "
                "choose another folder or delete it"
            )
        try:
            return self._restored(progress)
        except (AttributeError, KeyError, TypeError, ValueError, OSError, RemoteProtocolError) as error:
            raise ConfigError(f"{path}: it cannot be gone on from: {error}") from None

    def _restored(self, progress: Mapping[str, Any]) -> Standing:
        states = self._directory / STATES
        local = {silo: _state(states, name) for silo, name in progress["local"].items()}
        self._local = {silo: (local[silo], name) for silo, name in progress["local"].items()}
        if self.rounds_path.exists():
            kept = progress["rounds_bytes"]
            if not 0 <= kept <= self.rounds_path.stat().st_size:
                raise ValueError(f"{ROUNDS} does not have the {kept} bytes that were kept")
            os.truncate(self.rounds_path, kept)  # lines of a round that was not kept
        following = progress["following"]
        return Standing(
            following=None if following is None else (int(following[0]), str(following[1])),
            state=_state(states, progress["state"]),
            local=local,
            closing=progress["closing"],
        )

    def _tidy(self, named: set[str]) -> None:
        states = self._directory / STATES
        for path in states.iterdir():
            if path.name not in named:
                path.unlink()
        sync_directory(states)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """The folder of a simulation, made here if there is none. Raises ConfigError for any other."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--out: {directory} is a file, expected a folder")
    lock = directory / LOCK
    if directory.is_dir() and not lock.exists() and any(directory.iterdir()):
        raise ConfigError(f"--out: {directory} holds files that no simulation wrote; choose an empty folder")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        held: TextIO = lock.open("w")
    except OSError as error:
        raise ConfigError(f"--out: cannot write {directory}: {(error.strerror or '').lower()}") from error
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--out: another simulation is running in {directory}") from None
        yield


def _state(states: Path, name: str) -> Arrays:
    """A file of this folder, and of no other."""
    if Path(name).name != name:
        raise ValueError(f"expected the name of a file in {states}, got {name}")
    return state_from_file(states / name)


def _read(path: Path) -> dict[str, Any]:
    try:
        progress = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected JSON: {error}") from None
    if not isinstance(progress, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return progress
