"""Claims of privacy, lower bounds, and faults to be noticed: `python -m research.privacy_audit`.

Every noised quantity in many runs, one whole job with canaries, one session read by colluders, and the same
with noise that is too thin.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from bench.options import Parser, whole
from bench.rows import Row
from bench.rows import table as table_of_rows
from research.privacy_audit import canaries, collusion
from research.privacy_audit.canaries import OneRun
from research.privacy_audit.quantities import RUNS, SILOS, Audit, audited_job, audits

PRESETS = ("fedavg", "spherefed", "fedcsd")  # their phases have all kinds of noised quantities
THIN_CANARIES = 0.05  # share of the deviation that one run has to notice


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 whether the targets hold or not; rows tell."""
    options = _options(arguments)
    found = measured(runs=options.runs)
    rule = audited_job(PRESETS[0]).rule(SILOS)
    faults = {
        "a tenth of the noise missing": 0.1,
        "noise counted twice": 0.5,
        f"the noise of {SILOS} silos counted, not of {rule.min_honest}": 1.0 - rule.min_honest / SILOS,
    }
    seams = {
        fault: measured(runs=options.runs, missing=missing, presets=PRESETS[:1])
        for fault, missing in faults.items()
    }
    _say("one run with canaries")
    one_run, thin = canaries.measure(), canaries.measure(noise_share=THIN_CANARIES)
    _say("one session with colluders")
    session = collusion.measure()
    rows = [*(_right_row(each) for each in found), _one_run_row(one_run)]
    rows += [_seam_row(fault, each) for fault, every in seams.items() for each in every]
    rows.append(_thin_row(thin))
    rows.append(
        Row(
            name=f"a sum less {session.colluders} of {session.silos} silos' words: noise multiplier",
            target=session.promised,
            value=session.measured,
            unit="",
            is_at_most=False,
        )
    )
    if options.json:
        details = {
            "quantities": list(map(asdict, found)),
            "seams": {fault: list(map(asdict, every)) for fault, every in seams.items()},
            "one_run": asdict(one_run),
            "one_run_thin": asdict(thin),
            "session": asdict(session),
        }
        print(json.dumps({**details, "rows": [row.to_json() for row in rows]}))
    else:
        print(f"{table(found)}\n\n{table_of_rows(rows)}")
    return 0


def measured(*, runs: int = RUNS, missing: float = 0.0, presets: Sequence[str] = PRESETS) -> list[Audit]:
    """Each quantity once, of the first method that has it."""
    found: dict[str, Audit] = {}
    for preset in presets:
        for each in audits(audited_job(preset), runs=runs, missing=missing, skipped=frozenset(found)):
            _say(
                f"{each.phase} {each.quantity}: claim {each.claim:.3f}, bounds {each.counted:.3f} "
                f"and {each.gaussian:.3f}"
            )
            found[each.quantity] = each
    return list(found.values())


def table(found: Sequence[Audit]) -> str:
    """Markdown."""
    lines = [
        "| phase | quantity | epsilon claimed | bound by counting | bound for Gaussian noise | apart |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.phase} | `{each.quantity}` | {each.claim:.3f} | {each.counted:.2f} | {each.gaussian:.3f} "
        f"| {1 - each.gaussian / each.claim:.1%} |"
        for each in found
    ]
    return "\n".join(lines)


def _right_row(found: Audit) -> Row:
    bound = max(found.counted, found.gaussian)
    return Row(name=f"{found.quantity}: bound / claim", target=1.0, value=bound / found.claim)


def _seam_row(fault: str, found: Audit) -> Row:
    bound = max(found.counted, found.gaussian)
    return Row(
        name=f"{fault}: {found.quantity}: bound / claim",
        target=1.0,
        value=bound / found.claim,
        is_at_most=False,
    )


def _one_run_row(found: OneRun) -> Row:
    return Row(name="one run with canaries: bound / claim", target=1.0, value=found.bound / found.claim)


def _thin_row(found: OneRun) -> Row:
    return Row(
        name=f"one run with canaries, {THIN_CANARIES:g} of the noise: bound / claim",
        target=1.0,
        value=found.bound / found.claim,
        is_at_most=False,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("privacy_audit", __doc__, package="research")
    parser.add_argument("--runs", type=whole(1 << 12, 1 << 24), default=RUNS, help="of each world")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
