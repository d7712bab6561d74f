"""Nothing of a job is hidden from the person who approves it: where two jobs differ, their screens do."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from chorale.runtime.audit import AuditLog
from chorale.spec.job_spec import JobSpec
from cli.silo.screen import screen
from silo_agent.account_units import open_accounts
from silo_agent.approval.reading import read_view
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import load_policy
from silo_agent.in_force import HeldPolicy, InForce
from silo_agent.settings import load_silo_settings
from tests.unit.cli.conftest import Calls, Desk, Ended
from tests.unit.cli.test_approval import GIVEN, offered

TABLE = {
    "columns": [{"name": "age"}, {"name": "weight"}],
    "label_column": "smoker",
    "classes": 2,
    "input_shape": [2],
}
# each was the same screen and the same --json
DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "purpose": ({"purpose": "to set premiums"}, '"to set premiums"'),
    "reference": ({"reference": "EK 2026/17"}, '"EK 2026/17"'),
    "columns": ({"columns": [{"name": "psych_f20"}, {"name": "hiv_viral_load"}]}, "hiv_viral_load"),
    "label": ({"label_column": "hiv"}, "hiv"),
    "one column in place of two": (
        {"columns": [{"name": "age, weight"}], "input_shape": [1]},
        '"age, weight"',
    ),
    "a letter that nobody sees": ({"label_column": "smoker\u3164"}, '"smoker\\u3164"'),
    "letters that are not composed": ({"label_column": "gro\u0308\u00df"}, '"gro\\u0308\\xdf"'),
    "scale": ({"columns": [{"name": "age", "scale": 17.25}, {"name": "weight"}]}, "17.25"),
    "fill": ({"columns": [{"name": "age", "fill": 3.5}, {"name": "weight"}]}, "3.5"),
    "categories": (
        {"columns": [{"name": "age", "categories": ["Jane Doe"]}, {"name": "weight"}]},
        '"Jane Doe"',
    ),
    "update_bits": ({"update_bits": 64}, "update_bits: 64"),
    "min_weight": ({"min_weight": 0.875}, "0.875"),
    "max_attempts": ({"max_attempts": 17}, "17"),
    "threshold": ({"threshold": 3}, "threshold: 3"),
    "momentum": ({"training": {"learning_rate": 0.1, "momentum": 0.625}}, "0.625"),
    "weight_decay": ({"training": {"learning_rate": 0.1, "weight_decay": 0.0625}}, "0.0625"),
    "seed": ({"seed": 4711}, "4711"),
    "deadline": ({"train_deadline_seconds": 77.5}, "77.5"),
    "allow_unusual": ({"allow_unusual": True}, "allow_unusual: true"),
    "allow_silent_statistics": ({"allow_silent_statistics": True}, "allow_silent_statistics: true"),
}


def shown(desk: Desk, chorale: Calls, **changes: Any) -> tuple[str, str]:
    """Screen and JSON, without the ids that differ between any two jobs."""
    job = offered(desk, **TABLE | changes)
    ids = [job.digest.hex(), job.id, str(job.spec.nonce), str(job.spec.initial_state)]
    texts = []
    for more in ((), ("--json",)):
        ended = chorale("silo", "show", "--config", desk.silo(), job.id, *more)
        assert ended.code == 0, ended.err
        for each in ids:
            ended = Ended(code=0, out=ended.out.replace(each, "ID"), err="")
        texts.append(ended.out)
    without = json.loads(texts[1]) | {"offered": None}
    return texts[0], json.dumps(without)


@pytest.mark.parametrize("name", DIFFERENT)
def test_two_jobs_that_differ_never_look_alike(desk: Desk, chorale: Calls, name: str) -> None:
    changes, text = DIFFERENT[name]
    desk.write("policy.yaml", GIVEN)
    (screen, facts), (other_screen, other_facts) = shown(desk, chorale), shown(desk, chorale, **changes)
    assert screen != other_screen
    assert facts != other_facts
    assert text in other_screen
    assert text not in screen


def test_every_field_of_the_schema_stands_on_the_screen(desk: Desk, chorale: Calls) -> None:
    """Walks the schema, so a field that is added later is looked for, too. No list says what may lack."""
    job = offered(desk, **TABLE)
    settings = load_silo_settings(desk.silo())
    with closing(Ledger(settings.ledger_path)) as ledger:
        view = read_view(ledger, settings, job.id)
    assert view.job == job.spec.model_dump(mode="json", by_alias=True)
    marks: list[str] = []
    marked = replace(view, job=_marked(JobSpec, marks, "").model_dump(by_alias=True, warnings=False))
    assert len(marks) > 130
    words = {word.strip("[{,:}]") for word in " ".join(screen(marked)).split()}
    assert [mark for mark in marks if mark not in words] == []


def test_an_option_of_null_stands_on_the_screen(desk: Desk, chorale: Calls) -> None:
    """It is a value that the job's code is given, and `options: {}` is another job."""
    job = offered(desk, **TABLE)
    settings = load_silo_settings(desk.silo())
    with closing(Ledger(settings.ledger_path)) as ledger:
        view = read_view(ledger, settings, job.id)
    model = view.job["model"] | {"options": {"crop": None}}
    assert "options: {crop: null}" in " ".join(screen(replace(view, job={**view.job, "model": model})))


