"""Which kind of job a file is: one, whatever its text is made to look like."""

from __future__ import annotations

import pytest

from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import any_spec, signed_spec
from crypto.errors import ConfigError
from simulation.engine import unsigned_job
from strategies.analysis.method import FIRST_STATE, KINDS
from tests.support.described import AGE, PAIN, SEX, analysis
from tests.support.objectives import make_job

COLUMNS = "[{name: age, edges: [0, 1]}]"
ANALYSIS = f"""kind: analysis
name: t
federation: f
not_after: 2099-01-01T00:00:00Z
silos: [a, b, c]
columns: {COLUMNS}
"""


def test_a_signed_file_of_each_kind_is_read_as_that_kind() -> None:
    of_analysis = analysis(AGE, SEX).filled(nonce="0" * 32, initial_state=bytes(32))
    of_training = make_job({"preset": "fedavg"})
    assert isinstance(any_spec(ANALYSIS.encode(), source="job"), AnalysisSpec)
    assert isinstance(signed_spec(of_analysis.to_yaml(), source="job"), AnalysisSpec)
    assert isinstance(signed_spec(of_training.to_yaml(), source="job"), JobSpec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ANALYSIS + "rounds: 3\ntraining: {learning_rate: 1}\n", "rounds, training: unknown fields"),
        (ANALYSIS + "kind: analysis\n", "kind is given twice"),
        (ANALYSIS.replace("kind: analysis", "kind: null"), "kind: expected 'analysis', got nothing"),
        (ANALYSIS.replace("kind: analysis", "kind: training"), "kind: expected 'analysis'"),
        (ANALYSIS.replace("kind", "Kind"), "Kind: unknown field"),
        (ANALYSIS.replace("kind: analysis", "<<: {kind: analysis}"), "<<"),
        (ANALYSIS.replace(COLUMNS, "[{name: p1..p9, edges: [0, 1]}]"), "got a range of them"),
        (ANALYSIS.replace(COLUMNS, "[{name: x, edges: [0, 1], standardize: computed}]"), "standardize"),
    ],
)
def test_a_file_of_two_kinds_or_of_tricks_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        any_spec(text.encode(), source="job")


@pytest.mark.parametrize("text", [ANALYSIS, "# of age alone\n" + ANALYSIS])
def test_an_analysis_in_other_words_is_not_what_was_signed(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a job as Chorale writes it, got other bytes"):
        signed_spec(text.encode(), source="job")


def test_phases_of_one_kind_of_job_are_none_of_the_other() -> None:
    job = unsigned_job(analysis(AGE, PAIN), FIRST_STATE)
    for phase in ("enrollment.0", "analysis-counts.0", "analysis-values.0"):
        job.check_phase(0, phase)
    refused = ["train", "evaluate.0", "column-moments.0", "class-presence.0", "analysis-counts.99"]
    for round, phase in (*((0, each) for each in refused), (1, "analysis-counts.0")):
        with pytest.raises(ConfigError, match="expected"):
            job.check_phase(round, phase)
    training = make_job({"preset": "fedavg"})
    assert not set(KINDS) & set(training.method.phases)
    for kind in KINDS:
        with pytest.raises(ConfigError, match="expected one of"):
            training.method.phase(kind)
