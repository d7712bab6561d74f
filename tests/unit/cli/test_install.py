"""The units that `chorale install systemd` writes. `make host-test` runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from cli import install
from cli.install import files_of, name_of, settings_in
from crypto.errors import ConfigError
from tests.support.programs import needed

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
CHORALE = Path("/opt/chorale/bin/chorale")
NAMES = {"silo": "chorale-clinic-a", "coordinator": "chorale-hub"}


def settings(role: str, folder: Path, **changed: object) -> Path:
    values = yaml.safe_load((EXAMPLES / f"{role}.yaml").read_text())
    path = folder / f"{role}.yaml"
    path.write_text(yaml.safe_dump({**values, "directory": f"/var/lib/{NAMES[role]}", **changed}))
    return path


def units(role: str, folder: Path, **changed: object) -> dict[str, str]:
    """Text by the file's name."""
    found = settings_in(settings(role, folder, **changed))
    return {
        path.name: text for path, text in files_of(found, Path("/etc", NAMES[role], f"{role}.yaml"), CHORALE)
    }


@pytest.mark.parametrize("role", NAMES)
def test_units_are_what_systemd_can_read(role: str, tmp_path: Path) -> None:
    analyze = needed("systemd-analyze")
    # a program that this machine has, for verify looks for it
    texts = {name: text.replace(str(CHORALE), "/bin/true") for name, text in units(role, tmp_path).items()}
    paths = [tmp_path / name for name in texts if name.endswith((".service", ".timer"))]
    for path in paths:
        path.write_text(texts[path.name])
    done = subprocess.run([analyze, "verify", *paths], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if str(tmp_path) in line]) == (0, [])


@pytest.mark.parametrize("role", NAMES)
def test_service_runs_as_its_own_user_and_reports_to_systemd(role: str, tmp_path: Path) -> None:
    name, text = NAMES[role], units(role, tmp_path)[f"{NAMES[role]}.service"]
    for line in (
        f"ExecStart={CHORALE} {role} run --config /etc/{name}/{role}.yaml",
        f"User={name}",
        f"StateDirectory={name}",
        "StateDirectoryMode=0700",
        "Type=notify",
        "WatchdogSec=60s",
        "Restart=always",
        "LimitCORE=0",
        "PrivateDevices=yes",
    ):
        assert line in text.splitlines()
    assert f"u {name} - Chorale /var/lib/{name}\n" in units(role, tmp_path)[f"{name}.conf"]


def test_coordinator_alone_may_not_run_what_it_wrote(tmp_path: Path) -> None:
    """numba ended at a silo: cannot allocate executable memory. The loops of numpy served, more slowly."""
    assert "MemoryDenyWriteExecute=yes" in units("coordinator", tmp_path)["chorale-hub.service"]
    assert "MemoryDenyWriteExecute" not in units("silo", tmp_path)["chorale-clinic-a.service"]


def test_coordinator_alone_is_backed_up_by_a_timer(tmp_path: Path) -> None:
    assert {Path(name).suffix for name in units("silo", tmp_path)} == {".conf", ".service"}
    assert "Persistent=yes" in units("coordinator", tmp_path)["chorale-hub-backup.timer"]


def test_silo_with_a_gpu_sees_no_other_devices(tmp_path: Path) -> None:
    lines = units("silo", tmp_path, device="cuda")["chorale-clinic-a.service"].splitlines()
    assert {"DevicePolicy=closed", "DeviceAllow=char-nvidia* rw"} <= set(lines)
    assert not [line for line in lines if line.startswith("PrivateDevices=")]


@pytest.mark.parametrize("directory", ["state", "/var/lib/postgresql", "/var/lib/chorale-a/state"])
def test_directory_that_systemd_would_not_make_is_refused(directory: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"directory: expected /var/lib/chorale-NAME.*, got {directory}"):
        name_of(settings_in(settings("silo", tmp_path, directory=directory)))


@pytest.mark.parametrize("directory", ["/var/lib/chorale-a-backup", "/var/lib/chorale-a-backups"])
def test_names_of_the_backups_of_another_are_refused(directory: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="would be the name of another one's backups"):
        name_of(settings_in(settings("silo", tmp_path, directory=directory)))


def test_settings_of_an_operator_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected settings of a silo or a coordinator, got an operator's"):
        settings_in(EXAMPLES / "operator.yaml")


@pytest.mark.parametrize(
    ("config", "chorale", "sentence"),
    [
        ("/home/hub/silo.yaml", "/opt/chorale/bin/chorale", "--config: /home/hub/silo.yaml is in /home"),
        ("/etc/a/silo.yaml", "/home/ann/.venv/bin/chorale", "Chorale's program: .* is in /home"),
        ("/etc/a%h/silo.yaml", "/opt/chorale/bin/chorale", "--config: expected a path of letters"),
    ],
    ids=["settings of a person", "program of a person", "specifier of systemd"],
)
def test_paths_that_a_service_does_not_see_are_refused(
    config: str, chorale: str, sentence: str, tmp_path: Path
) -> None:
    found = settings_in(settings("silo", tmp_path))
    with pytest.raises(ConfigError, match=sentence):
        dict(files_of(found, Path(config), Path(chorale)))


def test_own_files_are_replaced_and_no_others(tmp_path: Path) -> None:
    written = tmp_path / "chorale-a.service"
    install.check_own(written)
    written.write_text(f"{install.MADE_BY} chorale-a\n")
    install.check_own(written)
    written.write_text("[Unit]\n")
    with pytest.raises(ConfigError, match="chorale-a.service: not written by this command"):
        install.check_own(written)


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of this machine's own."""
    monkeypatch.setattr(install, "HIDDEN", ())
    monkeypatch.setattr(install, "UNITS", tmp_path / "etc" / "units")
    monkeypatch.setattr(install, "USERS", tmp_path / "etc" / "users")
    return tmp_path / "etc"


def test_dry_run_prints_every_file_and_writes_none(tmp_path: Path, etc: Path) -> None:
    config = settings("coordinator", tmp_path)
    done = CliRunner().invoke(install.install, ["systemd", "--config", str(config), "--dry-run"])
    assert done.exit_code == 0, done.output
    names = ("users/chorale-hub.conf", "units/chorale-hub.service")
    names += ("units/chorale-hub-backup.service", "units/chorale-hub-backup.timer")
    assert [line for line in done.output.splitlines() if line.startswith("# /")] == [
        f"# {etc / name}" for name in names
    ]
    assert not etc.exists()


def test_files_are_written_and_the_next_commands_said(tmp_path: Path, etc: Path) -> None:
    config = settings("coordinator", tmp_path)
    done = CliRunner().invoke(install.install, ["systemd", "--config", str(config)])
    assert done.exit_code == 0, done.output
    assert (etc / "units" / "chorale-hub.service").stat().st_mode & 0o777 == 0o644
    key = yaml.safe_load(config.read_text())["identity"]["key"]
    assert f"  chown chorale-hub {key}\n" in done.output
    assert "  systemctl enable --now chorale-hub chorale-hub-backup.timer\n" in done.output
