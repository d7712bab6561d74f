"""What an archive of evidence proves of a job, in rows for a page."""

from __future__ import annotations

from markupsafe import Markup, escape

from client.evidence.verify import Verified
from crypto.errors import printable
from web.shared.templating import moment


def terms(held: Verified) -> list[tuple[str, Markup]]:
    """Not cut, however many silos a sentence names. Epsilon is what the signed job plans; what was spent is
    not in an archive without silos."""
    audit = held.statement.audit
    rows = [
        *held.facts.rows(),
        *held.facts.phase_rows(),
        (
            "Coordinator's audit log",
            f"{audit.entries} entries, {len(audit.lines)} of them about this job, which chain and agree "
            f"with the phases; the last entry has SHA-256 {audit.head}",
        ),
        ("Told by the coordinator", moment(held.statement.made.timestamp())),
        ("Under the authority", ", ".join(held.authorities)),
    ]
    return [(name, escape(printable(text))) for name, text in rows]
