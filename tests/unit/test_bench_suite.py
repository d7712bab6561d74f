from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench import suite
from bench.report import figures, side_by_side
from bench.report.results import Benchmark, Result, judged, markdown
from bench.rows import Row

STARTED = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MASKING = Benchmark("masking", "bench.secagg")
WIRE = Benchmark("wire", "bench.stream")


def measured(benchmark: Benchmark, value: float, *, unit: str = "x") -> Result:
    row = Row(name="cost", target=1.5, value=value, unit=unit)
    return Result(benchmark, started=STARTED, rows=(row,), printed={"rows": [row.to_json()]})


@pytest.fixture
def run_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Result], list[str]], int]:
    """Runs `make bench` of two benchmarks whose results are given, in a folder of its own."""
    monkeypatch.setattr(suite, "BENCHMARKS", (MASKING, WIRE))
    monkeypatch.setattr(suite, "OUT", tmp_path / "build" / "bench")
    monkeypatch.setattr(suite, "FIGURES", tmp_path / "figures.json")
    monkeypatch.setattr(suite, "PAGE", tmp_path / "performance.md")
    places = "".join(
        f"## {one}\n<!-- bench:{one} -->\nstale\n<!-- /bench:{one} -->\n" for one in ("masking", "wire")
    )
    suite.PAGE.write_text(f"before\n{places}after\n")

    def run(results: dict[str, Result], arguments: list[str]) -> int:
        monkeypatch.setattr(suite, "run", lambda benchmark: results[benchmark.name])
        return suite.main(arguments)

    return run


def test_a_regression_of_31_percent_is_red_and_one_of_29_green() -> None:
    committed = {"masking": {"cost": 1.0}}
    assert judged([measured(MASKING, 1.29)], committed=committed) == []
    assert judged([measured(MASKING, 1.31)], committed=committed) == [
        "masking: cost: worse by more than 30 %, 1.31 x after 1 x"
    ]


def test_a_missed_target_a_lost_ratio_and_a_failure_are_named() -> None:
    assert judged([measured(MASKING, 1.6)], committed={}) == [
        "masking: cost: target missed, 1.6 x, target <= 1.5 x"
    ]
    assert judged([measured(MASKING, 1.0)], committed={"masking": {"cost": 1.0, "old": 2.0}}) == [
        "masking: old: a committed ratio that is no longer measured"
    ]
    without_rows = Result.from_output(MASKING, '{"rows": []}', started=STARTED)
    assert judged([without_rows], committed={"masking": {"cost": 1.0}}) == [
        "masking: cost: a committed ratio that is no longer measured"
    ]
    assert judged([Result(WIRE, started=STARTED, failed="exit code 1")], committed={}) == [
        "wire: failed, exit code 1"
    ]


def test_only_ratios_are_compared_with_another_machine() -> None:
    result = measured(MASKING, 1.4, unit="s")
    assert result.ratios == {}
    assert judged([result], committed={"masking": {}}) == []


def test_a_skipped_benchmark_is_shown_with_its_reason_and_fails_nothing() -> None:
    result = Result.from_output(WIRE, '{"skipped": "the peer is not installed"}\n', started=STARTED)
    assert judged([result], committed={"wire": {"cost": 1.0}}) == []
    assert "**skipped**: the peer is not installed" in markdown([measured(MASKING, 1.0), result])


@pytest.mark.parametrize(
    "output", ["", "no json\n", "[]\n", '{"rows": 3}\n', '{"rows": [{"name": "x"}]}\n', "{}\n"]
)
def test_an_output_without_rows_is_a_failure(output: str) -> None:
    assert Result.from_output(WIRE, output, started=STARTED).failed == "it printed no JSON object with rows"


def test_a_benchmark_runs_in_a_process_of_its_own() -> None:
    result = suite.run(Benchmark("setup", "bench.setup", ("--silos", "3")))
    assert [row.name for row in result.rows] == ["set-up CPU per silo, n = 3"]
    assert [one.plot for one in result.series] == ["setup"]


def test_what_cannot_run_says_why() -> None:
    assert suite.run(Benchmark("none", "bench.nowhere")).skipped == "there is no bench.nowhere"
    assert suite.run(Benchmark("setup", "bench.setup", ("--silos", "1"))).failed == "exit code 2"
    hanging = Benchmark("setup", "bench.setup", ("--silos", "100"))
    assert suite.run(hanging, max_seconds=0.1).failed == "no result after 0.1 seconds"


