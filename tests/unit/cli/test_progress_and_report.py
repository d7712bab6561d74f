"""What a job's events turn into: lines, a table, report.json and report.html."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import ClassVar

import numpy as np
import pytest
import yaml
from rich.console import Console

from chorale.job import SignedJob
from chorale.privacy.promise import Promise, Spent
from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import JobSummary, LeftOut, PhaseRecord
from cli.job.following import end_of
from cli.output import progress, report
from client.errors import JobNotDone
from client.history import (
    REASON_WORDS,
    STAGE_WORDS,
    JobHistory,
    check_done,
    counted,
    figure_by_round,
    left_out_in_words,
)
from coordinator.phase_machine import PhaseState
from coordinator.reasons import Absent
from crypto.errors import BudgetExhausted, PolicyRefusal, Refusal
from strategies.figure import Figure, flat_figures
from strategies.tasks.classification import CLASSIFICATION
from web.console import rounds
from web.report.page import page

# DESIGN's contract with other programs
REPORT_KEYS = {
    "strategy", "silos", "rounds_completed", "final_accuracy", "accuracy_by_round", "secure_aggregation",
    "quantities", "dropped", "wall_seconds", "upload_bytes_per_silo_round", "float32_bytes", "epsilon",
    "epsilon_unit", "epsilon_updates_per_silo", "epsilon_statistics_per_record", "sums_verified",
    "verified_by", "noise", "epsilon_if_all_others_collude", "epsilon_of_rows",
}  # fmt: skip
SILOS = ["a", "b", "c", "d"]


def _record(round_number: int, phase: str, **fields: object) -> PhaseRecord:
    given = {"result": "applied", "attempts": 1, "cohort": SILOS, "wall_seconds": 0.5, "upload_bytes": 100}
    return PhaseRecord(job_digest=b"j" * 32, round=round_number, phase=phase, **(given | fields))


def _history(*records: PhaseRecord, **summary: object) -> JobHistory:
    history = JobHistory()
    facts = {"name": "digits", "status": "done", "strategy": "fedavg", "rounds": 3, "rounds_completed": 3}
    facts |= {"silos": SILOS, "float32_bytes": 64, "job_digest": b"j" * 32, **summary}
    history.add(JobEvent(summary=JobSummary(**facts)))
    for record in records:
        history.add(JobEvent(record=record))
    return history


@pytest.fixture
def history() -> JobHistory:
    """Three rounds; the sum of round 2 was lost, so the model after round 1 is not measured by it."""
    lost = LeftOut(silo="d", stage="masked", reason="disconnected")
    return _history(
        _record(0, "enrollment.0", quantities=["silos", "samples"]),
        _record(1, "train", figures={"accuracy": 0.1}, data_share=1.0, quantities=["delta", "weight"]),
        _record(
            2, "train", result="used-up", reason="too-few-silos", cohort=[], upload_bytes=0, left_out=[lost]
        ),
        _record(3, "train", figures={"accuracy": 0.5}, cohort=SILOS[:3], data_share=0.75, left_out=[lost]),
        _record(3, "evaluate.0", figures={"accuracy": 0.8, "loss": 0.3}, cohort=SILOS[:3]),
    )


def test_accuracy_of_a_round_is_measured_by_the_round_after(history: JobHistory) -> None:
    assert figure_by_round(history, "accuracy") == [None, Figure(value=0.5), Figure(value=0.8)]
    assert history.closing("accuracy") == Figure(value=0.8)


def test_accuracy_is_unknown_before_the_closing_evaluation() -> None:
    history = _history(_record(1, "train", figures={"accuracy": 0.1}))
    assert figure_by_round(history, "accuracy") == [None]
    assert history.closing("accuracy") is None


def test_record_that_is_told_twice_counts_once(history: JobHistory) -> None:
    assert history.add(JobEvent(record=_record(1, "train"))) is None
    assert len(history.records) == 5


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (0, "enrollment  4 silos, 0.5 s"),
        (1, "round 1/3  4 silos, 100% of the data, 0.5 s  model after round 0: accuracy 0.100 (no interval)"),
        (2, "round 2/3  used up (too-few-silos)  without d (connection lost during its upload)"),
        (4, "evaluate  3 silos, 0.5 s  final model: accuracy 0.800 (no interval), loss 0.300 (no interval)"),
    ],
)
def test_plain_line(history: JobHistory, place: int, line: str) -> None:
    record = history.records[place]
    assert progress.plain_line(record, title=history.title(record)) == line


@pytest.fixture
def drawn() -> JobHistory:
    """Two of four silos a round, all of them after round 2; round 3 therefore tests nothing."""
    job = {"silos": SILOS, "fraction": 0.5, "evaluate_all_every": 2}
    pair, tested = SILOS[:3], {"tested": 30.0}
    history = _history(
        _record(1, "train", cohort=pair, data_share=0.6, figures={"accuracy": 0.1, **tested}),
        _record(2, "train", cohort=pair, data_share=0.7, figures={"accuracy": 0.9, **tested}),
        _record(2, "evaluate-all.0", figures={"accuracy": 0.4, "tested": 40.0}),
        _record(3, "train", cohort=pair, data_share=0.6, figures={}),
        _record(3, "evaluate.0", figures={"accuracy": 0.5, "tested": 40.0}),
    )
    spec = yaml.safe_dump({**job, "fraction": 0.6}).encode()
    history.add(JobEvent(job=SignedJob(spec_bytes=spec, signature=b"s", operator_certificate=b"c").to_wire()))
    return history


def test_curves_of_drawn_silos_and_of_all_are_two(drawn: JobHistory) -> None:
    found = report.document(drawn)["curves"]
    point = {"data_share": None, "loss": None, "silos": 4, "tested": 40.0}
    assert found["all_silos"] == [
        {**point, "round": 2, "accuracy": 0.4},
        {**point, "round": 3, "accuracy": 0.5},
    ]
    assert [(each["round"], each["accuracy"], each["silos"]) for each in found["drawn_silos"]] == [
        (0, 0.1, 3),
        (1, 0.9, 3),
    ]
    assert [each["data_share"] for each in found["drawn_silos"]] == [0.6, 0.7]


def test_without_a_draw_there_is_one_curve(history: JobHistory) -> None:
    found = report.document(history)["curves"]
    assert found["drawn_silos"] == []
    assert [(each["round"], each["accuracy"]) for each in found["all_silos"]] == [
        (0, 0.1),
        (2, 0.5),
        (3, 0.8),
    ]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (1, "model after round 1, drawn silos' hold-outs: accuracy 0.900 (no interval, 30 tested)"),
        (2, "model after round 2, all silos' hold-outs: accuracy 0.400 (no interval, 40 tested)"),
        (4, "final model, all silos' hold-outs: accuracy 0.500 (no interval, 40 tested)"),
    ],
)
def test_a_line_says_whose_hold_outs_a_figure_is_over(drawn: JobHistory, place: int, expected: str) -> None:
    record = drawn.records[place]
    line = progress.plain_line(record, title=drawn.title(record), draws_rounds=drawn.draws_rounds)
    assert line.endswith(expected)


def test_the_table_has_a_column_for_each_curve(drawn: JobHistory) -> None:
    console = Console(file=io.StringIO(), width=140)
    console.print(progress.table(drawn))
    shown = console.file.getvalue().splitlines()
    assert "accuracy before (95 %), drawn silos" in shown[0]
    first, second = shown[0].index("drawn silos"), shown[0].index("all silos")
    assert [line.rindex("0.900") < second for line in shown if "0.900" in line] == [True]
    assert [line.index("0.400") > first for line in shown if "0.400" in line] == [True]


def test_the_page_has_both_curves_and_what_stands_behind_them(drawn: JobHistory) -> None:
    text = page(report.document(drawn))
    assert "Over the hold-outs of all silos" in text
    assert "Behind a point: 4 of 4 silos, 40 samples." in text
    assert "Over the hold-outs of the silos that each round drew" in text
    assert "Behind a point: 3 of 4 silos, 30 samples, 60 to 70 % of the training data." in text
    assert "Final figures" in text
    drawn.records.pop()  # as of a job that was cancelled: a test between rounds is not the final one
    assert "Final figures" not in page(report.document(drawn))


def test_the_console_has_two_charts_where_rounds_draw_their_silos(
    drawn: JobHistory, history: JobHistory
) -> None:
    (name, of_both), _ = rounds.figures(drawn)
    assert (name, len(of_both), [each["svg"].count("<circle") for each in of_both]) == ("accuracy", 2, [2, 2])
    (_, (whole,)), (loss, _) = rounds.figures(history)
    assert (loss, whole["title"], whole["svg"].count("<circle")) == ("loss", "", 3)  # with the start


PRESENCE = {"classes": 10.0, "class_rows_by_default": 2.0, "classes_without_holder": 0.0}


@pytest.mark.parametrize("figure", ["soft_label_rows", "classes_with_prototype", "prototype_rows"])
def test_the_share_of_class_rows_is_told_in_lines_report_and_page(figure: str) -> None:
    history = _history(
        _record(0, "class-presence.0", figures=PRESENCE),
        _record(1, "train", figures={figure: 2.0}),
        _record(2, "train", figures={figure: 4.0}),
    )
    lines = [progress.plain_line(each, title="") for each in history.records]
    assert "by the default policy silos send rows of 2 of 10 classes" in lines[0]
    assert "rows of 4 classes" in lines[2]
    document = report.document(history)
    assert document["class_rows"] == {
        "classes": 10,
        "by_default": 2,
        "by_round": {"1": 2, "2": 4},
        "share": 0.3,
    }
    assert "Of the 10 classes, rows of 30% were in a round's sum" in page(document)


def test_a_line_says_of_how_many_classes_a_calibration_had_rows() -> None:
    record = _record(3, "calibrate.0", figures={"calibrated_classes": 0.0})
    assert progress.plain_line(record, title="calibrate") == "calibrate  4 silos, 0.5 s  rows of 0 classes"


def test_a_final_figure_beside_a_kept_model_says_which_model_it_is_of(
    history: JobHistory, capsys: pytest.CaptureFixture[str]
) -> None:
    """`final accuracy 0.8000` and the round of the kept model stood side by side."""
    history.summary.kept, history.summary.model_round = "loss 0.2, the lowest", 1
    document = report.document(history)
    assert (document["final_model_round"], document["model_round"]) == (3, 1)
    assert "final accuracy 0.800 (no interval) of the model after round 3" in page(document)
    end_of(history)
    assert "final accuracy 0.800 (no interval) of the model after round 3\n" in capsys.readouterr().out
    history.summary.model_round = 3
    assert "final accuracy 0.800 (no interval), " in page(report.document(history))


def test_a_method_without_class_statistics_has_no_share_of_rows(history: JobHistory) -> None:
    document = report.document(history)
    assert document["class_rows"] is None
    assert "rows of" not in page(document)


def test_every_reason_and_stage_has_words() -> None:
    """`waiting: job-not-approved` stood on the line that an operator reads."""
    reasons = {each.value for each in (*Absent, *Refusal)}
    stages = {each.value for each in (*PhaseState,)} - {"revealed", "applied", "used-up"}
    assert set(REASON_WORDS) == reasons
    assert set(STAGE_WORDS) == stages
    for left, expected in (
        (LeftOut(silo="d", stage="waiting", reason="job-not-approved"), "no approval yet"),
        (LeftOut(silo="d", stage="unmask", reason="no-answer"), "no answer in time as masks were taken off"),
        (LeftOut(silo="d", stage="\x1b[2J", reason="\x1b]0;"), r"\x1b]0; \x1b[2J"),
    ):
        assert left_out_in_words(left, PhaseRecord(reason="unmask-hard-cap")) == expected


@pytest.mark.parametrize(
    ("ended_by", "expected"), [("refused", "no answer yet"), ("train-hard-cap", "no answer in time")]
)
def test_silo_that_had_its_time_still_is_not_told_as_late(ended_by: str, expected: str) -> None:
    """A silo's rejection ended the job, and the others, whom nobody timed out, were "no answer in time"."""
    left = [LeftOut(silo="a", stage="waiting", reason="no-answer")]
    record = PhaseRecord(round=1, phase="enrollment.0", result="used-up", reason=ended_by, left_out=left)
    assert progress.plain_line(record, title="enrollment").endswith(f"without a ({expected})")


