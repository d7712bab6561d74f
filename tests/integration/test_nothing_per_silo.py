"""Of all that crosses the wire and all that the coordinator stores, nothing is one silo's alone.

A real federation for each method: every octet of every TLS connection, every file that the coordinator
ever had and every statement it gave SQLite are kept and searched for each silo's own values and for the
sums without them (tests/support/leaks.py says in which forms, and how often it is wrong by chance).
What is too small to be searched for, such as a single count, is covered by the masked vectors
themselves: no word of theirs is the silo's own, and what was added to it looks uniform.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crypto.fixed_point.layout import Quantity
from crypto.masking.masks import vectors_from_stream
from strategies.base import PRESENCE, Array
from tests.support.leaks import DECIMAL, LIST, Held, Search, words_of
from tests.support.recorded_run import RecordedPhase, RecordedRun, files_under, record

pytestmark = pytest.mark.timeout(900)  # windows of all inputs are sorted: minutes beside a load of 25

pytest.importorskip("torch", reason="trains for real: needs the extra silo")

EVERY_CLASS_SHARED, TWO_CLASSES_ALONE = 2, 8  # seeds of cuts: the second gives two classes to one silo
COUNTS = {"silos", "samples", "correct", "tested"}  # one small number a silo: covered by the masked words
NUMBER = {DECIMAL}  # forms in which real numbers must be searchable
NUMBER_IN_BYTES = {"words of 64 bits", "float64"}  # and one of these: there may be too little of its word
ARRAY = {*NUMBER, *NUMBER_IN_BYTES}  # of a single float64 with a short mantissa there may be too little
MAX_CHI_SQUARE = 377.1  # with 255 degrees of freedom; a uniform sample passes it once in 10^6 times


@dataclass(frozen=True, kw_only=True)
class Method:
    """searched: quantities in which the search must have something to find."""

    name: str
    seed: int
    rounds: int
    searched: set[str]
    options: tuple[tuple[str, Any], ...] = ()


ALWAYS = {"delta", "weight", "loss_sum"}
METHODS = [
    Method(
        name="feddw",
        seed=TWO_CLASSES_ALONE,
        rounds=2,
        searched={*ALWAYS, "class_presence", "soft_labels", "class_counts"},
    ),
    Method(name="spherefed", seed=EVERY_CLASS_SHARED, rounds=1, searched={*ALWAYS, "gram", "moment"}),
    Method(
        name="fedcsd", seed=TWO_CLASSES_ALONE, rounds=2, searched={*ALWAYS, "class_presence", "prototypes"}
    ),
    Method(
        name="fedcsd",
        seed=TWO_CLASSES_ALONE,
        rounds=1,
        searched={*ALWAYS, "class_presence", "prototype_sums", "class_counts"},
        options=(("count_weighted", True),),
    ),
    Method(name="fednova", seed=EVERY_CLASS_SHARED, rounds=1, searched={*ALWAYS, "normalizer"}),
    Method(name="fedexp", seed=EVERY_CLASS_SHARED, rounds=1, searched={*ALWAYS, "update_sq_norm"}),
]


@dataclass(frozen=True, kw_only=True)
class Case:
    method: Method
    run: RecordedRun
    values: list[Held]
    search: Search


@dataclass(frozen=True, kw_only=True)
class Plant:
    """form: which values are planted. file: where, below the coordinator's directory."""

    form: str
    file: str
    written: Callable[[Held], bytes]


def _doubles(held: Held) -> bytes:
    return np.asarray(held.values).astype("<f8").tobytes()


def _words(held: Held, bits: int) -> bytes:
    words_KN = words_of(held.values, held.quantity, held.members) if held.words is None else held.words
    return bytes(words_KN[-1].astype(f"<i{bits // 8}"))


def _numbers(held: Held) -> bytes:
    kind = int if held.quantity.is_count else float
    return json.dumps({"values": np.asarray(held.values).astype(kind).tolist()}).encode()


