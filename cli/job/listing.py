"""`chorale job list` and `chorale job silos`: what the coordinator knows now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from cli.job.options import operator_options
from cli.output.facts import json_option, print_json
from client.errors import printable
from client.history import counted, state_told, summary_facts
from client.operations import connect
from client.settings import OperatorSettings
from crypto.errors import RemoteProtocolError

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
    for summary in summaries:
        is_waiting = summary.state.startswith("waiting")  # the state says it all
        note = "" if is_waiting else printable(summary.progress or summary.reason)
        told = [state_told(summary), counted(summary), printable(summary.name), note]
        click.echo("  ".join([summary.job_digest.hex()[:12], *filter(None, told)]))


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
    own = _software(reply.software_version, reply.software_digest)
    rows: list[dict[str, Any]] = [
        {
            "name": silo.name,
            "connected": silo.connected,
            "certificate": silo.certificate_sha256.hex(),
            "expires": _date(silo.certificate_expires_unix_seconds) if silo.connected else None,
            "software": _software(silo.software_version, silo.software_digest) if silo.connected else None,
        }
        for silo in reply.silos
    ]
    if is_json:
        head = {"roster_version": reply.roster_version, "software": own}
        print_json({**head, "silos": rows})
        return
    click.echo(f"roster version {reply.roster_version}, the coordinator runs {own}")
    width = max((len(silo.name) for silo in reply.silos), default=0)
    for row in rows:
        runs = row["software"] if row["software"] == own else f"{row['software']}, not the coordinator's"
        state = f"connected, certificate until {row['expires']}, runs {runs}" if row["connected"] else "away"
        click.echo(f"{row['name']:<{width}}  {row['certificate'][:16]}  {state}")
    click.echo(
        "the digits after a name begin its certificate's SHA-256; `chorale authority show` prints the same",
        err=True,
    )
    if any(str(told).endswith(NO_DIGEST) for told in (own, *(row["software"] for row in rows))):
        click.echo(
            f"{NO_DIGEST}: that program runs from a folder, and not from an installed package that a digest "
            "could name",
            err=True,
        )


def _date(unix_seconds: float) -> str:
    """Raises RemoteProtocolError for what is no date."""
    try:
        return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        raise RemoteProtocolError(f"coordinator: expected a date, got {unix_seconds}") from None


def _software(version: str, digest: bytes) -> str:
    """What others wrote of themselves, as a part of a line."""
    word = version[:64] if version.isascii() and version.isprintable() else "?"
    return f"{word}, sha256:{digest.hex()[:64]}" if digest else f"{word}, {NO_DIGEST}"
