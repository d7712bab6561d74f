"""The group `chorale silo`: the institution's side. Every command reads the agent's own settings file, and is
imported when it is called."""

from __future__ import annotations

import click

from cli.startup.lazy import LazyGroup

ENTRIES = {
    "describe": "cli.silo.describe:describe",
    **{name: f"cli.silo.approval:{name}" for name in ("show", "approve", "reject")},
    "reload": "cli.silo.reload:reload_files",
    "page": "cli.silo.page:page",
    "ledger": "cli.silo.ledger:show_ledger",
    "personal": "cli.silo.personal:show_personal",
    "evidence": "cli.silo.evidence:write_evidence",
    **{name: f"cli.silo.agent:{name}" for name in ("csr", "run", "check", "policy")},
}


@click.group(cls=LazyGroup, entries=ENTRIES)
def silo() -> None:
    """Run and inspect an institution's agent."""
