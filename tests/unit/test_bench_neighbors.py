from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from bench import neighbors
from bench.neighbors import Setting, log2_tail, min_degree

PAGE = Path(__file__).resolve().parents[2] / "docs" / "decisions" / "0007-large-n.md"


def exact_tail(population: int, marked: int, draws: int, least: int) -> Fraction:
    ways = sum(
        math.comb(marked, x) * math.comb(population - marked, draws - x) for x in range(least, draws + 1)
    )
    return Fraction(ways, math.comb(population, draws))


def test_a_tail_is_what_it_is_by_hand() -> None:
    # two of five are marked, two are drawn: both marked in 1 of 10 draws, at least one in 7 of 10
    assert 2 ** log2_tail(5, 2, 2, 2) == pytest.approx(1 / 10)
    assert 2 ** log2_tail(5, 2, 2, 1) == pytest.approx(7 / 10)
    assert log2_tail(5, 2, 2, 0) == 0.0
    assert log2_tail(5, 2, 4, 3) == -math.inf  # there are only two
    assert log2_tail(5, 2, 2, 3) == -math.inf  # more than are drawn
    assert log2_tail(5, 4, 3, 2) == 0.0  # one is not marked, so two of three always are


@pytest.mark.parametrize(
    ("population", "marked", "draws", "least"), [(99, 33, 41, 31), (199, 20, 67, 15), (9999, 3333, 139, 94)]
)
def test_tails_agree_with_whole_numbers(population: int, marked: int, draws: int, least: int) -> None:
    exact = exact_tail(population, marked, draws, least)
    expected = math.log2(exact.numerator) - math.log2(exact.denominator)
    assert log2_tail(population, marked, draws, least) == pytest.approx(expected, abs=1e-6)


def test_bounds_of_five_silos_are_those_by_hand() -> None:
    setting = Setting(silos=5, corrupted=1, dropped=1)
    # one of four others is corrupted and one is lost; two are drawn: it is among them in half of the cases
    assert 2 ** neighbors.log2_exposed(setting, 2, 1, is_consistent=True) == pytest.approx(4 / 2)
    assert neighbors.log2_exposed(setting, 2, 2, is_consistent=True) == -math.inf
    assert 2 ** neighbors.log2_exposed(setting, 3, 2, is_consistent=False) == pytest.approx(4 * 3 / 4)
    assert 2 ** neighbors.log2_unrecovered(setting, 2, 2) == pytest.approx(5 / 2)
    assert neighbors.log2_unrecovered(setting, 2, 1) == -math.inf
    # three honest survivors, one cut off: it draws neither of the two others (1 of 6 pairs of four) and
    # neither of them draws it (3 of 6 pairs each); three ways
    assert 2 ** neighbors.log2_disconnected(setting, 2) == pytest.approx(3 * (1 / 6) * (3 / 6) ** 2)
    # whoever draws more than the corrupted and the lost can neither be exposed nor stay alone
    degree = min_degree(setting, is_consistent=True)
    assert degree is not None
    assert (degree.neighbors, degree.threshold) == (3, 2)
    assert degree.exposed == degree.unrecovered == degree.disconnected == -math.inf


def test_the_least_group_of_five_silos_is_the_one_by_hand() -> None:
    setting = Setting(silos=5, corrupted=1, dropped=1)
    # one alone never draws two that are corrupted; of two each draws just the other and the corrupted one
    # in 1 of 6 cases, and there are six pairs
    groups = neighbors._log2_groups(setting, 2, 2, np.array([1, 2]))
    assert list(2**groups) == pytest.approx([0, 6 * (1 / 6) ** 2])
    assert neighbors.least_group(setting, 2, 2) == 2
    assert neighbors.least_group(setting, 4, 4) == 3  # whoever draws all needs all: no group of two


@pytest.mark.parametrize("silos", [50, 100])
def test_parts_of_a_sum_are_as_large_as_in_g1_with_the_pair_for_it_alone(silos: int) -> None:
    setting = Setting.of(silos, Fraction(1, 5))
    promised = 2 * silos // 3 + 1 - silos // 3
    degree = neighbors.min_g1_degree(setting)
    assert degree is not None
    assert degree.least_group >= promised
    fewer = degree.neighbors - 1
    assert neighbors.least_group(setting, fewer, neighbors.max_threshold(setting, fewer)) < promised


