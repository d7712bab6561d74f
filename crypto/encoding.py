"""Canonical encoding of everything that is signed or hashed, and its strict reader.

`chorale/v1/<purpose>\\0`, then a list: 32-bit count, and per field one tag byte with a fixed-width
length or value (b bytes, s UTF-8 text, i 64-bit number, l list; big-endian). One value has one
encoding, so two sides that agree on bytes agree on meaning. Source: docs/protocol.md 2.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, TypeVar

from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError

Field: TypeAlias = "bytes | str | int | Sequence[Field] | Encoded"
Value: TypeAlias = "bytes | str | int | list[Value]"
Kind = TypeVar("Kind", bytes, str, int, "list[Value]")

MAX_DEPTH = 6  # lists within lists; the deepest document (a layout in a session) uses 3
MAX_FIELDS = 1 << 16  # of one document, lists and what they hold included
MAX_NUMBER = (1 << 64) - 1
_PURPOSE = re.compile(r"[a-z0-9]+([./-][a-z0-9]+)*")
_COUNT = struct.Struct(">I")
_SIZED = struct.Struct(">cI")  # the tag of bytes and of text, and their length
_NUMBER = struct.Struct(">cQ")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A list of text that is encoded once and stands in many documents."""

    data: bytes
    fields: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> Encoded:
        writer = _Writer(bytearray(b"l"))
        writer.write_list(texts, depth=1)
        return cls(bytes(writer.out), len(texts))


def encode(purpose: str, *fields: Field) -> bytes:
    """Domain-separated canonical bytes of the fields.

    Raises LocalProtocolError for what the encoding does not hold.
    """
    writer = _Writer(bytearray(_prefix(purpose)))
    writer.write_list(fields, depth=0)
    return bytes(writer.out)


def decode(purpose: str, data: bytes, *, max_bytes: int = 1 << 20) -> list[Value]:
    """Fields of a canonical document.

    Raises RemoteProtocolError for another purpose, and for whatever `encode` would not have written.
    """
    prefix = _prefix(purpose)
    if len(data) > max_bytes:
        raise RemoteProtocolError(f"{purpose}: expected at most {max_bytes} bytes, got {len(data)}")
    if not data.startswith(prefix):
        raise RemoteProtocolError(f"{purpose}: the bytes belong to another kind of message")
    scanner = _Scanner(purpose, data, len(prefix))
    try:
        values = scanner.read_list(depth=0)
    except struct.error:
        raise scanner.early() from None
    if scanner.place != len(data):
        raise RemoteProtocolError(f"{purpose}: {len(data) - scanner.place} bytes left over")
    return values


def digest(purpose: str, *fields: Field) -> bytes:
    """SHA-256 of the encoding."""
    return hashlib.sha256(encode(purpose, *fields)).digest()


class FieldReader:
    """Takes decoded values one by one, each as the type that the document must hold there.

    Raises RemoteProtocolError with `code` for a missing, surplus or wrongly typed field.
    """

    def __init__(self, values: Sequence[Value], *, what: str, code: Refusal = Refusal.MALFORMED) -> None:
        self._left = list(reversed(values))
        self._what = what
        self._code = code

    def data(self, size: int | None = None) -> bytes:
        """The next field as bytes, of exactly that size if one is given."""
        value = self._next(bytes, "bytes")
        if size is not None and len(value) != size:
            raise self._error(f"expected {size} bytes, got {len(value)}")
        return value

    def text(self) -> str:
        return self._next(str, "text")

    def number(self) -> int:
        return self._next(int, "a number")

    def fields(self) -> FieldReader:
        """The next field as a list, to be read in turn."""
        return FieldReader(self._next(list, "a list"), what=self._what, code=self._code)

    def rows(self) -> list[FieldReader]:
        """The next field as a list of lists."""
        rows = self.fields()
        return [rows.fields() for _ in range(rows.left)]

    def texts(self) -> tuple[str, ...]:
        """The next field as a list of text."""
        texts = self.fields()
        return tuple(texts.text() for _ in range(texts.left))

    @property
    def left(self) -> int:
        """How many fields were not yet taken."""
        return len(self._left)

    def end(self) -> None:
        if self._left:
            raise self._error(f"{len(self._left)} fields too many")

    def _next(self, kind: type[Kind], expected: str) -> Kind:
        if not self._left:
            raise self._error("a field is missing")
        value = self._left.pop()
        if not isinstance(value, kind):
            raise self._error(f"expected {expected}, got {type(value).__name__}")
        return value

    def _error(self, message: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self._what}: {message}", code=self._code)


