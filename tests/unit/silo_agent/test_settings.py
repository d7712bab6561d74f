"""The silo's settings file, and the functions it may name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from crypto.errors import ConfigError
from silo_agent.objective import load_objective
from silo_agent.settings import SiloSettings, load_silo_settings
from silo_agent.training.data.settings import DataFormat
from silo_agent.training.machine.entry_point import load_entry_point

VALUES = {
    "name": "clinic-a",
    "federation": "hospitals",
    "coordinator": "chorale.example:8443",
    "identity": {"certificate": "a.crt", "key": "a.key"},
    "authority": "authority.crt",
    "directory": "state",
    "policy": "policy.yaml",
    "data": {"format": "digits"},
}


def load(tmp_path: Path, **changes: object) -> SiloSettings:
    path = tmp_path / "silo.yaml"
    path.write_text(yaml.safe_dump(VALUES | changes))
    return load_silo_settings(path)


def test_the_least_file_has_cautious_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.metrics_listen == "127.0.0.1:0"
    assert settings.ledger_path == Path("state/ledger.sqlite")
    assert settings.audit_path == Path("state/audit.jsonl")
    (data,) = settings.data_sets
    assert (data.holdout, settings.policy_of(data)) == (0.2, Path("policy.yaml"))
    assert settings.torch_threads == 1


def test_the_environment_overrides_a_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHORALE_SILO_COORDINATOR", "127.0.0.1:9")
    assert load(tmp_path).coordinator == "127.0.0.1:9"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "Clinic A"}, "name"),
        ({"coordinator": "chorale.example"}, "coordinator"),
        ({"data": {"format": "!"}}, "data.format: expected one of digits, .*, or with `from` the name of an"),
        ({"data": {"format": "npz"}}, "data.path: a value is required with format npz"),
        ({"data": {"format": "digits", "path": "x"}}, "data.path: not allowed with format digits"),
        ({"data": {"format": "module"}}, "data.module: a value is required with format module"),
        ({"data": {"format": "module", "module": "no colon"}}, "module"),
        ({"data": {"format": "digits", "holdout": 1.0}}, "holdout"),
        (
            {"data": {"format": "digits", "partition": {"kind": "iid", "silos": 3, "index": 3}}},
            "expected 0 to 2, got 3",
        ),
        (
            {"data": [{"format": "digits"}, {"format": "npz"}]},
            "data.1.path: a value is required with",
        ),
        (
            {"data": [{"format": "digits"}, {"format": "digits"}]},
            "data: expected a different name for .*, got data twice",
        ),
        ({"data": []}, "data: expected at least 1 entries, got 0"),
        ({"data": "digits"}, "data: expected fields and values, got 'digits'"),
        (
            {"data": {"format": "digits", "holdot": 0.1}},
            r"data.holdot: unknown field \(did you mean holdout\?\)",
        ),
        ({"data": {"format": "sql"}}, "data.database: a value is required with format sql"),
        (
            {"data": {"format": "sql", "database": {"url_env": "A", "url_file": "b", "table": "t"}}},
            "data.database.url_env: expected either url_env or url_file",
        ),
        (
            {"data": {"format": "sql", "database": {"url_env": "A"}}},
            "data.database.table: expected either table or query",
        ),
        ({"objective": "os.system"}, "objective"),
        ({"torch_threads": 0}, "torch_threads"),
        ({"lowest_roster_version": 0}, "lowest_roster_version"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"silo\.yaml: .*{words}"):
        load(tmp_path, **changes)


def test_a_module_of_ones_own_needs_no_path(tmp_path: Path) -> None:
    (data,) = load(tmp_path, data={"format": "module", "module": "clinic.data:load"}).data_sets
    assert data.format is DataFormat.MODULE


def test_an_objective_of_ones_own_is_made_by_its_function(tmp_path: Path) -> None:
    objective = load_objective(load(tmp_path, objective="tests.support.one_hot:objective"))
    assert callable(objective.compute)


@pytest.mark.parametrize(
    ("entry_point", "words"),
    [
        ("no_such_package:make", "cannot load no_such_package:make"),
        ("tests.support.one_hot:absent", "cannot load"),
        ("tests.support.one_hot:SAMPLES", "is not a function"),
    ],
)
def test_a_function_that_is_not_there_is_one_clear_line(entry_point: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"objective: .*{words}"):
        load_entry_point(entry_point, field="objective")


def test_a_script_in_place_of_a_module_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red before: what it exits with ended the command, without a word of which file did."""
    (tmp_path / "own_script.py").write_text("raise SystemExit('usage: own_script')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="objective: cannot load own_script:make: usage: own_script"):
        load_entry_point("own_script:make", field="objective")
