"""Writes the vectors of this folder but for the session's from the package itself.

Run it only when docs/protocol.md changes what they hold: python -m tests.vectors.make_vectors
`check_vectors.py` then re-checks them without the package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chorale.privacy.quantity_noise import noised
from chorale.spec.first_state import first_state
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_to_bytes
from crypto import encoding, envelope_tree, prg
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Disclosure, Layout, Quantity
from crypto.fixed_point.projection import Projection
from crypto.noise.gaussian import noise_tail
from crypto.session import cohort, shamir
from strategies.number_stream import Normal, Start, quantiles
from tests.vectors.make_roster import roster_vectors

FOLDER = Path(__file__).parent
WIDE = 64


def main() -> None:
    for make in (
        encoding_vectors,
        shamir_vectors,
        prg_vectors,
        projection_vectors,
        ring_vectors,
        noise_vectors,
        envelope_tree_vectors,
        draw_vectors,
        roster_vectors,
        initial_state_vectors,
    ):
        name = make.__name__.removesuffix("_vectors")
        (FOLDER / f"{name}.json").write_text(json.dumps(make(), indent=1) + "\n")


def counter_bytes(label: str) -> Callable[[int], bytes]:
    """Reproducible bytes: SHA-256 of label and a running number, one block after the other."""
    blocks = 0

    def random(size: int) -> bytes:
        nonlocal blocks
        out = b""
        while len(out) < size:
            out += hashlib.sha256(f"{label} {blocks}".encode()).digest()
            blocks += 1
        return out[:size]

    return random


def tagged(field: Any) -> Any:
    """A field as JSON that keeps bytes and text apart."""
    if isinstance(field, bytes):
        return {"bytes": field.hex()}
    if isinstance(field, list):
        return [tagged(each) for each in field]
    return field


def encoding_vectors() -> dict[str, Any]:
    documents: list[tuple[str, list[Any]]] = [
        ("empty", []),
        ("numbers", [0, 1, 255, 256, 2**64 - 1]),
        ("text", ["", "clinic-a", "Zürich", "\0"]),
        ("bytes", [b"", b"\0", bytes(range(32))]),
        ("lists", [[], [[]], ["a", [b"a", 97]], ["a"]]),
        ("session.terms", ["hospitals", bytes(32), 3, ["clinic-a", "clinic-b"], [7, 5, 4]]),
    ]
    valid = [
        {
            "purpose": purpose,
            "fields": tagged(fields),
            "encoding": encoding.encode(purpose, *fields).hex(),
            "digest": encoding.digest(purpose, *fields).hex(),
        }
        for purpose, fields in documents
    ]
    return {"valid": valid, "invalid": invalid_encodings()}


def invalid_encodings() -> list[dict[str, str]]:
    head = b"chorale/v1/test\0"
    one = (1).to_bytes(4, "big")
    cases = {
        "another purpose": b"chorale/v1/other\0" + bytes(4),
        "no separator": b"chorale/v1/test" + bytes(4),
        "bytes left over": head + bytes(4) + b"\0",
        "ends early in the count": head + bytes(3),
        "ends early in a number": head + one + b"i" + bytes(7),
        "ends early in text": head + one + b"s" + (2).to_bytes(4, "big") + b"a",
        "no tag": head + one + b"x" + bytes(8),
        "overlong UTF-8": head + one + b"s" + (2).to_bytes(4, "big") + b"\xc1\xa1",
        "surrogate": head + one + b"s" + (3).to_bytes(4, "big") + b"\xed\xa0\x80",
        "lists within lists": head + one + (b"l" + one) * encoding.MAX_DEPTH + b"l" + bytes(4),
        "too many fields": head + (encoding.MAX_FIELDS + 1).to_bytes(4, "big"),
    }
    return [{"failure": name, "purpose": "test", "encoding": data.hex()} for name, data in cases.items()]


def envelope_tree_vectors() -> list[dict[str, Any]]:
    """Envelopes of one number each; paths of the first, of the last and of one between."""
    vectors = []
    for size in (1, 2, 3, 5, 6, 7, 8, 9, 100, 199):
        tree = envelope_tree.levels(
            [envelope_tree.leaf(encoding.encode("envelope", place)) for place in range(size)]
        )
        paths = envelope_tree.paths(tree)
        shown = {str(place): paths[place].hex() for place in (0, size // 2, size - 1)}
        vectors.append({"size": size, "root": envelope_tree.root(tree).hex(), "paths": shown})
    return vectors


def shamir_vectors() -> dict[str, Any]:
    valid = []
    for secret, threshold, silos in [
        (bytes(32), 1, 1),
        (b"\xff" * 32, 3, 3),
        (hashlib.sha256(b"secret").digest(), 3, 4),
        (hashlib.sha256(b"other secret").digest(), 7, 10),
    ]:
        wide = counter_bytes(f"shamir {silos}")(WIDE * threshold)
        random = [wide[WIDE * i : WIDE * (i + 1)] for i in range(threshold - 1)]
        drawn = iter(random)
        xs = range(1, silos + 1)
        shares = shamir.split(secret, threshold=threshold, xs=xs, random=lambda _, drawn=drawn: next(drawn))
        valid.append(
            {
                "secret": secret.hex(),
                "threshold": threshold,
                "random": [data.hex() for data in random],
                "shares": {str(x): share.hex() for x, share in enumerate(shares, start=1)},
            }
        )
    prime = shamir.FIELD
    invalid = [
        {
            "failure": "share not below the prime",
            "threshold": 1,
            "shares": {"1": prime.to_bytes(33, "big").hex()},
        },
        {"failure": "share of 32 bytes", "threshold": 1, "shares": {"1": bytes(32).hex()}},
        {
            "failure": "secret above 32 bytes",
            "threshold": 1,
            "shares": {"1": (1 << 256).to_bytes(33, "big").hex()},
        },
        {
            "failure": "secret above 32 bytes",
            "threshold": 1,
            "shares": {"1": (prime - 1).to_bytes(33, "big").hex()},
        },
    ]
    return {"prime": str(prime), "valid": valid, "invalid": invalid}


def prg_vectors() -> list[dict[str, Any]]:
    vectors = []
    seed, cohort = hashlib.sha256(b"seed").digest(), hashlib.sha256(b"cohort").digest()
    for ring_bits in (16, 32, 64):
        key = prg.mask_key(seed, cohort_digest=cohort, ring_bits=ring_bits)
        for offset_bytes in (0, 40, 1 << 20):
            out = np.empty(48, np.uint8)
            prg.Keystream(key, offset_bytes=offset_bytes).fill(out)
            words = out.view(f"<u{ring_bits // 8}").tolist()
            vectors.append(
                {
                    "seed": seed.hex(),
                    "cohort_digest": cohort.hex(),
                    "word": ring_bits,
                    "key": key.hex(),
                    "offset_bytes": offset_bytes,
                    "words": [str(each) for each in words],
                }
            )
    return vectors


def projection_vectors() -> list[dict[str, Any]]:
    """Whole numbers and blocks of 4^k rows: every word is exact in float32."""
    vectors = []
    job = hashlib.sha256(b"job").digest()
    for round, size, block in [(1, 1, 16), (2, 40, 16), (3, 150, 64)]:
        seed = encoding.digest("projection", job, round, "train")
        projection = Projection(seed=seed, size=size, block=block)
        value_N = np.array([(7 * i * i + 3 * i) % 31 - 15 for i in range(size)], np.float32)
        word_M = projection.project(value_N)
        delta = Quantity(name="delta", shape=(size,), bound=64.0, ring_bits=16, projection=projection)
        vectors.append(
            {
                "job_digest": job.hex(),
                "round": round,
                "phase": "train",
                "seed": seed.hex(),
                "size": size,
                "block": block,
                "values": value_N.tolist(),
                "words": word_M.tolist(),
                "expanded": projection.expand(word_M).tolist(),
                "layout_digest": Layout(quantities=(delta,), members=4).digest.hex(),
            }
        )
    return vectors


def ring_vectors() -> list[dict[str, Any]]:
    vectors = []
    for members, ring_bits, bound in [(3, 16, 1.0), (4, 32, 8.0), (10, 32, 0.3), (100, 64, 1000.0)]:
        vectors.append(ring_vector(members, ring_bits, bound))
        vectors.append(ring_vector(members, ring_bits, bound, is_tagged=True))
    return vectors


def ring_vector(members: int, ring_bits: int, bound: float, *, is_tagged: bool = False) -> dict[str, Any]:
    parts = [0.0, 1.0, -1.0, 0.5, -0.3333333333333333, 1e-9, -1e-9, 2.0, -2.0, 0.7]
    quantities = (
        Quantity(name="delta", shape=(2, 5), bound=bound, ring_bits=ring_bits, is_tagged=is_tagged),
        Quantity(name="correct", shape=(3,), bound=50, ring_bits=ring_bits, is_count=True),
        Quantity(name="weight", bound=1.0, ring_bits=64, is_tagged=is_tagged),
        Quantity(name="clipped", bound=1000, is_count=True),
    )
    layout = Layout(quantities=quantities, members=members)
    key = hashlib.sha256(f"rounding {members}".encode()).digest()
    value = [part * bound for part in parts]
    values = {"delta": np.array(value).reshape(2, 5), "correct": [0, 50, -7], "weight": 0.3}
    encoded = Encoder(values, layout=layout, random=lambda size: key[:size]).encode()
    total = ring.zeros(layout)
    for _ in range(members):
        ring.add_into(total, encoded.vectors)
    decoded = ring.decode(total, layout=layout)
    return {
        "members": members,
        "quantities": [quantity_row(quantity, members) for quantity in quantities],
        "layout_digest": layout.digest.hex(),
        "rounding_key": key.hex(),
        "values": {"delta": value, "correct": [0, 50, -7], "weight": [0.3]},
        "clipped_total": encoded.clipped_total,
        "vectors": {str(w): [str(each) for each in v.tolist()] for w, v in encoded.vectors.items()},
        "sum_of_all_members": {name: np.ravel(array).tolist() for name, array in decoded.items()},
    }


def quantity_row(quantity: Quantity, members: int) -> dict[str, Any]:
    return {
        "name": quantity.name,
        "shape": list(quantity.shape),
        "bound": quantity.bound,
        "word": quantity.ring_bits,
        "is_count": quantity.is_count,
        "sensitivity_l2": quantity.sensitivity_l2,
        "is_tagged": quantity.is_tagged,
        "scale_exponent": int(np.log2(quantity.scale(members))),
    }


def noise_vectors() -> list[dict[str, Any]]:
    """Under noise: a count, silos' updates, and the whole units of a step."""
    count = Quantity(
        name="samples",
        bound=1000,
        is_count=True,
        sensitivity_l2=1.0,
        discloses=Disclosure.STATISTIC,
    )
    delta = Quantity(name="delta", shape=(10**8,), bound=8.0, ring_bits=32, discloses=Disclosure.UPDATE)
    gradient = Quantity(
        name="gradient",
        shape=(250,),
        bound=32.0,
        ring_bits=32,
        sensitivity_l2=0.5,
        is_tagged=True,
        is_whole_units=True,
        discloses=Disclosure.UPDATE,
    )
    sums, steps = (
        {"sums": {"clip_norm": 1.5}},
        {"records": {"clip_norm": 0.5, "sample_rate": 0.1, "noise": "sum"}},
    )
    return [
        noise_vector(quantity, promise, multiplier=multiplier, members=members)
        for quantity, promise, multiplier, members in (
            (count, sums, 5.0, 4),
            (count, sums, 0.01, 30),
            (delta, sums, 4.0, 20),
            (replace(delta, shape=(1000,), ring_bits=16, is_tagged=True), sums, 2.5, 7),
            (gradient, steps, 1.1, 4),
            (replace(gradient, shape=(10**7,), ring_bits=64), steps, 0.7, 20),
        )
    ]


