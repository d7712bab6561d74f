"""`chorale evidence`: checks an archive of evidence, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.errors import SilosMissing
from crypto.errors import ConfigError, EvidenceMismatch

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
@click.option(
    "--roster",
    type=click.Path(path_type=Path),
    help="A roster that you knew before the job: no phase may stand under an older one.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="SILO",
    help="A silo of the job that you know was not on the roster of some phase; may be repeated. Without it "
    "such an archive ends with 6. It never lowers how many colluding silos a phase has to withstand.",
)
@click.option("--json", "is_json", is_flag=True, help="The same as one JSON object.")
def verify(
    file: Path,
    authority: Path | None,
    model: Path | None,
    roster: Path | None,
    without: tuple[str, ...],
    is_json: bool,
) -> None:
    """Check FILE, an archive of `job evidence`, without any network.

    Ends with 0 if all of it holds, with 5 and the first thing that does not fit, such as a phase that is
    unproved, and with 6 if a silo of the job was missing. Nothing is taken on trust but the authority's
    certificate: without --authority compare the SHA-256 that is printed.
    """
    from chorale.runtime.files import read_limited
    from chorale.spec.model_file import MAX_MODEL_BYTES
    from chorale.transport.tls import load_authority
    from client.evidence.archive import MAX_BYTES
    from client.evidence.verify import verify_archive
    from crypto.identity.roster import MAX_FILE_BYTES, roster_from_file_bytes

    anchors = None if authority is None else load_authority(authority)
    weights = None if model is None else read_limited(model, MAX_MODEL_BYTES)
    known = None if roster is None else roster_from_file_bytes(read_limited(roster, MAX_FILE_BYTES))
    data = read_limited(file, MAX_BYTES)
    try:
        verified = verify_archive(data, authority=anchors, model=weights, roster=known)
    except EvidenceMismatch as mismatch:
        raise EvidenceMismatch(f"{file}: {mismatch}") from None
    if unknown := sorted(set(without) - set(verified.facts.silos)):
        raise ConfigError(f"--without {unknown[0]}: the job names no such silo")
    click.echo(json.dumps(document(verified), indent=1) if is_json else "\n".join(lines(file, verified)))
    if unnamed := sorted(verified.facts.missing.keys() - set(without)):
        options = " ".join(f"--without {name}" for name in unnamed)
        raise SilosMissing(f"{file}: silos of the job are missing from rosters; if you know why: {options}")


def document(verified: Verified) -> dict[str, Any]:
    """What held, for programs."""
    from client.evidence.facts import document_of

    return {
        "facts": document_of(verified.facts),
        "authority_sha256": list(verified.authorities),
        "authority_is_given": verified.is_trusted,
        "model_is_compared": verified.has_model,
        "silos_with_a_statement": list(verified.silos),
        "status_by_the_coordinator": verified.statement.status,
        "notes": list(verified.notes),
    }


def lines(file: Path, verified: Verified) -> list[str]:
    """What held, and on what it rests, for people."""
    from client.row_figures import class_rows

    facts = verified.facts
    digests = ", ".join(verified.authorities)
    one = "it has" if len(verified.authorities) == 1 else "each of them has"
    trust = "your own" if verified.is_trusted else f"the archive's own: {one} to be one that you were given"
    absent = sorted(set(facts.silos) - set(verified.silos))
    model = "compared with your file" if verified.has_model else "no file was compared: --model"
    missing = f"missing: {', '.join(facts.missing)}; the rest of it holds"
    summary = [
        f"{file}: {missing if facts.missing else 'all of it holds'}; {facts.result}",
        *(f"{name}: {text}" for name, text in facts.rows()),
        *(f"  {name}: {text}" for name, text in facts.phase_rows()),
        f"Model file: {model}",
        f"Authority: {digests}, {trust}",
        f"Statements of silos: {', '.join(verified.silos) or 'none'}; missing: {', '.join(absent) or 'none'}",
        f"By the coordinator's word alone: {verified.statement.status}, figures, times, who was left out",
    ]
    rows = class_rows(verified.statement.phases)
    summary += [] if rows is None else [f"  {rows}"]
    return [*summary, *(f"Note: {note}" for note in verified.notes)]