def test_time_that_people_took_to_approve_is_told_by_itself(history: JobHistory) -> None:
    """Ten minutes until somebody approved were `enrollment  3 silos, 611.6 s`."""
    history.records[0].approval_seconds = 610.4
    line = progress.plain_line(history.records[0], title="enrollment")
    assert line == "enrollment  4 silos, 0.5 s  after 610 s of waiting for approval"
    document = report.document(history)
    assert (document["wall_seconds"], document["approval_seconds"]) == (2.5, 610.4)
    assert "2.5 s, after 610 s of waiting for approval." in page(document)


def test_a_job_of_steps_is_told_by_its_steps(history: JobHistory) -> None:
    """Round 2 is used up, so round 3 takes step 2; a record's number is that of its round all the same."""
    history.summary.steps = 2
    titles = [history.title(record) for record in history.records]
    assert titles == ["enrollment", "step 1 of 2", "step 2 of 2", "step 2 of 2", "evaluate"]
    history.summary.rounds_completed = 2
    assert counted(history.summary) == "2/2 steps"
    assert "2 of 2 steps, " in page(report.document(history))  # `2 of 3 rounds`, spare ones among them


def test_attempts_are_told_when_there_were_several() -> None:
    line = progress.plain_line(_record(1, "train", attempts=2, data_share=0.5), title="round 1/1")
    assert line == "round 1/1  4 silos, 50% of the data, 0.5 s, attempt 2"