def test_no_degree_below_the_complete_graph_bears_too_many_losses() -> None:
    assert min_degree(Setting(silos=50, corrupted=25, dropped=25), is_consistent=True) is None
    assert min_degree(Setting(silos=50, corrupted=16, dropped=20), is_consistent=False) is None


@pytest.mark.parametrize("is_consistent", [True, False])
@pytest.mark.parametrize("silos", [50, 100, 200])
def test_the_least_degree_keeps_every_bound_and_one_less_does_not(silos: int, is_consistent: bool) -> None:
    setting = Setting.of(silos, Fraction(1, 5))
    degree = min_degree(setting, is_consistent=is_consistent)
    assert degree is not None
    k, t = degree.neighbors, degree.threshold
    private = 2 ** neighbors.log2_exposed(setting, k, t, is_consistent=is_consistent)
    assert private + 2 ** neighbors.log2_disconnected(setting, k) <= 2**-40
    others, lost = silos - 1, setting.dropped
    assert silos * exact_tail(others, lost, k, k - t + 1) <= Fraction(1, 2**30)
    assert silos * exact_tail(others, lost, k, k - t) > Fraction(1, 2**30)  # t is the largest
    for fewer in range(1, k):
        most = neighbors.max_threshold(setting, fewer)
        exposed = neighbors.log2_exposed(setting, fewer, most, is_consistent=is_consistent)
        assert most == 0 or exposed > -40 or neighbors.log2_disconnected(setting, fewer) > -40


def test_more_silos_need_more_neighbors_but_a_smaller_share_of_all() -> None:
    settings = [Setting.of(silos, Fraction(1, 10)) for silos in (50, 100, 200, 500, 1000)]
    degrees = [min_degree(setting, is_consistent=True) for setting in settings]
    found = [degree.neighbors for degree in degrees if degree]
    assert found == sorted(set(found))
    assert len(found) == len(settings)
    shares = [k / setting.silos for k, setting in zip(found, settings, strict=True)]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("silos", [50, 100, 200, 500])
def test_more_losses_and_no_agreement_need_more_neighbors(silos: int) -> None:
    few, many = (Setting.of(silos, share) for share in neighbors.DROPPED)
    needed = [
        degree.neighbors
        for setting, is_consistent in ((few, True), (many, True), (many, False))
        if (degree := min_degree(setting, is_consistent=is_consistent))
    ]
    assert len(needed) == 3
    assert needed == sorted(set(needed))


def test_masks_are_shared_with_those_who_draw_and_those_who_are_drawn() -> None:
    assert neighbors.degree_of_masks(5, 4) == 4  # all of them
    assert neighbors.degree_of_masks(5, 2) == 3  # two, and each of the two others with chance a half


def test_with_all_as_neighbors_the_costs_are_those_of_the_complete_graph() -> None:
    setting = Setting.of(50, Fraction(1, 5))
    assert neighbors.regular_cost(setting, 49) == neighbors.complete_cost(setting)
    cost = neighbors.complete_cost(setting)
    assert cost.keystreams == 50
    assert cost.coordinator_keystreams == 40 + 10 * 40
    fewer = neighbors.regular_cost(setting, 27)
    assert fewer.silo_ms < cost.silo_ms
    assert fewer.sent_bytes < cost.sent_bytes


def test_the_page_shows_what_the_program_prints() -> None:
    page = PAGE.read_text()
    for dropped in neighbors.DROPPED:
        for line in neighbors.markdown(dropped, neighbors.SILOS).splitlines():
            assert line in page


def test_json_is_one_object_without_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    assert neighbors.main(["--silos", "50", "--json"]) == 0

    def refuse(name: str) -> None:
        raise AssertionError(name)

    printed = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert printed["rows"] == []
    assert [(row["silos"], row["dropped"]) for row in printed["table"]] == [(50, 5), (50, 10)]
    assert printed["table"][1]["agreed"]["neighbors"] == 27
    assert printed["table"][1]["agreed"]["exposed"] is None


def test_a_number_of_silos_without_a_row_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        neighbors.main(["--silos", "7"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("neighbors: error: argument --silos: invalid choice: 7")
