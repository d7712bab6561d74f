"""What the agent that runs on a directory says of itself, by its metrics on loopback."""

from __future__ import annotations

import http.client
import json
from datetime import datetime
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cli.doctor.credentials import CLOCK
from cli.doctor.findings import Findings

TIMEOUT_SECONDS = 5.0
SKEW_SECONDS = 60.0  # as the agent's own warning
SECOND_AGENT_SECONDS = 900.0  # one that was turned away comes back every few minutes


def ask_agent(directory: Path, findings: Findings, *, silo: str, now: datetime) -> bool:
    """How its clock stands; False where it says that it is not connected.

    Otherwise nobody dials beside it: that would end its own connection.
    """
    values = _metrics(directory)
    if values is None:
        findings.fine("process", "an agent runs on this directory, and tells no metrics (metrics_listen)")
        return True
    noticed = values.get("chorale_silo_two_agents_timestamp_seconds", 0.0)
    if now.timestamp() - noticed < SECOND_AGENT_SECONDS:
        findings.problem(
            "agents",
            f"two agents use the certificate of {silo}, says the coordinator",
            fix="stop the other one; where nobody started it, have the certificate revoked",
        )
    if values.get("chorale_silo_connected") != 1:
        fix = "read the reason below, or in the agent's log: it says why at each try to connect"
        findings.problem("process", "an agent runs on this directory, and is not connected", fix=fix)
        return False
    skew = values.get("chorale_silo_clock_skew_seconds", 0.0)
    if abs(skew) > SKEW_SECONDS:
        message = f"differs from the coordinator's by {skew:+.0f} seconds"
        findings.warn("clock", message, fix=CLOCK)
    version = values.get("chorale_silo_roster_version", 0)
    findings.fine("process", f"an agent runs here and is connected, with roster version {version:.0f}")
    return True


def _metrics(directory: Path) -> dict[str, float] | None:
    """Values without labels, by name; None where the agent tells none."""
    try:
        address = json.loads((directory / "endpoint.json").read_bytes())["metrics"]
        # not urllib, which would ask a proxy of the environment
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        families = list(text_string_to_metric_families(text))
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return None
    return {
        sample.name: sample.value for family in families for sample in family.samples if not sample.labels
    }