def test_table_shows_rounds_progress_and_notes(history: JobHistory) -> None:
    history.summary.progress = "round 3, evaluate: awaiting a"
    console = Console(file=io.StringIO(), width=100)
    console.print(progress.table(history, notes=["killed d"]))
    shown = console.file.getvalue()
    for text in ("round 1/3", "0.500", "75%", "used-up", "awaiting a", "killed d"):
        assert text in shown


def test_show_writes_lines_to_stderr_alone_where_it_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job_history = JobHistory()
    progress.show([JobEvent(record=_record(1, "train"))], job_history)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "round 1/0  4 silos, 0% of the data, 0.5 s\n")
    assert len(job_history.records) == 1


def test_table_can_be_cut_to_the_newest_phases(history: JobHistory) -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(progress.table(history, newest=2))
    shown = console.file.getvalue()
    assert ("round 2/3" in shown, "round 3/3" in shown, "evaluate" in shown) == (False, True, True)


class _Timer:
    """A timer whose time is up when the test says so."""

    made: ClassVar[list[_Timer]] = []
    daemon = False

    def __init__(self, seconds: float, tell: Callable[[str], None], arguments: list[str]) -> None:
        self.seconds, self.is_running = seconds, False
        self._tell, self._arguments = tell, arguments
        self.made.append(self)

    def start(self) -> None:
        self.is_running = True

    def cancel(self) -> None:
        self.is_running = False

    def ring(self) -> None:
        assert self.is_running
        self._tell(*self._arguments)


