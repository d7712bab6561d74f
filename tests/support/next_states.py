"""Next states from fixed sums: every phase of a job in order, over words that no training made.

Sums and the first state follow from SHAKE-256 by integer arithmetic, so wherever the server steps are exact
the states are the same bytes. Run it only where a server step is meant to change: it writes their digests to
tests/vectors/next_state.json. With `--print` it prints them.

N = numbers, D = feature width, C = classes, L = width of a system.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.privacy.quantity_noise import noise_deviations, noised
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec, any_context
from chorale.spec.state import state_digest, state_to_bytes
from chorale.spec.training.trees_spec import room_of
from chorale_models.networks.shapes import trees_shapes
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Disclosure, Layout, Quantity
from crypto.fixed_point.projection import Projection
from strategies import exact
from strategies.analysis.method import FIRST_STATE
from strategies.base import Array, Arrays, Phase, PhaseContext
from strategies.phases.trees import GRADIENTS, HESSIANS
from strategies.presets import PRESETS
from tests.support import summed_records

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "next_state.json"
MEMBERS, ROUNDS, CLASSES, INPUTS, WIDTH = 4, 3, 10, 24, 16
SAMPLES = 240  # whose features the Gram matrix is made of
GRAIN = 12  # values are multiples of 2^-GRAIN: their words lose nothing at any scale
SIGNED = (
    *("delta", "gradient", "buffers", "control_delta", "prototypes", "prototype_sums", "feature_sums"),
    "column_sums",
)
PRIVATE = {"delta": 1e-5, "statistics_noise_multiplier": 1.0, "weight": 0.25}
RECORDS = {"records": {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.1}}
SUMS = {"sums": {"clip_norm": 1.0, "noise_multiplier": 1.0}}
SHARED = {
    "delta": 1e-5,
    "statistics_noise_multiplier": 1.0,
    "records": {**RECORDS["records"], "noise": "sum"},
}
STEPPED = {"steps": ROUNDS, "spare_steps": 0, "privacy": SHARED}
GROWING = {"depth": 2, "bins": 8}
STEPPING = {"batch_size": 1, "learning_rate": 0.3, "weight_decay": 0.01}

# what a method's own server step reads beyond its defaults: name -> preset, options, fields of the job
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    **{preset: (preset, {}, {}) for preset in PRESETS},
    "fedopt_adam": ("fedopt", {"server_optimizer": "adam"}, {}),
    "fedopt_yogi": ("fedopt", {"server_optimizer": "yogi"}, {}),
    "fedcsd_counts": ("fedcsd", {"count_weighted": True}, {}),
    "feddw_identity": ("feddw", {"init_slm": "identity"}, {}),
    "feddw_code": ("feddw", {"init_slm": "identity", "slm_share": 0.5, "slm_sums": "all"}, {}),
    "spherefed_no_ridge": ("spherefed", {"ridge": 0.0}, {}),
    "fedavg_16_bits": ("fedavg", {}, {"update_bits": 16}),
    "fedavg_64_bits": ("fedavg", {}, {"update_bits": 64}),
    "fedavg_columns": (
        "fedavg",
        {},
        {
            "columns": [
                {"name": "x0..x19", "standardize": "computed", "plausible": [0.0, 1.0]},
                {"name": "kind", "categories": ["a", "b", "c", "d"], "rare": "computed"},
            ],
            "label_column": "y",
        },
    ),
    "fedbn": ("fedbn", {}, {"model": {"name": "cnn", "norm": "batch"}}),
    "fedavg_batch_norm": ("fedavg", {}, {"model": {"name": "cnn", "norm": "batch"}}),
    "fedavg_noised_sums": ("fedavg", {}, {"privacy": {**PRIVATE, **SUMS}, "update_bits": 16}),
    "fedavg_steps": (
        "fedavg",
        {},
        {
            **STEPPED,
            "training": {
                **STEPPING,
                "momentum": 0.6,
                "schedule": {"kind": "step", "step_rounds": 1, "gamma": 0.7},
            },
        },
    ),
    "fedavg_steps_adam": ("fedavg", {}, {**STEPPED, "training": {**STEPPING, "optimizer": "adam"}}),
    "fedopt_steps_yogi": (
        "fedopt",
        {"server_optimizer": "yogi"},
        {**STEPPED, "training": {**STEPPING, "momentum": 0.0}},
    ),
    "spherefed_noised": ("spherefed", {}, {"privacy": {**PRIVATE, **RECORDS}}),
    "trees": ("trees", GROWING, {"model": {"name": "trees"}, "classes": 2}),
    "trees_of_classes": ("trees", {**GROWING, "column_share": 0.5}, {"model": {"name": "trees"}}),
    "trees_of_numbers": (
        "trees",
        {**GROWING, "l2": 0.0},
        {
            "model": {"name": "trees"},
            "classes": 0,
            "task": {"name": "regression", "options": {"low": -1.0, "high": 1.0}},
        },
    ),
}
# an analysis's fields beyond its columns
ANALYSES: Mapping[str, Mapping[str, Any]] = {
    "analysis": {"group": "ward"},
    "analysis_ungrouped": {},
    "analysis_noised": {"group": "ward", "privacy": {"epsilon": 1.0, "statistics_noise_multiplier": 4.0}},
    **{
        f"analysis_{family}{'' if ridge is None else '_ridge'}": {
            "columns": summed_records.columns(
                (outcome, *dict.fromkeys(name for term in terms for name in term))
            ),
            "model": {
                "outcome": outcome,
                "family": family,
                "terms": terms,
                "ridge": ridge,
                "iterations": most,
            },
        }
        # as many steps as change something
        for family, outcome, terms, most in (
            ("linear", "pulse", (("age",), ("ward",), ("age", "ward")), 2),
            ("logistic", "ill", (("pulse",), ("age",), ("pulse", "age")), 4),
            ("poisson", "age", (("pulse",), ("ward",)), 5),
        )
        for ridge in (None, 500.0)
    },
    "analysis_patients": {
        "columns": summed_records.columns(("ill", "pulse", "ward")),
        "model": {
            "outcome": "ill",
            "family": "logistic",
            "terms": (("pulse",), ("ward",)),
            "errors": "patient",
            "iterations": 4,
        },
    },
    "analysis_correlations": {
        "columns": summed_records.columns(("pulse", "rate", "weight")),
        "correlations": True,
    },
    "analysis_survival": {
        "columns": summed_records.columns(("age", "ill", "pain")),
        "survival": {"time": "age", "status": "ill", "group": "pain"},
    },
    "analysis_cox": {
        "columns": summed_records.columns(("ill", "age", "pulse", "ward")),
        "model": {
            "outcome": "ill",
            "family": "cox",
            "time": "age",
            "terms": (("pulse",),),
            "strata": ("ward",),
            "iterations": 3,
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One phase over all its revealed sums, which of them are tagged, and the state that follows."""

    name: str
    phase: Phase
    context: PhaseContext
    sums: Mapping[str, Array]
    tagged: frozenset[str]
    state: Arrays


