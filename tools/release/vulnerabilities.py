"""What pip-audit knows of the locked packages; where it cannot ask, the report says that and no more."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

TITLE = "Known vulnerabilities of the packages that deploy/requirements-*.txt pin.\n\n"
NOT_CHECKED = "not checked"
PATIENCE_SECONDS = 120


def report(locks: Sequence[Path]) -> str:
    """Never "none found" unless pip-audit has asked for every package and said so."""
    program = shutil.which("pip-audit")
    if program is None:
        return f"{TITLE}{NOT_CHECKED}: pip-audit is not on PATH\n"
    # the lock is whole and has hashes: pip installs nothing for this
    fixed = ["--format", "json", "--progress-spinner", "off", "--disable-pip", "--require-hashes"]
    files = [part for lock in locks for part in ("--requirement", str(lock))]
    try:
        done = subprocess.run(
            [program, *fixed, *files], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        packages = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return f"{TITLE}{NOT_CHECKED}: source unreachable, no answer in {PATIENCE_SECONDS} seconds\n"
    except (ValueError, KeyError, TypeError):
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return f"{TITLE}{NOT_CHECKED}: source unreachable: {lines[-1][:200] if lines else 'no answer'}\n"
    found = [
        f"{each['name']} {each['version']}: {flaw['id']}, fixed in {' '.join(flaw['fix_versions']) or 'none'}"
        for each in packages
        for flaw in each.get("vulns", ())
    ]
    left_out = [
        f"{each['name']}: {NOT_CHECKED}: {each['skip_reason']}" for each in packages if "skip_reason" in each
    ]
    checked = len(packages) - len(left_out)
    head = f"{checked} packages checked, {len(found)} vulnerabilities known."
    if checked == 0:  # an index that answers, and knows nothing
        head = f"{NOT_CHECKED}: source unreachable, it knows none of {len(packages)} packages"
    return TITLE + "\n".join([head, *sorted(found), *sorted(left_out)]) + "\n"
