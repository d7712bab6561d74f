"""Whether the parts do what their papers say they do: `python -m research.accuracy.mechanism`.

The digits at one learning rate, seven arms, ten seeds. A run that ends is a line in OUT/mechanism.jsonl;
a killed command continues from there. With `--update` the page gets what has ended.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.options import Parser
from bench.report import figures
from research.accuracy.arms import ARMS
from research.accuracy.catalog import SUITES
from research.accuracy.federated import silos_of
from research.accuracy.mechanism.probes import SIDES, probed
from research.accuracy.page.evidence import FIGURES, PAGE
from research.accuracy.paired import ALPHA, Difference, paired
from research.accuracy.source import here
from research.accuracy.trials import Trial

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "bench" / "accuracy"
NAME = "mechanism"
RATE = 0.1
SEEDS = range(1, 11)
CUTS = ("2 shards", "Dirichlet 0.1")
ROUNDS = (1, 5, 15)
CSD_MU = 0.1  # at the published 0.001 FedCSD's loss hardly moves anything
POINTS = {
    ("fedavg", None),
    ("feddr_plus", 0.9),
    ("feddr_plus_no_fd", 0.9),
    ("fedcsd", CSD_MU),
    ("fedcsd_uniform", CSD_MU),
    ("feddw", 1.0),
    ("feddw_identity", 1.0),
}
Figures = Mapping[str, float]
Run = Mapping[int, Figures]  # by round
Runs = Mapping[tuple[str, str], Mapping[int, Run]]  # by setting and arm, then by seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is compared between a method and a reference. of: from a round's figures. rounds: in which both
    have all of their loss."""

    asked: str
    method: str
    reference: str
    of: Callable[[Figures], float]
    rounds: tuple[int, ...] = ROUNDS


def loss_of(name: str) -> Callable[[Figures], float]:
    """By how much a figure falls in local training: `alignment unobserved`."""
    figure, side = name.split()
    return lambda found: found[f"{figure}_before {side}"] - found[f"{figure}_after {side}"]


QUESTIONS = tuple(
    Question(
        asked=asked,
        method=method,
        reference=reference,
        of=of,
        # FedDW has no soft labels in round 1, and so no regularizer
        rounds=ROUNDS[1:] if method == "feddw" else ROUNDS,
    )
    for asked, method, references, of in (
        (
            "alignment lost on unobserved classes",
            "feddr_plus",
            ("feddr_plus_no_fd",),
            loss_of("alignment unobserved"),
        ),
        (
            "accuracy lost on unobserved classes",
            "feddr_plus",
            ("feddr_plus_no_fd",),
            loss_of("right unobserved"),
        ),
        (
            "drift on unobserved classes",
            "fedcsd",
            ("fedcsd_uniform", "fedavg"),
            lambda found: found["drift unobserved"],
        ),
        ("gap after training", "feddw", ("feddw_identity", "fedavg"), lambda found: found["gap after"]),
    )
    for reference in references
)


