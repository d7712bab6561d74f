"""`chorale init`: the files that a party starts from, with its key and request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cli.authority.commands import LONGEST_DAYS, found
from cli.authority.folder import CERTIFICATE
from cli.authority.history import ROSTER
from cli.keys import check_new, make_request, write_new
from cli.settings_files import own_files, settings_file
from client.errors import with_hint
from crypto.errors import ConfigError
from crypto.identity.certificates import MemberId, Role
from crypto.session.cohort import SMALLEST_FEDERATION
from silo_agent.training.data.settings import DataFormat

# a job on scikit-learn's digits, so that the first one runs before anybody has read an own table
FIRST_JOB: Mapping[str, Any] = {
    "name": "first",
    "rounds": 5,
    "model": {"name": "mlp"},
    "classes": 10,
    "input_shape": [1, 8, 8],
}
# what an institution decides first; all are defaults
FIRST_POLICY: Mapping[str, Any] = {
    "approval": "manual",
    "required_approvals": 1,
    "initial_state": "computed",
    "class_statistics": "refuse",
    "local_state": "refuse",
    "privacy": {"epsilon": 10.0, "delta": 1e-5, "required": False},
}
FEDERATION = click.option("--federation", required=True, help="Name of the federation.")
OUT_HELP = "Folder; of /etc/NAME the state is in /var/lib/NAME.  [default: one of the name]"
COORDINATOR = click.option(
    "--coordinator", required=True, metavar="HOST:PORT", help="Where the coordinator is dialed."
)


@click.group()
def init() -> None:
    """Write the files that a party starts from: what it has to decide, each field with its meaning.

    Nothing is overwritten. Keys are made where they live, so call it at each party's own machine.
    """


@init.command()
@FEDERATION
@COORDINATOR
@click.option(
    "--silo", "silos", multiple=True, required=True, metavar="NAME", help="A silo of the job; at least 3."
)
@click.option("--operator", default="operator", show_default=True, help="Name of who submits jobs.")
@click.option(
    "--out", default=Path(), type=click.Path(path_type=Path), help="Folder.  [default: where it is called]"
)
def federation(federation: str, coordinator: str, silos: tuple[str, ...], operator: str, out: Path) -> None:
    """Found a federation: the authority's key, an operator's files, and a first job.

    Keep the folder authority on a machine that is not online.
    """
    if len(set(silos)) < SMALLEST_FEDERATION:
        raise with_hint(
            ConfigError(f"--silo: expected at least {SMALLEST_FEDERATION} names, got {len(set(silos))}"),
            "with fewer, a sum would tell one silo what another one sent",
        )
    authority, home = out / "authority", out / operator
    member = MemberId(federation=federation, role=Role.OPERATOR, name=operator)
    files = {
        home / "operator.yaml": settings_file(
            "operator",
            {
                "federation": federation,
                "coordinator": coordinator,
                **own_files(home, operator, authority=home),
            },
        ),
        home / "job.yaml": settings_file(
            "job", {**FIRST_JOB, "federation": federation, "silos": list(silos)}
        ),
    }
    _check_all_new(*files, home / f"{operator}.key", authority / CERTIFICATE)
    _write(files)
    found(federation, authority, valid_days=LONGEST_DAYS)
    make_request(member, (), home)
    _report(files)
    host, _, port = coordinator.rpartition(":")
    at_silo = f"chorale init silo --federation {federation} --coordinator {coordinator} --name"
    _next(
        f"at the coordinator: chorale init coordinator --federation {federation} --host {host} --port {port} "
        "--name hub",
        *(f"at {silo}: {at_silo} {silo}" for silo in silos),
        f"at the authority, with all requests: chorale authority sign CSR... --directory {authority}",
        f"then: chorale authority roster CERT... --directory {authority}",
        f"to each member: {authority / CERTIFICATE} and its own certificate; to the coordinator also: "
        f"{authority / ROSTER}",
        f"once all run: chorale job submit {home / 'job.yaml'} --config {home / 'operator.yaml'}",
    )


@init.command()
@FEDERATION
@click.option("--name", default="hub", show_default=True, help="The coordinator's name.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    help="Host name or address that silos dial, as its certificate will say; repeatable.",
)
@click.option("--port", default=7443, show_default=True, type=click.IntRange(0, 65_535), help="To listen on.")
@click.option("--out", type=click.Path(path_type=Path), help=OUT_HELP)
def coordinator(federation: str, name: str, hosts: tuple[str, ...], port: int, out: Path | None) -> None:
    """A coordinator's settings, key and request."""
    home = out or Path(name)
    path = home / "coordinator.yaml"
    values = {
        "federation": federation,
        "listen": f"0.0.0.0:{port}",
        **own_files(home, name, authority=home),
        "roster": str(home / "roster.json"),
        "directory": str(state_folder(home)),
    }
    files = {path: settings_file("coordinator", values)}
    _check_all_new(*files, home / f"{name}.key")
    _write(files)
    make_request(MemberId(federation=federation, role=Role.COORDINATOR, name=name), hosts, home)
    _report(files)
    _next(
        f"send {home / f'{name}.csr'} to the authority",
        f"put {name}.crt, authority.crt and roster.json, which come back, into {home}",
        f"chorale doctor --config {path}",
        f"chorale coordinator run --config {path}",
    )