def test_the_suite_leaves_json_and_table_and_says_what_failed(
    run_suite: Callable[[dict[str, Result], list[str]], int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    skipped = Result(WIRE, started=STARTED, skipped="no loopback")
    assert run_suite({"masking": measured(MASKING, 1.6), "wire": skipped}, []) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "[1/2] masking: python -m bench.secagg --json",
        "[2/2] wire: python -m bench.stream --json",
        "bench: masking: cost: target missed, 1.6 x, target <= 1.5 x",
    ]
    out = tmp_path / "build" / "bench"
    assert json.loads((out / "masking.json").read_text())["result"]["rows"][0]["value"] == 1.6
    assert json.loads((out / "wire.json").read_text())["skipped"] == "no loopback"
    table = (out / "table.md").read_text()
    assert table == captured.out
    assert "| cost | <= 1.5 x | 1.6 x | **no** |" in table
    assert "**skipped**: no loopback" in table
    assert not (tmp_path / "figures.json").exists()
    assert "stale" in (tmp_path / "performance.md").read_text()


def test_an_update_is_what_the_next_run_is_compared_with(
    run_suite: Callable[[dict[str, Result], list[str]], int], tmp_path: Path
) -> None:
    assert run_suite({"masking": measured(MASKING, 1.0)}, ["masking", "--update"]) == 0
    committed = json.loads((tmp_path / "figures.json").read_text())
    assert committed["masking"]["ratios"] == {"cost": 1.0}
    assert committed["masking"]["date"] == "2026-11-21"
    assert committed["masking"]["command"] == "python -m bench.secagg --json"
    assert committed["masking"].keys() == {"command", "date", "machine", "ratios", "versions"}
    assert run_suite({"masking": measured(MASKING, 1.29)}, ["masking"]) == 0
    assert run_suite({"masking": measured(MASKING, 1.31)}, ["masking"]) == 1


def test_an_update_of_one_benchmark_leaves_the_others_figures_and_tables(
    run_suite: Callable[[dict[str, Result], list[str]], int], tmp_path: Path
) -> None:
    results = {"masking": measured(MASKING, 1.0), "wire": measured(WIRE, 0.5)}
    assert run_suite(results, ["--update"]) == 0
    assert run_suite({"wire": measured(WIRE, 0.25)}, ["wire", "--update"]) == 0
    committed = figures.ratios(figures.read(tmp_path / "figures.json"))
    assert committed == {"masking": {"cost": 1.0}, "wire": {"cost": 0.25}}
    page = (tmp_path / "performance.md").read_text()
    assert page.startswith("before\n")
    assert page.endswith("<!-- /bench:wire -->\nafter\n")
    assert "| cost | <= 1.5 x | 1 x | yes |" in page
    assert "| cost | <= 1.5 x | 0.25 x | yes |" in page
    assert "0.5 x" not in page
    assert "stale" not in page


def test_an_update_keeps_what_could_not_be_measured_this_time(
    run_suite: Callable[[dict[str, Result], list[str]], int], tmp_path: Path
) -> None:
    run_suite({"masking": measured(MASKING, 1.0), "wire": measured(WIRE, 0.5)}, ["--update"])
    page = (tmp_path / "performance.md").read_text()
    skipped = Result(WIRE, started=STARTED, skipped="no loopback")
    assert run_suite({"masking": measured(MASKING, 1.0), "wire": skipped}, ["--update"]) == 0
    assert figures.ratios(figures.read(tmp_path / "figures.json"))["wire"] == {"cost": 0.5}
    assert (tmp_path / "performance.md").read_text() == page


def test_every_benchmark_has_its_place_on_the_page() -> None:
    page = suite.PAGE.read_text()
    for name in (*(benchmark.name for benchmark in suite.BENCHMARKS), side_by_side.NAME):
        begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
        assert page.count(begin) == page.count(end) == 1, name
        assert page.index(begin) < page.index(end)


def test_limit_ours_and_peer_stand_side_by_side() -> None:
    secagg = {"silos": 10, "length": 1000, "keystream_cpu_seconds": 0.010}
    ours = {"silo_mask_cpu_seconds": 0.03, "coordinator_unmask_cpu_seconds": 0.05, "vector_bytes": 8_000_000}
    theirs = {"silo_mask_cpu_seconds": 0.3, "coordinator_unmask_cpu_seconds": 2, "vector_bytes": 16_000_000}
    session = {"silos": 20, "dropped": 4, "word": 32, "length": 2000, "chorale": ours, "flower": theirs}
    results = [
        Result(Benchmark("secagg-32", "bench.secagg"), started=STARTED, printed=secagg),
        Result(Benchmark("peers", "bench.peers"), started=STARTED, printed={"sessions": [session]}),
    ]
    # a stream of twice the length takes 2 ms: 20 of them at the silo, 16 + 16 * 4 at the coordinator
    assert side_by_side.table(results).splitlines()[2:4] == [
        "| silo: encode and mask, CPU, n = 20, w = 32 | 40.0 ms | 30.0 ms | 300.0 ms |",
        "| coordinator: unmask, 4 lost, CPU, n = 20, w = 32 | 160.0 ms | 50.0 ms | 2.00 s |",
    ]
    assert side_by_side.table(results[:1]) == side_by_side.table(results[1:]) == ""


def test_a_round_stands_beside_both_its_limits() -> None:
    printed = {
        "silos": 4,
        "plain_wall_seconds": 0.1,
        "round_wall_seconds": 0.3,
        "limit_cpu_seconds": 0.25,
        "round_cpu_seconds": 1.5,
    }
    result = Result(Benchmark("round-4", "bench.round"), started=STARTED, printed=printed)
    assert side_by_side.table([result]).splitlines()[2:] == [
        "| a round of 4 silos over processes, wall | 100.0 ms | 300.0 ms | - |",
        "| a round of 4 silos over processes, CPU | 250.0 ms | 1.50 s | - |",
    ]


def test_a_round_of_ten_silos_stands_beside_the_native_floor_too() -> None:
    printed = {
        "silos": 10,
        "plain_wall_seconds": 0.1,
        "round_wall_seconds": 0.3,
        "limit_cpu_seconds": 0.25,
        "round_cpu_seconds": 1.5,
    }
    ten = Result(Benchmark("round-10", "bench.round"), started=STARTED, printed=printed)
    floor = Benchmark("native-floor", "bench.native_floor")
    native = Result(floor, started=STARTED, printed={"native_cpu_seconds": 0.125})
    (*_, line) = side_by_side.table([ten, native]).splitlines()
    assert line == "| the same round, CPU, limit of native code | 125.0 ms | 1.50 s | - |"
    assert side_by_side.table([native]) == ""


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="there is no place <!-- bench:masking -->"):
        figures.write_page(page, [measured(MASKING, 1.0)])


def test_an_unknown_name_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        suite.main(["setup", "speed"])
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("suite: error: there is no benchmark speed, expected some of secagg-16")
