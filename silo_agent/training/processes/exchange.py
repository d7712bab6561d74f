"""What the agent and its training processes tell each other: a line of JSON, and arrays in a file beside it.

Nothing is pickled. Arrays are safetensors, as the global state is; the folder is the agent's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runtime.files import write_atomic
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_from_file, state_to_bytes
from crypto.errors import ChoraleError, ConfigError, Refusal, RemoteProtocolError
from silo_agent.data.base import SiloData
from silo_agent.local_storage.local_state import LocalState
from silo_agent.objective import Work
from strategies.base import Array, PhaseContext

_WORK, _ANSWER = "work.safetensors", "answer.safetensors"
_STATE, _LOCAL, _ROWS, _VALUE = "state/", "local/", "class_rows", "value/"
_CONTEXT = ("round", "members", "classes", "trained", "buffers", "update_bound", "update_bits", "update_clip")


def write_work(work: Work, folder: Path) -> bytes:
    """The line; the arrays go into the folder."""
    arrays = _named(_STATE, work.state) | _named(_LOCAL, work.local.arrays)
    if work.class_rows is not None:
        arrays[_ROWS] = work.class_rows.astype(np.uint8)
    write_atomic(folder / _WORK, state_to_bytes(arrays))
    fields = {
        "spec": work.spec.model_dump_json(),
        "phase_kind": work.phase_kind,
        "round": work.round,
        "silo": work.silo,
        "weight": work.weight,
        "seed": work.seed,
        "data": work.data.name,
        "tested": len(work.data.holdout),
        "context": {name: getattr(work.context, name) for name in _CONTEXT},
        "options": dict(work.context.options),
    }
    return json.dumps(fields).encode() + b"\n"


def read_work(line: bytes, folder: Path, load: Callable[[JobSpec, str], SiloData]) -> Work:
    """load: all samples of a data set by its name; the hold-out is cut here as the agent cut it."""
    fields: dict[str, Any] = json.loads(line)
    arrays = state_from_file(folder / _WORK)
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
        data=SiloData(train=data.train, holdout=data.holdout.first(fields["tested"]), name=data.name),
        weight=fields["weight"],
        seed=fields["seed"],
        is_cancelled=lambda: False,  # the agent ends the processes
        class_rows=None if rows is None else rows.astype(np.bool_),
        local=LocalState(_taken(_LOCAL, arrays)),
    )


def write_answer(values: Mapping[str, Array], local: LocalState, folder: Path) -> bytes:
    """The line; the arrays go into the folder."""
    arrays = _named(_VALUE, values) | _named(_LOCAL, local.proposed or {})
    write_atomic(folder / _ANSWER, state_to_bytes(arrays))
    return json.dumps({"has_proposed": local.proposed is not None}).encode() + b"\n"


def read_answer(line: bytes, folder: Path, local: LocalState) -> Mapping[str, Array]:
    arrays = state_from_file(folder / _ANSWER)
    if json.loads(line)["has_proposed"]:
        local.propose({name: array.copy() for name, array in _taken(_LOCAL, arrays).items()})
    return {name: array.copy() for name, array in _taken(_VALUE, arrays).items()}


def write_error(error: ChoraleError, rank: int, folder: Path) -> None:
    """What a process ends with; the first rank's is what the agent raises."""
    code = error.code.value if isinstance(error, RemoteProtocolError) else None
    text = json.dumps({"message": str(error), "code": code})
    write_atomic(folder / f"error-{rank}.json", text.encode())


def raise_error(folder: Path, otherwise: str) -> None:
    """Raises RemoteProtocolError or ConfigError as a process did, else ConfigError with the words given."""
    for path in sorted(folder.glob("error-*.json")):
        fields = json.loads(path.read_bytes())
        if fields["code"] is not None:
            raise RemoteProtocolError(fields["message"], code=Refusal(fields["code"]))
        raise ConfigError(fields["message"])
    raise ConfigError(otherwise)


def _named(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {prefix + name: np.asarray(array) for name, array in arrays.items()}


def _taken(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
