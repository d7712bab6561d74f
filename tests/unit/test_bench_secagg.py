from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench import secagg
from bench.masking import keystreams, memory
from crypto import prg
from crypto.errors import LocalProtocolError
from crypto.masking.masks import UnmaskPlan

KEYS = [
    "silos",
    "length",
    "word",
    "dropped",
    "silo_mask_cpu_seconds",
    "silo_mask_wall_seconds",
    "encode_cpu_seconds",
    "setup_cpu_seconds",
    "noise_cpu_seconds",
    "keystream_cpu_seconds",
    "mask_to_keystream",
    "coordinator_unmask_seconds",
    "upload_bytes",
    "float32_bytes",
    "max_abs_error",
    "peak_rss_mb",
    "mask_wall_to_cpu",
    "encode_to_keystream_pass",
    "coordinator_unmask_cpu_seconds",
    "unmask_to_keystream",
    "unmask_wall_to_cpu",
    "upload_to_float32",
    "silo_peak_to_vector",
    "coordinator_peak_to_vector",
    "noise_to_mask",
    "one_thread_mask_to_keystream",
    "one_thread_unmask_to_keystream",
    "tag_cpu_seconds",
    "check_cpu_seconds",
    "tags_and_check_to_mask",
]


@pytest.fixture(autouse=True)
def short_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is measured at the length that a test asks for."""
    monkeypatch.setattr(memory, "MIN_VALUES", 1)


def test_json_is_one_object_with_every_documented_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert secagg.main(["--silos", "4", "--length", "5000", "--drop", "1", "--word", "32", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == [*KEYS, "rows"]
    assert [report[key] for key in KEYS[:4]] == [4, 5000, 32, 1]
    assert report["float32_bytes"] == 20_000
    assert 20_000 < report["upload_bytes"] < 20_000 + 4 * 4000  # the vector and four silos' envelopes
    assert report["noise_cpu_seconds"] == 0.0
    assert all(report[key] > 0 for key in KEYS if key.endswith("_seconds") and not key.startswith("noise"))
    assert report["mask_to_keystream"] == pytest.approx(
        report["silo_mask_cpu_seconds"] / report["keystream_cpu_seconds"]
    )
    assert report["upload_to_float32"] == pytest.approx(report["upload_bytes"] / 20_000)


def test_every_row_of_its_json_is_a_figure_of_its_json_with_the_target_of_the_word_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    secagg.main(["--silos", "4", "--length", "5000", "--drop", "1", "--word", "16", "--json"])
    report = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in report["rows"]}
    assert rows["upload / float32, w = 16"]["target"] == pytest.approx(0.51)
    assert rows["upload / float32, w = 16"]["value"] == report["upload_to_float32"]
    assert rows["silo masking / its key streams, w = 16"]["value"] == report["mask_to_keystream"]
    assert rows["silo masking / its key streams, w = 16"]["target"] == 2.0
    in_one_thread = rows["silo masking / its key streams, one thread, w = 16"]
    assert (in_one_thread["value"], in_one_thread["target"]) == (report["one_thread_mask_to_keystream"], 1.5)
    assert rows["coordinator unmasking / its key streams, w = 16"]["target"] == 2.0
    in_one_thread = rows["coordinator unmasking / its key streams, one thread, w = 16"]
    assert (in_one_thread["value"], in_one_thread["target"]) == (
        report["one_thread_unmask_to_keystream"],
        1.5,
    )
    tags = rows["tags and check / silo masking, w = 16"]
    assert (tags["value"], tags["target"]) == (report["tags_and_check_to_mask"], 3.0)
    assert report["tags_and_check_to_mask"] == pytest.approx(
        (report["tag_cpu_seconds"] + report["check_cpu_seconds"]) / report["silo_mask_cpu_seconds"]
    )
    assert len(rows) == 10


@pytest.mark.parametrize("word", [16, 32, 64])
def test_under_noise_one_row_holds_its_cost_against_masking(
    word: int, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--silos", "4", "--length", "20000", "--drop", "1", "--word", str(word), "--noise", "--json"]
    assert secagg.main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == [*KEYS, "rows"]
    assert report["noise_cpu_seconds"] > 0.0
    assert report["noise_to_mask"] == pytest.approx(
        report["noise_cpu_seconds"] / report["silo_mask_cpu_seconds"]
    )
    (row,) = report["rows"]
    assert (row["name"], row["target"]) == (f"noise / silo masking, w = {word}", 0.6)
    assert row["value"] == report["noise_to_mask"]
    # of 20,000 numbers, each the noise of three silos of standard deviation 1, the largest is above 3
    assert report["max_abs_error"] > 3.0


def test_the_floor_draws_every_byte_of_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(prg.Keystream, "fill", lambda _, out: drawn.append(out.size))
    keystreams.draw(3, stream_bytes=2 * prg.BLOCK_BYTES + 5)
    assert drawn == [prg.BLOCK_BYTES, prg.BLOCK_BYTES, 5] * 3


def test_a_peak_is_what_a_step_held_at_its_worst_and_not_what_was_there_before() -> None:
    before = np.ones(1 << 20)
    with memory.peak_of_step() as peak:
        for _ in range(3):
            before += np.ones(1 << 20)
    assert (8 << 20) <= peak.bytes < (9 << 20)


def test_a_silo_holds_chunks_and_a_coordinator_one_sum_however_many_silos_there_are(tmp_path: Path) -> None:
    length = 2_000_000
    assert 0.1 < memory.silo_peak_to_vector(length, word=64, silos=3) < 1.0
    for silos in (3, 12):
        peak = memory.coordinator_peak_to_vector(length, word=64, silos=silos, lost=0, folder=tmp_path)
        assert 1.0 < peak < 1.9


@pytest.mark.parametrize("word", [16, 32, 64])
def test_the_error_is_below_one_step_per_survivor(word: int) -> None:
    report = secagg.measure(silos=6, length=3000, drop=1, word=word)
    step = 2.0 ** -(word - 1 - 3 - 3 - 1)  # 2^(word - 1) holds 6 silos of magnitude 8, a power of two
    assert report.max_abs_error <= 5 * step
    assert report.max_abs_error > 0 or word == 64


def test_a_sum_that_is_not_exact_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    unmask: Callable[..., None] = UnmaskPlan.unmask

    def forgetful(plan: UnmaskPlan, sums: dict[int, np.ndarray], *, workers: int | None = None) -> None:
        unmask(dataclasses.replace(plan, seeds=plan.seeds[1:]), sums, workers=workers)

    monkeypatch.setattr(UnmaskPlan, "unmask", forgetful)
    with pytest.raises(LocalProtocolError, match="the revealed sum is not the sum of the inputs"):
        secagg.measure(silos=3, length=10, drop=0, word=32)


def test_without_json_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert secagg.main(["--silos", "3", "--length", "10", "--drop", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(KEYS)]] == KEYS
    assert lines[len(KEYS) + 1] == "| name | target | measured | holds |"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--silos", "2"], "--silos: expected a whole number from 3 to 200, got 2"),
        (["--silos", "x"], "--silos: expected a whole number from 3 to 200, got x"),
        (["--length", "0"], "--length: expected a whole number from 1 to"),
        (["--word", "8"], "--word: invalid choice: 8"),
        (["--silos", "10", "--drop", "4"], "--drop: 10 silos bear the loss of 3, got 4"),
        (["--silos", "3", "--drop", "1"], "--drop: 3 silos bear the loss of 0, got 1"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_arguments_end_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        secagg.main(arguments)
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith(
        "secagg: error: argument" if "--fast" not in arguments else "secagg: error: un"
    )
    assert message in errors[0]