def test_what_is_waited_for_is_said_once_and_only_after_a_silence() -> None:
    said: list[str] = []
    _Timer.made.clear()
    patience = progress.Patience(say=said.append, new_timer=_Timer)
    patience.on_news("waiting, awaiting a, b")
    patience.on_news("waiting, awaiting b")
    first, second = _Timer.made
    assert (first.is_running, second.seconds) == (False, progress.SILENT_SECONDS)
    second.ring()
    patience.on_news("waiting, awaiting b")
    assert len(_Timer.made) == 2
    patience.on_news("masked, awaiting b")
    patience.close()
    assert not _Timer.made[-1].is_running
    assert said == ["now: waiting, awaiting b"]


def test_report_has_the_keys_that_other_programs_read(history: JobHistory) -> None:
    document = json.loads(json.dumps(report.document(history)))
    assert set(document) >= REPORT_KEYS
    assert document["silos"] == 4
    assert document["final_accuracy"] == 0.8
    assert document["quantities"] == ["silos", "samples", "delta", "weight"]
    assert document["wall_seconds"] == 2.5
    assert document["upload_bytes_per_silo_round"] == 100  # of the rounds that had a sum
    assert document["secure_aggregation"] is True
    assert (document["epsilon"], document["epsilon_unit"]) == (None, None)


