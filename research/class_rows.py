"""What rules for class rows are worth: FedDW and FedCSD with the rows of no class below the default number of
holders, of groups of classes, under noise, and of every class. Source: docs/decisions/0037-few-silos.md.

    python -m research.class_rows --out rows.jsonl      # a line a run; a stopped one goes on
    python -m research.class_rows --out rows.jsonl --table
    python -m research.class_rows --out rows-4.jsonl --silos 4 --rules default "threshold R" identity \
        group all --cuts "5 shards" "Dirichlet 0.1" "Dirichlet 0.5"  # docs/decisions/0037-few-silos.md

Rules work on what the silos of a simulation gave, in place of the rule that they would follow themselves. The
digits, by default 10 silos, as `research.accuracy` cuts them.

C = classes, K = silos of a sum.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.options import ended
from chorale.results import RoundResult
from chorale.spec.job_spec import JobSpec
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.privacy_policy import Permission
from silo_agent.training.data.loading import load_partition
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.machine.seeding import derive_seed
from simulation.engine import Simulation
from simulation.silos import Answer
from strategies.base import PRESENCE, Array, FloatArray

CLASSES, ROUNDS, TAIL, SEEDS = 10, 15, 5, (1, 2, 3, 4, 5)
CUTS: Mapping[str, Mapping[str, Any]] = {
    "2 shards": {"kind": "shards", "shards_per_silo": 2},
    "5 shards": {"kind": "shards", "shards_per_silo": 5},
    "Dirichlet 0.1": {"kind": "dirichlet", "alpha": 0.1, "min_samples": 10},
    "Dirichlet 0.5": {"kind": "dirichlet", "alpha": 0.5, "min_samples": 10},
}
OF_TEN_SILOS = ("2 shards", "Dirichlet 0.1")
# of the tuned rates of docs/evidence.md, those at which the methods are best on these cuts
METHODS: Mapping[str, Mapping[str, Any]] = {
    "feddw": {"preset": "feddw", "options": {"mu": 10.0}},
    "fedcsd": {"preset": "fedcsd", "options": {"mu": 0.1}},
}
RATE = 0.3
EPSILON, DELTA = 8.0, 1e-5  # of noise in place of silence: of all rows of one silo, over the whole job
OPEN = Policy(federation="bench", class_statistics=Permission.ALLOW, min_class_holders=1, count_granularity=1)
Rule = Callable[["Rows", NDArray[np.bool_]], FloatArray]


class Rows:
    """One sum of rows by class. rows_KCC: each silo's means. counts_KC: its samples by class."""

    def __init__(self, rows_KCC: FloatArray, counts_KC: FloatArray, rng: np.random.Generator) -> None:
        self.rows_KCC, self.counts_KC, self.rng = rows_KCC, counts_KC, rng

    @property
    def means_CC(self) -> FloatArray:
        """Over all samples of a class. A class that nobody holds has a row of zeros."""
        sums_CC = np.einsum("kc,kcd->cd", self.counts_KC, self.rows_KCC)
        return np.asarray(sums_CC / np.maximum(self.counts_KC.sum(axis=0), 1)[:, None])


def least_epsilon_multiplier(rounds: int) -> float:
    """z of Gaussian noise under which `rounds` sums of sensitivity 1 cost EPSILON at DELTA, by zCDP: rho =
    rounds / (2 z^2), epsilon = rho + 2 sqrt(rho ln(1 / delta)).

    Source: Bun and Steinke 2016, "Concentrated Differential Privacy", propositions 1.3 and 1.6.
    """
    log_term = math.log(1.0 / DELTA)
    root = math.sqrt(log_term + EPSILON) - math.sqrt(log_term)
    return math.sqrt(rounds / 2.0) / root


def all_rows(rows: Rows, is_rare_C: NDArray[np.bool_]) -> FloatArray:
    return rows.means_CC


def silence(rows: Rows, is_rare_C: NDArray[np.bool_]) -> FloatArray:
    """The default: a rare class has no row."""
    return np.where(is_rare_C[:, None], 0.0, rows.means_CC)


def one_group(rows: Rows, is_rare_C: NDArray[np.bool_]) -> FloatArray:
    """All rare classes have the mean row of all their samples."""
    sums_CC = np.einsum("kc,kcd->cd", rows.counts_KC, rows.rows_KCC)
    group_C = sums_CC[is_rare_C].sum(axis=0) / max(rows.counts_KC[:, is_rare_C].sum(), 1.0)
    return np.where(is_rare_C[:, None], group_C, rows.means_CC)


