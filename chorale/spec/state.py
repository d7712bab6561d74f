"""The global state as bytes: named arrays in a safetensors file without metadata.

Its digest is the SHA-256 of the file, so one set of arrays has one digest on every machine.
Source: docs/protocol.md 10.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.numpy

from crypto.errors import RemoteProtocolError
from strategies.base import MODEL, Array, Arrays

GlobalState: TypeAlias = Arrays

ARRAY_NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}")
DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8}
MAX_HEADER_BYTES = 1 << 22
MAX_STATE_BYTES = 1 << 33  # 2^31 float32 parameters
MAX_ARRAYS = 10_000
MAX_RANK = 8
BUFFER_SUFFIXES = ("running_mean", "running_var")  # BatchNorm's statistics


def state_to_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Safetensors bytes; the same arrays always give the same bytes.

    Raises RemoteProtocolError for names and types that a reader would refuse.
    """
    return b"".join(state_parts(arrays))


def state_parts(arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The same bytes in parts, so that no second copy of a state is ever held: the header, then each
    array's own memory. An array that is not C-contiguous is copied while it passes.

    Raises RemoteProtocolError as `state_to_bytes`, before the first part.
    """
    _check_count(len(arrays))
    for name, array in arrays.items():
        _check_array(name, _DTYPE_NAMES.get(array.dtype, str(array.dtype)), list(array.shape))
    names = sorted(arrays, key=lambda name: (_WRITTEN_ORDER.index(_DTYPE_NAMES[arrays[name].dtype]), name))
    return _parts(names, arrays)


def state_from_bytes(data: bytes) -> dict[str, Array]:
    """Arrays of a state that a peer sent. Raises RemoteProtocolError."""
    _check_header(data[: 8 + MAX_HEADER_BYTES], total_bytes=len(data))
    try:
        return dict(sorted(safetensors.numpy.load(data).items()))
    except (safetensors.SafetensorError, ValueError) as error:  # numpy has limits of its own
        raise _invalid(str(error)) from None


def state_from_file(path: Path) -> dict[str, Array]:
    """Arrays of a state file, read through a memory map. Raises RemoteProtocolError.

    Nothing is copied: a page is read when it is looked at and belongs to this process alone once it
    is written to. The file must stay as it is; to replace or to remove it changes nothing here.
    """
    with path.open("rb") as file:
        start = file.read(8 + MAX_HEADER_BYTES)
        _check_header(start, total_bytes=path.stat().st_size)
        try:
            with safetensors.safe_open(path, framework="numpy"):
                pass  # sound: whole arrays, one after the other, up to the end of the file
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            header_bytes = int.from_bytes(start[:8], "little")
            header = json.loads(start[8 : 8 + header_bytes])
            return {name: _mapped(mapped, 8 + header_bytes, header[name]) for name in sorted(header)}
        except (safetensors.SafetensorError, ValueError, TypeError) as error:
            raise _invalid(str(error)) from None


def state_digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def trained_names(state: GlobalState) -> tuple[str, ...]:
    """Names, without prefix and sorted, of the float32 model arrays that are not buffers.

    Integer arrays of a model are BatchNorm's batch counters: no phase sums them, and they stay as they are.
    """
    return tuple(name for name in _model_floats(state) if not name.endswith(BUFFER_SUFFIXES))


def buffer_names(state: GlobalState) -> tuple[str, ...]:
    """Names, without prefix and sorted, of BatchNorm's float buffers."""
    return tuple(name for name in _model_floats(state) if name.endswith(BUFFER_SUFFIXES))


def float32_bytes(state: GlobalState) -> int:
    """Bytes of the trained parameters as float32: what an unmasked upload would take."""
    return 4 * sum(state[MODEL + name].size for name in trained_names(state))


_DTYPE_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
_WRITTEN_ORDER = ("I64", "F64", "F32", "U8")  # safetensors writes the types that need alignment first


def _parts(names: Sequence[str], arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    entries, end = {}, 0
    for name in names:
        begin, end = end, end + arrays[name].nbytes
        entries[name] = {
            "dtype": _DTYPE_NAMES[arrays[name].dtype],
            "shape": list(arrays[name].shape),
            "data_offsets": [begin, end],
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # arrays begin at a multiple of 8
    yield len(header).to_bytes(8, "little") + header
    for name in names:
        yield np.asarray(arrays[name], order="C").reshape(-1).view(np.uint8).data


def _mapped(mapped: mmap.mmap, data_start: int, entry: Mapping[str, Any]) -> Array:
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
    begin = data_start + entry["data_offsets"][0]
    array_N = np.frombuffer(mapped, dtype, count=math.prod(shape), offset=begin)
    # a foreign writer may place arrays anywhere, and not every CPU reads them there
    return (array_N if array_N.flags.aligned else array_N.copy()).reshape(shape)


def _model_floats(state: GlobalState) -> list[str]:
    floats = (name for name, array in state.items() if array.dtype == np.float32)
    return sorted(name.removeprefix(MODEL) for name in floats if name.startswith(MODEL))


def _check_header(start: bytes, *, total_bytes: int) -> None:
    """Look at names, types and shapes before anything is allocated for them."""
    header_bytes = int.from_bytes(start[:8], "little")
    if not 8 <= total_bytes <= MAX_STATE_BYTES:
        raise _invalid(f"expected 8 to {MAX_STATE_BYTES} bytes, got {total_bytes}")
    if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, total_bytes - 8):
        raise _invalid(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {header_bytes}")
    try:
        header = json.loads(start[8 : 8 + header_bytes])
        entries = {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise _invalid("the header is not that of a safetensors file without metadata") from None
    _check_count(len(entries))
    for name, (dtype, shape) in entries.items():
        _check_array(name, dtype, shape)


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_ARRAYS:
        raise _invalid(f"expected 1 to {MAX_ARRAYS} arrays, got {count}")


def _check_array(name: str, dtype: object, shape: object) -> None:
    if not ARRAY_NAME.fullmatch(name):
        raise _invalid("an array's name is 1 to 200 letters, digits and ._/-")
    if dtype not in tuple(DTYPES):
        raise _invalid(f"{name}: expected one of {', '.join(DTYPES)}, got {str(dtype)[:20]}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise _invalid(f"{name}: expected at most {MAX_RANK} dimensions")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise _invalid(f"{name}: a dimension is a whole number")
    if math.prod(shape) > MAX_STATE_BYTES:
        raise _invalid(f"{name}: larger than any state")


def _invalid(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"state: {message}")
