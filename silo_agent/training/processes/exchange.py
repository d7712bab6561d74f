"""What the agent and its training processes tell each other: messages of a line of JSON and arrays.

They go through a pipe, and from the first process to the others as gradients do; no array comes to a disk
(docs/protocol.md 10.5, 10.8). Nothing is pickled: arrays are safetensors, as the global state is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn, TypeAlias

import numpy as np

from chorale.runtime.files import write_atomic
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_from_bytes, state_parts
from crypto.errors import (
    ChoraleError,
    ConfigError,
    PolicyRefusal,
    QuantizationError,
    Refusal,
    RemoteProtocolError,
)
from silo_agent.training.data.base import SiloData
from silo_agent.training.objective import LocalState, Work
from strategies.base import Array, PhaseContext

SETTINGS, ENDED = "settings.json", "ended.json"  # in the folder of the processes
_STATE, _LOCAL, _ROWS, _VALUE = "state/", "local/", "class_rows", "value/"
_CONTEXT = ("round", "members", "classes", "trained", "buffers", "update_bound", "update_bits", "update_clip")
# what training raises of itself; anything else is a ConfigError
_KINDS: dict[str, type[ChoraleError]] = {
    kind.__name__: kind for kind in (QuantizationError, RemoteProtocolError, PolicyRefusal)
}

Message: TypeAlias = tuple[bytes, bytes]  # the line and the arrays


def send_work(work: Work, pipe: IO[bytes]) -> None:
    """All of it but the data, which each process has of its own. Raises BrokenPipeError."""
    arrays = _named(_STATE, work.state) | _named(_LOCAL, work.local.arrays)
    if work.class_rows is not None:
        arrays[_ROWS] = work.class_rows.astype(np.uint8)
    fields = {
        "spec": work.spec.model_dump_json(),
        "phase_kind": work.phase_kind,
        "round": work.round,
        "silo": work.silo,
        "weight": work.weight,
        "seed": work.seed,
        "data": work.data.name,
        "held_out": len(work.data.holdout),
        "tested": len(work.data.tested),
        "context": {name: getattr(work.context, name) for name in _CONTEXT},
        "options": dict(work.context.options),
    }
    _send(fields, arrays, pipe)


def read_work(message: Message, load: Callable[[JobSpec, str], SiloData]) -> Work:
    """load: all samples of a data set by its name; the hold-out is cut here as the agent cut it."""
    fields: dict[str, Any] = json.loads(message[0])
    arrays = state_from_bytes(message[1])
    spec, state, rows = JobSpec.model_validate_json(fields["spec"]), _taken(_STATE, arrays), arrays.get(_ROWS)
    data = load(spec, fields["data"])
    context: dict[str, Any] = fields["context"]
    context |= {name: tuple(context[name]) for name in ("trained", "buffers")}
    return Work(
        spec=spec,
        phase_kind=fields["phase_kind"],
        round=fields["round"],
        silo=fields["silo"],
        state=state,
        context=PhaseContext(state=state, options=fields["options"], **context),
        data=replace(
            data,
            holdout=data.holdout.first(fields["held_out"]),
            test=None if data.test is None else data.test.first(fields["tested"]),
        ),
        weight=fields["weight"],
        seed=fields["seed"],
        is_cancelled=lambda: False,  # the agent ends the processes
        class_rows=None if rows is None else rows.astype(np.bool_),
        local=LocalState(_taken(_LOCAL, arrays)),
    )


def send_answer(values: Mapping[str, Array], local: LocalState, pipe: IO[bytes]) -> None:
    """The phase's values, before they are masked, and the local state that the method proposes."""
    arrays = _named(_VALUE, values) | _named(_LOCAL, local.proposed or {})
    _send({"has_proposed": local.proposed is not None}, arrays, pipe)


def read_answer(message: Message, local: LocalState) -> Mapping[str, Array]:
    """The values; what is proposed goes to `local`."""
    arrays = state_from_bytes(message[1])
    if json.loads(message[0])["has_proposed"]:
        local.propose({name: array.copy() for name, array in _taken(_LOCAL, arrays).items()})
    return {name: array.copy() for name, array in _taken(_VALUE, arrays).items()}


def received(pipe: IO[bytes]) -> Iterable[Message]:
    """Whole messages, until the other side ends."""
    while line := pipe.readline():
        arrays_bytes = json.loads(line)["bytes"]
        arrays = pipe.read(arrays_bytes)
        if len(arrays) < arrays_bytes:
            return
        yield line, arrays


def write_error(error: ChoraleError, rank: int, folder: Path) -> None:
    """What a process ends with; the first rank's is what the agent raises."""
    kind = next((name for name, each in _KINDS.items() if isinstance(error, each)), None)
    code = error.code.value if isinstance(error, RemoteProtocolError | PolicyRefusal) else None
    text = json.dumps({"kind": kind, "message": str(error), "code": code})
    write_atomic(folder / f"error-{rank}.json", text.encode())


def raise_error(folder: Path, otherwise: str) -> NoReturn:
    """Raises the kind of error that a process ended with, else ConfigError with the words given."""
    for path in sorted(folder.glob("error-*.json")):
        fields = json.loads(path.read_bytes())
        code = {} if fields["code"] is None else {"code": Refusal(fields["code"])}
        raise _KINDS.get(fields["kind"], ConfigError)(fields["message"], **code)
    raise ConfigError(otherwise)


def _send(fields: Mapping[str, Any], arrays: Mapping[str, Array], pipe: IO[bytes]) -> None:
    parts = list(state_parts(arrays))
    pipe.write(json.dumps({"bytes": sum(map(len, parts)), **fields}).encode() + b"\n")
    for part in parts:
        pipe.write(part)
    pipe.flush()


def _named(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {prefix + name: np.asarray(array) for name, array in arrays.items()}


def _taken(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
