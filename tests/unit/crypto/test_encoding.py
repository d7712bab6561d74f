from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import encoding
from crypto.encoding import MAX_DEPTH, MAX_FIELDS, MAX_NUMBER, FieldReader
from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError

PREFIX = b"chorale/v1/test\0"

leaves = (
    st.integers(min_value=0, max_value=MAX_NUMBER)
    | st.binary(max_size=40)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
fields = st.lists(st.recursive(leaves, lambda inner: st.lists(inner, max_size=4), max_leaves=12), max_size=6)


def nested(depth: int) -> list[encoding.Field]:
    value: list[encoding.Field] = []
    for _ in range(depth):
        value = [value]
    return value


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def test_encode_writes_the_documented_bytes() -> None:
    expected = PREFIX + words(3)
    expected += b"i" + (258).to_bytes(8, "big")
    expected += b"s" + words(2) + "é".encode()
    expected += b"l" + words(1) + b"b" + words(1) + b"\xff"
    assert encoding.encode("test", 258, "é", [b"\xff"]) == expected
    assert encoding.digest("test", 258, "é", (b"\xff",)) == hashlib.sha256(expected).digest()


@given(fields)
def test_decode_returns_what_was_encoded(values: list[encoding.Value]) -> None:
    assert encoding.decode("test", encoding.encode("test", *values)) == values


@settings(max_examples=200)
@given(
    st.binary(max_size=60)
    | fields.map(lambda values: encoding.encode("x", *values)[len(b"chorale/v1/x\0") :])
)
def test_decode_refuses_or_gives_back_the_identical_bytes(tail: bytes) -> None:
    data = PREFIX + tail
    try:
        values = encoding.decode("test", data)
    except RemoteProtocolError:
        return
    assert encoding.encode("test", *values) == data


@settings(max_examples=200)
@given(fields, st.data())
def test_decode_survives_any_change_of_a_byte(values: list[encoding.Value], data: st.DataObject) -> None:
    mutated = bytearray(encoding.encode("test", *values))
    place = data.draw(st.integers(0, len(mutated) - 1))
    mutated[place] ^= data.draw(st.integers(1, 255))
    try:
        decoded = encoding.decode("test", bytes(mutated))
    except RemoteProtocolError:
        return
    assert decoded != values
    assert encoding.encode("test", *decoded) == bytes(mutated)


@given(fields)
def test_decode_refuses_every_shortened_document(values: list[encoding.Value]) -> None:
    whole = encoding.encode("test", *values)
    for size in range(len(PREFIX), len(whole)):
        with pytest.raises(RemoteProtocolError, match="ends early"):
            encoding.decode("test", whole[:size])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"chorale/v1/other\0" + words(0), "another kind of message"),
        (b"", "another kind of message"),
        (PREFIX + words(0) + b"\0", "1 bytes left over"),
        (PREFIX + words(1) + b"x" + words(0), "no tag"),
        (PREFIX + words(1) + b"s" + words(1) + b"\xff", "not UTF-8"),
        (PREFIX + words(1) + b"s" + words(2) + b"\xc1\xa1", "not UTF-8"),  # overlong
        (PREFIX + words(1) + b"s" + words(3) + b"\xed\xa0\x80", "not UTF-8"),  # a surrogate
        (PREFIX + words(1) + b"b" + words(0xFFFFFFFF), "ends early"),
        (PREFIX + words(MAX_FIELDS + 1), "too many fields"),
        (PREFIX + words(1) + b"l" + words(MAX_FIELDS), "too many fields"),
        (PREFIX + words(1) + (b"l" + words(1)) * MAX_DEPTH + b"l" + words(0), "lists within lists"),
    ],
)
def test_decode_refuses(data: bytes, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message) as caught:
        encoding.decode("test", data)
    assert caught.value.code is Refusal.MALFORMED


def test_decode_refuses_more_bytes_than_allowed() -> None:
    data = encoding.encode("test", bytes(100))
    assert encoding.decode("test", data, max_bytes=len(data)) == [bytes(100)]
    with pytest.raises(RemoteProtocolError, match=f"at most {len(data) - 1} bytes, got {len(data)}"):
        encoding.decode("test", data, max_bytes=len(data) - 1)


