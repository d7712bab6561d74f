"""Entry point of `chorale`: finds the command, runs it, and turns what went wrong into one line.

Command modules load only when their command runs, so `chorale --help` needs neither torch nor
grpc nor a database. cli.startup.packages comes first: what it refuses must not have been imported.
"""

from __future__ import annotations

import sys
from importlib import metadata

import click

from cli.startup.lazy import LazyGroup
from cli.startup.packages import foreign_package
from cli.startup.parent import die_with_parent

SERVICES = (["coordinator", "run"], ["silo", "run"])
USAGE = 2  # cli.errors.ExitCode.USAGE, of a module that may belong to another package

COMMANDS = {
    "demo": ("cli.demo.command:demo", "Train on real data with every party on this machine."),
    "simulate": ("cli.simulate.command:simulate", "Run a job's rounds in one process, without a network."),
    "tune": ("cli.tune:tune", "Add a search over learning rates to a job."),
    "authority": ("cli.authority.commands:authority", "Found a federation, sign members, keep the roster."),
    "silo": ("cli.silo.commands:silo", "Run and inspect an institution's agent."),
    "coordinator": ("cli.coordinator:coordinator", "Run the coordinator."),
    "operator": ("cli.operator:operator", "Make an operator's key."),
    "job": ("cli.job.commands:job", "Plan, submit, watch, steer, report and fetch jobs."),
    "analysis": ("cli.analysis.commands:analysis", "Describe the records of all silos: table 1."),
    "console": ("cli.console:console", "Serve pages of the federation and its jobs to operators."),
    "model": ("cli.model:model", "Use a fetched or personal model elsewhere."),
    "package": ("cli.package:package", "Make a distribution of a model, task or data set of your own."),
    "evidence": ("cli.evidence:evidence", "Check the evidence of a job."),
    "init": ("cli.init.commands:init", "Write commented files for a new federation, coordinator or silo."),
    "doctor": ("cli.doctor.command:doctor", "Find what is wrong at a silo, coordinator or operator."),
    "install": ("cli.install:install", "Run a silo or a coordinator as a service of this machine."),
    "audit": ("cli.audit:audit", "Check an audit log, and close a file of it."),
    "schema": ("cli.schema:schema", "Print the JSON schema of a file, for editors."),
}


class Commands(LazyGroup):
    """All of COMMANDS; their help imports none of them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    try:
        version = metadata.version("chorale")
    except metadata.PackageNotFoundError:
        version = "unknown (not installed)"
    click.echo(f"chorale {version}")
    ctx.exit()


@click.group(
    cls=Commands,
    entries={name: place for name, (place, _) in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def chorale() -> None:
    """Train one PyTorch model together without pooling data: many voices, one sum."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with a code of docs/protocol.md 9."""
    foreign = foreign_package()
    if foreign:
        click.echo(f"chorale: error: {foreign}", err=True)
        sys.exit(USAGE)
    die_with_parent()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors end as one line on stderr."""
    from chorale.runtime.machine import prepare_service
    from cli.errors import ExitCode, Failure, failure_of

    try:
        if arguments[:2] in SERVICES:  # before numpy, which ends where a thread of its own cannot start
            prepare_service()
        result = chorale.main(arguments, prog_name="chorale", standalone_mode=False)
        return result if isinstance(result, int) else ExitCode.DONE
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx is not None else "", err=True)
        failure = Failure(code=ExitCode.USAGE, message="a command is missing")
    except BaseException as error:
        failure = failure_of(error)
    if failure.hint:
        click.echo(f"chorale: hint: {failure.hint}", err=True)
    if failure.message:
        click.echo(f"chorale: error: {failure.message}", err=True)
    return failure.code


if __name__ == "__main__":
    main()