@lru_cache(maxsize=64)  # the purposes are constants of this code
def _prefix(purpose: str) -> bytes:
    if not _PURPOSE.fullmatch(purpose):
        raise LocalProtocolError(f"encoding: {purpose!r} is no purpose")
    return b"chorale/v1/" + purpose.encode() + b"\0"


@dataclass(slots=True)
class _Writer:
    out: bytearray
    _fields: int = 0  # so far, of the whole document

    def write_list(self, fields: Sequence[Field], *, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise LocalProtocolError("encoding: too many fields or lists within lists")
        self._count(len(fields))
        self.out += _COUNT.pack(len(fields))
        for field in fields:
            if isinstance(field, bytes):
                self.out += _SIZED.pack(b"b", len(field)) + field
            elif isinstance(field, str):
                try:
                    text = field.encode()
                except UnicodeEncodeError:
                    raise LocalProtocolError("encoding: text holds a lone surrogate") from None
                self.out += _SIZED.pack(b"s", len(text)) + text
            elif isinstance(field, int):
                if isinstance(field, bool) or not 0 <= field <= MAX_NUMBER:
                    raise LocalProtocolError("encoding: a number is a whole number from 0 to 2^64 - 1")
                self.out += _NUMBER.pack(b"i", field)
            elif isinstance(field, list | tuple):
                self.out += b"l"
                self.write_list(field, depth=depth + 1)
            elif isinstance(field, Encoded):
                self._count(field.fields)
                self.out += field.data
            else:
                raise LocalProtocolError(f"encoding: no field holds a {type(field).__name__}")

    def _count(self, fields: int) -> None:
        self._fields += fields
        if self._fields > MAX_FIELDS:
            raise LocalProtocolError("encoding: too many fields or lists within lists")


@dataclass(slots=True)
class _Scanner:
    """Reads from `place` on; a number or a length that the data ends within is a struct.error."""

    _purpose: str
    _data: bytes
    place: int
    _fields: int = 0  # so far, of the whole document

    def read_list(self, *, depth: int) -> list[Value]:
        (count,) = _COUNT.unpack_from(self._data, self.place)
        self.place += _COUNT.size
        self._fields += count
        if depth > MAX_DEPTH or self._fields > MAX_FIELDS:
            raise RemoteProtocolError(f"{self._purpose}: too many fields or lists within lists")
        return [self._read(depth) for _ in range(count)]

    def _read(self, depth: int) -> Value:
        tag = self._data[self.place : self.place + 1]
        if tag == b"i":
            number: int = _NUMBER.unpack_from(self._data, self.place)[1]
            self.place += _NUMBER.size
            return number
        if tag == b"l":
            self.place += 1
            return self.read_list(depth=depth + 1)
        if not tag:
            raise self.early()
        if tag not in (b"b", b"s"):
            raise RemoteProtocolError(f"{self._purpose}: byte {self.place} is no tag")
        start = self.place + _SIZED.size
        self.place = start + _SIZED.unpack_from(self._data, self.place)[1]
        if self.place > len(self._data):
            raise self.early()
        data = self._data[start : self.place]
        try:
            return data if tag == b"b" else data.decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError(f"{self._purpose}: text is not UTF-8") from None

    def early(self) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self._purpose}: ends early, at byte {len(self._data)}")
