"""Forged and true archives of evidence, and what a reader says to each: `research.attacks forged-evidence`.

Coordinator, operator and a third of the silos that the job names lie together. They hold their own keys,
every certificate and roster that there ever was, and what honest silos signed; not the authority's key, nor
one that an honest silo still uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.evidence.verify import verify_archive
from crypto.errors import EvidenceMismatch
from crypto.identity.certificates import SignedBody
from crypto.identity.roster import Roster
from research.attacks.forged.federation import Federation, Run

SILOS = tuple(f"clinic-{letter}" for letter in "abcdefghi")
COLLUDERS, HONEST = SILOS[:3], SILOS[3:]
LEAVES = SILOS[-1]
DRAWN = {"fraction": 0.4}  # 4 of 9 silos a round
KEEP = {"metric": "loss", "best": "lowest"}
RECORDS = {"clip_norm": 1.0, "noise_multiplier": 4.0, "sample_rate": 0.1, "noise": "sum"}
TWO_STEPS = {
    "steps": 2,
    "spare_steps": 1,
    "rounds": 3,
    "training": {"batch_size": 32, "learning_rate": 0.05},
    "privacy": {"delta": 1e-5, "records": RECORDS, "statistics_noise_multiplier": 40.0},
}
STOP = {"metric": "loss", "best": "lowest", "rounds": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An archive, and what a reader of it has: the authority's certificates, perhaps an earlier roster."""

    run: Run
    archive: bytes
    known: SignedBody | None = None

    def check(self) -> str:
        """Why it is refused; empty if it is accepted."""
        try:
            verify_archive(self.archive, authority=self.run.federation.anchors, roster=self.known)
        except EvidenceMismatch as mismatch:
            return str(mismatch)
        return ""


class Scene:
    """Nine silos, of which three lie. folder: for audit logs."""

    def __init__(self, folder: Path, *, silos: Sequence[str] = SILOS) -> None:
        self._folder = folder
        self.federation = Federation(silos)

    def run(self, **fields: Any) -> Run:
        self._folder.mkdir(parents=True, exist_ok=True)
        return Run(federation=self.federation, job=self.federation.job(**fields), folder=self._folder)

    def with_statistics(self, **fields: Any) -> Run:
        """A method that sums class presence at the opening, and prototypes before it trains."""
        return self.run(strategy={"preset": "fedcsd"}, **fields)

    def honest(self) -> Run:
        return self.run().whole(self.federation.publish())


def shown(run: Run, newest: Roster | None = None, *, known: Roster | None = None, **changed: object) -> Shown:
    before = None if known is None else known.signed
    return Shown(run=run, archive=run.archive(newest, **changed), known=before)
