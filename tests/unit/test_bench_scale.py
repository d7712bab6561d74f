from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench import scale
from bench.parties import flushes, strace
from bench.parties.flushes import Flushes
from bench.parties.job_costs import JobCosts
from bench.parties.light_federation import groups_of
from bench.parties.meter import Meter, Used
from bench.parties.strace import read_trace
from bench.scale import Run, document

NAMED = {
    "silos",
    "coordinator_cpu_seconds",
    "coordinator_peak_mb",
    "coordinator_written_bytes",
    "rounds_applied",
}
STAGES = {"applied", "waiting", "advertise", "share", "masked", "consistency", "unmask", "revealed"}
FEW = Flushes(
    coordinator_flushes=9,
    coordinator_flushes_to_last_share=4,
    coordinator_by_stage={"share": 9},
    coordinator_by_file={"sums": 9},
    silo_flushes=8,
    silo_flushes_to_last_share=3,
    silo_by_file={"audit.jsonl": 8},
)


def used(cpu_seconds: float, *, written_bytes: float = 0.0) -> Used:
    return Used(
        wall_seconds=1.0,
        cpu_seconds=cpu_seconds,
        written_bytes=written_bytes,
        handed_bytes=0.0,
        silos_cpu_seconds=10 * cpu_seconds,
    )


def run(silos: int, *, flushed: Flushes | None = FEW) -> Run:
    """SHARE and the relay cost n^2; everything else grows with n, and the bytes are exactly the bound."""
    length = 1000
    costs = JobCosts(
        agents_per_process=(silos,),
        rounds_applied=4,
        failed_attempts=0,
        status="done",
        idle_bytes=0,
        peak_bytes=1000 * silos,
        database_bytes=1000,
        stages={
            "share": used(silos**2, written_bytes=3000 * silos**2),
            "masked": used(2 * silos + silos**2, written_bytes=12 * length),
        },
        opening={"masked": used(silos**2, written_bytes=silos**2)},
    )
    return Run(silos=silos, length=length, rounds=3, costs=costs, flushes=flushed)


def test_four_and_six_real_silos_give_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(tmp_path)]
    assert (
        scale.main(
            ["--silos", "4,6", "--length", "1000", "--rounds", "1", "--processes", "2", *folder, "--json"]
        )
        == 0
    )
    captured = capsys.readouterr()
    found = json.loads(captured.out)

    assert found.keys() >= NAMED | {"exponents"}
    assert (found["silos"], found["rounds_applied"], found["failed_attempts"]) == ([4, 6], [2, 2], [0, 0])
    assert found["agents_per_process"] == [[2, 2], [3, 3]]
    for one in found["runs"]:
        assert one["stages"].keys() == one["stage_peak_bytes"].keys() == STAGES
        assert max(one["stage_peak_bytes"].values()) <= one["peak_bytes"]
        assert one["opening"].keys() == STAGES - {"applied"}
        parts = [stage["cpu_seconds"] for stage in one["stages"].values()]
        assert sum(parts) == pytest.approx(one["coordinator_cpu_seconds"])
        assert 0 < one["coordinator_cpu_seconds"] < one["all_cpu_seconds"]
        assert 0 < one["coordinator_idle_mb"] < one["coordinator_peak_mb"]
        # each silo's vector passes the coordinator's folder, and the sum of them
        assert one["coordinator_handed_bytes"] > (one["silos"] + 1) * 4000
        assert one["database_bytes"] > 0
    assert found["exponents"].keys() == scale.Run.figures(run(4)).keys()
    if strace.is_installed():
        assert found["flushes_not_counted"] is None
        for one in found["runs"]:
            of_run = one["flushes"]
            assert 0 < of_run["silo_flushes_to_last_share"] < of_run["silo_flushes"]
            assert 0 < of_run["coordinator_flushes_to_last_share"] < of_run["coordinator_flushes"]
            for party in ("coordinator", "silo"):
                assert sum(of_run[f"{party}_by_file"].values()) == of_run[f"{party}_flushes"]
    assert [line for line in captured.err.splitlines() if line.startswith("scale: 4")]
    assert list(tmp_path.iterdir()) == []