DATABASE, AUDIT = "coordinator.sqlite", "audit.jsonl"
PLANTS = {
    "checkpoint": Plant(
        form="float32",
        file="checkpoints/*/*",
        written=lambda held: np.asarray(held.values).astype("<f4").tobytes(),
    ),
    "database": Plant(form="float64", file=DATABASE, written=_doubles),
    "words": Plant(form="words of 64 bits", file=DATABASE, written=lambda held: _words(held, 64)),
    "short words": Plant(form="words of 32 bits", file=DATABASE, written=lambda held: _words(held, 32)),
    "base64": Plant(form="float64", file=AUDIT, written=lambda held: base64.b64encode(_doubles(held))),
    "hexadecimal": Plant(form="float64", file=AUDIT, written=lambda held: _doubles(held).hex().encode()),
    "numbers": Plant(form=DECIMAL, file=AUDIT, written=_numbers),
    "counts": Plant(form=LIST, file=AUDIT, written=_numbers),
}


def _parameters() -> Iterator[Any]:
    for method in METHODS:
        marks = [pytest.mark.soak] if method.name != "feddw" else []
        yield pytest.param(method, id="-".join([method.name, *dict(method.options)]), marks=marks)


@pytest.fixture(scope="module", params=_parameters())
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    method: Method = request.param
    run = record(
        tmp_path_factory.mktemp(method.name),
        seed=method.seed,
        rounds=method.rounds,
        strategy={"preset": method.name, "options": dict(method.options)},
    )
    values = run.values()
    return Case(method=method, run=run, values=values, search=Search(values))


def test_no_silos_value_crosses_the_wire(case: Case) -> None:
    assert case.search.findings(case.run.wire()) == []


def test_no_silos_value_is_stored(case: Case) -> None:
    assert case.search.findings(case.run.stored()) == []


def test_search_has_something_to_find_in_every_quantity(case: Case) -> None:
    forms: dict[str, set[str]] = defaultdict(set)
    for held, found in case.search.searched.items():
        forms[held.quantity.name] |= found
    assert set(forms) == case.method.searched | COUNTS
    for name in case.method.searched:
        (quantity, *_), places = _places(case.values, name)
        needed = {LIST} if quantity.is_count else NUMBER if quantity.size == 1 else ARRAY
        assert needed <= forms[name], name
        assert quantity.is_count or quantity.size > 1 or NUMBER_IN_BYTES & forms[name], name
        # where the others add nothing, the sum itself is the silo's value: few places, or little is searched
        assert quantity.is_count or case.search.left_out[name] <= 0.05 * places, name


# what the search leaves to the masks


def test_masked_vectors_hold_no_word_of_the_silo_and_differ_from_it_by_uniform_ones(case: Case) -> None:
    """False alarms: a uniform word of 32 bits is one of the two roundings with a chance of 2^-31, so among
    10^5 words one is found in 1 of 20,000 runs; the chi-square test fails in 1 of 10^6."""
    masks: list[bytes] = []
    for phase, silo, upload in case.run.uploads():
        words = phase.words(phase.inputs[silo])
        for ring_bits, masked_L in vectors_from_stream(phase.layout, upload).items():
            own_KL = words[ring_bits].astype(masked_L.dtype)
            masked_L = masked_L[: phase.layout.values_end(ring_bits)]  # behind them are tags
            assert not (masked_L == own_KL).any(), f"{silo} {phase.name}"
            masks.append((masked_L - own_KL[0]).astype(masked_L.dtype).tobytes())
    seen_B = np.bincount(np.frombuffer(b"".join(masks), np.uint8), minlength=256)
    assert seen_B.sum() > 256 * 20
    expected = seen_B.sum() / 256
    assert np.sum((seen_B - expected) ** 2) / expected < MAX_CHI_SQUARE


# what was kept is all there was


def test_every_upload_of_every_phase_was_kept_and_passed_the_silos_own_line(case: Case) -> None:
    seen = set()
    lines = list(case.run.wire())
    for phase, silo, upload in case.run.uploads():
        passed = [name for name, data in lines if ".up call" in name and upload in data]
        assert passed, f"{silo} {phase.name}"
        assert all(name.startswith(f"wire/{silo}-") for name in passed)
        seen.add((phase.sequence, silo))
    assert seen == {(phase.sequence, silo) for phase in case.run.phases for silo in case.run.silos}
    assert {phase.phase.split(".")[0] for phase in case.run.phases} == set(case.run.job.strategy.phases)


def test_coordinator_opened_no_file_for_writing_outside_its_directory(case: Case) -> None:
    hub = case.run.folder / "hub"
    assert {path for path in case.run.opened if hub not in path.parents} <= {Path("/dev/null")}
    assert hub / "coordinator.sqlite" in case.run.opened