def steps(variant: str) -> Iterator[Step]:
    """Every phase in order, each over the state that the ones before it lead to."""
    spec: AnySpec = analysis_spec(variant) if variant in ANALYSES else job_spec(variant)
    state: Arrays = FIRST_STATE if isinstance(spec, AnalysisSpec) else first_state(spec)
    for number, (round, kind) in enumerate(phases(spec)):
        phase = spec.method.phase(kind)
        seed = hashlib.sha256(f"{round} {kind}".encode()).digest()
        context = any_context(spec, round, state, MEMBERS, public_seed=seed)
        layout = Layout(quantities=noised(phase.quantities(context), spec, MEMBERS), members=MEMBERS)
        noise = noise_deviations(layout.quantities, MEMBERS)
        context = replace(context, noise=noise, survivors=MEMBERS)
        sums: dict[str, Array] = {}
        for each in layout.quantities:
            words_L = words_of(each, f"{number} {each.name}")
            if isinstance(spec, AnalysisSpec) and spec.privacy is None and each.name != "silos":
                words_L = words_of_records(each, spec, state)
            sums[each.name] = ring.decode_quantity(words_L, quantity=each, members=MEMBERS)
        names = {each.name for each in layout.quantities if each.is_tagged}
        result = phase.next_state(context, {name: sums[name].copy() for name in names})
        assert result.state is not None, (variant, kind, result.reason)
        yield Step(
            name=f"{round} {kind}",
            phase=phase,
            context=context,
            sums=sums,
            tagged=frozenset(names),
            state=result.state,
        )
        state = result.state


def digests(variant: str) -> dict[str, str]:
    """SHA-256 of the state after each phase."""
    return {step.name: state_digest(state_to_bytes(step.state)).hex() for step in steps(variant)}