def trials() -> list[Trial]:
    """Of the digits suite, at one rate."""
    suite = SUITES["digits"]
    return [
        trial
        for flag in (True, False)
        for trial in suite.at_common_rates(is_published=flag)
        if trial.seed in SEEDS
        and trial.setting in CUTS
        and trial.learning_rate == RATE
        and (trial.arm, trial.strength) in POINTS
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: every run has ended, or the page is written."""
    parser = Parser(NAME, __doc__, package="research.accuracy")
    parser.add_argument(
        "--update", action="store_true", help="train nothing; write the page of what has ended"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the finished runs")
    options = parser.parse_args(arguments)
    path = options.out / f"{NAME}.jsonl"
    if options.update:
        update(lines_of(path), root=ROOT)
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    ended = {_key(line) for line in lines_of(path)}
    with path.open("a") as file:
        for trial in trials():
            line: dict[str, Any] = {"setting": trial.setting, "arm": trial.arm, "seed": trial.seed}
            if _key(line) in ended:
                continue
            found = probed(trial, silos_of(trial, None), rounds=ROUNDS)
            line |= {"rounds": [asdict(one) for one in found], "source": here()}
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(trial.setting, trial.arm, trial.seed, file=sys.stderr, flush=True)
    return 0


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A torn last line, of a process killed while it wrote, is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def runs_of(lines: Iterable[Mapping[str, Any]]) -> Runs:
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for line in lines:
        rounds = {one["round"]: one["figures"] for one in line["rounds"]}
        found.setdefault((line["setting"], line["arm"]), {})[line["seed"]] = rounds
    return found


def update(lines: Sequence[Mapping[str, Any]], *, root: Path) -> None:
    """Commit to it: figures, and their place on the page."""
    head = {
        "command": f"python -m research.accuracy.{NAME} --update",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": figures.machine(),
        "versions": figures.versions(),
    }
    path, page = root / FIGURES / f"{NAME}.jsonl", root / PAGE
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *lines)))
    page.write_text(figures.replaced(page.read_text(), NAME, page_text([head, *lines]), path=PAGE))


def page_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """From what is committed: the heading line, then the runs."""
    head, runs = lines[0], runs_of(lines[1:])
    sources = ", ".join(sorted({line["source"] for line in lines[1:]}))
    stood = (
        f"Written on {head['date']}: {head['machine']}. Commit and arithmetic of the runs: {sources}. "
        f"Command: `{head['command']}`."
    )
    titles = ", ".join(dict.fromkeys(ARMS[arm].title for _, arm in runs))
    first = (
        f"{titles}; learning rate {RATE:g}, the presets' strengths, "
        f"FedCSD and its control with mu {CSD_MU:g}; "
        f"{len(lines) - 1} runs, at most {len(SEEDS)} seeds. Means over the seeds in round {ROUNDS[-1]}, "
        "before -> after the silos' own training:"
    )
    return "\n\n".join((first, _table(runs), _note(runs), _sentences(runs), stood))


def _table(runs: Runs) -> str:
    head = ["cut", "method", *(f"{name}, {side}" for name in ("alignment", "accuracy") for side in SIDES)]
    head += ["drift, observed / unobserved", "gap"]
    lines = []
    for (setting, arm), by_seed in sorted(runs.items(), key=lambda one: CUTS.index(one[0][0])):
        last = [run[ROUNDS[-1]] for run in by_seed.values()]
        moved = [
            _moved(last, f"{name}_before {side}", f"{name}_after {side}")
            for name in ("alignment", "right")
            for side in SIDES
        ]
        drift = " / ".join(f"{_mean(last, f'drift {side}'):.2f}" for side in SIDES)
        drift = "cosines" if ARMS[arm].has_unit_features else drift  # small for any
        gap = f"{_mean(last, 'gap before'):.4f} -> {_mean(last, 'gap after'):.4f}"
        lines.append([setting, ARMS[arm].title, *moved, drift, gap])
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*rows, *("| " + " | ".join(line) + " |" for line in lines)])


def _note(runs: Runs) -> str:
    count = len(_asked(runs))
    share = 100 * (1 - ALPHA / max(count, 1))
    return (
        f"The method minus its reference, paired by seed, in rounds {', '.join(map(str, ROUNDS))}. {count} "
        f"comparisons decided together (Bonferroni): intervals are of {share:.2f} %."
    )


def _sentences(runs: Runs) -> str:
    """A line for each question and cut: the interval in each round, and on which side of zero it lies."""
    asked = _asked(runs)
    level = ALPHA / max(len(asked), 1)
    lines: dict[tuple[Question, str], list[str]] = {}
    for (question, setting, round), found in asked.items():
        interval = found.interval(level)
        side = "more" if interval.low > 0 else "less" if interval.high < 0 else "undecided"
        outcome = f"round {round} {side} ({interval.low:+.4f} to {interval.high:+.4f})"
        if found.error == found.mean == 0.0:
            outcome = f"round {round} no difference in any seed"
        lines.setdefault((question, setting), []).append(outcome)
    return "\n".join(
        f"- **{ARMS[one.method].title} against {ARMS[one.reference].title}**, {one.asked}, {setting}: "
        f"{', '.join(outcomes)}."
        for (one, setting), outcomes in lines.items()
    )


def _asked(runs: Runs) -> dict[tuple[Question, str, int], Difference]:
    """Of questions with three seeds or more on both sides."""
    found: dict[tuple[Question, str, int], Difference] = {}
    for one in QUESTIONS:
        for setting in CUTS:
            mine, theirs = runs.get((setting, one.method), {}), runs.get((setting, one.reference), {})
            seeds = sorted(mine.keys() & theirs.keys())
            for round in one.rounds if len(seeds) >= 3 else ():
                # paired speaks of points, a hundredth of the figure
                found[one, setting, round] = paired(
                    [one.of(mine[seed][round]) / 100 for seed in seeds],
                    [one.of(theirs[seed][round]) / 100 for seed in seeds],
                )
    return found


def _moved(found: Sequence[Figures], before: str, after: str) -> str:
    return f"{_mean(found, before):.2f} -> {_mean(found, after):.2f}"


def _mean(found: Sequence[Figures], name: str) -> float:
    return statistics.mean(one[name] for one in found)


def _key(line: Mapping[str, Any]) -> tuple[str, str, int]:
    return line["setting"], line["arm"], line["seed"]


if __name__ == "__main__":
    sys.exit(main())
