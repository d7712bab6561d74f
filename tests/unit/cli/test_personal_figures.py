"""Mean and deviation of the personal models' accuracy: in lines, in the report and at the end of a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import JobSummary, PhaseRecord
from cli.job.following import end_of
from cli.output import progress, report
from client.history import JobHistory
from web.report.page import page

FIGURES = {"personal_accuracy": 0.875, "personal_accuracy_deviation": 0.0625, "personal_silos": 4.0}
TESTED = {"accuracy": 0.75, "loss": 0.5, "tested": 80.0}


def record(phase: str, figures: dict[str, float], **fields: Any) -> PhaseRecord:
    given: dict[str, Any] = {"result": "applied", "attempts": 1, "cohort": list("abcd"), "wall_seconds": 0.5}
    given |= {"job_digest": b"j" * 32, "round": 2, "phase": phase, "figures": figures, **fields}
    return PhaseRecord(**given)


def history(*records: PhaseRecord) -> JobHistory:
    job_history = JobHistory()
    summary = JobSummary(name="digits", status="done", rounds=2, rounds_completed=2, job_digest=b"j" * 32)
    for event in (JobEvent(summary=summary), *(JobEvent(record=each) for each in records)):
        job_history.add(event)
    return job_history


PERSONAL = "personal models: accuracy 0.8750 +- 0.0625 over 4 silos"
GLOBAL = "final model: accuracy 0.750 (no interval, 80 tested), loss 0.500 (no interval)"


@pytest.mark.parametrize(
    ("phase", "figures", "told"),
    [
        ("fine-tune.0", FIGURES, f"  {PERSONAL}"),
        ("evaluate.0", TESTED | FIGURES, f"  {GLOBAL}, {PERSONAL}"),
        ("fine-tune.0", {"personal_silos": 0.0}, ""),  # no silo has a hold-out
    ],
)
def test_a_line_tells_the_global_model_first_and_accuracy_where_there_is_one(
    phase: str, figures: dict[str, float], told: str
) -> None:
    assert progress.plain_line(record(phase, figures), title="it") == f"it  4 silos, 0.5 s{told}"


@pytest.mark.parametrize(
    ("closing", "found"),
    [
        ([record("evaluate.0", TESTED), record("fine-tune.0", FIGURES)], FIGURES),
        ([record("evaluate.0", TESTED | FIGURES)], FIGURES),
        # a phase that was used up and came again: the sum that counts is the applied one
        (
            [
                record("evaluate.0", TESTED),
                record("fine-tune.0", {}, result="used-up", cohort=[]),
                record("fine-tune.1", FIGURES),
            ],
            FIGURES,
        ),
        ([record("evaluate.0", TESTED), record("fine-tune.0", {"personal_silos": 0.0})], {}),
        ([record("evaluate.0", TESTED)], {}),
        ([record("train", TESTED | FIGURES)], {}),  # of the round's beginning, not of the end
    ],
)
def test_the_report_has_the_closing_sums_figures_or_null(
    closing: list[PhaseRecord], found: dict[str, float]
) -> None:
    document = json.loads(json.dumps(report.document(history(*closing))))
    assert {name: document[name] for name in FIGURES} == {**dict.fromkeys(FIGURES), **found}
    assert ("Each silo&#39;s own model, on its own hold-out: accuracy 0.8750" in page(document)) == bool(
        found
    )
    if any(each.phase.startswith("evaluate") for each in closing):
        assert document["final_accuracy"] == 0.75  # the global model's stays what it was


def test_the_end_of_a_job_names_both_models(capsys: pytest.CaptureFixture[str]) -> None:
    end_of(history(record("evaluate.0", TESTED), record("fine-tune.0", FIGURES)))
    assert capsys.readouterr().out == (
        f"{(b'j' * 6).hex()}  done  2 rounds  final accuracy 0.750 (no interval, 80 tested)"
        "  personal accuracy 0.8750 +- 0.0625 over 4 silos\n"
    )