def noise_vector(
    quantity: Quantity, promise: dict[str, Any], *, multiplier: float, members: int
) -> dict[str, Any]:
    values: dict[str, Any] = {"name": "a", "federation": "b", "not_after": "2100-01-01T00:00:00Z"}
    values |= {"silos": [f"clinic-{place:02}" for place in range(members)], "classes": 10}
    values |= {"training": {"learning_rate": 0.1}, "input_shape": [4], "model": {"name": "mlp"}}
    values |= {"steps": 8} if "records" in promise else {"rounds": 1}
    part = {name: fields | {"noise_multiplier": multiplier} for name, fields in promise.items()}
    values["privacy"] = {**part, "statistics_noise_multiplier": multiplier}
    spec = JobSpec.model_validate(values)
    (made,) = noised([quantity], spec, members)
    assert made.noise is not None
    row = quantity_row(made, members)
    noise = {
        "variance": made.noise.variance,
        "scale_exponent": row.pop("scale_exponent"),
        "clip_l2": made.noise.clip_l2,
        "is_whole_units": made.is_whole_units,
    }
    return {
        "members": members,
        "honest": spec.rule(members).min_honest,
        "multiplier": multiplier,
        "l2": made.noise.clip_l2 or made.sensitivity_l2,
        "is_count": quantity.is_count,
        "words": made.size,
        "quantity": {**row, "noise": noise},
        "tail": noise_tail(members * made.noise.variance, made.size),
        "layout_digest": Layout(quantities=(made,), members=members).digest.hex(),
    }


