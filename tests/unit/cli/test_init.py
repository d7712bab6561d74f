"""`chorale init`: what is given, with the model's own sentence, and the names of all other fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chorale.spec.settings_file import parse_mapping
from cli.init.commands import state_folder
from cli.schema import model_of
from cli.settings_files import settings_file
from crypto.errors import ConfigError
from silo_agent.training.data.settings import DataFormat, DataSettings
from tests.unit.cli.conftest import Calls

FEDERATION = ("--federation", "heart")
HUB = ("--coordinator", "hub.example.org:7443")
OWN = {"identity": {"certificate": "a.crt", "key": "a.key"}, "authority": "authority.crt"}
SILO = {
    "federation": "heart",
    "coordinator": "hub:7443",
    "name": "a",
    "directory": "state",
    "policy": "policy.yaml",
    "data": {"format": "csv", "path": "ward.csv"},
    **OWN,
}
GIVEN: Mapping[str, Mapping[str, Any]] = {
    "silo": SILO,
    "policy": {"federation": "heart"},
    "coordinator": {
        "federation": "heart",
        "listen": "0.0.0.0:7443",
        "roster": "roster.json",
        "directory": "state",
        **OWN,
    },
    "operator": {"federation": "heart", "coordinator": "hub:7443", **OWN},
    "job": {
        "name": "first",
        "federation": "heart",
        "silos": ["a", "b", "c"],
        "rounds": 5,
        "model": {"name": "mlp"},
        "classes": 10,
        "input_shape": [1, 8, 8],
        "training": {"batch_size": 16},
    },
}
LATER = {"not_after": "2099-12-31T00:00:00Z"}  # which `job submit` fills in


def text_of(kind: str) -> str:
    return settings_file(kind, GIVEN[kind]).decode()


@pytest.mark.parametrize("kind", GIVEN)
def test_file_holds_what_was_given_and_nothing_else(kind: str) -> None:
    assert parse_mapping(text_of(kind).encode(), source=kind) == GIVEN[kind]


def test_own_data_come_back_from_a_file_that_they_were_written_to() -> None:
    """`from` was left out: a demo on an own data set ended at its first silo."""
    fields = {"format": "diabetes", "from": "diabetes-data==1.0.0", "options": {"seed": 1}}
    values = DataSettings.model_validate(fields).model_dump(mode="json")
    written = parse_mapping(settings_file("silo", {**SILO, "data": values}), source="silo")
    assert DataSettings.model_validate(written["data"]) == DataSettings.model_validate(fields)


def test_a_field_under_another_name_is_refused() -> None:
    values = {"format": "diabetes", "source": "diabetes-data==1.0.0"}
    with pytest.raises(ConfigError, match="source: expected the field's name in a file of DataSettings"):
        settings_file("silo", {**SILO, "data": values})


@pytest.mark.parametrize("kind", GIVEN)
def test_every_field_is_explained_or_named(kind: str) -> None:
    text = " ".join(" ".join(line.strip().removeprefix("#") for line in text_of(kind).splitlines()).split())
    _, _, named = text.partition(f"that `chorale schema {kind}` explains: ")
    others = set(named.removesuffix(". ...").split(", "))
    for name, field in model_of(kind).model_fields.items():
        key = field.alias or name
        assert (key in others) != (key in GIVEN[kind]), name
        if key in GIVEN[kind]:
            assert field.description is None or " ".join(field.description.split()) in text, name


def test_a_new_party_has_less_than_sixty_lines_a_file(chorale: Calls, tmp_path: Path) -> None:
    silos = [part for name in ("a", "b", "c") for part in ("--silo", name)]
    made = tmp_path / "new"
    chorale("init", "federation", *FEDERATION, *HUB, *silos, "--out", made)
    chorale("init", "coordinator", *FEDERATION, "--host", "hub", "--out", made / "hub")
    chorale("init", "silo", *FEDERATION, *HUB, "--name", "a", "--out", made / "a")
    files = {path.name: len(path.read_text().splitlines()) for path in made.rglob("*.yaml")}
    assert files.keys() == {"operator.yaml", "job.yaml", "coordinator.yaml", "silo.yaml", "policy.yaml"}
    assert max(files.values()) <= 60, files


def test_a_new_federation_tells_the_coordinator_its_port(chorale: Calls, tmp_path: Path) -> None:
    silos = [part for name in ("a", "b", "c") for part in ("--silo", name)]
    command = ["init", "federation", *FEDERATION, "--coordinator", "hub:17443", *silos, "--operator", "olga"]
    ended = chorale(*command, "--out", tmp_path / "new")
    assert "--host hub --port 17443 --name hub" in ended.out, ended.err
    assert f"to the coordinator also: {tmp_path / 'new' / 'authority' / 'roster.json'}" in ended.out


def test_files_name_every_format_and_what_an_address_listens_on(chorale: Calls, tmp_path: Path) -> None:
    """dicom and nifti were not among the formats, and 0.0.0.0 stood there without a word."""
    text = " ".join(text_of("silo").replace("#", "").split())
    sentence = text[text.index("how the data is stored") :]
    assert all(f" {each.value}" in sentence[: sentence.index("; or with")] for each in DataFormat)
    assert chorale("init", "coordinator", *FEDERATION, "--host", "hub", "--out", tmp_path / "hub").code == 0
    written = (tmp_path / "hub" / "coordinator.yaml").read_text()
    listen = " ".join(written[: written.index("\nlisten:")].replace("#", "").split())
    assert "0.0.0.0 is every interface of this machine, 127.0.0.1 this machine alone" in listen


@pytest.mark.parametrize("data", [(), ("--format", "csv", "--path", "ward.csv")])
def test_data_of_ones_own_are_described_next(chorale: Calls, tmp_path: Path, data: tuple[str, ...]) -> None:
    """Nothing said how to find out what goes into the settings of a table."""
    ended = chorale("init", "silo", *FEDERATION, *HUB, "--name", "a", *data, "--out", tmp_path)
    assert (f"  chorale silo describe --config {tmp_path / 'silo.yaml'}\n" in ended.out) == bool(data)


def test_nothing_is_overwritten_and_nothing_is_half_written(chorale: Calls, tmp_path: Path) -> None:
    home = tmp_path / "a"
    home.mkdir()
    (home / "policy.yaml").write_text("federation: mine\n")
    ended = chorale("init", "silo", *FEDERATION, *HUB, "--name", "a", "--out", home)
    assert (ended.code, f"{home / 'policy.yaml'}: a file is already there" in ended.err) == (2, True)
    assert [path.name for path in home.iterdir()] == ["policy.yaml"]


def test_all_files_are_there_before_anything_is_printed(
    chorale: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chorale init silo ... | head -2` left a key, and neither settings nor policy."""
    home, seen = tmp_path / "a", list[set[str]]()
    monkeypatch.setattr("click.echo", lambda *_, **__: seen.append({path.name for path in home.iterdir()}))
    assert chorale("init", "silo", *FEDERATION, *HUB, "--name", "a", "--out", home).code == 0
    assert seen[0] == {"a.key", "a.csr", "silo.yaml", "policy.yaml"}


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["silo", *HUB, "--name", "Ward A"], "name: expected 1 to 63 lower-case letters, digits and inner"),
        (["silo", *HUB, "--name", "a", "--format", "csv"], "data.path: a value is required with format csv"),
        (["silo", "--coordinator", "hub", "--name", "a"], "coordinator: expected host:port"),
        (["federation", *HUB, "--silo", "a", "--silo", "b"], "--silo: expected at least 3 names, got 2"),
        (["federation", *HUB, "--silo", "a", "--silo", "a", "--silo", "b"], "at least 3 names, got 2"),
    ],
)
def test_wrong_value_is_told_before_anything_is_written(
    chorale: Calls, tmp_path: Path, command: list[str], sentence: str
) -> None:
    ended = chorale("init", command[0], *FEDERATION, *command[1:], "--out", tmp_path / "new")
    assert (ended.code, sentence in ended.err) == (2, True), ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("home", "state"),
    [("/etc/chorale-a", "/var/lib/chorale-a"), ("/srv/etc/a", "/srv/etc/a/state"), ("a", "a/state")],
)
def test_state_of_settings_in_etc_is_where_systemd_makes_it(home: str, state: str) -> None:
    assert state_folder(Path(home)) == Path(state)