def test_what_grows_with_pairs_is_told_from_what_grows_with_silos() -> None:
    found = document([run(10), run(50), run(100)])
    assert found["exponents"]["coordinator_cpu_seconds"] > 1.8
    assert found["exponents"]["coordinator_cpu_beyond_messages_seconds"] == pytest.approx(1.0)
    assert found["exponents"]["coordinator_written_beyond_vectors_bytes"] == pytest.approx(2.0)
    assert found["exponents"]["database_bytes"] == pytest.approx(0.0)
    assert found["stage_cpu_exponents"]["share"] == pytest.approx(2.0)
    rows = {row["name"]: row["holds"] for row in found["rows"]}
    assert rows["coordinator_cpu_seconds by n: slope"] is False
    assert rows["coordinator_cpu_beyond_messages_seconds by n: slope"] is True
    assert rows["written in a round / (3 vectors + 3 kB a pair), 50 silos"] is True
    assert rows["flushes of the coordinator from first advert to last share, 100 silos"] is True
    assert rows["flushes of the silo from first advert to last share, 100 silos"] is True


def test_a_byte_or_a_flush_beyond_the_bound_is_a_missed_target() -> None:
    one = run(10, flushed=replace(FEW, coordinator_flushes_to_last_share=5, silo_flushes_to_last_share=4))
    stages = {**one.costs.stages, "applied": used(0, written_bytes=1)}
    late = replace(one, costs=replace(one.costs, stages=stages, failed_attempts=1))
    missed = [row.name for row in late.rows() if not row.holds]
    assert missed == [
        "failed attempts, 10 silos",
        "written in a round / (3 vectors + 3 kB a pair), 10 silos",
        "flushes of the coordinator from first advert to last share, 10 silos",
        "flushes of the silo from first advert to last share, 10 silos",
    ]


def test_a_job_that_failed_has_its_failures_and_no_figures_of_a_round() -> None:
    good, bad = run(10), run(200)
    failed = replace(bad.costs, stages={}, opening={}, rounds_applied=0, failed_attempts=4, status="failed")
    found = document([good, replace(bad, costs=failed, flushes=None)])
    json.dumps(found, allow_nan=False)
    assert found["coordinator_cpu_seconds"] == [good.figures()["coordinator_cpu_seconds"], None]
    assert found["coordinator_flushes"] == [9, None]
    assert found["exponents"]["coordinator_cpu_seconds"] is None
    missed = [row["name"] for row in found["rows"] if not row["holds"]]
    assert missed == ["rounds applied, 200 silos", "failed attempts, 200 silos"]


def test_one_size_has_no_exponents() -> None:
    assert set(document([run(10)])["exponents"].values()) == {None}


