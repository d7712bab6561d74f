"""Changes that keep an input's form, where bytes changed at random would not get past the first check.

Each takes an input and a source of randomness, and gives another input. An input that is not of the form is
changed byte by byte.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from crypto import encoding
from crypto.encoding import Value
from crypto.errors import ChoraleError
from tests.fuzz.target import Mutate

NUMBERS = (0, 1, 2, 3, 16, 32, 63, 64, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 32, 1 << 63, (1 << 64) - 1)
TEXTS = ("", "a", "silo-000", "silo-001", "train", "enrollment.0", "0x1p+0", "nan", "inf", "-1", "é", "\0")
JSON_VALUES = (
    None,
    True,
    0,
    -1,
    1,
    4,
    1 << 31,
    1 << 63,
    10**30,
    1e308,
    float("inf"),
    "",
    "F32",
    "I64",
    [],
    [0],
    {},
    [[]],
)
_DOCUMENT = re.compile(rb"chorale/v1/([a-z0-9./-]+)\0", re.DOTALL)


def raw(data: bytes, chance: random.Random) -> bytes:
    """One small change of bytes: one flipped, some removed, doubled, or put in."""
    start = chance.randint(0, len(data))
    end = min(len(data), start + chance.choice((0, 1, 1, 2, 4, 32)))
    kind = chance.randrange(5)
    if kind == 0 and start < len(data):
        return data[:start] + bytes((data[start] ^ 1 << chance.randrange(8),)) + data[start + 1 :]
    if kind == 1:
        return data[:start] + data[end:]
    if kind == 2:
        return data[:end] + data[start:]
    if kind == 3:
        return data[:start]
    return data[:start] + chance.randbytes(chance.choice((1, 1, 2, 4, 8))) + data[start:]


def document(data: bytes, chance: random.Random) -> bytes:
    """A canonical encoding in which one field is another, at any depth; documents inside it, too."""
    found = _DOCUMENT.match(data)
    if found is None:
        return raw(data, chance)
    purpose = found[1].decode()
    try:
        values = encoding.decode(purpose, data)
        _change_fields(values, chance)
        return encoding.encode(purpose, *values)
    except ChoraleError:
        return raw(data, chance)


def message(kind: type[Message]) -> Mutate:
    """A protobuf message in which one field is another, at any depth."""

    def mutate(data: bytes, chance: random.Random) -> bytes:
        try:
            parsed = kind.FromString(data)
        except DecodeError:
            return raw(data, chance)
        _change_message(parsed, chance)
        return parsed.SerializeToString()

    return mutate


def tokens(words: Sequence[str]) -> Mutate:
    """Text in which a word of the grammar is put in, or a line is moved."""

    def mutate(data: bytes, chance: random.Random) -> bytes:
        lines = data.split(b"\n")
        place, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(4):
            case 0:
                lines[place] = lines[place][: chance.randint(0, len(lines[place]))] + _word(words, chance)
            case 1:
                lines.insert(place, lines[other])
            case 2:
                del lines[place]
            case _:
                head, separator, _ = lines[place].partition(b":")
                lines[place] = head + (separator or b":") + b" " + _word(words, chance)
        return b"\n".join(lines)

    return mutate


def json_values(data: bytes, chance: random.Random) -> bytes:
    """JSON in which one value is another; of several lines, one."""
    lines = data.splitlines() or [b""]
    place = chance.randrange(len(lines))
    try:
        holder = [json.loads(lines[place])]
    except (ValueError, RecursionError):
        return raw(data, chance)
    _change_json(holder, chance)
    lines[place] = json.dumps(holder[0], separators=(",", ":")).encode()
    return b"\n".join(lines) + b"\n"


def headed(data: bytes, chance: random.Random) -> bytes:
    """A safetensors file with one value of its header changed, and the header's length with it."""
    size = int.from_bytes(data[:8], "little")
    header = json_values(data[8 : 8 + size], chance).rstrip(b"\n")
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def either(*ways: Mutate) -> Mutate:
    def mutate(data: bytes, chance: random.Random) -> bytes:
        return chance.choice(ways)(data, chance)

    return mutate