def noise(rows: Rows, is_rare_C: NDArray[np.bool_]) -> FloatArray:
    """Each silo's rows of rare classes, clipped together to norm 1, under Gaussian noise in their sum.

    At the server what is below zero counts as zero and each row of FedDW is divided by its sum, as in a
    private job. The number of holders tells nothing new: presence was summed.
    """
    rare_KCC = rows.rows_KCC * is_rare_C[:, None]
    norms_K = np.linalg.norm(rare_KCC, axis=(1, 2))
    clipped_KCC = rare_KCC / np.maximum(norms_K, 1.0)[:, None, None]
    noised_CC = clipped_KCC.sum(axis=0) + rows.rng.normal(
        0.0, least_epsilon_multiplier(ROUNDS), (CLASSES, CLASSES)
    )
    return np.where(is_rare_C[:, None], noised_CC, rows.means_CC)


def identity(rows: Rows, is_rare_C: NDArray[np.bool_]) -> FloatArray:
    """A control that needs nothing of any silo: a rare class is like itself alone."""
    return np.where(is_rare_C[:, None], np.eye(CLASSES), rows.means_CC)


def uniform(rows: Rows, is_rare_C: NDArray[np.bool_]) -> FloatArray:
    """Another: a rare class is like all classes."""
    return np.where(is_rare_C[:, None], 1.0 / CLASSES, rows.means_CC)


# jobs that ask for more silos in each sum than the default, and how many may then drop out
DROPOUTS: Mapping[str, int] = {"threshold R - 1": 1, "threshold R": 0}
RULES: Mapping[str, Rule] = {
    "default": silence,
    "threshold R - 1": silence,
    "threshold R": silence,
    "identity": identity,
    "uniform": uniform,
    "group": one_group,
    "noise": noise,
    "all": all_rows,
}