def draw_vectors() -> list[dict[str, Any]]:
    """Jobs of R silos, of which the last is not on the roster where `is_one_away`."""
    vectors = []
    for silos, fraction, is_one_away, draw in [
        (5, "0.6", False, "rounds"),
        (30, "0.3", True, "rounds"),
        (100, "0.07", False, "rounds"),
        (20, "0.25", True, "groups"),
    ]:
        random = counter_bytes(f"draw {silos}")
        names = [f"clinic-{place}" for place in range(silos)]
        job_digest, seeds = random(32), {name: random(32) for name in names}
        seed = cohort.draw_seed(job_digest, seeds)
        present = names[:-1] if is_one_away else names
        named = {
            str(round): cohort.named_set(
                names,
                on_roster=present,
                round=round,
                fraction=float(fraction),
                draw_seed=seed,
                by_groups=draw == "groups",
            )
            for round in (1, 2, 3, 4, 100_000)
        }
        vectors.append(
            {
                "job_digest": job_digest.hex(),
                "self_mask_seeds": {name: each.hex() for name, each in seeds.items()},
                "fraction": fraction,
                "draw": draw,
                "on_roster": present,
                "draw_seed": seed.hex(),
                "named": named,
            }
        )
    return vectors


def initial_state_vectors() -> dict[str, Any]:
    """Small states array by array, one for each kind of head; of every network and norm the digest."""
    table_Q = quantiles()
    small = {"name": "mlp", "norm": "batch", "hidden": [5]}
    presets = ("fedavg", "fedbabu", "fedgela", "spherefed", "feddr_plus", "fedetf")
    states = [
        initial_state_vector(small, preset=preset, classes=classes, shape=[4], has_arrays=True)
        for preset in presets
        for classes in (2, 5)
    ]
    cnn = {"name": "cnn", "norm": "group"}
    states.append(initial_state_vector(cnn, preset="fedavg", classes=3, shape=[1, 8, 8], has_arrays=True))
    for name in ("mlp", "cnn", "resnet18", "vgg11", "mobilenet_v2"):
        for norm in ("batch", "group", "none"):
            model = {"name": name, "norm": norm}
            states.append(initial_state_vector(model, preset="fedavg", classes=10, shape=[3, 32, 32]))
        for preset in ("spherefed", "feddr_plus", "fedetf"):
            wide = {"name": name, "hidden": [128]}  # as wide as 100 classes at right angles need
            states.append(initial_state_vector(wide, preset=preset, classes=100, shape=[3, 32, 32]))
    states.append(started_state_vector())
    places = [0, 1, 255, 4096, 32767, 32768, 50000, 65535]
    return {
        "quantiles": {str(place): int(table_Q[place]) for place in places},
        "quantiles_sha256": hashlib.sha256(table_Q.astype("<i4").tobytes()).hexdigest(),
        "states": states,
    }


