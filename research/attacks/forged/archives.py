"""What a reader says to forged archives of evidence and to true ones: `research.attacks forged-evidence`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from research.attacks.forged.forgeries import FORGED
from research.attacks.forged.scene import Scene
from research.attacks.forged.true_jobs import TRUE


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgedEvidence:
    """refusals: of forged archives by name; empty for one that was accepted. doubts: of true ones."""

    archives: int
    accepted: int
    true_archives: int
    true_accepted: int
    refusals: Mapping[str, str]
    doubts: Mapping[str, str]


def measure() -> ForgedEvidence:
    """Every archive is made and checked, each in a federation of its own."""
    with tempfile.TemporaryDirectory() as folder:
        forged = {
            name: make(Scene(Path(folder) / str(number))).check()
            for number, (name, (make, _)) in enumerate(FORGED.items())
        }
        true = {name: make(Scene(Path(folder) / name)).check() for name, make in TRUE.items()}
    return ForgedEvidence(
        archives=len(forged),
        accepted=sum(not reason for reason in forged.values()),
        true_archives=len(true),
        true_accepted=sum(not reason for reason in true.values()),
        refusals=forged,
        doubts={name: reason for name, reason in true.items() if reason},
    )