def arithmetic() -> dict[str, str]:
    """SHA-256 of results in float64, of addends with all their bits: a state in float32 hides most orders."""
    long_N = reals("total", (10_007,))
    left_NL, right_LC = reals("left", (29, 83)), reals("right", (83, 41))
    # a system of rank 29 and one of rank 83
    flat_LL, full_LL = exact.product(left_NL.T, left_NL), exact.product(left_NL, left_NL.T)
    found = {
        "total": exact.total(long_N),
        "total of rows": exact.total(right_LC),
        "exponential": exact.exponential(700.0 * long_N),
        "product": exact.product(left_NL, right_LC),
        "solved": exact.solved(full_LL, left_NL, least_pivot=1e-12),
        "solved with the least norm": exact.solved(flat_LL, right_LC, least_pivot=1e-9),
    }
    for size, block in ((1_000, 16), (5_000, 512)):
        whole = Projection(seed=bytes(32), size=size, block=block)
        found[f"expanded from blocks of {block}"] = whole.expand(reals("expand", (whole.words,)))
    return {name: hashlib.sha256(array.astype("<f8").tobytes()).hexdigest() for name, array in found.items()}


def reals(seed: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Of at least -1 and less than 1, each with all the bits of a float64."""
    return numbers(seed, shape, bits=54) / 2.0**53


def job_spec(variant: str) -> JobSpec:
    """Four silos and a model of few weights."""
    preset, options, fields = VARIANTS[variant]
    given = {
        "name": "next-state",
        "federation": "test",
        "not_after": datetime(2100, 1, 1, tzinfo=UTC),
        "silos": ("a", "b", "c", "d"),
        **({} if "steps" in fields else {"rounds": ROUNDS}),
        "strategy": {"preset": preset, "options": options},
        "model": {"name": "mlp", "hidden": (WIDTH,)},
        "training": {"local_epochs": 1, "batch_size": 16, "learning_rate": 0.1},
        "classes": CLASSES,
        "input_shape": (INPUTS,),
    }
    return JobSpec.model_validate(given | fields)


def analysis_spec(variant: str) -> AnalysisSpec:
    """Of records that names give."""
    return AnalysisSpec.model_validate(
        {
            "kind": "analysis",
            "name": "next-state",
            "federation": "test",
            "not_after": datetime(2100, 1, 1, tzinfo=UTC),
            "silos": ("a", "b", "c", "d"),
            "columns": summed_records.columns(),
        }
        | ANALYSES[variant]
    )


def first_state(spec: JobSpec) -> dict[str, Array]:
    """Two linear layers, running means where the job's model has them; of trees none is grown."""
    if spec.grows_trees:
        arrays = trees_shapes(spec.method.task.sizes, **room_of(spec.model))
        return {f"model/body.{name}": np.zeros(shape, np.float32) for name, shape in arrays.items()}
    shapes = {"body.weight": (WIDTH, INPUTS), "body.bias": (WIDTH,), "head.weight": (CLASSES, WIDTH)}
    if spec.method.recipe.head.has_bias:
        shapes["head.bias"] = (CLASSES,)
    if spec.model.norm == "batch":
        shapes |= {"norm.running_mean": (WIDTH,), "norm.running_var": (WIDTH,)}
    return {
        f"model/{name}": (numbers(f"state {name}", shape, bits=24) / 2.0**24).astype(np.float32)
        for name, shape in shapes.items()
    }


def phases(spec: AnySpec) -> Iterator[tuple[int, str]]:
    """Round and kind, in the job's order."""
    yield from ((0, kind) for kind in spec.method.opening)
    for round in range(1, spec.rounds + 1):
        yield from ((round, kind) for kind in spec.method.round_phases)
    yield from ((spec.rounds, kind) for kind in spec.method.closing)


def numbers(seed: str, shape: tuple[int, ...], *, bits: int) -> NDArray[np.int64]:
    """Whole numbers of at least -2^(bits-1) and less than 2^(bits-1)."""
    count = math.prod(shape)
    drawn_N = np.frombuffer(hashlib.shake_256(seed.encode()).digest(8 * count), "<i8")
    return (drawn_N >> (64 - bits)).astype(np.int64).reshape(shape)


def words_of(quantity: Quantity, seed: str) -> ring.Words:
    """The words of a revealed sum of four silos."""
    if quantity.discloses is Disclosure.BIN_STATISTIC:
        whole_N = bin_sums(quantity)
    elif quantity.projection is not None:
        whole_N = numbers(seed, (quantity.size,), bits=quantity.ring_bits - 3)
    elif quantity.is_count:
        most = SAMPLES if quantity.bound > 1.0 else MEMBERS
        whole_N = np.abs(numbers(seed, (quantity.size,), bits=16)) % (most + 1)
    else:
        scale = quantity.scale(MEMBERS) / 2.0**GRAIN  # a power of two
        whole_N = np.floor(grains(quantity, seed) * scale).astype(np.int64)
    signed_N = whole_N.astype(ring.SIGNED_TYPES[quantity.ring_bits])
    return signed_N.view(ring.WORD_TYPES[quantity.ring_bits])


def bin_sums(quantity: Quantity) -> NDArray[np.int64]:
    """Of records that are in one node of each tree and in one bin of each input, in the ring's units."""
    sums = np.zeros(quantity.shape, np.int64)
    trees, nodes, inputs, bins = quantity.shape
    bin_ND = numbers("bins", (SAMPLES, inputs), bits=24) % bins
    node_NK = numbers("nodes", (SAMPLES, trees), bits=24) % nodes
    value_NK = np.ones((SAMPLES, trees), np.int64)
    if quantity.name == GRADIENTS:
        value_NK = numbers(quantity.name, value_NK.shape, bits=GRAIN)
    elif quantity.name == HESSIANS:
        value_NK = np.abs(numbers(quantity.name, value_NK.shape, bits=GRAIN - 2))
    unit = 1 if quantity.is_count else int(quantity.scale(MEMBERS)) >> GRAIN
    for tree, column in np.ndindex(trees, inputs):
        at = (tree, node_NK[:, tree], column, bin_ND[:, column])
        np.add.at(sums, at, value_NK[:, tree] * unit)
    return sums.reshape(-1)


def words_of_records(quantity: Quantity, spec: AnalysisSpec, state: Arrays) -> ring.Words:
    """As `words_of`, of records that an analysis describes: z is a multiple of 1/64, so nothing is lost."""
    summed = {"samples": np.array([summed_records.RECORDS]), **summed_records.sums(spec, state)}
    whole_N = (summed[quantity.name].reshape(-1) * quantity.scale(MEMBERS)).astype(np.int64)
    return whole_N.astype(ring.SIGNED_TYPES[quantity.ring_bits]).view(ring.WORD_TYPES[quantity.ring_bits])


def grains(quantity: Quantity, seed: str) -> NDArray[np.int64]:
    """Values of a sum in units of 2^-GRAIN, as large as a training's."""
    if quantity.name == "weight":
        return np.array([3 << (GRAIN - 2)]) + numbers(seed, (1,), bits=GRAIN - 8)
    if quantity.name == "column_counts":
        return (numbers(seed, (quantity.size,), bits=5) + SAMPLES) << GRAIN
    if quantity.name == "category_counts":
        return (numbers(seed, (quantity.size,), bits=5) + 10) << GRAIN
    if quantity.name == "samples":  # of a private job
        return np.array([SAMPLES << GRAIN])
    if quantity.name in ("gram", "moment"):
        feature_ND = numbers("features", (SAMPLES, WIDTH), bits=5)  # of a mean square of 85
        square = (1 << GRAIN) // (85 * WIDTH)  # so that they have about unit length
        if quantity.name == "gram":
            return (feature_ND.T @ feature_ND)[np.triu_indices(WIDTH)] * square
        is_of_class_NC = np.argmax(feature_ND[:, :CLASSES], axis=1)[:, None] == np.arange(CLASSES)
        return (feature_ND.T @ is_of_class_NC).reshape(-1) * math.isqrt(square << GRAIN)
    if quantity.name.startswith("class_feature"):
        feature_ND = numbers("features", (SAMPLES, WIDTH), bits=5)
        is_of_class_CN = np.argmax(feature_ND[:, :CLASSES], axis=1) == np.arange(CLASSES)[:, None]
        if quantity.name == "class_feature_sums":
            return (is_of_class_CN @ feature_ND).reshape(-1) << (GRAIN - 4)
        products_CDD = np.einsum("cn,nd,ne->cde", is_of_class_CN, feature_ND, feature_ND)
        return products_CDD[:, *np.triu_indices(WIDTH)].reshape(-1) << (GRAIN - 8)
    values_N = numbers(seed, (quantity.size,), bits=GRAIN - 2)
    return values_N if quantity.name in SIGNED else np.abs(values_N)


def main(arguments: list[str]) -> None:
    states = {variant: digests(variant) for variant in (*VARIANTS, *ANALYSES)}
    text = json.dumps({"arithmetic": arithmetic(), "states": states}, indent=1) + "\n"
    if arguments == ["--print"]:
        sys.stdout.write(text)
    else:
        VECTORS.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
