"""`chorale tune`: the rates that it writes, and what it leaves as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from client.submission import read_spec
from tests.unit.cli.conftest import Calls

RATES = "training.learning_rate"
JOB = """\
# what a person wrote
name: digits
federation: test
silos: [a, b, c]
rounds: 10  # enough
model: {name: mlp, hidden: [8]}
classes: 10
input_shape: [1, 8, 8]
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def searched(text: str) -> list[float]:
    return list(yaml.safe_load(text)["search"]["values"][RATES])


def test_the_presets_rate_leads_and_others_lie_where_it_was_seen_to_learn(job: Path, chorale: Calls) -> None:
    ended = chorale("tune", job)
    assert ended.code == 0, ended.err
    assert ended.out.startswith(JOB)
    rates, known = searched(ended.out), read_spec(job).known_rates
    assert known is not None
    assert (rates[0], len({*rates})) == (known.default, 5)
    assert all(known.least <= rate <= known.most for rate in rates)
    assert "search: 5 arms (training.learning_rate 0.05" in ended.err
    assert "2 times the rounds and bytes of one arm alone" in ended.err


def test_a_rate_of_the_jobs_own_leads_and_where_nothing_was_measured_others_lie_about_it(
    job: Path, chorale: Calls, tmp_path: Path
) -> None:
    job.write_text(JOB + "training: {learning_rate: 0.0123456789, optimizer: adam}\n...\n")
    ended = chorale("tune", job, "--out", tmp_path / "tuned.yaml")
    assert (ended.code, ended.out) == (0, ""), ended.err
    assert searched((tmp_path / "tuned.yaml").read_text()) == [
        0.0123456789,
        *(0.001, 0.003, 0.03, 0.1),
    ]
    assert read_spec(tmp_path / "tuned.yaml").search is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"search: {{values: {{{RATES}: [1, 2]}}}}\n", "search: expected none, which this command writes"),
        ("evaluate_all_every: 2\n", "evaluate_all_every: not allowed with search"),
    ],
)
def test_a_job_that_cannot_have_a_search_is_refused(
    job: Path, chorale: Calls, line: str, message: str
) -> None:
    job.write_text(JOB + line)
    ended = chorale("tune", job)
    assert ended.code == 2
    assert message in ended.err


def test_a_job_of_few_rounds_is_refused(job: Path, chorale: Calls) -> None:
    job.write_text(JOB.replace("rounds: 10", "rounds: 4"))
    ended = chorale("tune", job)
    assert ended.code == 2
    assert "rounds: expected more than 4 with search" in ended.err