def test_revealed_sums_are_those_of_the_inputs(case: Case) -> None:
    """Each silo's value is rounded by less than a step; float64 holds the clear sum to 2^-52 of it."""
    for phase in case.run.phases:
        members = phase.layout.members
        for quantity in phase.layout.quantities:
            clear_N = phase.clear_sum(quantity.name).reshape(-1)
            revealed_N = phase.revealed_words(quantity) / quantity.scale(members)
            rounding = 0.0 if quantity.is_count else members / quantity.scale(members)
            assert np.abs(revealed_N - clear_N).max() <= rounding + 1e-12 * np.abs(clear_N).max()


def test_search_finds_the_sums_and_the_state_in_the_same_bytes(case: Case) -> None:
    """What must be there: the same function sees it, in the coordinator's files and on the lines."""
    rounds = [phase for phase in case.run.phases if phase.phase == "train"]
    search = Search(_sum(phase, "delta") for phase in rounds)
    wire = [
        (name, data) for name, data in case.run.wire() if name.startswith("wire/silo-0") and ".down" in name
    ]
    for blobs in (case.run.stored(), wire):  # silos check the sum, so they fetch it
        assert {finding.phase for finding in search.findings(blobs)} == {phase.name for phase in rounds}
    state = {name: array for name, array in case.run.state.items() if array.dtype.kind == "f"}
    places = defaultdict(set)
    for finding in Search(map(_array, state, state.values())).findings(
        [*case.run.stored(), *case.run.wire()]
    ):
        places[finding.quantity].add(finding.where)
    for name in state:
        for start, end in (("left/after/checkpoints", ""), ("wire/ops", ".down")):
            assert any(where.startswith(start) and end in where for where in places[name]), (name, start)


@pytest.mark.parametrize("form", PLANTS)
def test_planted_value_is_found(case: Case, form: str, tmp_path: Path) -> None:
    """In a copy of what the coordinator left: every value, in one of its files and at an odd place."""
    plant = PLANTS[form]
    shutil.copytree(case.run.folder / "left" / "after", tmp_path / "after")
    planted = [held for held, forms in case.search.searched.items() if plant.form in forms]
    if plant.form == LIST and not planted:
        pytest.skip("this method sums no counts by class")
    assert planted if plant.form == LIST else {held.owner for held in planted} >= set(case.run.silos)
    with next((tmp_path / "after").glob(plant.file)).open("ab") as file:
        for held in planted:
            file.write(b"\x01 " + plant.written(held) + b" \x02")
    found = case.search.findings(files_under(tmp_path / "after"))
    # a value that is the same in two rounds is found as the one of the first
    assert {(each.owner, each.quantity) for each in found} == {
        (held.owner, held.quantity.name) for held in planted
    }


# classes that one silo holds alone


def test_rows_of_classes_that_one_silo_holds_alone_are_in_no_sum(case: Case) -> None:
    if case.method.seed != TWO_CLASSES_ALONE:
        pytest.skip("every class of this cut has two holders or more")
    alone_C = case.run.state[PRESENCE] == 1
    assert np.count_nonzero(alone_C) == 2
    by_class = [
        phase.revealed_words(quantity).reshape(quantity.shape)
        for phase in case.run.phases
        for quantity in phase.layout.quantities
        if quantity.name in ("soft_labels", "class_counts", "prototypes", "prototype_sums")
    ]
    assert by_class
    for rows in by_class:
        assert not rows[alone_C].any()
        assert rows[~alone_C].any()


def _places(values: list[Held], name: str) -> tuple[list[Quantity], int]:
    """The quantity in every phase that has it, and how many values all silos have of it."""
    own = [held for held in values if held.quantity.name == name and held.words is None]
    return [held.quantity for held in own], sum(np.asarray(held.values).size for held in own)


def _sum(phase: RecordedPhase, name: str) -> Held:
    """The sum of all silos in place of one silo's value: its words are known exactly."""
    quantity = next(quantity for quantity in phase.layout.quantities if quantity.name == name)
    words_N = phase.revealed_words(quantity)
    return Held(
        owner="all",
        phase=phase.name,
        quantity=quantity,
        members=phase.layout.members,
        values=words_N,
        rest=np.full(words_N.size, np.inf),
        words=words_N[np.newaxis],
    )


def _array(name: str, array: Array) -> Held:
    quantity = Quantity(name=name, shape=array.shape, bound=1e6)
    rest = np.full(array.shape, np.inf)
    return Held(owner="all", phase="", quantity=quantity, members=3, values=array, rest=rest)