def _verified(phase: str, number: int, state: bytes, *, by: int = 3, **fields: object) -> PhaseRecord:
    return _record(number, phase, state_digest=state, verified_by=by, threshold=3, **fields)


MOVED = [_verified("enrollment.0", 0, b"a" * 32, by=4), _verified("train", 1, b"b" * 32)]
EVALUATED = _record(3, "evaluate.0", state_digest=b"b" * 32)
LOST = _record(2, "train", result="used-up", reason="too-few-statements", state_digest=b"b" * 32)


@pytest.mark.parametrize(
    ("records", "verified"),
    [
        ([*MOVED, LOST, EVALUATED], (True, 3)),  # the last two move nothing
        ([*MOVED, _verified("train", 2, b"b" * 32, by=4)], (True, 3)),  # a step of zero is one too
        ([*MOVED, _verified("train", 2, b"c" * 32, by=2)], (False, 2)),
        ([*MOVED, _record(2, "train", state_digest=b"c" * 32)], (False, 0)),  # a state that nobody signed
        ([_record(0, "enrollment.0", state_digest=b"a" * 32, verified_by=4)], (False, 4)),  # of how many?
        ([], (False, 0)),
    ],
)
def test_report_says_whether_silos_checked_every_sum_that_moved_the_state(
    records: list[PhaseRecord], verified: tuple[bool, int]
) -> None:
    document = json.loads(json.dumps(report.document(_history(*records))))
    assert (document["sums_verified"], document["verified_by"]) == verified
    sentence = f"Every sum behind the model was checked by {verified[1]} silos or more"
    assert (sentence in page(document)) == verified[0]
    assert ("Not every sum behind the model was checked" in page(document)) != verified[0]


def test_report_names_each_loss_once(history: JobHistory) -> None:
    lost = {"silo": "d", "stage": "masked", "reason": "disconnected"}
    lost["words"] = "connection lost during its upload"
    assert report.document(history)["dropped"] == [{"round": 2, **lost}, {"round": 3, **lost}]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_page_needs_nothing_else_and_escapes_what_it_is_told(history: JobHistory) -> None:
    history.summary.name = "<script>alert(1)</script>"
    text = page(report.document(history))
    parsed = _Page()
    parsed.feed(text)
    assert "script" not in parsed.tags
    assert parsed.links == []
    assert (
        parsed.tags.count("circle") == 4
    )  # accuracy and loss, each with the model that training starts from
    for phrase in ("Left out", "What was summed", "What each party saw", "connection lost"):
        assert phrase in text


def test_page_of_a_job_that_measured_nothing() -> None:
    text = page(report.document(_history(status="failed")))
    assert "No round measured accuracy." in text
    assert "No phase has ended yet." in text


@pytest.mark.parametrize(
    ("code", "error"),
    [("policy", PolicyRefusal), ("budget", BudgetExhausted), ("data", JobNotDone)],
)
def test_refused_job_ends_the_command_by_why_silos_refused(code: str, error: type[Exception]) -> None:
    left = [LeftOut(silo="a", stage="waiting", reason=code)]
    refused = _record(0, "enrollment.0", result="used-up", reason="refused", cohort=[], left_out=left)
    with pytest.raises(error, match="job 6a6a6a6a6a6a: failed: refused by silos"):
        check_done(_history(refused, status="failed", reason="refused by silos"))


def test_job_that_the_budget_stopped_ends_the_command_as_refused() -> None:
    left = [LeftOut(silo="a", stage="waiting", reason="budget")]
    last = _record(3, "train", result="used-up", reason="budget", cohort=[], left_out=left)
    stopped = _history(last, status="stopped", reason="budget: the model after 2 of 3 rounds stays")
    with pytest.raises(BudgetExhausted, match="job 6a6a6a6a6a6a: stopped: budget: the model after 2 of 3"):
        check_done(stopped)


PROMISE = Promise(
    epsilon=7.98,
    delta=1e-5,
    unit="record",
    noise="sum",
    epsilon_if_all_others_collude=22.5,
    members=20,
    colluders=6,
    honest=8,
    epsilon_updates_per_silo=None,
    epsilon_statistics_per_record=1.25,
    epsilon_of_rows={2: 16.5, 5: math.inf},
    multipliers={"records.noise_multiplier": 1.5},
)


