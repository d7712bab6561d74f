"""A federation of real processes that trains by one method, with all that passed and was stored kept.

Silos compute with the built-in training on handwritten digits, cut unevenly. Besides the inputs that they
write down, three folders stay: `wire` holds what each member's TLS carried, `kept` what the coordinator
removed, replaced or told SQLite, `left` its directory while it ran and after its end, its log and metrics.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from chorale.job import Job, SignedJob
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_to_bytes
from chorale.transport.wire import PhaseKey, phase_kind
from crypto.fixed_point.layout import CLIPPED, Layout, Quantity
from crypto.identity.certificates import Role
from crypto.masking.masks import vectors_from_stream
from silo_agent.training.models.starting import initial_state
from strategies.base import TOTAL, Array, Arrays
from tests.support.federation import COORDINATOR, OPERATOR, LocalFederation
from tests.support.keeping import KEEP, OPENED
from tests.support.leaks import Held, words_of
from tests.support.recording import RECORD
from tests.support.tap import Tap, bodies

SILOS = 3
UPLOAD = re.compile(r"\d+-(\d+)-(\d+)-(silo-\d+)\.part")  # number, phase, attempt, silo


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPhase:
    """inputs: by silo, every quantity of the phase. sums: what was revealed, before it was decoded: of the
    tagged quantities, and of the others."""

    sequence: int
    attempt: int
    round: int
    phase: str
    layout: Layout
    inputs: Mapping[str, Arrays]
    sums: Mapping[bool, bytes]

    @property
    def name(self) -> str:
        return f"{self.phase} of round {self.round}"

    def clear_sum(self, quantity: str) -> Array:
        parts = [np.asarray(silo[quantity], np.float64) for silo in self.inputs.values()]
        return np.asarray(np.sum(parts, axis=0))

    def revealed_words(self, quantity: Quantity) -> NDArray[np.int64]:
        """What the coordinator has of a quantity's sum. Shapes: (N,)."""
        layout = self.layout.tagged if quantity.is_tagged else self.layout.untagged
        assert layout is not None
        vector_L = vectors_from_stream(layout, self.sums[quantity.is_tagged])[quantity.ring_bits]
        sum_N = vector_L[layout.slices(quantity.ring_bits)[quantity.name]]
        return sum_N.view(f"<i{quantity.ring_bits // 8}").astype(np.int64)

    def words(self, values: Arrays) -> dict[int, Array]:
        """A silo's words before they are masked, by word size: rounded down and up. Shapes: (2, L) each."""
        return {
            ring_bits: np.concatenate(
                [
                    words_of(values[quantity.name], quantity, self.layout.members)
                    for quantity in self.layout.quantities
                    if quantity.ring_bits == ring_bits
                ],
                axis=1,
            )
            for ring_bits in self.layout.ring_sizes
        }


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    folder: Path
    job: Job
    silos: tuple[str, ...]
    state: Arrays

    @cached_property
    def phases(self) -> list[RecordedPhase]:
        """In the order in which they ran."""
        with closing(sqlite3.connect(self.folder / "left" / "after" / "coordinator.sqlite")) as database:
            rows = database.execute("SELECT sequence, attempt, round, phase FROM phases ORDER BY sequence")
            return [self._phase(*row) for row in rows.fetchall()]

    def uploads(self) -> Iterator[tuple[RecordedPhase, str, bytes]]:
        """Every masked vector that the coordinator stored on its way in, of all attempts."""
        phases = {phase.sequence: phase for phase in self.phases}
        for path in sorted((self.folder / "kept").iterdir()):
            if match := UPLOAD.fullmatch(path.name):
                yield phases[int(match[1])], match[3], path.read_bytes()

    def values(self) -> list[Held]:
        """What one silo alone may know: its value of every quantity, and the sum without it."""
        return [
            held
            for phase in self.phases
            for quantity in phase.layout.quantities
            if quantity.name != CLIPPED
            for silo in self.silos
            for held in _held(phase, quantity, silo)
        ]

    def wire(self) -> Iterator[tuple[str, bytes]]:
        """What passed each member's line: the octets themselves, and the calls' data put together."""
        for path in sorted((self.folder / "wire").iterdir()):
            octets = path.read_bytes()
            yield f"wire/{path.name}", octets
            for number, body in enumerate(bodies(octets)):
                yield f"wire/{path.name} call {number}", body

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """Every file that the coordinator had at any time, and all it told SQLite."""
        yield from files_under(self.folder / "kept")
        yield from files_under(self.folder / "left")

    @property
    def opened(self) -> set[Path]:
        """Paths that the coordinator's process opened for writing; SQLite's are told as URIs."""
        lines = (self.folder / "kept" / OPENED).read_text().splitlines()
        return {
            Path(unquote(urlsplit(line).path)) if line.startswith("file:") else Path(line) for line in lines
        }

    def _phase(self, sequence: int, attempt: int, round: int, phase: str) -> RecordedPhase:
        key = PhaseKey(job_digest=self.job.digest, round=round, phase=phase, attempt=attempt)
        kept = {
            part: list((self.folder / "kept").glob(f"*-sums-{sequence}-{attempt}.{part}"))
            for part in ("tagged", "untagged")
        }
        return RecordedPhase(
            sequence=sequence,
            attempt=attempt,
            round=round,
            phase=phase,
            layout=self.job.layout(key, self.state, len(self.silos)),
            inputs={silo: self._inputs(round, phase, silo) for silo in self.silos},
            sums={part == "tagged": path.read_bytes() for part, paths in kept.items() for path in paths},
        )

    def _inputs(self, round: int, phase: str, silo: str) -> dict[str, Array]:
        if phase_kind(phase) == "enrollment":  # computed by the agent itself, so not written down
            total = float(self.state[TOTAL])
            samples = np.rint(float(self._inputs(1, "train", silo)["weight"]) * total)
            return {"silos": np.array(1), "samples": np.array(samples)}
        with np.load(self.folder / "inputs" / f"{phase_kind(phase)}-{round}-{silo}.npz") as recorded:
            return {**recorded, CLIPPED: np.array(0)}


