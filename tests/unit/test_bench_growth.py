from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import growth, setup
from bench.report import plots
from bench.report.series import Series, log_slope

SIZES = (100, 200, 500, 1000, 2000)


def series(values: tuple[float, ...]) -> Series:
    return Series(name="mask by L", plot="length", x_label="L", y_label="s", sizes=SIZES, values=values)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_slope_is_the_power_of_a_power_law(power: float) -> None:
    assert log_slope(SIZES, [3e-6 * size**power for size in SIZES]) == pytest.approx(power)


def test_fixed_costs_of_small_sizes_do_not_count() -> None:
    assert log_slope(SIZES, [5.0, 5.0, 0.5, 1.0, 2.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(("power", "holds"), [(0.5, True), (0.91, True), (1.09, True), (1.11, False)])
def test_growth_passes_for_linear_up_to_a_slope_of_eleven_tenths(power: float, holds: bool) -> None:
    assert series(tuple(size**power for size in SIZES)).row().holds is holds


def test_a_series_travels_as_json() -> None:
    one = series((1.0, 2.0, 5.0, 10.0, 20.0))
    assert Series.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_every_kind_of_growth_has_its_picture(tmp_path: Path) -> None:
    lengths = series((1.0, 2.0, 5.0, 10.0, 20.0))
    silos = Series(
        name="mask by n", plot="silos", x_label="n", y_label="s", sizes=(1, 2, 4), values=(1, 2, 4)
    )
    drawn = plots.draw([lengths, silos, lengths], folder=tmp_path)
    assert [path.name for path in drawn] == ["growth-length.png", "growth-silos.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_growth_takes_every_size_of_every_step() -> None:
    report = growth.measure(turns=1, lengths=(1000, 2000, 4000), silos=(3, 4, 5))
    assert [one.name for one in report.series] == ["encode by L", "mask by L", "unmask by L", "mask by n"]
    assert [one.sizes for one in report.series] == [(1000, 2000, 4000)] * 3 + [(3, 4, 5)]
    assert all(value > 0 for one in report.series for value in one.values)
    assert len(report.rows()) == 4


def test_setup_takes_every_silo_of_every_session(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["--silos", "12", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert [silos for silos, _ in report["by_silos"]] == [10, 12]
    assert report["setup_cpu_seconds"] == report["by_silos"][1][1] > 0
    assert report["setup_cpu_seconds_of_worst_silo"] >= report["setup_cpu_seconds"]
    (row,) = report["rows"]
    assert row["target"] == pytest.approx(0.036)  # twelve hundredths of what a hundred silos may cost
    assert report["series"][0]["sizes"] == [10, 12]
    assert list(report["by_stage"]) == [
        "terms",
        "advertise",
        "share",
        "masked input",
        "consistency",
        "unmask",
    ]
    assert sum(report["by_stage"].values()) == pytest.approx(report["setup_cpu_seconds"], rel=0.5)
    assert "setup: a session of 12 silos" in captured.err


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (
            setup,
            ["--silos", "2"],
            "setup: error: argument --silos: expected a whole number from 3 to 200, got 2",
        ),
        (
            growth,
            ["--turns", "0"],
            "growth: error: argument --turns: expected a whole number from 1 to 100, got 0",
        ),
    ],
)
def test_wrong_arguments_end_with_one_line(
    module: object, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        module.main(arguments)  # type: ignore[attr-defined]
    assert capsys.readouterr().err.splitlines() == [message]