SPENT = {
    "a": Spent(epsilon=7.5, if_all_others_collude=math.inf),
    "b": Spent(epsilon=3.25, if_all_others_collude=14.5),
}


def test_report_of_a_private_job_tells_what_it_cost(history: JobHistory) -> None:
    noised = {"correct": np.array(240.0), "tested": np.array(300.0), "loss_sum": np.array(90.0)}
    for name, number in flat_figures(CLASSIFICATION.figures(noised, dict.fromkeys(noised, 6.0))).items():
        history.records[-1].figures[name] = number
    document = json.loads(json.dumps(report.document(history, promise=PROMISE, spent=SPENT)))
    assert (document["epsilon"], document["epsilon_unit"], document["delta"]) == (7.98, "record", 1e-5)
    assert document["epsilon_spent_by_silo"] == {"a": 7.5, "b": 3.25}
    assert document["epsilon_spent_by_silo_if_all_others_collude"] == {"a": None, "b": 14.5}
    assert document["noise_multipliers"] == {"records.noise_multiplier": 1.5}
    # correct / tested, each with a deviation of 6: 6 / 300 and 0.8 * 6 / 300
    low, high = document["intervals"]["final_accuracy"]["noise"]
    assert (high - low) / 2 == pytest.approx(1.96 * 0.02 * math.hypot(1.0, 0.8), rel=0.01)
    text = page(document)
    for phrase in (
        "epsilon 7.98 at delta 1e-05, for each record",
        'by its own ledger">3.25</td>',
        'collude">14.5</td>',
        'collude">no bound</td>',
        "after noise on all",
    ):
        assert phrase in text
    assert "exact in fixed point" not in text
    assert "each silo, statistics" not in text
    assert (document["noise"], document["epsilon_if_all_others_collude"]) == ("sum", 22.5)
    assert "if all other silos collude with it: epsilon 22.5" in text
    assert document["epsilon_of_rows"] == {"2": 16.5, "5": None}
    assert "Somebody with 2, 5 records in one silo: epsilon 16.5, no bound; at a silo whose data set" in text
    assert (document["epsilon_updates_per_silo"], document["epsilon_statistics_per_record"]) == (None, 1.25)


def test_report_says_no_bound_in_words_where_all_other_silos_collude(history: JobHistory) -> None:
    promise = replace(PROMISE, epsilon_if_all_others_collude=math.inf)
    text = json.dumps(report.document(history, promise=promise), allow_nan=False)
    assert json.loads(text)["epsilon_if_all_others_collude"] is None
    assert "if all other silos collude with it: no bound" in page(json.loads(text))


def test_report_of_noised_sums_says_which_epsilon_is_for_a_silo_and_which_for_a_record(
    history: JobHistory,
) -> None:
    """It once called all of it protected by silo, though statistics are noised by record."""
    promise = replace(PROMISE, unit="silo", epsilon_updates_per_silo=6.5)
    document = json.loads(json.dumps(report.document(history, promise=promise, spent=SPENT)))
    assert (document["epsilon"], document["epsilon_unit"]) == (7.98, "silo")
    assert (document["epsilon_updates_per_silo"], document["epsilon_statistics_per_record"]) == (6.5, 1.25)
    sentence = (
        "epsilon 7.98 at delta 1e-05, for each record; by themselves updates cost epsilon 6.5 for each silo, "
        "statistics epsilon 1.25 for each record. No noise hides a whole silo in the statistics."
    )
    text = page(document)
    assert sentence in text
    assert "Epsilon spent for each record" in text


def test_report_of_a_job_without_privacy_says_nothing_of_it(history: JobHistory) -> None:
    document = report.document(history)
    assert "with noise" not in page(document)
    assert "Differential privacy" not in page(document)


@pytest.mark.parametrize(("status", "reason"), [("failed", "max-attempts"), ("cancelled", "")])
def test_job_that_did_not_end_well_fails_the_command(status: str, reason: str) -> None:
    earlier = _record(1, "train", left_out=[LeftOut(silo="a", stage="waiting", reason="policy")])
    with pytest.raises(JobNotDone, match=f"^job 6a6a6a6a6a6a: {status}(: {reason})?$"):
        check_done(_history(earlier, status=status, reason=reason))
