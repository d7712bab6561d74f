"""`chorale silo reload`: how the files differ from what the running agent holds, and a person's yes to it."""

from __future__ import annotations

from pathlib import Path

import click

from cli.errors import CommandFailed
from cli.output.facts import json_option, print_json
from cli.silo.settings import CONFIG
from silo_agent.settings import load_silo_settings


@click.command("reload")
@CONFIG
@click.option("--confirm", "is_sure", is_flag=True, help="Have the agent take the files as they are now.")
@json_option
def reload_files(config: Path, is_sure: bool, is_json: bool) -> None:
    """Show which changed fields of the policy the running agent does not take by itself, and whether it has
    read the settings file as it is. A confirmation is of policies alone.

    It takes a file that allows no more than before within a heartbeat. One that allows more, or lacks a
    field that it had, keeps new phases waiting until it is changed back, confirmed here, or the agent is
    restarted. Ends with 1 while something waits.
    """
    from silo_agent.in_force import Held, confirm

    settings = load_silo_settings(config)
    held = Held.of_running(settings)
    if held is None:
        raise CommandFailed("no agent runs on these settings: it takes the files when it starts")
    changed, waits = held.looser(settings)
    waits += held.unread()
    if is_sure and changed:
        confirm(settings, frozenset(each.digest for each in changed.values()))
    if is_json:
        print_json({"changed": sorted(changed), "waits": waits, "confirmed": is_sure and bool(changed)})
    else:
        for each in waits:
            click.echo(each)
    if is_sure and changed:
        return click.echo("confirmed: the agent takes the files within a heartbeat", err=True)
    if waits:
        raise CommandFailed(f"{len(waits)} {'change waits' if len(waits) == 1 else 'changes wait'}")
    if not is_json:
        click.echo(
            f"the agent takes {', '.join(sorted(changed))}" if changed else "the agent holds these files"
        )