def _word(words: Sequence[str], chance: random.Random) -> bytes:
    return chance.choice((*words, *TEXTS, *map(str, NUMBERS))).encode()


def _change_fields(values: list[Value], chance: random.Random) -> None:
    if not values:
        values.append(chance.choice(NUMBERS))
        return
    place = chance.randrange(len(values))
    value = values[place]
    if isinstance(value, list) and chance.random() < 0.75:
        return _change_fields(value, chance)
    match chance.randrange(8):
        case 0:
            del values[place]
        case 1:
            values.insert(place, value)
        case 2:
            other = chance.randrange(len(values))
            values[place], values[other] = values[other], value
        case 3:
            values[place] = chance.choice((b"", "", 0, [], b"x" * 32))
        case _:
            values[place] = _another(value, chance)


def _another(value: Value, chance: random.Random) -> Value:
    if isinstance(value, bytes):
        return document(value, chance)
    if isinstance(value, int):
        return chance.choice((*NUMBERS, value + 1, value ^ 1 << chance.randrange(64)))
    if isinstance(value, str):
        return chance.choice((*TEXTS, raw(value.encode(), chance).decode(errors="replace")))
    return [*value, *value]


def _change_message(parsed: Message, chance: random.Random) -> None:
    filled = [
        (field, value) for field, value in parsed.ListFields() if field.type == FieldDescriptor.TYPE_MESSAGE
    ]
    if filled and chance.random() < 0.75:
        field, value = chance.choice(filled)
        if not isinstance(value, Message):
            return _change_repeated(value, chance)
        return _change_message(value, chance)
    field = chance.choice(parsed.DESCRIPTOR.fields)
    if chance.random() < 0.15:
        return parsed.ClearField(field.name)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if field.message_type.GetOptions().map_entry:
            return
        if field.is_repeated:
            getattr(parsed, field.name).add()
        else:
            getattr(parsed, field.name).SetInParent()
        return
    made = _SCALARS.get(field.cpp_type)
    if made is None:
        return
    if field.is_repeated:
        empty = "" if field.type == FieldDescriptor.TYPE_STRING else b""
        getattr(parsed, field.name).append(made(empty, chance))
    else:
        setattr(parsed, field.name, made(getattr(parsed, field.name), chance))


def _change_repeated(values: Any, chance: random.Random) -> None:
    if not hasattr(values, "add"):  # a map: its entries are numbers
        return
    match chance.randrange(4):
        case 0 if len(values) < 300:
            values.add().CopyFrom(chance.choice(values))
        case 1:
            del values[chance.randrange(len(values))]
        case _:
            _change_message(chance.choice(values), chance)


def _some_bytes_or_text(value: Any, chance: random.Random) -> Any:
    if isinstance(value, str):
        return chance.choice((*TEXTS, value, value[:-1]))
    return document(value, chance) if value else chance.choice((b"", b"x", b"x" * 32, b"x" * 33, b"x" * 72))


_SCALARS: dict[int, Callable[[Any, random.Random], Any]] = {
    FieldDescriptor.CPPTYPE_UINT32: lambda _, chance: chance.choice(NUMBERS) & 0xFFFFFFFF,
    FieldDescriptor.CPPTYPE_UINT64: lambda _, chance: chance.choice(NUMBERS),
    FieldDescriptor.CPPTYPE_BOOL: lambda _, chance: chance.random() < 0.5,
    FieldDescriptor.CPPTYPE_DOUBLE: lambda _, chance: chance.choice((0.0, -1.0, 1e308, float("nan"))),
    FieldDescriptor.CPPTYPE_STRING: _some_bytes_or_text,
}


def _change_json(holder: Any, chance: random.Random) -> None:
    """Change one value inside a list or a mapping."""
    places = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    if not places:
        return
    place = chance.choice(places)
    if isinstance(holder[place], dict | list) and holder[place] and chance.random() < 0.75:
        return _change_json(holder[place], chance)
    match chance.randrange(4):
        case 0 if isinstance(holder, dict):
            holder[chance.choice((*TEXTS, "__metadata__", "body"))] = holder[place]
        case 1 if len(holder) > 1:
            del holder[place]
        case _:
            holder[place] = chance.choice((*JSON_VALUES, holder[chance.choice(places)]))
