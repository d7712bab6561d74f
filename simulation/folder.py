"""What a simulation leaves in its folder: a line a round, the curve over all silos' hold-outs, the model, and
what it resumes from after a kill.

A round counts once `progress.json` names what it led to; the file is replaced in one step, after everything
it names is on disk. Whatever else lies there is of a round that did not end, and is removed. The curve is
written again from `progress.json` when a simulation resumes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from chorale.results import RoundResult
from chorale.runtime.files import sync_directory, write_atomic
from chorale.spec.model_file import facts_of, with_facts
from chorale.spec.selection import Measurements
from chorale.spec.state import state_from_file, state_parts
from crypto.errors import ConfigError, RemoteProtocolError
from simulation.engine import Progress, Simulation
from simulation.results import curve
from simulation.stored import KeptFile
from strategies.base import Arrays
from strategies.phases.evaluation import EVALUATE

PROGRESS, ROUNDS, CURVE = "progress.json", "rounds.jsonl", "evaluations.jsonl"
MODEL, LOCK = "model.safetensors", ".chorale-simulation"
STATES, SCRATCH = "states", "scratch"


class SimulationFolder:
    """The folder of one simulation. identity: of job, data and options; another one's folder is refused."""

    def __init__(self, directory: Path, *, identity: str) -> None:
        self._directory = directory
        self._identity = identity
        self._local: dict[str, tuple[KeptFile, str]] = {}  # with the names of their files here
        self._best: tuple[Arrays, str] | None = None
        self._curve: Mapping[int, Mapping[str, float]] = {}  # as it is in its file
        self.curve_path = directory / CURVE
        self.rounds_path = directory / ROUNDS
        self.model_path = directory / MODEL
        self.scratch_path = directory / SCRATCH

    @contextmanager
    def held(self) -> Iterator[Progress | None]:
        """The folder, locked, and how far an earlier simulation came in it, None at the start.

        The folder is made here if there is none. Raises ConfigError for a folder of something else, and while
        another simulation runs in it.
        """
        directory, lock = self._directory, self._directory / LOCK
        if directory.exists() and not directory.is_dir():
            raise ConfigError(f"--out: {directory} is a file, expected a folder")
        if directory.is_dir() and not lock.exists() and any(directory.iterdir()):
            raise ConfigError(
                f"--out: {directory} holds files that no simulation wrote; choose an empty folder"
            )
        try:
            directory.mkdir(parents=True, exist_ok=True)
            opened: TextIO = lock.open("w")
        except OSError as error:
            raise ConfigError(f"--out: cannot write {directory}: {(error.strerror or '').lower()}") from error
        with opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"--out: another simulation is running in {directory}") from None
            shutil.rmtree(self.scratch_path, ignore_errors=True)  # of a simulation that was killed
            self.scratch_path.mkdir(mode=0o700)
            try:
                yield self._kept()
            finally:
                shutil.rmtree(self.scratch_path, ignore_errors=True)

    def ended(self) -> list[str]:
        """How each round ended, applied or used-up, of those that count now: a simulation resumes after the
        last of them."""
        try:
            kept = json.loads((self._directory / PROGRESS).read_bytes())["rounds_bytes"]
        except FileNotFoundError:
            return []
        if not kept:
            return []
        return [json.loads(line)["result"] for line in self.rounds_path.read_bytes()[:kept].splitlines()]

    def add(self, result: RoundResult, progress: Progress) -> None:
        """A round and where it led: durable once this returns."""
        with self.rounds_path.open("a") as file:
            file.write(json.dumps(result.to_json()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.keep(progress)

    def keep(self, progress: Progress) -> None:
        """How far the simulation is now."""
        states = self._directory / STATES
        states.mkdir(exist_ok=True, mode=0o700)
        stamp = "end" if progress.following is None else "-".join(map(str, progress.following))
        state = f"global-{stamp}.safetensors"
        write_atomic(states / state, state_parts(progress.state))
        for silo, kept in progress.local.items():
            if silo not in self._local or self._local[silo][0] is not kept:
                self._local[silo] = kept, f"local-{silo}-{stamp}.safetensors"
                write_atomic(states / self._local[silo][1], kept.path.read_bytes())
        local = {silo: name for silo, (_, name) in self._local.items()}
        if progress.best is not None and (self._best is None or self._best[0] is not progress.best[1]):
            self._best = progress.best[1], f"best-{progress.best[0]}.safetensors"
            write_atomic(states / self._best[1], state_parts(progress.best[1]))
        measured, best = progress.measured, None
        if progress.best is not None and self._best is not None:
            best = progress.best[0], self._best[1]
        written = {
            "identity": self._identity,
            "following": progress.following,
            "state": state,
            "local": local,
            "closing": progress.closing,
            "trained": measured.trained,
            "measured": measured.by_round,
            "measured_at_the_end": measured.closing,
            "best": best,
            "best_figures": progress.best_figures,
            "tables": progress.tables,
            "evaluations": progress.evaluations,
            "rounds_bytes": self.rounds_path.stat().st_size if self.rounds_path.exists() else 0,
        }
        write_atomic(self._directory / PROGRESS, json.dumps(written).encode())
        self._write_curve(progress.evaluations)
        for path in states.iterdir():
            if path.name not in {state, *local.values(), *([] if best is None else [best[1]])}:
                path.unlink()
        sync_directory(states)

    def finish(self, simulation: Simulation) -> None:
        """The simulation has ended: its model, next to the other files."""
        job, (round, state) = simulation.job, simulation.model
        closing = simulation.closing.get(EVALUATE)
        arm = job.arms(job.closing[1], state)[0].arm
        facts = facts_of(job.training, job_digest=job.digest, round=round, closing=closing, arm=arm)
        write_atomic(self.model_path, with_facts(state_parts(state), facts))
        self.keep(simulation.progress)

    def _write_curve(self, evaluations: Mapping[int, Mapping[str, float]]) -> None:
        if evaluations != self._curve:
            lines = [json.dumps(point) + "\n" for point in curve(evaluations)]
            write_atomic(self.curve_path, "".join(lines).encode(), mode=0o644)
            self._curve = evaluations

    def _kept(self) -> Progress | None:
        path = self._directory / PROGRESS
        if not path.exists():
            for stale in (self.rounds_path, self.curve_path):  # of a first round that was not kept
                stale.unlink(missing_ok=True)
            return None
        try:
            written = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: expected JSON: {error}") from None
        if not isinstance(written, dict):
            raise ConfigError(f"{path}: expected a JSON object")
        if written.get("identity") != self._identity:
            raise ConfigError(
                f"--out: {self._directory} holds a simulation of another job, data or options; "
                "choose another folder or delete it"
            )
        try:
            progress = self._restored(written)
            self._write_curve(progress.evaluations)  # a kill may have left it without its last point
            return progress
        except (AttributeError, KeyError, TypeError, ValueError, OSError, RemoteProtocolError) as error:
            raise ConfigError(f"{path}: the simulation cannot resume from it: {error}") from None

    def _restored(self, written: Mapping[str, Any]) -> Progress:
        states = self._directory / STATES
        local = {silo: KeptFile(_file(states, name)) for silo, name in written["local"].items()}
        self._local = {silo: (local[silo], name) for silo, name in written["local"].items()}
        if self.rounds_path.exists():
            kept = written["rounds_bytes"]
            if not 0 <= kept <= self.rounds_path.stat().st_size:
                raise ValueError(f"{ROUNDS} does not have the {kept} bytes that were kept")
            os.truncate(self.rounds_path, kept)  # lines of a round that was not kept
        following, best = written["following"], written["best"]
        if best is not None:
            best = int(best[0]), _state(states, best[1])
            self._best = best[1], written["best"][1]
        by_round, at_the_end = (
            {int(round): dict(figures) for round, figures in written[name].items()}
            for name in ("measured", "measured_at_the_end")
        )
        return Progress(
            following=None if following is None else (int(following[0]), str(following[1])),
            state=_state(states, written["state"]),
            local=local,
            closing=written["closing"],
            measured=Measurements(trained=int(written["trained"]), by_round=by_round, closing=at_the_end),
            best=best,
            best_figures=dict(written["best_figures"]),
            tables=written["tables"],
            evaluations={int(round): dict(figures) for round, figures in written["evaluations"].items()},
        )


def _state(states: Path, name: str) -> Arrays:
    return state_from_file(_file(states, name))


def _file(states: Path, name: str) -> Path:
    """A file of this folder, and of no other."""
    if Path(name).name != name:
        raise ValueError(f"expected the name of a file in {states}, got {name}")
    return states / name
