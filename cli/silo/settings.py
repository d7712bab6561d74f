"""What every command of `chorale silo` reads: the agent's own settings file, and its ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from client.errors import with_hint
from crypto.errors import ConfigError
from silo_agent.settings import SiloSettings

if TYPE_CHECKING:
    from silo_agent.disclosure.ledger.ledger import Ledger


CONFIG = click.option(
    "--config", required=True, type=click.Path(path_type=Path), help="The silo's settings file."
)


def opened_ledger(settings: SiloSettings) -> Ledger:
    """The ledger that the agent made. Raises ConfigError rather than make an empty one elsewhere."""
    from silo_agent.disclosure.ledger.ledger import Ledger

    if not settings.ledger_path.exists():
        missing = ConfigError(
            f"{settings.ledger_path}: no such ledger; the agent makes it when it first runs"
        )
        raise with_hint(
            missing, "paths are relative to the folder the agent is started in; call it from there"
        )
    return Ledger(settings.ledger_path)
