from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.peers import chorale_side, environment, flower
from bench.peers.environment import PeerUnavailable, python_with
from bench.peers.flower import Comparison, WrongSum, check_sum, target_range
from bench.peers.measured import Measured, middle

OURS = Measured(
    silo_setup_cpu_seconds=0.01,
    silo_mask_cpu_seconds=0.02,
    coordinator_unmask_cpu_seconds=0.03,
    coordinator_decode_cpu_seconds=0.01,
    coordinator_other_cpu_seconds=0.02,
    vector_bytes=100,
    sent_bytes=110,
    max_abs_error=0.5,
)
THEIRS = Measured(
    silo_setup_cpu_seconds=0.02,
    silo_mask_cpu_seconds=0.1,
    coordinator_unmask_cpu_seconds=0.57,
    coordinator_decode_cpu_seconds=0.01,
    coordinator_other_cpu_seconds=0.02,
    vector_bytes=200,
    sent_bytes=220,
    max_abs_error=0.02,
)


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """pip finds nothing, wherever it is told to look by this machine; the folder for the environment."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "no-index").as_uri())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return tmp_path / "peer"


def test_a_peer_that_pip_cannot_find_is_unavailable_in_one_sentence(no_index: Path) -> None:
    with pytest.raises(PeerUnavailable, match=r"^pip cannot install flwr==1\.41\.0: .*flwr") as caught:
        python_with("flwr==1.41.0", folder=no_index)
    assert "\n" not in str(caught.value)
    assert not list(no_index.rglob("flwr"))


def test_an_environment_that_holds_the_requirement_is_used_as_it_is(no_index: Path) -> None:
    folder = no_index
    environment._make(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "peer-2.0.dist-info").mkdir()
    (packages / "peer-2.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: peer\nVersion: 2.0\n"
    )
    assert python_with("peer==2.0", folder=folder) == folder / "bin" / "python"
    with pytest.raises(PeerUnavailable, match="pip cannot install peer==2.1"):
        python_with("peer==2.1", folder=folder)


def test_where_no_environment_can_be_made_the_peer_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PeerUnavailable, match="the environment .* cannot be made"):
        python_with("flwr==1.41.0", folder=tmp_path / "file" / "peer")


def test_without_the_peer_the_benchmark_is_skipped_with_a_code_of_its_own(
    no_index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flower, "FOLDER", no_index)
    assert flower.main([]) == flower.NOT_INSTALLABLE == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("flower: skipped: pip cannot install flwr==1.41.0")


def test_json_of_a_skipped_run_says_why_and_ends_well(
    no_index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flower, "FOLDER", no_index)
    monkeypatch.setattr("sys.argv", ["bench.peers", "--json"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("bench.peers", run_name="__main__")
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["skipped"]
    assert printed["skipped"].startswith("pip cannot install flwr==1.41.0")


def test_rows_are_the_peers_figure_divided_by_ours_against_the_targets() -> None:
    one = Comparison(silos=10, length=1000, dropped=2, word=32, chorale=OURS, flower=THEIRS)
    rows = [(row.target, pytest.approx(row.value), row.holds, row.unit) for row in one.rows()]
    assert rows == [(5.0, 5.0, True, "x"), (20.0, 19.0, False, "x"), (2.0, 2.0, True, "x")]
    assert [row.target for row in replace(one, silos=50, word=16).rows()] == [8.0, 50.0, 4.0]


def test_ratios_without_a_target_are_told_too() -> None:
    one = Comparison(silos=10, length=1000, dropped=2, word=32, chorale=OURS, flower=THEIRS)
    ratios = one.to_json()["times_less"]
    assert ratios["silo_cpu_seconds"] == pytest.approx(0.12 / 0.03)
    assert ratios["coordinator_cpu_seconds"] == pytest.approx(0.6 / 0.06)
    assert ratios["sent_bytes"] == 2.0


def test_turns_give_medians_and_the_largest_error() -> None:
    turns = [replace(OURS, silo_mask_cpu_seconds=one, max_abs_error=one) for one in (3.0, 1.0, 2.0)]
    assert middle(turns) == replace(OURS, silo_mask_cpu_seconds=2.0, max_abs_error=3.0)


@pytest.mark.parametrize("error", [8.1, float("nan")])
def test_a_wrong_sum_is_no_measurement(error: float) -> None:
    check_sum("peer", replace(OURS, max_abs_error=8.0), step=1.0, survivors=8)
    with pytest.raises(WrongSum, match="peer: expected a sum that is off by at most 8, got"):
        check_sum("peer", replace(OURS, max_abs_error=error), step=1.0, survivors=8)


@pytest.mark.parametrize(
    ("silos", "word", "expected"), [(10, 32, 1 << 22), (10, 16, 1 << 12), (50, 16, 1 << 10), (8, 16, 1 << 13)]
)
def test_quantized_values_of_all_silos_stay_below_the_modulus(silos: int, word: int, expected: int) -> None:
    assert target_range(silos, word) == expected
    assert silos * expected <= 1 << word


@pytest.mark.parametrize("word", [16, 32])
def test_our_side_sums_what_stays_within_its_steps(word: int) -> None:
    values_nL = np.random.default_rng(1).normal(0, 0.5, (6, 400)).astype(np.float32)
    measured = chorale_side.measure(values_nL, dropped=1, word=word)
    check_sum("chorale", measured, step=flower._chorale_step(6, word), survivors=5)
    assert measured.vector_bytes == 400 * word // 8
    assert measured.vector_bytes < measured.sent_bytes < measured.vector_bytes + 6 * 4000
    assert measured.coordinator_other_cpu_seconds > 0
    assert measured.silo_mask_cpu_seconds > 0


def test_both_sides_get_the_same_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    class Done:
        stdout = json.dumps([{"word": 16, **{k: getattr(THEIRS, k) for k in Measured.__slots__}}])

    def run(command: list[Any], **_: Any) -> Done:
        asked.append(json.loads(Path(command[-1]).read_text()))
        asked[-1]["shape"] = np.load(asked[-1]["values"]).shape
        return Done()

    monkeypatch.setattr(flower.subprocess, "run", run)
    (one,) = flower._compare(tmp_path / "python", silos=10, length=300, words=(16,), turns=1)
    (request,) = asked
    assert (request["dropped"], request["threshold"], request["bound"]) == (2, 7, 8.0)
    assert request["shape"] == (10, 300)
    assert request["modes"] == [{"word": 16, "target_range": 4096}]
    assert one.flower == THEIRS
    assert one.chorale.vector_bytes == 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--silos", "11"], "--silos: invalid choice: 11"),
        (["--words", "64"], "--words: invalid choice: 64"),
        (["--length", "0"], "--length: expected a whole number from 1 to"),
    ],
)
def test_wrong_arguments_end_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        flower.main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("peers.flower: error: argument")
    assert message in line
