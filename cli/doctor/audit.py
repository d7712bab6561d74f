"""The audit log in a party's directory: whether its chain holds."""

from __future__ import annotations

from pathlib import Path

from chorale.runtime.audit import verify_file
from cli.doctor.findings import Findings


def check_audit(file: Path, findings: Findings) -> None:
    """Nothing is found where there is none yet."""
    if not file.exists():
        return
    if not _is_whole(file):
        message = f"{file}: its last line was cut short, as a crash leaves it"
        findings.warn("audit", message, fix="start this party: it removes the line, and an entry says so")
        return
    fix = f"keep a copy of {file}, and find out who wrote to it: what stands before that entry still holds"
    with findings.step("audit", fix=fix):
        findings.fine("audit", f"{file}: {verify_file(file)} entries, chain intact")


def _is_whole(file: Path) -> bool:
    with file.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(0, size - 1))
        return log.read() in (b"", b"\n")