def record(folder: Path, *, seed: int, **fields: Any) -> RecordedRun:
    """Run a job to its end. seed: of the cut. fields: of the job."""
    for name in ("wire", "kept", "left", "inputs"):
        (folder / name).mkdir()
    federation = LocalFederation(
        folder=folder,
        silos=SILOS,
        # a loaded machine loses no silo; uploads are files, so that they can be kept
        coordinator={"stage_deadline_seconds": 60.0, "spool_memory_megabytes": 0},
        policy={"class_statistics": "allow", "min_class_holders": 2},
        silo={"objective": "tests.support.recording:objective"},
        env={
            RECORD: str(folder / "inputs"),
            KEEP: str(folder / "kept"),
            "PYTHONDONTWRITEBYTECODE": "1",  # the interpreter's own files are not the coordinator's
        },
        coordinator_module="tests.support.keeping",
    )
    with federation, ExitStack() as taps:
        federation.start_coordinator()
        _start_silos(federation, taps, seed=seed)
        federation.endpoint["grpc"] = _tap(federation, taps, Role.OPERATOR, OPERATOR).address
        spec = _submit(federation, fields)
        assert federation.finish()["status"] == "done"
        state = federation.fetch(_job_id(federation))
        _leave(federation)
    signed = SignedJob(spec_bytes=spec.to_yaml(), signature=b"", operator_certificate=b"")
    job = Job(spec=spec, signed=signed, operator=OPERATOR)
    return RecordedRun(folder=folder, job=job, silos=tuple(federation.names), state=state)


def files_under(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder.parent)), path.read_bytes()


def _start_silos(federation: LocalFederation, taps: ExitStack, *, seed: int) -> None:
    cut = {"kind": "dirichlet", "alpha": 0.3, "min_samples": 200, "silos": SILOS, "seed": seed}
    for place, name in enumerate(federation.names):
        federation.silo["data"] = {"format": "digits", "name": "digits", "partition": {**cut, "index": place}}
        federation.start_silo(name, address=_tap(federation, taps, Role.SILO, name).address)


def _tap(federation: LocalFederation, taps: ExitStack, role: Role, name: str) -> Tap:
    tap = Tap(
        federation.ceremony,
        role,
        name,
        coordinator=COORDINATOR,
        target=federation.listen,
        folder=federation.folder / "wire",
    )
    return taps.enter_context(tap)


def _submit(federation: LocalFederation, fields: Mapping[str, Any]) -> JobSpec:
    spec = federation.job_spec(
        model={"name": "mlp", "hidden": [16]},
        classes=10,
        input_shape=[1, 8, 8],
        training={"learning_rate": 0.05, "local_epochs": 1},
        **fields,
    )
    path = federation.folder / "initial.safetensors"
    path.write_bytes(state_to_bytes(initial_state(spec)))
    federation.submit_spec(spec, path)
    return spec


def _job_id(federation: LocalFederation) -> str:
    return str(federation.hub.wait_for(lambda line: line.get("event") == "job ended")["job"])


def _leave(federation: LocalFederation) -> None:
    """The coordinator's directory with SQLite's log, then as an orderly end leaves it; log and metrics."""
    hub, left = federation.folder / COORDINATOR, federation.folder / "left"
    with urlopen(f"http://{federation.endpoint['metrics']}/metrics", timeout=10) as answer:
        (left / "metrics.txt").write_bytes(answer.read())
    shutil.copytree(hub, left / "during")
    assert federation.hub.stop() == 0
    shutil.copytree(hub, left / "after")
    shutil.copy(federation.hub.log, left)


def _held(phase: RecordedPhase, quantity: Quantity, silo: str) -> Iterator[Held]:
    own = np.asarray(phase.inputs[silo][quantity.name])
    rest = phase.clear_sum(quantity.name) - own
    held = Held(
        owner=silo,
        phase=phase.name,
        quantity=quantity,
        members=phase.layout.members,
        values=own,
        rest=rest,
    )
    yield held
    words = phase.revealed_words(quantity) - words_of(own, quantity, held.members)
    yield replace(held, owner=f"all but {silo}", values=rest, rest=own, words=words)