class RuledSimulation(Simulation):
    """A simulation whose sums of class rows are as a rule gives them."""

    def __init__(self, *arguments: Any, rule: str, seed: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._rule = rule
        self._rng = np.random.default_rng(derive_seed("class-rows", rule, seed))
        self.shares: list[float] = []

    def _sums(self, request: Any, answers: Sequence[Answer]) -> Any:
        sums = dict(super()._sums(request, answers))
        here = [answer for answer in answers if not answer.refused]
        kind = next((name for name in ("soft_labels", "prototypes") if name in sums), None)
        if kind is None:
            return sums
        holders_C = request.context.state[PRESENCE]
        default = len(answers) - request.rule.threshold
        dropouts = min(default, DROPOUTS.get(self._rule, default))
        is_rare_C = holders_C < request.rule.colluders + 2 + dropouts  # JobSpec.min_class_holders
        given_KCC: FloatArray = np.array([each.values[kind] for each in here], np.float64)
        counts_KC = self._counts(here, given_KCC)
        if kind == "soft_labels":  # sums of answers
            means_KCC = given_KCC / np.maximum(counts_KC, 1)[:, :, None]
            rows = Rows(means_KCC, counts_KC, self._rng)
        else:  # one row a silo, whatever its samples
            rows = Rows(given_KCC, np.asarray(given_KCC.any(axis=2), np.float64), self._rng)
        found_CC = RULES[self._rule](rows, is_rare_C)
        self.shares.append(float(np.count_nonzero(found_CC.any(axis=1)) / CLASSES))
        return {**sums, **_as_sums(kind, found_CC, rows.counts_KC.sum(axis=0))}

    @staticmethod
    def _counts(here: list[Answer], given_KCC: FloatArray) -> FloatArray:
        if "class_counts" not in here[0].values:
            return np.ones(given_KCC.shape[:2])
        return np.array([each.values["class_counts"] for each in here], np.float64)


def _as_sums(kind: str, found_CC: FloatArray, counts_C: FloatArray) -> dict[str, Array]:
    """Sums that lead to these rows."""
    if kind == "prototypes":  # of which only directions are used
        return {"prototypes": found_CC}
    positive_CC = np.maximum(found_CC, 0.0)
    totals_C = positive_CC.sum(axis=1)
    counts_C = np.where(totals_C > 0, np.maximum(counts_C, 1), 0).astype(np.int64)
    rows_CC = positive_CC / np.maximum(totals_C, 1e-12)[:, None] * counts_C[:, None]
    return {"soft_labels": rows_CC, "class_counts": counts_C}


def spec_of(method: str, seed: int, silos: int) -> JobSpec:
    """The job of a method, whose every seed is this one."""
    return JobSpec.model_validate(
        {
            "name": "class-rows",
            "federation": "bench",
            "not_after": "2099-01-01T00:00:00Z",
            "silos": tuple(f"silo-{place}" for place in range(silos)),
            "rounds": ROUNDS,
            "strategy": METHODS[method],
            "model": {"name": "mlp", "hidden": [64], "seed": seed},
            "classes": CLASSES,
            "input_shape": [1, 8, 8],
            "training": {"learning_rate": RATE, "local_epochs": 3, "batch_size": 32},
            "seed": seed,
        }
    )


def run(method: str, cut: str, rule: str, seed: int, *, silos: int = 10) -> dict[str, Any]:
    """One line: accuracy after each round, and the mean share of classes that had a row in the sums."""
    spec = spec_of(method, seed, silos)
    partition = {**CUTS[cut], "silos": silos, "index": 0, "seed": seed}
    settings = DataSettings.model_validate({"format": "digits", "name": "digits", "partition": partition})
    data = dict(zip(spec.silos, load_partition(settings, spec), strict=True))
    simulation = RuledSimulation(spec, data, policy=OPEN, device="cpu", rule=rule, seed=seed)
    results: list[RoundResult] = list(simulation.run())
    assert not [each.reason for each in results if each.reason]
    accuracies = [*(each.accuracy for each in results[1:]), simulation.final_accuracy]
    return {
        "method": method,
        "cut": cut,
        "rule": rule,
        "seed": seed,
        "accuracy": [figure and figure.value for figure in accuracies],
        "share": float(np.mean(simulation.shares)),
    }


def table(lines: list[dict[str, Any]], *, planned: int) -> str:
    """Mean and standard error over the seeds of each rule that ran, and of its difference from the default.

    Of a run: the mean of its last TAIL rounds, because single rounds of such cuts go up and down.
    """
    rows = ["| method | cut | rule | rows sent | accuracy | against the default |", "|---" * 6 + "|"]
    for method in METHODS:
        for cut in CUTS:
            of = {
                rule: {
                    each["seed"]: each
                    for each in lines
                    if (each["method"], each["cut"], each["rule"]) == (method, cut, rule)
                }
                for rule in RULES
            }
            for rule, found in of.items():
                if not found:
                    continue
                values = [100 * _tail(each) for each in found.values()]
                both = [seed for seed in found if seed in of["default"]]
                against = [100 * (_tail(found[seed]) - _tail(of["default"][seed])) for seed in both]
                share = np.mean([each["share"] for each in found.values()])
                difference = "" if rule == "default" else _mean_and_error(against, sign="+")
                rows.append(
                    f"| {method} | {cut} | {rule} | {share:.2f} | {_mean_and_error(values)} | {difference} |"
                )
    if len(lines) < planned:
        rows += ["", f"Provisional: {len(lines)} of {planned} runs have ended."]
    return "\n".join(rows)


def _tail(line: Mapping[str, Any]) -> float:
    return float(np.mean(line["accuracy"][-TAIL:]))


def _mean_and_error(values: list[float], *, sign: str = "") -> str:
    """One value has no standard error."""
    if not values:
        return ""
    error = f" +- {np.std(values, ddof=1) / math.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.1f}{error}"


def main(given: Sequence[str] | None = None) -> int:
    """Run what the file has not, or print its table."""
    parser = argparse.ArgumentParser(
        prog="python -m research.class_rows",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON a run")
    parser.add_argument("--silos", type=int, default=10, help="of every run in the file (default: 10)")
    parser.add_argument("--cuts", nargs="+", choices=CUTS, default=OF_TEN_SILOS)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=[*RULES])
    parser.add_argument(
        "--table", action="store_true", help="print the table of what is there, and run nothing"
    )
    arguments = parser.parse_args(given)
    path: Path = arguments.out
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if arguments.table:
        per_seed = len(METHODS) * len(arguments.cuts) * len(arguments.rules)
        print(table(lines, planned=per_seed * len(SEEDS)))
        return 0
    done = {(each["method"], each["cut"], each["rule"], each["seed"]) for each in lines}
    for seed in SEEDS:
        for method in METHODS:
            for cut in arguments.cuts:
                for rule in arguments.rules:
                    if (method, cut, rule, seed) not in done:
                        with path.open("a") as file:
                            file.write(json.dumps(run(method, cut, rule, seed, silos=arguments.silos)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(ended(main))