@pytest.mark.parametrize("columns", ["100", "80", "60"])
@pytest.mark.parametrize("letter", ["x", "\u6f22"])
def test_text_of_a_job_begins_no_line_of_a_terminal(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch, letter: str, columns: str
) -> None:
    """A terminal breaks what is wider, and a purpose ended in `label age` at the edge."""
    monkeypatch.setenv("COLUMNS", columns)
    width = unicodedata.east_asian_width(letter) == "W"
    text = letter * ((int(columns) - 13) >> width) + "label age"
    out = chorale("silo", "show", "--config", desk.silo(), offered(desk, **TABLE, purpose=text).id).out
    for line in out.splitlines():
        assert len(line) + sum(unicodedata.east_asian_width(each) == "W" for each in line) <= int(columns)
    assert len([line for line in out.splitlines() if line.startswith("label")]) == 1


def test_a_job_is_shown_under_the_policy_that_the_agent_holds(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's environment overrides a field, and the command's does not: nothing refused the job here."""
    desk.write("policy.yaml", GIVEN)
    job, settings = offered(desk, **TABLE, rounds=3), load_silo_settings(desk.silo())
    with monkeypatch.context() as agent:
        agent.setenv("CHORALE_POLICY_MAX_ROUNDS", "1")
        policies = {
            each.name: HeldPolicy.read(settings.policy_of(each), federation=settings.federation)
            for each in settings.data_sets
        }
    with closing(AuditLog(settings.audit_path)) as audit:
        InForce(settings, policies, take=lambda *_: None, audit=audit)
        ended = chorale("silo", "show", "--config", desk.silo(), job.id)
    assert "refuses it by max_rounds" in ended.out


def test_reload_says_that_the_agent_has_not_read_the_settings_file(desk: Desk, chorale: Calls) -> None:
    """Phases waited for it, and `reload` said that the agent holds these files."""
    desk.write("policy.yaml", GIVEN)
    offered(desk, **TABLE)
    config = desk.silo()
    settings = load_silo_settings(config)
    policies = {"data": HeldPolicy.read(settings.policy, federation=settings.federation)}
    with closing(AuditLog(settings.audit_path)) as audit:
        InForce(settings, policies, take=lambda *_: None, audit=audit, config=config)
        assert chorale("silo", "reload", "--config", config).code == 0
        config.write_bytes(config.read_bytes() + b"\n")
        ended = chorale("silo", "reload", "--config", config)
    assert (ended.code, "it changed since the agent read it" in ended.out) == (1, True)


def _marked(model: type[BaseModel], marks: list[str], prefix: str) -> BaseModel:
    """Every field set to a word of its own, unchecked; of several forms each."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        parts = [_marked(each, marks, f"{path}.") for each in _models_in(field.annotation)]
        if not parts:
            marks.append(f"mark{len(marks)}.{path}")
        values[name] = parts or marks[-1]
    return model.model_construct(**values)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)


