"""What an archive of evidence proves of a job, in rows for a page."""

from __future__ import annotations

from typing import Any

from client.evidence.verify import Verified
from web.shared.pages import moment


def terms(held: Verified) -> list[tuple[str, str]]:
    """Epsilon is what the signed job plans; what was spent is not in an archive without silos."""
    facts, statement = held.facts, held.statement
    model = f"after round {facts['model_round']}, SHA-256 {facts['model_sha256']}"
    return [
        ("Signed by operator", str(facts["operator"])),
        ("Phases", f"{facts['phases_told']}, in order and without a gap"),
        (
            "States signed by silos",
            f"{facts['states_signed_by_silos']}, each by {held.signers} or more; it takes "
            f"{facts['signatures_each_state']}",
        ),
        ("Model", model),
        ("Epsilon planned", _epsilon(facts["epsilon"])),
        (
            "Coordinator's audit log",
            f"{statement.audit.entries} entries, {len(statement.audit.lines)} of them about this job, which "
            f"chain and agree with the phases; the last entry has SHA-256 {statement.audit.head}",
        ),
        ("Told by the coordinator", moment(statement.made.timestamp())),
        ("Under the authority", ", ".join(held.authorities)),
    ]


def _epsilon(planned: dict[str, Any] | None) -> str:
    if planned is None:
        return "none: sums go out exact, and nothing bounds what they tell"
    return f"{planned['planned']:.4g} for each {planned['for_each']}, at delta {planned['delta']:g}"