@pytest.mark.parametrize(
    ("silos", "problem"),
    [
        ("2,10", "expected a whole number from 3 to 200, got 2"),
        ("10,201", "expected a whole number from 3 to 200, got 201"),
        ("50,10", "expected rising numbers, got 50,10"),
        ("10,,50", "expected a whole number from 3 to 200, got "),
    ],
)
def test_wrong_sizes_end_with_one_line(silos: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        scale.main(["--silos", silos])
    assert capsys.readouterr().err == f"scale: error: argument --silos: {problem}\n"


def test_without_strace_the_output_says_why_nothing_was_counted() -> None:
    found = document([run(10, flushed=None)], flushes_not_counted=scale.NO_STRACE)
    assert found["flushes_not_counted"] == "strace is not installed: flushes are not counted"
    assert found["silo_flushes_to_last_share"] == [None]


def test_a_folder_in_memory_meets_no_bound_on_bytes() -> None:
    one = run(10)
    costs = replace(one.costs, stages={name: used(1) for name in ("share", "masked")})
    found = document([replace(one, costs=costs)])
    assert found["bytes_not_counted"] == scale.IN_MEMORY
    assert found["coordinator_written_bytes"] == [None]
    assert not [row for row in found["rows"] if "written" in row["name"]]
    assert document([one])["bytes_not_counted"] is None


def test_a_folder_that_is_not_there_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        scale.main(["--folder", "/nowhere"])
    assert capsys.readouterr().err == "scale: error: argument --folder: there is no folder /nowhere\n"


def test_agents_are_spread_over_processes() -> None:
    assert groups_of(100, processes=2) == [50, 50]
    assert groups_of(11, processes=3) == [4, 4, 3]
    assert groups_of(3, processes=8) == [1, 1, 1]


def written(moment: str, file: str, line: str) -> str:
    """As strace shows it."""
    quoted = line.replace('"', r"\"")
    return f'10  {moment} write(2<{file}>, "{quoted}\\n", 99) = 99'


def stage(moment: str, state: str, *, round: int) -> str:
    fields = {"event": "stage", "state": state, "job": "ab", "round": round, "phase": "train"}
    return written(moment, "/hub.log", json.dumps(fields))


def noted(moment: str, event: str) -> str:
    fields = {"event": event, "job": "ab", "round": 2, "phase": "train"}
    return written(moment, "/silo/audit.jsonl", json.dumps(fields, separators=(",", ":")))


HUB_TRACE = [
    "10  100.0001 fsync(5</hub/coordinator.sqlite-wal>) = 0",
    stage("100.0002", "applied", round=1),
    "10  100.0003 fsync(6</hub/audit.jsonl>) = 0",
    stage("100.0004", "waiting", round=2),
    "10  100.0005 fdatasync(5</hub/coordinator.sqlite-wal> <unfinished ...>",
    r'11  100.0006 write(9<anon_inode:[eventfd]>, "\1\0\0\0", 8) = 8',
    "10  100.0007 <... fdatasync resumed>) = 0",
    stage("100.0008", "unmask", round=2),
    "11  100.0009 fsync(7</hub/sums/.3-1.revealed.tmp>) = 0",
    "11  100.0010 fsync(8</hub/sums>) = 0",
    stage("100.0011", "applied", round=2),
    "10  100.0012 fsync(6</hub/audit.jsonl>) = 0",
    "10  100.0013 +++ exited with 0 +++",
]
SILO_TRACE = [
    "20  100.0001 fsync(5</silo/ledger.sqlite-wal>) = 0",
    noted("100.0002", "advertised"),
    "20  100.0003 fsync(4</silo/audit.jsonl>) = 0",
    "20  100.0004 fsync(5</silo/ledger.sqlite-wal>) = 0",
    noted("100.0005", "revealed"),
    "20  100.0006 fsync(4</silo/audit.jsonl>) = 0",
    "20  100.0007 fsync(5</silo/ledger.sqlite-wal>) = 0",
    "20  100.0008 +++ killed by SIGTERM +++",
]


@pytest.fixture
def written_trace(tmp_path: Path) -> Callable[[list[str]], Path]:
    def write(lines: list[str]) -> Path:
        path = tmp_path / "trace"
        path.write_text("\n".join(lines))
        return path

    return write


def test_the_coordinators_flushes_belong_to_the_stage_that_they_are_in(
    written_trace: Callable[[list[str]], Path],
) -> None:
    found = flushes.by_stage(read_trace(written_trace(HUB_TRACE)), round=2)
    assert {stage: [str(call.file) for call in calls] for stage, calls in found.items()} == {
        "applied": ["/hub/audit.jsonl"],
        "waiting": ["/hub/coordinator.sqlite-wal"],
        "unmask": ["/hub/sums/.3-1.revealed.tmp", "/hub/sums"],
    }
    calls = [call for calls in found.values() for call in calls]
    counts = {"audit.jsonl": 1, "coordinator.sqlite-wal": 1, "sums": 2}
    assert flushes.by_file(calls, folder=Path("/hub")) == counts


def test_a_silo_promises_from_its_note_of_the_advert_to_that_of_the_shares(
    written_trace: Callable[[list[str]], Path],
) -> None:
    calls = read_trace(written_trace(SILO_TRACE))
    assert [call.moment for call in flushes.promised(calls, round=2)] == [100.0003, 100.0004]
    with pytest.raises(RuntimeError, match="does not say when it gave its shares"):
        flushes.promised(calls, round=3)


def test_a_trace_is_read_when_its_process_has_ended(
    written_trace: Callable[[list[str]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strace, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(RuntimeError, match="the traced process did not end"):
        read_trace(written_trace(HUB_TRACE[:-1]))


def test_a_moment_between_two_looks_lies_on_the_line_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        seen = 0

        def written(self) -> dict[str, int]:
            self.seen += 1
            return {"write_bytes": 100 * self.seen, "wchar": 200 * self.seen}

        def cpu_seconds(self) -> float:
            return float(self.seen)

        def memory(self) -> int:
            return 50 - self.seen

    hub = Hub()
    meter = Meter(hub, [hub])  # type: ignore[arg-type]
    monkeypatch.setattr(meter, "_every_seconds", 1e6)  # the first look and the last one
    with meter:
        pass
    first, last = (meter.at(moment) for moment in (0.0, 1e12))
    assert (first.cpu_seconds, last.cpu_seconds, last.written_bytes) == (1.0, 2.0, 200.0)
    assert meter.at((first.wall_seconds + last.wall_seconds) / 2).cpu_seconds == pytest.approx(1.5, abs=0.1)
    assert meter.most_bytes(0.0, 1e12) == 49
    assert meter.most_bytes(1e12, 1e12) == 48
    assert (last - first).handed_bytes == 200.0
