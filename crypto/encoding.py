"""Canonical encoding of everything that is signed or hashed, and its strict reader.

`chorale/v1/<purpose>\\0`, then a list: 32-bit count, and per field one tag byte with a fixed-width
length or value (b bytes, s UTF-8 text, i 64-bit number, l list; big-endian). One value has one
encoding, so two sides that agree on bytes agree on meaning. Source: docs/protocol.md 2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TypeAlias

from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError

Field: TypeAlias = "bytes | str | int | Sequence[Field]"
Value: TypeAlias = "bytes | str | int | list[Value]"

MAX_DEPTH = 6  # lists within lists; the deepest document (a layout in a session) uses 3
MAX_FIELDS = 1 << 16  # of one document, lists and what they hold included
MAX_NUMBER = (1 << 64) - 1
_PURPOSE = re.compile(r"[a-z0-9]+([./-][a-z0-9]+)*")


def encode(purpose: str, *fields: Field) -> bytes:
    """Domain-separated canonical bytes of the fields.

    Raises LocalProtocolError for what the encoding does not hold.
    """
    writer = _Writer()
    writer.write_list(fields, depth=0)
    return _prefix(purpose) + bytes(writer.out)


def decode(purpose: str, data: bytes, *, max_bytes: int = 1 << 20) -> list[Value]:
    """Fields of a canonical document.

    Raises RemoteProtocolError for another purpose, and for whatever `encode` would not have written.
    """
    prefix = _prefix(purpose)
    if len(data) > max_bytes:
        raise RemoteProtocolError(f"{purpose}: expected at most {max_bytes} bytes, got {len(data)}")
    if not data.startswith(prefix):
        raise RemoteProtocolError(f"{purpose}: the bytes are of another purpose")
    scanner = _Scanner(purpose, data, start=len(prefix))
    values = scanner.read_list(depth=0)
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
        value = self._next()
        if not isinstance(value, bytes):
            raise self._wrong("bytes", value)
        if size is not None and len(value) != size:
            raise self._error(f"expected {size} bytes, got {len(value)}")
        return value

    def text(self) -> str:
        value = self._next()
        if not isinstance(value, str):
            raise self._wrong("text", value)
        return value

    def number(self) -> int:
        value = self._next()
        if not isinstance(value, int):
            raise self._wrong("a number", value)
        return value

    def items(self) -> list[Value]:
        value = self._next()
        if not isinstance(value, list):
            raise self._wrong("a list", value)
        return value

    def texts(self) -> tuple[str, ...]:
        """The next field as a list of text."""
        inner = FieldReader(self.items(), what=self._what, code=self._code)
        return tuple(inner.text() for _ in range(len(inner._left)))

    def end(self) -> None:
        if self._left:
            raise self._error(f"{len(self._left)} fields too many")

    def _next(self) -> Value:
        if not self._left:
            raise self._error("a field is missing")
        return self._left.pop()

    def _wrong(self, expected: str, value: Value) -> RemoteProtocolError:
        return self._error(f"expected {expected}, got {type(value).__name__}")

    def _error(self, message: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self._what}: {message}", code=self._code)


def _prefix(purpose: str) -> bytes:
    if not _PURPOSE.fullmatch(purpose):
        raise LocalProtocolError(f"encoding: {purpose!r} is no purpose")
    return b"chorale/v1/" + purpose.encode() + b"\0"


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()
        self._fields = 0

    def write_list(self, fields: Sequence[Field], *, depth: int) -> None:
        self._fields += len(fields)
        if depth > MAX_DEPTH or self._fields > MAX_FIELDS:
            raise LocalProtocolError("encoding: too many fields or lists within lists")
        self.out += len(fields).to_bytes(4, "big")
        for field in fields:
            self._write(field, depth=depth)

    def _write(self, field: Field, *, depth: int) -> None:
        if isinstance(field, bytes):
            self._write_bytes(b"b", field)
        elif isinstance(field, str):
            self._write_bytes(b"s", _utf8(field))
        elif isinstance(field, int):
            self._write_number(field)
        elif isinstance(field, list | tuple):
            self.out += b"l"
            self.write_list(field, depth=depth + 1)
        else:
            raise LocalProtocolError(f"encoding: no field holds a {type(field).__name__}")

    def _write_bytes(self, tag: bytes, data: bytes) -> None:
        self.out += tag + len(data).to_bytes(4, "big") + data

    def _write_number(self, number: int) -> None:
        if isinstance(number, bool) or not 0 <= number <= MAX_NUMBER:
            raise LocalProtocolError("encoding: a number is a whole number from 0 to 2^64 - 1")
        self.out += b"i" + number.to_bytes(8, "big")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError("encoding: text holds a lone surrogate") from None


class _Scanner:
    def __init__(self, purpose: str, data: bytes, *, start: int) -> None:
        self._purpose = purpose
        self._data = data
        self.place = start
        self._fields = 0

    def read_list(self, *, depth: int) -> list[Value]:
        count = int.from_bytes(self._take(4), "big")
        self._fields += count
        if depth > MAX_DEPTH or self._fields > MAX_FIELDS:
            raise RemoteProtocolError(f"{self._purpose}: too many fields or lists within lists")
        return [self._read(depth=depth) for _ in range(count)]

    def _read(self, *, depth: int) -> Value:
        tag = self._take(1)
        if tag == b"i":
            return int.from_bytes(self._take(8), "big")
        if tag == b"l":
            return self.read_list(depth=depth + 1)
        if tag not in (b"b", b"s"):
            raise RemoteProtocolError(f"{self._purpose}: byte {self.place - 1} is no tag")
        data = self._take(int.from_bytes(self._take(4), "big"))
        return data if tag == b"b" else self._text(data)

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError(f"{self._purpose}: text is not UTF-8") from None

    def _take(self, size: int) -> bytes:
        end = self.place + size
        if end > len(self._data):
            raise RemoteProtocolError(f"{self._purpose}: ends early, at byte {len(self._data)}")
        taken = self._data[self.place : end]
        self.place = end
        return taken
