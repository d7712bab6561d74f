"""The committed vectors: checked without the package, and the package against them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crypto import encoding
from crypto.encoding import FieldReader
from crypto.errors import Refusal, RemoteProtocolError
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.ring import WORD_TYPES, Encoded
from crypto.identity.certificates import SignedBody
from crypto.identity.roster import stored_roster
from crypto.masking.masks import Masker, SignedSeed, UnmaskPlan, vectors_from_stream
from crypto.masking.tags import Tagger
from crypto.session import seeds, shamir
from crypto.session.messages import Signatures
from crypto.session.sum_check import SumCheck
from tests.vectors import make_vectors

FOLDER = Path(make_vectors.__file__).parent
NAMES = (
    "encoding",
    "shamir",
    "prg",
    "projection",
    "ring",
    "noise",
    "envelope_tree",
    "session",
    "draw",
    "roster",
    "next_state",
    "initial_state",
)


def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """The checker in an interpreter of its own, which ends with 3 if it had imported the package."""
    script = FOLDER / "check_vectors.py"
    code = (
        f"import sys; sys.path[:0] = [{str(FOLDER)!r}]; import check_vectors\n"
        f"status = check_vectors.main([{str(folder)!r}])\n"
        "sys.exit(3 if 'crypto' in sys.modules else status)"
    )
    assert script.exists()
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_vectors_hold_without_the_package() -> None:
    done = check(FOLDER)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(".json")[0] for line in done.stdout.splitlines()] == list(NAMES)


def swap_digit(text: str) -> str:
    return text[:-1] + ("0" if text[-1] != "0" else "1")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("encoding", ("valid", 1, "encoding")),
        ("encoding", ("valid", 2, "digest")),
        ("shamir", ("valid", 2, "shares", "3")),
        ("shamir", ("valid", 3, "secret")),
        ("prg", (4, "words", 2)),
        ("prg", (0, "key")),
        ("projection", (1, "seed")),
        ("projection", (2, "layout_digest")),
        ("ring", (0, "vectors", "16", 4)),
        ("ring", (1, "layout_digest")),
        ("noise", (4, "layout_digest")),
        ("envelope_tree", (3, "root")),
        ("envelope_tree", (9, "paths", "99")),
        ("session", ("session_digest",)),
        ("session", ("silos", "silo-001", "self_mask_seed")),
        ("session", ("silos", "silo-003", "recovery_seed")),
        ("session", ("silos", "silo-000", "masked")),
        ("session", ("silos", "silo-000", "envelopes", 0)),
        ("session", ("silos", "silo-000", "dealing", "body")),
        ("session", ("silos", "silo-001", "paths", 2)),
        ("session", ("silos", "silo-002", "consistency")),
        ("session", ("silos", "silo-002", "answer", "recovery_shares", "silo-003")),
        ("session", ("sum", "32", 0)),
        ("session", ("silos", "silo-001", "sum_key")),
        ("session", ("sum_key",)),
        ("session", ("sum_check",)),
        ("session", ("tagged_sum",)),
        ("session", ("sum", "64", -1)),
        ("draw", (0, "self_mask_seeds", "clinic-4")),
        ("draw", (1, "job_digest")),
        ("draw", (2, "named", "2", 3)),
        ("roster", ("valid", 0, "body")),
        ("roster", ("valid", 2, "body")),
        ("next_state", ("arithmetic", "total")),
        ("next_state", ("arithmetic", "solved with the least norm")),
        ("next_state", ("states", "analysis", "0 analysis-counts")),
        ("next_state", ("states", "analysis_ungrouped", "0 analysis-values")),
        ("next_state", ("states", "analysis_correlations", "0 analysis-products")),
        ("initial_state", ("quantiles_sha256",)),
        ("initial_state", ("states", 0, "base")),
        ("initial_state", ("states", 6, "arrays", "model/head.weight")),
        ("initial_state", ("states", 9, "digest")),
    ],
)
def test_the_checker_notices_one_changed_digit(
    name: str, path: tuple[str | int, ...], tmp_path: Path
) -> None:
    for each in NAMES:
        shutil.copy(FOLDER / f"{each}.json", tmp_path)
    document = load(name)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = swap_digit(place[path[-1]])
    (tmp_path / f"{name}.json").write_text(json.dumps(document))
    done = check(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{name}.json: ")


@pytest.mark.parametrize(
    "make",
    [
        make_vectors.encoding_vectors,
        make_vectors.shamir_vectors,
        make_vectors.prg_vectors,
        make_vectors.projection_vectors,
        make_vectors.ring_vectors,
        make_vectors.noise_vectors,
        make_vectors.envelope_tree_vectors,
        make_vectors.draw_vectors,
        make_vectors.roster_vectors,
    ],
)
def test_the_package_still_makes_the_committed_vectors(make: Any) -> None:
    assert json.loads(json.dumps(make())) == load(make.__name__.removesuffix("_vectors"))


def test_the_package_refuses_what_the_vectors_call_invalid() -> None:
    for vector in load("encoding")["invalid"]:
        with pytest.raises(RemoteProtocolError, match="test: "):
            encoding.decode(vector["purpose"], bytes.fromhex(vector["encoding"]))
    for vector in load("roster")["invalid"]:
        with pytest.raises(RemoteProtocolError, match="roster: "):
            stored_roster(SignedBody(body=bytes.fromhex(vector["body"]), signature=b""))
    for vector in load("shamir")["invalid"]:
        recoverer = shamir.Recoverer([int(x) for x in vector["shares"]], vector["threshold"])
        with pytest.raises(RemoteProtocolError, match="shamir: "):
            recoverer.recover([bytes.fromhex(share) for share in vector["shares"].values()])


def test_the_package_masks_and_unmasks_the_recorded_session() -> None:
    vector = load("session")
    layout = _layout(vector)
    cohort_digest = bytes.fromhex(vector["cohort_digest"])
    total = dict.fromkeys(layout.ring_sizes, 0)
    for name in vector["survivors"]:
        row = vector["silos"][name]
        tagger = Tagger(layout=layout, sum_key=bytes.fromhex(vector["sum_key"]), name=name)
        masker = Masker(layout=layout, cohort_digest=cohort_digest, seeds=_seeds(vector, name), tagger=tagger)
        encoded = Encoded(vectors=_vectors(row["input"]), clipped_total=0)
        assert b"".join(masker.stream(encoded)).hex() == row["masked"]
        masked = vectors_from_stream(layout, bytes.fromhex(row["masked"]))
        total = {ring_bits: total[ring_bits] + masked[ring_bits] for ring_bits in layout.ring_sizes}
    UnmaskPlan(
        layout=layout,
        cohort_digest=cohort_digest,
        seeds=_opposite_seeds(vector),
        survivors=tuple(vector["survivors"]),
    ).unmask(total)
    assert {
        str(ring_bits): [str(each) for each in total[ring_bits].tolist()] for ring_bits in total
    } == vector["sum"]


def test_the_package_checks_the_recorded_sum() -> None:
    vector = load("session")
    check, tagged = SumCheck.from_bytes(bytes.fromhex(vector["sum_check"])), _layout(vector).tagged
    assert tagged is not None
    sum_keys = {name: bytes.fromhex(vector["silos"][name]["sum_key"]) for name in vector["sharers"]}
    assert seeds.cohort_sum_key(sum_keys, cohort_digest=check.cohort_digest) == check.sum_key
    survivors = tuple(vector["survivors"])
    signatures = {name: bytes.fromhex(vector["silos"][name]["consistency"]) for name in survivors}
    check.check_survivors(survivors, Signatures(signatures=signatures))
    check.check_sum(bytes.fromhex(vector["tagged_sum"]), tagged, survivors)
    for row in vector["refused"]:
        with pytest.raises(RemoteProtocolError, match="sum: ") as caught:
            check.check_sum(bytes.fromhex(row["tagged_sum"]), tagged, survivors)
        assert caught.value.code is Refusal.SUM


def test_a_session_digest_is_that_of_the_recorded_terms() -> None:
    vector = load("session")
    advert = bytes.fromhex(vector["silos"]["silo-000"]["advert"]["body"])
    reader = FieldReader(encoding.decode("advert", advert), what="advert")
    assert reader.text() == "silo-000"
    assert reader.data(32).hex() == vector["session_digest"]
    assert _layout(vector).digest.hex() == vector["layout_digest"]


def _layout(vector: Any) -> Layout:
    rows = [dict(row, shape=tuple(row["shape"])) for row in vector["quantities"]]
    return Layout(
        quantities=tuple(Quantity(ring_bits=row.pop("word"), **row) for row in rows),
        members=vector["terms"]["members"],
    )


def _vectors(words: dict[str, list[str]]) -> dict[int, Any]:
    numbers = {int(ring_bits): [int(each) for each in row] for ring_bits, row in words.items()}
    return {ring_bits: np.array(row, WORD_TYPES[ring_bits]) for ring_bits, row in numbers.items()}


def _seeds(vector: Any, name: str) -> tuple[SignedSeed, ...]:
    """What masks the input of one silo."""
    own = SignedSeed(seed=bytes.fromhex(vector["silos"][name]["self_mask_seed"]), sign=1)
    return (own, *(_pair(vector, name, peer) for peer in vector["sharers"] if peer != name))


def _opposite_seeds(vector: Any) -> tuple[SignedSeed, ...]:
    """What no other survivor cancels: the self-masks, and the pairs with those who were lost."""
    lost = set(vector["sharers"]) - set(vector["survivors"])
    kept = [_seeds(vector, name)[0] for name in vector["survivors"]]
    kept += [_pair(vector, name, peer) for name in vector["survivors"] for peer in lost]
    return tuple(SignedSeed(seed=signed.seed, sign=-signed.sign) for signed in kept)


def _pair(vector: Any, name: str, peer: str) -> SignedSeed:
    low, high = sorted((name, peer))
    recovery_seed = bytes.fromhex(vector["silos"][low]["recovery_seed"])
    cohort_digest = bytes.fromhex(vector["cohort_digest"])
    seed = seeds.pair_seed(recovery_seed, cohort_digest=cohort_digest, peer=high)
    return SignedSeed(seed=seed, sign=1 if name < peer else -1)
