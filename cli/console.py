"""`chorale console`: the operators' pages, as a process of its own."""

from __future__ import annotations

from pathlib import Path

import click

from client.errors import require_extra


@click.command()
@click.option("--config", required=True, type=click.Path(path_type=Path), help="The console's settings file.")
def console(config: Path) -> None:
    """Serve pages of the federation and its jobs to operators, until stopped (SIGTERM or Ctrl-C).

    It asks the coordinator as one operator, and shows nobody more than that operator may see.
    """
    require_extra("console", "starlette", "uvicorn", "authlib", "httpx2", what="`chorale console`")
    from web.console.server import run
    from web.console.settings import load_console_settings

    run(load_console_settings(config))