def test_depth_and_number_of_fields_are_bounded_alike_when_writing() -> None:
    deepest = nested(MAX_DEPTH - 1)
    assert encoding.decode("test", encoding.encode("test", deepest)) == [deepest]
    with pytest.raises(LocalProtocolError, match="lists within lists"):
        encoding.encode("test", nested(MAX_DEPTH))
    with pytest.raises(LocalProtocolError, match="too many fields"):
        encoding.encode("test", [0] * MAX_FIELDS)
    assert len(encoding.encode("test", [0] * (MAX_FIELDS - 1))) > MAX_FIELDS


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "whole number"),
        (MAX_NUMBER + 1, "whole number"),
        (True, "whole number"),
        (1.5, "holds a float"),
        (None, "holds a NoneType"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_encode_refuses_what_it_cannot_hold(value: object, message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        encoding.encode("test", value)  # type: ignore[arg-type]


@given(st.lists(st.text()), fields)
def test_a_list_that_was_encoded_before_stands_as_it_would_have(
    texts: list[str], values: list[encoding.Value]
) -> None:
    encoded = encoding.Encoded.of(texts)
    assert encoding.encode("test", *values, encoded, 7) == encoding.encode("test", *values, texts, 7)


def test_fields_of_a_list_that_was_encoded_before_count() -> None:
    half = encoding.Encoded.of(["a"] * (MAX_FIELDS // 2))
    encoding.encode("test", half)
    with pytest.raises(LocalProtocolError, match="too many fields"):
        encoding.encode("test", half, half)


@pytest.mark.parametrize("purpose", ["", "Test", "a\0b", "a b", "/a", "a--b"])
def test_a_purpose_is_a_plain_word(purpose: str) -> None:
    with pytest.raises(LocalProtocolError, match="is no purpose"):
        encoding.encode(purpose)


def test_purposes_separate_equal_fields() -> None:
    assert encoding.digest("advert", "x") != encoding.digest("envelope", "x")


def test_reader_takes_fields_by_type_and_order() -> None:
    reader = FieldReader([b"ab", b"cd", "x", 7, ["p", "q"], [1, 2], [3], [["r"], ["s"]]], what="advert")
    assert (reader.data(2), reader.data(), reader.text(), reader.number()) == (b"ab", b"cd", "x", 7)
    assert reader.texts() == ("p", "q")
    numbers = reader.fields()
    assert (numbers.left, numbers.number(), numbers.number(), numbers.left) == (2, 1, 2, 0)
    assert reader.fields().number() == 3
    assert reader.left == 1
    assert [row.text() for row in reader.rows()] == ["r", "s"]
    reader.end()


@pytest.mark.parametrize(
    ("take", "value", "message"),
    [
        ("data", "x", "expected bytes, got str"),
        ("text", b"x", "expected text, got bytes"),
        ("number", "x", "expected a number, got str"),
        ("fields", 1, "expected a list, got int"),
        ("rows", [1], "expected a list, got int"),
        ("texts", [1], "expected text, got int"),
    ],
)
def test_reader_refuses_a_field_of_another_type(take: str, value: encoding.Value, message: str) -> None:
    reader = FieldReader([value], what="advert", code=Refusal.ADVERT)
    with pytest.raises(RemoteProtocolError, match=f"advert: {message}") as caught:
        getattr(reader, take)()
    assert caught.value.code is Refusal.ADVERT


def test_reader_refuses_missing_surplus_and_missized_fields() -> None:
    with pytest.raises(RemoteProtocolError, match="a field is missing"):
        FieldReader([], what="advert").number()
    with pytest.raises(RemoteProtocolError, match="1 fields too many"):
        FieldReader([1], what="advert").end()
    with pytest.raises(RemoteProtocolError, match="expected 32 bytes, got 2"):
        FieldReader([b"ab"], what="advert").data(32)
