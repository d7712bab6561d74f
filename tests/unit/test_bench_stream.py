from __future__ import annotations

import json

import pytest

from bench import stream
from bench.stream import Report

KEYS = [
    "megabytes",
    "repetitions",
    "masks",
    "bare_upload_bytes_per_second",
    "upload_bytes_per_second",
    "bare_download_bytes_per_second",
    "download_bytes_per_second",
    "upload_to_bare",
    "download_to_bare",
    "rows",
]


def test_it_moves_a_vector_and_a_state_and_tells_both_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    assert stream.main(["--megabytes", "2", "--repetitions", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == KEYS
    assert all(report[key] > 0 for key in KEYS[:-1])
    assert [row["value"] for row in report["rows"]] == [report["upload_to_bare"], report["download_to_bare"]]


def test_a_ratio_is_ours_by_the_bare_streams() -> None:
    report = Report(
        megabytes=1,
        repetitions=1,
        masks=1,
        bare_upload_bytes_per_second=100.0,
        upload_bytes_per_second=70.0,
        bare_download_bytes_per_second=200.0,
        download_bytes_per_second=100.0,
    )
    assert (report.upload_to_bare, report.download_to_bare) == (0.7, 0.5)
    assert [row.holds for row in report.rows] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--megabytes", "0"], "--megabytes: expected a whole number from 1 to 2000, got 0"),
        (["--repetitions", "x"], "--repetitions: expected a whole number from 1 to 100, got x"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_arguments_end_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        stream.main(arguments)
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("stream: error: ")
    assert message in error
