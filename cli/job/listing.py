"""`chorale job list` and `chorale job silos`: what the coordinator knows now."""

from __future__ import annotations

import click

from cli.job.options import operator_options
from cli.output.facts import json_option, print_json
from client.errors import printable
from client.history import counted, silo_facts, state_in_words, summary_facts
from client.operations import connect
from client.settings import OperatorSettings

NO_DIGEST = "sha256:none"


@click.command("list")
@json_option
@operator_options
def list_jobs(settings: OperatorSettings, is_json: bool) -> None:
    """List the coordinator's jobs: what each waits for and at whom, or how it ended."""
    with connect(settings) as (operations, _):
        summaries = operations.jobs()
    if is_json:
        print_json({"jobs": [summary_facts(summary) for summary in summaries]})
        return
    if not summaries:
        click.echo("no job was submitted yet", err=True)
    for summary in summaries:
        is_waiting = summary.state.startswith("waiting")  # the state says it all
        note = "" if is_waiting else printable(summary.progress or summary.reason)
        parts = [state_in_words(summary), counted(summary), printable(summary.name), note]
        click.echo("  ".join([summary.job_digest.hex()[:12], *filter(None, parts)]))


@click.command("silos")
@json_option
@operator_options
def list_silos(settings: OperatorSettings, is_json: bool) -> None:
    """List the silos of the coordinator's roster, and which of them are connected.

    Compare version and certificates with `chorale authority show`: a coordinator could say anything. What a
    silo runs is what it says: that finds a forgotten upgrade, not a silo that lies.
    """
    with connect(settings) as (operations, _):
        reply = operations.silos()
    facts = silo_facts(reply)
    if is_json:
        print_json(facts)
        return
    own = facts["software"]
    click.echo(f"roster version {facts['roster_version']}, the coordinator runs {own}")
    width = max((len(silo.name) for silo in reply.silos), default=0)
    for row in facts["silos"]:
        runs = row["software"] if row["software"] == own else f"{row['software']}, not the coordinator's"
        state = f"connected, certificate until {row['expires']}, runs {runs}" if row["connected"] else "away"
        click.echo(f"{row['name']:<{width}}  {row['certificate'][:16]}  {state}")
    click.echo(
        "the digits after a name begin its certificate's SHA-256; `chorale authority show` prints the same",
        err=True,
    )
    if any(
        str(software).endswith(NO_DIGEST) for software in (own, *(row["software"] for row in facts["silos"]))
    ):
        click.echo(
            f"{NO_DIGEST}: that program runs from a folder, and not from an installed package that a digest "
            "could name",
            err=True,
        )
