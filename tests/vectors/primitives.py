"""The primitives of docs/protocol.md 2, 4 and 5 a second time, for the checks in this folder.

Plain Python with the standard library's SHA-256 and HMAC; pyca/cryptography for AES blocks and HPKE.
Nothing is imported from the package whose vectors are checked.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from fractions import Fraction
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, Suite

PRIME = 2**256 + 297
TAG_WORDS = 4
MAX_DEPTH = 6
MAX_FIELDS = 65536


class Disagreement(Exception):
    pass


class Malformed(Exception):
    pass


def expect(what: str, computed: object, recorded: object) -> None:
    if computed != recorded:
        raise Disagreement(f"{what}: computed {shown(computed)}, the vector has {shown(recorded)}")


def shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)[:200]


# canonical encoding, docs/protocol.md 2


def encode(purpose: str, *fields: Any) -> bytes:
    return b"chorale/v1/" + purpose.encode() + b"\0" + encode_list(fields)


def encode_list(fields: Any) -> bytes:
    return len(fields).to_bytes(4, "big") + b"".join(encode_field(field) for field in fields)


def encode_field(field: Any) -> bytes:
    if isinstance(field, int):
        return b"i" + field.to_bytes(8, "big")
    if isinstance(field, (list, tuple)):
        return b"l" + encode_list(field)
    tag, data = (b"s", field.encode()) if isinstance(field, str) else (b"b", field)
    return tag + len(data).to_bytes(4, "big") + data


def digest(purpose: str, *fields: Any) -> bytes:
    return hashlib.sha256(encode(purpose, *fields)).digest()


def decode(purpose: str, data: bytes) -> list[Any]:
    head = b"chorale/v1/" + purpose.encode() + b"\0"
    if data[: len(head)] != head:
        raise Malformed("another purpose")
    values, rest, _ = decode_list(data[len(head) :], depth=0, fields=0)
    if rest:
        raise Malformed("bytes left over")
    return values


def decode_list(data: bytes, *, depth: int, fields: int) -> tuple[list[Any], bytes, int]:
    count, data = decode_size(data)
    fields += count
    if depth > MAX_DEPTH or fields > MAX_FIELDS:
        raise Malformed("too many")
    values = []
    for _ in range(count):
        tag, data = take(data, 1)
        if tag == b"l":
            value, data, fields = decode_list(data, depth=depth + 1, fields=fields)
        else:
            value, data = decode_leaf(tag, data)
        values.append(value)
    return values, data, fields


def decode_leaf(tag: bytes, data: bytes) -> tuple[Any, bytes]:
    if tag == b"i":
        number, data = take(data, 8)
        return int.from_bytes(number, "big"), data
    if tag not in (b"s", b"b"):
        raise Malformed("no tag")
    size, data = decode_size(data)
    content, data = take(data, size)
    try:
        return (content.decode() if tag == b"s" else content), data
    except UnicodeDecodeError:
        raise Malformed("no UTF-8") from None


def decode_size(data: bytes) -> tuple[int, bytes]:
    size, data = take(data, 4)
    return int.from_bytes(size, "big"), data


def take(data: bytes, size: int) -> tuple[bytes, bytes]:
    if len(data) < size:
        raise Malformed("ends early")
    return data[:size], data[size:]


# envelope trees, docs/protocol.md 5.3


def tree_hash(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, over hashes of leaves."""
    if len(leaves) == 1:
        return leaves[0]
    split = largest_power_below(len(leaves))
    return digest("envelope-node", tree_hash(leaves[:split]), tree_hash(leaves[split:]))


def audit_path(place: int, leaves: list[bytes]) -> bytes:
    """PATH of RFC 6962, section 2.1.1."""
    if len(leaves) == 1:
        return b""
    split = largest_power_below(len(leaves))
    if place < split:
        return audit_path(place, leaves[:split]) + tree_hash(leaves[split:])
    return audit_path(place - split, leaves[split:]) + tree_hash(leaves[:split])


