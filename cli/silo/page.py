"""`chorale silo page`: the institution's own page, on its own machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from cli.silo.settings import CONFIG, opened_ledger
from client.errors import require_extra
from silo_agent.settings import load_silo_settings


@click.command()
@CONFIG
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="An address of this machine alone.")
def page(config: Path, listen: str) -> None:
    """Serve a page of what was asked and sent, with budget, approve and reject, until stopped (Ctrl-C).

    It prints an address that logs in one browser, once. The page is for who may run commands here: it reads
    and writes the ledger as `silo show`, `approve` and `reject` do.
    """
    require_extra("console", "starlette", "uvicorn", what="`chorale silo page`")
    from cli.silo.screen import screen
    from web.silo_page.app import run

    run(
        partial(load_silo_settings, config),
        listen=listen,
        open_ledger=partial(opened_ledger, load_silo_settings(config)),
        screen=screen,
        say=click.echo,
    )