def test_what_a_job_reads_stands_first_as_the_agent_last_found_it(desk: Desk, chorale: Calls) -> None:
    """`show` opens no data: the file is gone by then."""
    path = desk.folder / "ward.csv"
    heading = 'patient,age,icd1,icd2,smoker,"a9..a1, \x1b[2J"'
    path.write_text(f"{heading}\n1,50,0,1,0,a\n1,51,0,1,1,a\n2,60,1,1,1,a\n")
    desk.write("policy.yaml", GIVEN)
    data = {"name": "ward", "format": "csv", "path": str(path), "unit": "patient"}
    ranged = {"columns": [{"name": "age"}, {"name": "icd1..icd2"}], "input_shape": [3]}
    job, config = offered(desk, **TABLE | ranged), desk.silo(data=data)
    settings = load_silo_settings(config)
    policies = {"ward": load_policy(settings.policy)}

    def lines() -> list[str]:
        ended = chorale("silo", "show", "--config", config, job.id)
        assert ended.code == 0, ended.err
        return ended.out.splitlines()

    assert "no agent has read it yet" in " ".join(lines())
    with closing(Ledger(settings.ledger_path)) as ledger, closing(AuditLog(settings.audit_path)) as audit:
        open_accounts(settings, policies, ledger=ledger, audit=audit)
    path.unlink()
    shown = lines()
    assert [line.split()[0] for line in shown[2:4]] == ["purpose", "reference"]
    assert shown[4].startswith("reads       data set ward, format csv: 3 rows of 2 units when the agent ")
    assert any("per row  " in line for line in shown)  # a unit moves a sum without noise by each of its rows
    assert not any("per record" in line for line in shown)
    first = shown[4 : shown.index("")]
    assert "inputs      3: age, icd1..icd2" in first
    assert "label       smoker" in first
    assert 'not read    "a9..a1, \\u001b[2J"' in first  # not what a job would mean by it
    assert "whose       patient, by this silo's settings, never as an input" in first
    facts = json.loads(chorale("silo", "show", "--config", config, job.id, "--json").out)["reads"]
    assert (facts["inputs"], facts["labels"], facts["unread"]) == (
        *(["age", "icd1..icd2"], ["smoker"], ["a9..a1, \x1b[2J"]),
    )
    assert (facts["contents"]["records"], facts["contents"]["units"]) == (3, 2)


def test_signed_bytes_are_printed_of_a_job_that_waits_runs_or_is_over(desk: Desk, chorale: Calls) -> None:
    job, config = offered(desk, **TABLE), desk.silo()
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        for happens in (
            lambda: None,
            lambda: ledger.decisions().approve(job.digest, by="ann"),
            lambda: ledger.note_over(job.digest),
        ):
            happens()
            ended = chorale("silo", "show", "--config", config, job.id, "--job")
            assert hashlib.sha256(ended.out.encode()).digest() == job.digest
            facts = json.loads(chorale("silo", "show", "--config", config, job.id, "--json").out)
            assert JobSpec.model_validate(facts["job"]) == job.spec
    assert chorale("silo", "show", "--config", config, "--job").code == 2


def test_changes_of_what_is_read_stand_first_and_none_is_cut(desk: Desk, chorale: Calls) -> None:
    """Three harmless changes pushed the columns off the screen."""
    desk.write("policy.yaml", GIVEN)
    before, config = offered(desk, **TABLE), desk.silo()
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        ledger.decisions().approve(before.digest, by="ann")
    columns = [{"name": "psych_f20"}, {"name": "hiv_viral_load", "scale": 2.0}]
    harmless = {"name": "b", "seed": 1, "max_attempts": 6, "min_weight": 0.1, "enrollment_every": 11}
    new = offered(desk, **TABLE | harmless | {"columns": columns, "label_column": "hiv", "min_cohort": 3})
    lines = chorale("silo", "show", "--config", config, new.id).out.splitlines()
    changed = "\n".join(lines).partition("changed ")[2].split("\n\n")[0]
    order = ["columns.names", "columns.hiv_viral_load.scale", "label_column", "min_cohort", *sorted(harmless)]
    places = [changed.index(f" {field}: ") for field in order]
    assert places[:4] == sorted(places[:4])
    assert max(places[:4]) < min(places[4:])
    assert '"hiv_viral_load"]' in changed