def largest_power_below(size: int) -> int:
    return 1 << (size - 1).bit_length() - 1


# secret sharing, docs/protocol.md 5.3


def at(points: dict[int, int], x: int) -> int:
    """Value at x of the polynomial through the points."""
    total = Fraction(0)
    for i, y in points.items():
        others = [Fraction(x - j, i - j) for j in points if j != i]
        total += y * math.prod(others)
    return total.numerator * pow(total.denominator, -1, PRIME) % PRIME


def share_number(share: bytes) -> int:
    return int.from_bytes(share, "big") if len(share) == 33 else PRIME


def recover(points: dict[int, int]) -> bytes:
    if any(share >= PRIME for share in points.values()):
        raise Malformed("no share")
    secret = at(points, 0)
    if secret >= 2**256:
        raise Malformed("no secret")
    return secret.to_bytes(32, "big")


# key streams, docs/protocol.md 5.4


def hkdf(secret: bytes, info: bytes, size: int = 32) -> bytes:
    extracted = hmac.digest(bytes(32), secret, "sha256")
    out, block = b"", b""
    for number in range(1, -(-size // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([number]), "sha256")
        out += block
    return out[:size]


def prg_key(seed: bytes, cohort_digest: bytes, ring_bits: int) -> bytes:
    return hkdf(seed, b"chorale/v1/prg\0" + cohort_digest + bytes([ring_bits]))


def aes_ctr(key: bytes, start: int, size: int) -> bytes:
    """Key stream bytes from `start` on, block by block."""
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    first, last = start // 16, -(-(start + size) // 16)
    out = b"".join(block.update(counter.to_bytes(16, "big")) for counter in range(first, last))
    return out[start % 16 :][:size]


def little_endian(data: bytes, bits: int) -> list[int]:
    size = bits // 8
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


# layouts, docs/protocol.md 4


def layout_digest(quantities: Any, members: int) -> bytes:
    rows = [
        [
            quantity["name"],
            quantity["shape"],
            float(quantity["bound"]).hex(),
            quantity["word"],
            int(quantity["is_count"]),
            "" if quantity["sensitivity_l2"] is None else float(quantity["sensitivity_l2"]).hex(),
            projection_fields(quantity.get("projection")),
            int(quantity["is_tagged"]),
            *([] if quantity.get("noise") is None else [noise_fields(quantity["noise"])]),
        ]
        for quantity in quantities
    ]
    return digest("layout", members, 1, rows)


def noise_fields(noise: Any) -> list[Any]:
    clip = "" if noise["clip_l2"] is None else float(noise["clip_l2"]).hex()
    fields = [float(noise["variance"]).hex(), (2.0 ** noise["scale_exponent"]).hex(), clip]
    return [*fields, 1] if noise["is_whole_units"] else fields


def room(quantity: Any) -> int:
    """The largest number that a sum may reach."""
    bits = 47 if quantity["is_tagged"] and quantity["word"] == 64 else quantity["word"] - 1
    return 2**bits - 1


def projection_fields(projection: Any) -> list[Any]:
    if projection is None:
        return []
    return [bytes.fromhex(projection["seed"]), projection["size"], projection["block"]]


# sealing, docs/protocol.md 5.3


def key_pair(seed: bytes) -> tuple[bytes, MLKEM768X25519PrivateKey]:
    material = hkdf(seed, b"chorale/v1/key-pair\0", 96)
    mlkem = MLKEM768PrivateKey.from_seed_bytes(material[:64])
    x25519 = X25519PrivateKey.from_private_bytes(material[64:])
    public = mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
    return public, MLKEM768X25519PrivateKey(mlkem, x25519)


def unseal(key: MLKEM768X25519PrivateKey, sealed: bytes, info: bytes) -> bytes:
    suite = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    try:
        return suite.decrypt(sealed, key, info)
    except InvalidTag:
        raise Malformed("an envelope does not open") from None
