"""docs/reference/parts.md: which part of a method may be in which private job, and why."""

from __future__ import annotations

from strategies.declared_parts import PARTS
from strategies.recipe import Part
from tools.reference.markdown import code, page, table

INTRODUCTION = """\
Each part of a method declares this (`strategies/parts/`). *Records*: a record-level job in which each silo
adds its own noise (`noise: silo`). *Shared*: one in which the silos share it (`noise: sum`). *Sums*: a
silo-level job."""


def parts_page() -> str:
    rows = [
        _row(field, part)
        for field, parts in PARTS.items()
        if field != "second_regularizer"  # the same as in the first place
        for part in parts
    ]
    return page(
        "Parts in private jobs",
        INTRODUCTION,
        table(["Part", "Value", "Records", "Shared", "Sums", "Meaning"], rows),
    )


def _row(field: str, part: Part) -> list[str]:
    stated = part.under_privacy
    if stated is None:
        return [field, code(part.word), "no", "no", "no", "not declared, so refused"]
    refusals = {"records": stated.records, "shared": stated.records or stated.shared, "sums": stated.sums}
    reasons = {"records": stated.records, "shared": stated.shared, "sums": stated.sums}
    refused = [f"{kind}: {reason}" for kind, reason in reasons.items() if reason]
    allowed = ["no" if refusal else "yes" for refusal in refusals.values()]
    return [field, code(part.word), *allowed, "; ".join(filter(None, [stated.why, *refused]))]
