"""What an operator reads of a job: on a phone, in the dark, and of a hostile coordinator."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.job import SignedJob
from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import Awaited, JobSummary, LeftOut, PhaseRecord, Table
from cli.output.progress import doing, plain_line
from cli.output.report import document, write_report
from client.history import JobHistory, state_in_words, summary_facts
from client.planning import Plan, row_notes, timing_of
from web.console import rounds
from web.report.page import SITE, page
from web.shared.phases import phase_rows, phases_csv
from web.shared.templating import environment

JOB = b"j" * 32
LEFT = LeftOut(silo="south", stage="waiting", reason="policy", rule="max_rounds")
NO = LeftOut(silo="east", stage="waiting", reason="rejected", text="not before May")


def history(*, seconds: float = 2.0, **summary: object) -> JobHistory:
    """One enrollment, two rounds, an evaluation with a confusion matrix of two classes."""
    job_history = JobHistory()
    facts = {"name": "usps", "status": "done", "strategy": "fedavg", "rounds": 2, "rounds_completed": 2}
    facts |= {"silos": ["north", "south", "east"], "float32_bytes": 40, **summary}
    job_history.add(JobEvent(summary=JobSummary(job_digest=JOB, **facts)))
    given = {"job_digest": JOB, "result": "applied", "attempts": 1, "wall_seconds": seconds}
    given |= {"upload_bytes": 60}
    for round, phase in ((0, "enrollment.0"), (1, "train"), (2, "train"), (2, "evaluate.0")):
        record = PhaseRecord(round=round, phase=phase, cohort=["north"], left_out=[LEFT, NO], **given)
        if phase != "enrollment.0":
            record.figures.update({"accuracy": 0.25 * (round + 1), "loss": 1.5})
        job_history.add(JobEvent(record=record))
    tables = job_history.records[-1].tables
    tables["confusion"].CopyFrom(Table(shape=[2, 2], values=[8, 2, 1, 9]))
    tables["f1"].CopyFrom(Table(shape=[2], values=[0.84, float("nan")]))
    return job_history


def test_page_has_a_dark_form_a_viewport_and_rows_that_become_blocks_on_a_phone() -> None:
    text = page(document(history()))
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "prefers-color-scheme: dark" in text
    assert "@media (max-width: 40rem)" in text
    # on a phone every cell is shown with the name of its column: none is cut off
    cells = re.findall(r"<td([^>]*)>", text)
    assert len(cells) > 30
    assert all(' data-label="' in attributes for attributes in cells)
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str) -> None:
    """WCAG 2.1 asks for a contrast of 4.5 to 1."""
    colors = r"--page: #(\w+);.*? --text: #(\w+); --soft: #(\w+);"
    light, dark = re.findall(colors, SITE.read_text())
    ground, *texts = light if scheme == "light" else dark
    for colour in texts:
        lighter, darker = sorted(map(_luminance, (ground, colour)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    full = "".join(2 * digit for digit in colour) if len(colour) == 3 else colour
    parts = [int(full[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_report_has_classes_who_took_part_and_by_which_rule_others_did_not() -> None:
    report = document(history())
    assert report["took_part"]["north"] == {"rounds": 2, "of": 2, "left_out": {}}
    assert report["took_part"]["south"] == {"rounds": 0, "of": 2, "left_out": {"policy: max_rounds": 2}}
    assert report["loss_by_round"] == [1.5, 1.5]
    assert report["upload_bytes_per_silo"] == 240
    text = page(report)
    assert '<th scope="row">0</th>\n<td data-label="f1 (95 %)">0.840 (no interval)</td>' in text
    assert '<th scope="row">1</th>\n<td data-label="f1 (95 %)"></td>' in text  # a class without samples
    signed = SignedJob(spec_bytes=b"classes: [well, '<ill>']", signature=b"", operator_certificate=b"")
    named = page(document(replace(history(), signed=signed)))
    assert '<th scope="row">&lt;ill&gt;</th>\n<td data-label="f1 (95 %)"></td>' in named
    assert 'east <span class="note">rejected: &#34;not before May&#34;</span>' in text
    assert "2 times rejected: &#34;not before May&#34;" in text


def test_table_whose_shape_is_not_that_of_its_values_is_left_out() -> None:
    job_history = history()
    job_history.records[-1].tables["confusion"].CopyFrom(Table(shape=[2, 1 << 30], values=[1.0]))
    assert "confusion" not in document(job_history)["tables"]


@pytest.mark.parametrize("shape", [[100_000, 0], [1] * 3_000])
def test_table_of_no_values_or_of_many_axes_takes_no_room(shape: list[int]) -> None:
    """2^32 - 1 rows of nothing would take all memory, and thousands of axes all of the stack."""
    job_history = history()
    values = [] if 0 in shape else [1.0]
    job_history.records[-1].tables["confusion"].CopyFrom(Table(shape=shape, values=values))
    assert list(document(job_history)["tables"]) == ["f1"]


def test_csv_has_a_row_a_phase_and_nothing_that_a_spreadsheet_would_run() -> None:
    job_history = history()
    job_history.records[1].reason = "=cmd|' /C calc'!A0"
    rows = list(csv.DictReader(io.StringIO(phases_csv(document(job_history)["phases"]))))
    assert [(row["round"], row["phase"], row["accuracy"]) for row in rows] == [
        ("0", "enrollment.0", ""), ("1", "train", "0.5"), ("2", "train", "0.75"), ("2", "evaluate.0", "0.75"),
    ]  # fmt: skip
    assert rows[1]["reason"].startswith("'=")
    assert rows[0]["left_out"] == "south (waiting: policy); east (waiting: rejected)"


def test_lines_name_the_rule_and_nothing_in_them_moves_a_cursor() -> None:
    job_history = history(state="waiting for approval at \x1b[2Jsouth", progress="round 1", status="running")
    assert state_in_words(job_history.summary) == r"waiting for approval at \x1b[2Jsouth"
    assert doing(job_history.summary) == r"waiting for approval at \x1b[2Jsouth"
    record = job_history.records[1]
    line = plain_line(record, title="round 1/2")
    assert "without south (refused by its policy: max_rounds)" in line
    assert 'without east (rejected: "not before May")' in line
    record.left_out[1].text = "\x1b]0;owned\x07"
    assert "\x1b" not in plain_line(record, title="round 1/2")


def test_facts_say_what_is_awaited_of_whom() -> None:
    awaited = [Awaited(silo="south", why="approval")]
    job_history = history(state="waiting for approval at south", awaited=awaited, operator="olga")
    facts = summary_facts(job_history.summary)
    assert (facts["state"], facts["awaited"]) == ("waiting for approval at south", {"south": "approval"})
    # of a coordinator that says no more than a status
    assert summary_facts(history().summary)["state"] == "done"


def test_a_plan_tells_the_class_rows_of_the_newest_job_with_as_many_silos() -> None:
    plan = Plan(
        name="next", strategy="feddw", silos=3, rounds=10, phases=(), model_bytes=40, state_bytes=80,
        promise=None, notes=(), learning_rate=0.1,
    )  # fmt: skip
    past = [history(), history(), history()]
    for each, rows in zip(past, (7, 4), strict=False):  # the last one sums none
        each.records[0].figures.update({"classes": 10, "class_rows_by_default": rows})
    (note,) = row_notes(plan, past)
    assert note.startswith(
        f"job {JOB.hex()[:12]}, of the same method, model size and number of silos: class rows"
    )
    assert note.endswith("by the default policy 4 of 10 are sent")
    assert row_notes(replace(plan, silos=4), past) == []


def test_time_is_estimated_by_jobs_that_are_alike() -> None:
    plan = Plan(
        name="next", strategy="fedavg", silos=3, rounds=10, phases=(), model_bytes=40, state_bytes=80,
        promise=None, notes=(), learning_rate=0.1,
    )  # fmt: skip
    assert timing_of(plan, [history(strategy="scaffold", seconds=99), history(float32_bytes=41)]) is None
    timing = timing_of(plan, [history(seconds=2.0), history(strategy="scaffold", seconds=99)])
    assert timing is not None
    # ten rounds of two seconds, and two for the evaluation; the opening enrollment waits for people
    assert (timing.seconds, timing.rounds, timing.jobs) == (22.0, 2, (JOB.hex()[:12],))


def test_every_silo_of_a_large_sum_is_named() -> None:
    """A text on a page is cut at 1,000 characters, and so was the list of 400 silos."""
    job_history, names = history(), [f"silo-{place:03}" for place in range(400)]
    job_history.records[1].cohort[:] = names
    text = page(document(job_history))
    assert all(name in text for name in names)


def test_console_and_report_have_the_same_table_of_phases() -> None:
    """The console had neither rounds nor results, the report neither attempts nor how many silos checked."""
    job_history = history()
    job_history.records[1].MergeFrom(PhaseRecord(attempts=2, verified_by=3, threshold=2))
    job_history.records[2].MergeFrom(PhaseRecord(result="used-up", reason="too-few-silos"))
    macros = environment().get_template("_macros.html").module
    rows = phase_rows(rounds.phases(job_history), main="accuracy", has_names=True)
    table = str(macros.phase_table("accuracy", rows, has_names=True))  # type: ignore[attr-defined]
    assert table.strip() in page(document(job_history))
    for cell in (
        '2.0 <span class="note">attempt 2</span>',
        "3, 2 needed",
        '<span class="state failed">used-up</span> too-few-silos',
        'south <span class="note">refused by its policy: max_rounds</span>',
    ):
        assert cell in table
    assert table.index("evaluate.0") < table.index("round 1/2") < table.index("enrollment.0")


def test_report_is_written_of_figures_that_are_no_numbers(tmp_path: Path) -> None:
    job_history = history()
    job_history.records[1].figures["class_rows_by_default"] = float("nan")
    job_history.records[1].data_share = float("nan")
    for value in (1e308, -1e308):
        job_history.records[2].figures["accuracy"] = value
        write_report(document(job_history), tmp_path)
        assert "NaN" not in json.dumps(document(job_history)["phases"])
        assert {path.name for path in tmp_path.iterdir()} == {"report.json", "report.html", "rounds.csv"}


def test_arms_of_a_search_are_on_the_report_and_on_the_consoles_page_of_the_job() -> None:
    job_history = history(main_figure="accuracy")
    title = "<h3>Arms of the search</h3>"
    assert title not in page(document(job_history))
    job_history.records[1].figures.update(
        {"accuracy@0": 0.5, "loss@0": 1.5, "accuracy@2": 0.7, "loss@2": 1.0}
    )
    text = page(document(job_history))
    assert text.count(title) == 2  # one of accuracy and one of loss
    assert "loss of each arm&#39;s model after each round" in text
    macros = environment().get_template("_macros.html").module
    for name, curves in rounds.figures(job_history):
        assert str(macros.curves(curves, name)).strip() in text  # type: ignore[attr-defined]