def started_state_vector() -> dict[str, Any]:
    """Of a model of a distribution that says how some of its arrays start."""
    base, seed = hashlib.sha256(b"started").digest(), 5
    values = {"name": "a", "federation": "b", "silos": ["c", "d", "e"], "rounds": 1, "classes": 2}
    values |= {"not_after": "2100-01-01T00:00:00Z", "training": {"learning_rate": 0.1}, "input_shape": [4]}
    values |= {"model": {"name": "net", "from": "hospital-models==1.2.0", "seed": seed}}
    shapes: dict[str, tuple[int, ...]] = {
        "model/body.attention.in_proj_bias": (6,),
        "model/body.gate": (2, 3),
        "model/body.recurrent.bias_hh_l0": (4,),
        "model/body.table.weight": (3, 2),
        "model/head.weight": (2, 2),
    }
    starts: dict[str, Start] = {"gate": 0.25, "table.weight": Normal(std=0.02)}
    state = first_state(JobSpec.model_validate(values), shapes, base=base, starts=starts)
    return {
        "starts": {"gate": 0.25, "table.weight": {"std": 0.02}},
        "head": "trained",
        "base": base.hex(),
        "seed": seed,
        "digest": state_digest(state_to_bytes(state)).hex(),
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "arrays": {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in state.items()},
    }


def initial_state_vector(
    model: dict[str, Any], *, preset: str, classes: int, shape: list[int], has_arrays: bool = False
) -> dict[str, Any]:
    from silo_agent.training.models.starting import initial_state  # torch

    label = json.dumps([model, preset, classes, shape])
    base, seed = hashlib.sha256(label.encode()).digest(), len(label)
    values = {"name": "a", "federation": "b", "silos": ["c", "d", "e"], "rounds": 1, "classes": classes}
    values |= {"not_after": "2100-01-01T00:00:00Z", "training": {"learning_rate": 0.1}, "input_shape": shape}
    values |= {"strategy": {"preset": preset}, "model": {**model, "seed": seed}}
    spec = JobSpec.model_validate(values)
    state = initial_state(spec, base=base)
    vector = {
        "model": model,
        "strategy": preset,
        "head": spec.method.recipe.head.word,
        "classes": classes,
        "input_shape": shape,
        "base": base.hex(),
        "seed": seed,
        "digest": state_digest(state_to_bytes(state)).hex(),
    }
    if has_arrays:
        vector["shapes"] = {name: list(array.shape) for name, array in state.items()}
        vector["arrays"] = {name: hashlib.sha256(array).hexdigest() for name, array in state.items()}
    return vector


if __name__ == "__main__":
    main()