@init.command()
@FEDERATION
@COORDINATOR
@click.option("--name", required=True, help="This silo's name.")
@click.option(
    "--format",
    "data_format",
    default=DataFormat.DIGITS.value,
    show_default=True,
    type=click.Choice([each.value for each in DataFormat if each not in (DataFormat.SQL, DataFormat.MODULE)]),
    help="How the data is stored.",
)
@click.option("--path", "data", type=click.Path(path_type=Path), help="File or folder of the data.")
@click.option("--out", type=click.Path(path_type=Path), help=OUT_HELP)
def silo(
    federation: str, coordinator: str, name: str, data_format: str, data: Path | None, out: Path | None
) -> None:
    """A silo's settings, policy, key and request.

    Its data are scikit-learn's digits, to try, unless --format and --path name others.
    """
    home = out or Path(name)
    path = home / "silo.yaml"
    values = {
        "federation": federation,
        "coordinator": coordinator,
        **own_files(home, name, authority=home),
        "name": name,
        "directory": str(state_folder(home)),
        "policy": str(home / "policy.yaml"),
        "data": {"format": data_format} | ({} if data is None else {"path": str(data)}),
    }
    policy = {"federation": federation, **FIRST_POLICY}
    files = {path: settings_file("silo", values), home / "policy.yaml": settings_file("policy", policy)}
    _check_all_new(*files, home / f"{name}.key")
    _write(files)
    make_request(MemberId(federation=federation, role=Role.SILO, name=name), (), home)
    _report(files)
    _next(
        f"send {home / f'{name}.csr'} to the authority",
        *(() if data is None else (f"chorale silo describe --config {path}",)),
        f"put {name}.crt and authority.crt, which come back, into {home}",
        f"chorale doctor --config {path}",
        f"chorale silo run --config {path}",
    )


def state_folder(home: Path) -> Path:
    """Of a member whose files are in /etc/NAME: what `chorale install systemd` has systemd make."""
    return Path("/var/lib") / home.name if home.parent == Path("/etc") else home / "state"


def _check_all_new(*paths: Path) -> None:
    """Raises ConfigError before anything is written."""
    for path in paths:
        check_new(path, what="a file")


def _write(files: Mapping[Path, bytes]) -> None:
    """Before anything is printed: who reads the output may stop reading."""
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, data, what="a file")


def _report(files: Mapping[Path, bytes]) -> None:
    for path in files:
        click.echo(f"{path}: written")


def _next(*steps: str) -> None:
    click.echo("next:")
    for step in steps:
        click.echo(f"  {step}")
