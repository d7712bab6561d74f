"""What `chorale simulate` says: lines of progress for people, and the last line of stdout for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import click

from chorale.results import APPLIED, RoundResult, finite
from chorale.spec.job_spec import JobSpec
from chorale.spec.selection import KeepSpec
from chorale.spec.state import state_digest, state_to_bytes
from cli.simulate.progress import CLEAR
from client.history import personal_of, score_word
from client.row_figures import CALIBRATED, ROW_FIGURES
from simulation.engine import Simulation
from simulation.folder import SimulationFolder
from simulation.results import PREFIX, curve
from strategies.figure import figure_in
from strategies.phases.arms import live_arms
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL


class RowRule(StrEnum):
    """What says which class rows are sent, in a method that sums some."""

    DEFAULT = "default"
    POLICY = "policy"
    ALL = "all"


def row_rule_line(rule: RowRule, min_class_holders: int | None) -> str:
    """min_class_holders: of the policy; None: the job's default."""
    if rule is RowRule.ALL:
        return "class rows: all are sent, as by no federation's default policy (--all-class-rows)"
    if rule is RowRule.DEFAULT:
        return (
            "class rows: held back as by a federation's default policy, where few silos hold the class "
            "(--all-class-rows sends them)"
        )
    if min_class_holders is None:
        return (
            "class rows: held back where few silos hold the class, by the job's default, to which --policy "
            "leaves it (min_class_holders)"
        )
    by_policy = f"as --policy says (min_class_holders: {min_class_holders})"
    if min_class_holders == 1:
        return f"class rows: all are sent, {by_policy}"
    return f"class rows: held back where fewer than {min_class_holders} silos hold the class, {by_policy}"


def round_line(result: RoundResult, *, title: str, spec: JobSpec) -> str:
    """title: how far the job is. Each figure says which model it is of."""
    main = spec.method.task.main
    parts = [title, f"{len(result.silos)} silos, {result.wall_seconds:.2f} s"]
    parts += [_rows(result.figures[name], spec) for name in ROW_FIGURES if name in result.figures]
    if result.reason:
        parts.append(f"used up ({result.reason})")
    if measured := _measured(result.figures, main):
        over = ", drawn silos' hold-outs" if spec.draws_rounds else ""
        parts.append(f"model after round {result.round - 1}{over}: {measured}")
    on_test_set = result.figure(f"{PREFIX}{main}")
    if on_test_set is not None:
        parts.append(f"model after round {result.round}, test set: {main} {on_test_set.brief}")
    own = personal_of(result.figures)
    if own is not None:
        parts.append(f"personal models: {score_word(main)} {own}")
    if result.left_out:
        parts.append(f"without {', '.join(result.left_out)}")
    return "  ".join(parts)


def curve_line(simulation: Simulation, round: int) -> str:
    """The model after a round over all silos' hold-outs; the last one is tested by the closing evaluation."""
    figures, main = simulation.progress.evaluations[round], simulation.job.method.task.main
    kind = EVALUATE if simulation.progress.following is None else EVALUATE_ALL
    silos = f"{figures['silos']:.0f} silos"
    return f"{kind}  {silos}  model after round {round}, all silos' hold-outs: {_measured(figures, main)}"


def after(spec: JobSpec, ended: Sequence[str]) -> str:
    """Where a simulation stands after rounds that ended so: `round 3`, or `step 3` in a job of steps."""
    return f"round {len(ended)}" if spec.steps is None else f"step {ended.count(APPLIED)}"


