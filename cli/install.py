"""`chorale install`: what runs a silo or a coordinator on a machine without Kubernetes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import click

from chorale.runtime.files import write_atomic
from cli.doctor.command import role_of
from coordinator.settings import CoordinatorSettings, load_coordinator_settings
from crypto.errors import ConfigError
from crypto.identity.certificates import Role
from silo_agent.settings import SiloSettings, load_silo_settings

Settings: TypeAlias = CoordinatorSettings | SiloSettings

MADE_BY = "# Written by `chorale install systemd`. Changes of your own: systemctl edit"
STATE = re.compile(r"/var/lib/(chorale-[a-z0-9-]{1,22})")  # a user's name has at most 31 characters
PLAIN = re.compile(r"/[\w./@+-]+", re.ASCII)  # neither a specifier of systemd nor a quote
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # by ProtectHome= and PrivateTmp=
UNITS, USERS = Path("/etc/systemd/system"), Path("/etc/sysusers.d")

# no core dump: it would hold keys. @resources is not refused: torch and OpenMP bind threads to cores
SANDBOX = """\
StateDirectoryMode=0700
UMask=0077
LimitCORE=0
NoNewPrivileges=yes
CapabilityBoundingSet=
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateTmp=yes
PrivateUsers=yes
RemoveIPC=yes
"""
NO_DEVICES = "PrivateDevices=yes\n"
NVIDIA = "DevicePolicy=closed\nDeviceAllow=char-nvidia* rw\n"
# numba writes the code that it runs, and keeps it in a folder of this service alone (PrivateTmp=)
TRAINS = "Environment=NUMBA_CACHE_DIR=/tmp/numba\n"
COMPUTES_NOTHING = "MemoryDenyWriteExecute=yes\nProcSubset=pid\n"
SERVICE = """\
{made_by} {name}
[Unit]
Description=Chorale: {role} of federation {federation}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={chorale} {role} run --config {config}
TimeoutStartSec=15min
WatchdogSec=60s
Restart=always
RestartSec=10s
{common}
[Install]
WantedBy=multi-user.target
"""
BACKUP = """\
{made_by} {name}-backup
[Unit]
Description=Chorale: backup of {role} of federation {federation}

[Service]
Type=oneshot
ExecStart={chorale} coordinator backup --config {config} --out /var/lib/{name}-backups --keep 30
{common}StateDirectory={name}-backups
"""
TIMER = """\
{made_by} {name}-backup.timer
[Timer]
OnCalendar=daily
RandomizedDelaySec=1h
Persistent=yes

[Install]
WantedBy=timers.target
"""


@click.group()
def install() -> None:
    """Run a silo or a coordinator as a service of this machine."""


@install.command()
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="Settings file of a silo or a coordinator, where the service will read it.",
)
@click.option("--dry-run", is_flag=True, help="Print the files and write nothing.")
def systemd(config: Path, dry_run: bool) -> None:
    """Write a systemd unit, and its user, for a silo or a coordinator; a coordinator's daily backup too.

    `directory` in the settings is /var/lib/chorale-NAME, and unit and user are then called chorale-NAME.
    Nothing is started: the command prints what to call next. Called again, it brings the files up to date;
    changes of your own stand in what `systemctl edit` writes. A silo whose settings say `device: cuda` may
    use NVIDIA's devices.
    """
    settings = settings_in(config)
    files = dict(files_of(settings, config.absolute(), Path(sys.prefix) / "bin" / "chorale"))
    if dry_run:
        for path, text in files.items():
            click.echo(f"# {path}\n{text}")
        return
    for path in files:
        check_own(path)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode(), mode=0o644)
        click.echo(f"{path}: written")
    name, key = name_of(settings), shlex.quote(str(settings.identity.key))
    click.echo(f"next:\n  systemd-sysusers\n  chown {name} {key}\n  systemctl daemon-reload")
    timers = [path.name for path in files if path.suffix == ".timer"]
    click.echo(f"  systemctl enable --now {' '.join([name, *timers])}")


def settings_in(config: Path) -> Settings:
    """Raises ConfigError, also for a file of another party."""
    role = role_of(config)
    if role is Role.OPERATOR:
        raise ConfigError(f"{config}: expected settings of a silo or a coordinator, got an operator's")
    return load_silo_settings(config) if role is Role.SILO else load_coordinator_settings(config)


def name_of(settings: Settings) -> str:
    """Of unit and user. Raises ConfigError for a directory that systemd would not make."""
    state = STATE.fullmatch(str(settings.directory))
    if state is None:
        raise ConfigError(
            "directory: expected /var/lib/chorale-NAME, where NAME is at most 22 small letters, digits and "
            f"hyphens, got {settings.directory}"
        )
    if state[1].endswith(("-backup", "-backups")):
        raise ConfigError(f"directory: {state[1]} would be the name of another one's backups")
    return state[1]


def files_of(settings: Settings, config: Path, chorale: Path) -> Iterator[tuple[Path, str]]:
    """Path and text of each. chorale: the program. Raises ConfigError where a unit cannot read a file."""
    check_readable("--config", config)
    for each in (chorale, chorale.with_name("python").resolve()):
        check_readable("Chorale's program", each)
    name, is_silo = name_of(settings), isinstance(settings, SiloSettings)
    role = Role.SILO if is_silo else Role.COORDINATOR
    common = f"User={name}\nWorkingDirectory={config.parent}\nStateDirectory={name}\n{SANDBOX}"
    common += TRAINS if is_silo else COMPUTES_NOTHING
    common += NVIDIA if isinstance(settings, SiloSettings) and settings.asks_gpu else NO_DEVICES
    values = {"made_by": MADE_BY, "name": name, "role": role.value, "federation": settings.federation}
    values |= {"chorale": str(chorale), "config": str(config), "common": common}
    yield USERS / f"{name}.conf", f"{MADE_BY}\nu {name} - Chorale /var/lib/{name}\n"
    yield UNITS / f"{name}.service", SERVICE.format(**values)
    if not is_silo:
        yield UNITS / f"{name}-backup.service", BACKUP.format(**values)
        yield UNITS / f"{name}-backup.timer", TIMER.format(**values)


def check_readable(what: str, path: Path) -> None:
    """Raises ConfigError where the service would not see a file, or systemd would read its name otherwise."""
    hidden = next((folder for folder in HIDDEN if path.is_relative_to(folder)), None)
    if hidden is not None:
        raise ConfigError(
            f"{what}: {path} is in {hidden}, which a service does not see: move it to /opt or /etc"
        )
    if PLAIN.fullmatch(str(path)) is None:
        raise ConfigError(f"{what}: expected a path of letters, digits and . / @ + _ -, got {path}")


def check_own(path: Path) -> None:
    """Raises ConfigError rather than replace a file that somebody else wrote."""
    if path.exists() and not path.read_text(errors="replace").startswith(MADE_BY):
        raise ConfigError(f"{path}: not written by this command, and not overwritten")
