"""`chorale evidence`: checks an archive of evidence, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crypto.errors import EvidenceMismatch

if TYPE_CHECKING:
    from client.evidence.verify import Verified


@click.group()
def evidence() -> None:
    """Check the evidence of a job."""


@evidence.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--authority",
    type=click.Path(path_type=Path),
    help="Your own copy of the authority's certificate.  [default: the archive's, whose SHA-256 is printed]",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="The job's model, as `job fetch` wrote it: is it this one?",
)
@click.option("--json", "is_json", is_flag=True, help="The same as one JSON object.")
def verify(file: Path, authority: Path | None, model: Path | None, is_json: bool) -> None:
    """Check FILE, an archive of `job evidence`, without any network.

    Ends with 0 if all of it holds, and else with 5 and the first thing that does not fit. Nothing is taken on
    trust but the authority's certificate: without --authority compare the SHA-256 that is printed.
    """
    from chorale.runtime.files import read_limited
    from chorale.spec.model_file import MAX_MODEL_BYTES
    from chorale.transport.tls import load_authority
    from client.evidence.archive import MAX_BYTES
    from client.evidence.verify import verify_archive

    anchors = None if authority is None else load_authority(authority)
    weights = None if model is None else read_limited(model, MAX_MODEL_BYTES)
    try:
        verified = verify_archive(read_limited(file, MAX_BYTES), authority=anchors, model=weights)
    except EvidenceMismatch as mismatch:
        raise EvidenceMismatch(f"{file}: {mismatch}") from None
    click.echo(json.dumps(document(verified), indent=1) if is_json else "\n".join(lines(file, verified)))


def document(verified: Verified) -> dict[str, Any]:
    """What held, for programs."""
    return {
        "facts": dict(verified.facts),
        "authority_sha256": list(verified.authorities),
        "authority_is_given": verified.is_trusted,
        "model_is_compared": verified.has_model,
        "silos_with_a_statement": list(verified.silos),
        "least_signatures_on_a_state": verified.signers,
        "status_by_the_coordinator": verified.statement.status,
        "notes": list(verified.notes),
    }


def lines(file: Path, verified: Verified) -> list[str]:
    """What held, and on what it rests, for people."""
    from client.evidence.pages import epsilon_told
    from client.history import class_rows

    facts = verified.facts
    digests = ", ".join(verified.authorities)
    trust = "your own" if verified.is_trusted else "the archive's own: compare it with the one you were given"
    absent = sorted(set(facts["silos"]) - set(verified.silos))
    model = "compared with your file" if verified.has_model else "no file was compared: --model"
    summary = [
        f"{file}: all of it holds",
        f"job {facts['job'][:12]} {facts['name']} by {facts['operator']}, federation {facts['federation']}",
        f"authority {digests}",
        f"  {trust}",
        f"{facts['states_signed_by_silos']} states, each signed by {verified.signers} silos or more of "
        f"{facts['named_each_round']}, lead to model {facts['model_sha256'][:16]} ({model})",
        epsilon_told(facts),
        f"statements of silos: {', '.join(verified.silos) or 'none'}; missing: {', '.join(absent) or 'none'}",
        f"by the coordinator's word alone: {verified.statement.status}, figures, times, who was left out",
    ]
    rows = class_rows(verified.statement.phases)
    summary += [] if rows is None else [f"  {rows}"]
    return [*summary, *(f"note: {note}" for note in verified.notes)]
