"""Re-checks the vectors in this folder without the package they describe.

Usage: python tests/vectors/check_vectors.py [FOLDER]. Ends with 1 and the first disagreement.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from check_initial_state import check_initial_state
from check_next_state import check_next_state
from check_roster import check_roster
from check_session import check_session
from primitives import (
    PRIME,
    TAG_WORDS,
    Disagreement,
    Malformed,
    aes_ctr,
    audit_path,
    decode,
    digest,
    encode,
    expect,
    layout_digest,
    little_endian,
    prg_key,
    recover,
    room,
    share_number,
    tree_hash,
)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else Path(__file__).parent
    checks: dict[str, Callable[[Any], int]] = {
        "encoding": check_encoding,
        "shamir": check_shamir,
        "prg": check_prg,
        "projection": check_projection,
        "ring": check_ring,
        "noise": check_noise,
        "envelope_tree": check_envelope_tree,
        "session": check_session,
        "draw": check_draw,
        "roster": check_roster,
        "next_state": check_next_state,
        "initial_state": check_initial_state,
    }
    for name, check in checks.items():
        try:
            number = check(json.loads((folder / f"{name}.json").read_text()))
        except (Disagreement, Malformed) as error:
            sys.stdout.write(f"{name}.json: {error}\n")
            return 1
        sys.stdout.write(f"{name}.json: {number} agree\n")
    return 0


def check_envelope_tree(vectors: Any) -> int:
    for vector in vectors:
        leaves = [digest("envelope", place) for place in range(vector["size"])]
        expect("root", tree_hash(leaves).hex(), vector["root"])
        paths = {place: audit_path(int(place), leaves).hex() for place in vector["paths"]}
        expect("paths", paths, vector["paths"])
    return len(vectors)


def untagged(field: Any) -> Any:
    if isinstance(field, dict):
        return bytes.fromhex(field["bytes"])
    return [untagged(each) for each in field] if isinstance(field, list) else field


def check_encoding(vectors: Any) -> int:
    for vector in vectors["valid"]:
        fields, data = untagged(vector["fields"]), bytes.fromhex(vector["encoding"])
        expect("encoding", encode(vector["purpose"], *fields), data)
        expect("fields", decode(vector["purpose"], data), fields)
        expect("digest", hashlib.sha256(data).hexdigest(), vector["digest"])
    for vector in vectors["invalid"]:
        try:
            decode(vector["purpose"], bytes.fromhex(vector["encoding"]))
        except Malformed:
            continue
        raise Disagreement(f"{vector['failure']}: it was read without complaint")
    return len(vectors["valid"]) + len(vectors["invalid"])


def check_shamir(vectors: Any) -> int:
    expect("prime", str(PRIME), vectors["prime"])
    for vector in vectors["valid"]:
        secret, shares = bytes.fromhex(vector["secret"]), shares_of(vector)
        coefficients = [int.from_bytes(bytes.fromhex(wide), "big") for wide in vector["random"]]
        for x, share in shares.items():
            powers = sum(each * x**power for power, each in enumerate(coefficients, start=1))
            expect(f"share {x}", (int.from_bytes(secret, "big") + powers) % PRIME, share)
        for chosen in itertools.islice(itertools.combinations(shares, vector["threshold"]), 20):
            expect("secret", recover({x: shares[x] for x in chosen}), secret)
    for vector in vectors["invalid"]:
        try:
            recover(shares_of(vector))
        except Malformed:
            continue
        raise Disagreement(f"{vector['failure']}: it was recovered without complaint")
    return len(vectors["valid"]) + len(vectors["invalid"])


def shares_of(vector: Any) -> dict[int, int]:
    return {int(x): share_number(bytes.fromhex(share)) for x, share in vector["shares"].items()}


def check_prg(vectors: Any) -> int:
    for vector in vectors:
        ring_bits = vector["word"]
        key = prg_key(bytes.fromhex(vector["seed"]), bytes.fromhex(vector["cohort_digest"]), ring_bits)
        expect("key", key.hex(), vector["key"])
        size = len(vector["words"]) * ring_bits // 8
        words = little_endian(aes_ctr(key, vector["offset_bytes"], size), ring_bits)
        expect(f"words of {ring_bits} bits", [str(each) for each in words], vector["words"])
    return len(vectors)


def check_projection(vectors: Any) -> int:
    for vector in vectors:
        seed = digest("projection", bytes.fromhex(vector["job_digest"]), vector["round"], vector["phase"])
        expect("seed", seed.hex(), vector["seed"])
        signs = signs_of(vector)
        expect("words", projected(vector["values"], vector, signs), vector["words"])
        expect("expanded", expanded(vector["words"], vector, signs), vector["expanded"])
        quantity = {"name": "delta", "shape": [vector["size"]], "bound": 64.0, "word": 16, "is_count": False}
        quantity |= {"sensitivity_l2": None, "projection": vector, "is_tagged": False}
        expect("layout digest", layout_digest([quantity], 4).hex(), vector["layout_digest"])
    return len(vectors)


def signs_of(vector: Any) -> list[int]:
    """From the seed's key stream, after 8 bytes for each row of a block: a bit a value."""
    block, size = vector["block"], vector["size"]
    bits = aes_ctr(bytes.fromhex(vector["seed"]), 0, 8 * block + (size + 7) // 8)[8 * block :]
    return [-1 if bits[i // 8] >> i % 8 & 1 else 1 for i in range(size)]


def hadamard(row: int, other: int) -> int:
    return -1 if (row & other).bit_count() % 2 else 1


def projected(values: list[float], vector: Any, signs: list[int]) -> list[float]:
    block, blocks = vector["block"], math.ceil(vector["size"] / vector["block"])
    words = []
    for row, column in itertools.product(range(block), range(blocks)):
        places = range(column, len(values), blocks)
        total = sum(hadamard(row, place // blocks) * signs[place] * values[place] for place in places)
        words.append(total / math.sqrt(block))
    return words


def expanded(words: list[float], vector: Any, signs: list[int]) -> list[float]:
    block, blocks = vector["block"], math.ceil(vector["size"] / vector["block"])
    values = []
    for place, sign in enumerate(signs):
        own, column = divmod(place, blocks)
        total = sum(hadamard(row, own) * words[row * blocks + column] for row in range(block))
        values.append(sign * total / math.sqrt(block))
    return values


def check_noise(vectors: Any) -> int:
    """Scale and variance follow from job and m alone: what 4.9 says, tried from the smallest scale on."""
    for vector in vectors:
        quantity, members = vector["quantity"], vector["members"]
        noise, words, best = quantity["noise"], vector["words"], None
        for exponent in range(-60, 61):
            scale = 2.0**exponent
            d_squared = squared_sensitivity(scale, vector["l2"], words, is_count=vector["is_count"])
            variance = vector["multiplier"] ** 2 * d_squared / vector["honest"]
            largest = members * math.ceil(scale * quantity["bound"]) + tail(
                members * variance, vector["words"]
            )
            if 64 <= variance <= 2**44 and largest <= room(quantity):
                best = exponent, variance
                cost = math.sqrt(d_squared) / (scale * vector["l2"])
                if variance >= 2**14 and cost <= 1 + 2**-10:
                    break
        expect("scale exponent and variance", best, (noise["scale_exponent"], noise["variance"]))
        expect("tail", tail(members * noise["variance"], words), vector["tail"])
        expect("layout digest", layout_digest([quantity], members).hex(), vector["layout_digest"])
    return len(vectors)


def squared_sensitivity(scale: float, l2: float, words: int, *, is_count: bool) -> int:
    """D^2 of a clipped array, or of one value of a record (docs/privacy-proofs.md)."""
    if is_count and scale >= 1:
        return max(1, math.ceil((scale * l2) ** 2))
    if is_count:
        return math.ceil((scale * l2 * (1 + 2.0**-20) + 1) ** 2 * (1 + 1e-12))
    norm, root = scale * l2, math.sqrt(words)
    mostly = norm**2 + words / 4.0 + 5.2656 * (norm + root / 2.0)
    return math.ceil(min((norm + root) ** 2, mostly) * (1 + 1e-12))


def tail(variance: float, words: int) -> int:
    bits = 48 + (2 * words).bit_length()
    return math.ceil(math.sqrt(2.0 * 0.6931472 * bits * (1 + 1 / 700) * variance))


def scale_exponent(quantity: Any, members: int) -> int:
    if quantity["is_count"]:
        return 0
    bound, most = Fraction(quantity["bound"]), room(quantity)
    exponents = [e for e in range(-200, 200) if members * math.ceil(bound * Fraction(2) ** e) <= most]
    return max(exponents)


def check_ring(vectors: Any) -> int:
    for vector in vectors:
        members, quantities = vector["members"], vector["quantities"]
        expect("layout digest", layout_digest(quantities, members).hex(), vector["layout_digest"])
        rounding_bits = rounding_numbers(bytes.fromhex(vector["rounding_key"]))
        words: dict[str, list[str]] = {
            str(ring_bits): [] for ring_bits in sorted({q["word"] for q in quantities})
        }
        places = first_places(quantities)
        clipped = sum(
            abs(value) > quantity["bound"]
            for quantity in quantities
            if not quantity["is_count"]
            for value in vector["values"][quantity["name"]]
        )
        expect("clipped", clipped, vector["clipped_total"])
        for quantity in quantities:
            expect("scale exponent", scale_exponent(quantity, members), quantity["scale_exponent"])
            values = vector["values"] | {"clipped": [clipped]}
            place = places[quantity["word"]] + len(words[str(quantity["word"])])
            units = [
                in_units(v, quantity, rounding_bits[place + i])
                for i, v in enumerate(values[quantity["name"]])
            ]
            words[str(quantity["word"])] += [str(unit % 2 ** quantity["word"]) for unit in units]
            sums = [float(members * unit / Fraction(2) ** quantity["scale_exponent"]) for unit in units]
            expect("sum", sums, vector["sum_of_all_members"][quantity["name"]])
        if any(quantity["is_tagged"] for quantity in quantities):
            words.setdefault("64", []).extend(["0"] * TAG_WORDS)  # no session, no tags
        expect("words", words, vector["vectors"])
    return len(vectors)


def rounding_numbers(key: bytes) -> list[int]:
    """By the place of the word in the upload."""
    return little_endian(aes_ctr(key, 0, 4096), 16)


def first_places(quantities: Any) -> dict[int, int]:
    """By word size, how many words of smaller sizes stand before its vector."""
    sizes = [(quantity["word"], math.prod(quantity["shape"])) for quantity in quantities]
    return {ring_bits: sum(size for other, size in sizes if other < ring_bits) for ring_bits, _ in sizes}


def in_units(value: float, quantity: Any, rounding_bits: int) -> int:
    if quantity["is_count"]:
        return int(value)
    bound = Fraction(quantity["bound"])
    exact = max(-bound, min(bound, Fraction(value))) * Fraction(2) ** quantity["scale_exponent"]
    whole: int = math.floor(exact)
    return whole + int(rounding_bits < (exact - whole) * 2**16)


def check_draw(vectors: Any) -> int:
    """The seed of b in order of name, and the ceil(q R) smallest hashes of those on the roster, or those of
    them in the group of all silos whose turn it is."""
    for vector in vectors:
        seeds = {name: bytes.fromhex(seed) for name, seed in vector["self_mask_seeds"].items()}
        seed = digest("draw", bytes.fromhex(vector["job_digest"]), [seeds[name] for name in sorted(seeds)])
        expect("draw seed", seed.hex(), vector["draw_seed"])
        wanted = math.ceil(Fraction(vector["fraction"]) * len(seeds))
        groups = sorted(seeds, key=lambda name: digest("group", seed, name))
        for round, named in vector["named"].items():
            if vector["draw"] == "groups":
                first = (int(round) - 1) * wanted % len(seeds)
                turn = set(groups[first : first + wanted]) & set(vector["on_roster"])
                expect(f"group of round {round}", sorted(turn), named)
                continue
            ranked = {digest("named-set", seed, int(round), name): name for name in vector["on_roster"]}
            expect(
                f"named set of round {round}", sorted(ranked[rank] for rank in sorted(ranked)[:wanted]), named
            )
    return len(vectors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
