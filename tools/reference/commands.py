"""docs/reference/cli.md: every command of `chorale`, its options, and the codes it ends with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from cli.errors import ExitCode
from cli.main import chorale
from tools.reference.markdown import NOTHING, code, codes, page, table

INTRODUCTION = """\
Results go to stdout, all else to stderr. A command that does not end well says why in its last line,
`chorale: error: ...`, after a `chorale: hint: ...` where one action may help. Every command has `--help`;
`chorale --version` prints the version. Settings files and their variables: [settings.md](settings.md)."""
ON_BUGS = """\
A traceback is a bug: it is kept in a file that the last line names, or shown at once where `CHORALE_DEBUG` is
`1`. An agent that refuses a job logs and counts it (`chorale_silo_refusals_total`) and keeps running."""


def cli_page() -> str:
    codes_table = table(["Code", "Meaning"], ([str(int(each)), each.meaning] for each in ExitCode))
    commands = [block for context in _commands(_context(chorale, "chorale")) for block in _section(context)]
    return page("Commands", INTRODUCTION, "## Exit codes", codes_table, ON_BUGS, *commands)


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(command, info_name=name, parent=parent)


def _commands(context: click.Context) -> Iterator[click.Context]:
    """Those that do something, in the order of `--help`."""
    group = context.command
    if not isinstance(group, click.Group):
        yield context
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None  # it was just listed
        yield from _commands(_context(command, name, context))


def _section(context: click.Context) -> Iterator[str]:
    command = context.command
    yield f"## {context.command_path}"
    yield inspect.cleandoc(command.help or "")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"```\n{usage}\n```"
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if options:
        yield table(["Option", "Value", "Default", "Meaning"], map(_row, options))


def _row(option: click.Option) -> list[str]:
    return [codes(option.opts), _value(option), _default(option), option.help or ""]


def _value(option: click.Option) -> str:
    if option.is_flag:
        return NOTHING
    kind = option.type
    if isinstance(kind, click.Choice):
        value = codes(map(str, kind.choices))
    elif isinstance(kind, click.IntRange):
        value = f"{kind.min} to {kind.max}" if kind.max is not None else f"{kind.min} or more"
    else:
        value = {"integer": "whole number", "float": "number"}.get(kind.name, kind.name)
    return f"{value}, repeatable" if option.multiple else value


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    # what click puts where there is none depends on its version
    has_default = isinstance(option.default, str | int | float | Path) and not option.is_flag
    return code(str(option.default)) if has_default else NOTHING