@contextmanager
def said_if_interrupted(spec: JobSpec, folder: SimulationFolder | None) -> Iterator[None]:
    """Ctrl-C and SIGTERM: what is kept, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is None:
            message = "interrupted: nothing is kept without --out"
        elif ended := folder.ended():
            message = f"interrupted after {after(spec, ended)}: the same command goes on from there"
        else:
            message = "interrupted before a round had ended: the same command starts again"
        click.echo(f"{CLEAR if sys.stderr.isatty() else ''}{message}", err=True)
        raise


def last_line(simulation: Simulation, *, rows: RowRule | None, model: str | None) -> dict[str, Any]:
    """The document of the last line. model: where the model is written, if it is."""
    spec, progress = simulation.job.training, simulation.progress
    closing = {
        kind: {name: finite(value) for name, value in figures.items()}
        for kind, figures in simulation.closing.items()
    }
    own = personal_of({name: value for figures in closing.values() for name, value in figures.items()})
    told = {
        "final_accuracy": simulation.final_accuracy,
        "final_loss": simulation.final_loss,
        "final_figure": simulation.final_figure,
    }
    document: dict[str, Any] = {
        "closing": closing,
        **{name: figure and finite(figure.value) for name, figure in told.items()},
        "intervals": {name: figure and figure.to_json() for name, figure in told.items()},
        "main_figure": simulation.main_figure,
        "final_personal_accuracy": None if own is None else own.accuracy,
        "final_model_after_round": progress.measured.trained,
        "state_digest": simulation.state_digest,
        "model_after_round": simulation.model[0],
        "kept": _kept(simulation),
        "evaluations": curve(progress.evaluations),
        "stopped": simulation.stopped,
        "search": _searched(simulation) or None,
        "class_rows": rows,
        "unusual": list(spec.method.passed_over),
    }
    if progress.tables:
        document["tables"] = progress.tables
    return document if model is None else {**document, "model": model}


def closing_lines(simulation: Simulation) -> Iterator[str]:
    """How the job ended, and what stands in no round's line."""
    spec, main = simulation.job.training, simulation.job.method.task.main
    figures = {name: value for each in simulation.closing.values() for name, value in each.items()}
    if CALIBRATED in figures:
        yield f"calibrate  {_rows(figures[CALIBRATED], spec)}"
    if simulation.stopped:
        yield simulation.stopped
    if searched := _searched(simulation):
        yield searched
    if spec.keep is not None and simulation.progress.best is not None:
        yield from _kept_lines(simulation, spec.keep)
    if spec.privacy is not None and simulation.final_figure is not None:
        yield f"final {simulation.main_figure} {simulation.final_figure}"
    own = personal_of(figures)
    if own is not None:
        yield f"final personal models: {score_word(main)} {own}"


def _searched(simulation: Simulation) -> str:
    """Which arm of a search is left; "" where several are, and without one."""
    spec, arms = simulation.job.training, simulation.job.training.arms
    live = live_arms(simulation.state, len(arms)) if arms else []
    return spec.search.winner_in_words(live[0]) if spec.search is not None and len(live) == 1 else ""


def _kept(simulation: Simulation) -> dict[str, Any] | None:
    """The model of the best round, where the job hands it out, by the test that made it the best."""
    rule, best = simulation.job.training.keep, simulation.progress.best
    if rule is None or best is None:
        return None
    return {
        "after_round": best[0],
        "metric": rule.metric,
        "figures": {name: finite(value) for name, value in simulation.progress.best_figures.items()},
        "state_digest": state_digest(state_to_bytes(best[1])).hex(),
    }


def _kept_lines(simulation: Simulation, rule: KeepSpec) -> Iterator[str]:
    main, of_best = simulation.main_figure, simulation.progress.best_figures
    trained, (kept, _) = simulation.progress.measured.trained, simulation.model
    line = f"kept: the model after round {kept}"
    if rule.metric in of_best:
        line += f", {rule.metric} {figure_in(of_best, rule.metric)}, the {rule.best}"
    if main in of_best and main != rule.metric:
        line += f"; {main} {figure_in(of_best, main)}"
    yield line
    if kept != trained:
        last = _measured(simulation.closing[EVALUATE], main)
        yield f"the final figures are of the model after round {trained}: {last}"
    if simulation.job.training.test_part:
        yield "the final figures are of held-out records that no round tested on"


def _rows(classes: float, spec: JobSpec) -> str:
    return f"rows of {classes:.0f} of {spec.classes} classes"


def _measured(figures: Mapping[str, float], main: str) -> str:
    figure, loss = figure_in(figures, main), figure_in(figures, "loss")
    with_loss = "" if loss is None or main == "loss" else f", loss {loss.brief}"
    return "" if figure is None else f"{main} {figure}{with_loss}"
