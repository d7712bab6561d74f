"""A model's outputs as columns that a person reads, by the task that it was trained for.

N = inputs, C = classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import CalibrationLine
from crypto.errors import ConfigError
from strategies.tasks.regression import Regression

THRESHOLD = 0.5  # of a label's probability
PREDICTION = "prediction"

Columns = dict[str, list[object]]


def gives_scores(job: JobSpec) -> bool:
    """Whether outputs are cosines or other numbers that are no log-odds: of unit vectors beside fixed ones,
    without a factor that training chose."""
    recipe = job.method.recipe
    return recipe.features.is_unit and not recipe.features.is_projected


def kind_of(job: JobSpec, line: CalibrationLine | None = None) -> str:
    """What the answers are, in a word. line: that of the model's file, which makes cosines probabilities."""
    word = job.method.task.word
    if word == "classification" and line is None and gives_scores(job):
        return "score"
    return KINDS.get(word, "output")


def answers_of(outputs: Tensor, job: JobSpec, line: CalibrationLine | None = None) -> Columns:
    """Shapes: (N, *outputs). Raises ConfigError for a task whose answers are no columns."""
    word = job.method.task.word
    if word == "classification":
        return _classes(calibrated(outputs, line), job, kind_of(job, line))
    if word in ANSWERS:
        return ANSWERS[word](outputs.double(), job)
    if job.method.task.has_tokens:
        raise ConfigError(f"task {word}: its answers are texts; `chorale model export` gives the model")
    flat = outputs.double().flatten(1)
    return {f"output_{place}": flat[:, place].tolist() for place in range(flat.shape[1])}


def answer_facts(job: JobSpec, line: CalibrationLine | None = None) -> dict[str, Any]:
    """What outputs stand for, for who has neither the job nor this code: names of a row's answers, slope and
    intercept as of `CalibrationLine`, and the values that -1 and 1 are where they are numbers of a range."""
    task, names, ends = job.method.task, names_of_classes(job), None
    if isinstance(task, Regression):
        labels, ends = job.label_columns, [task.low, task.high]
        names = [f"{PREDICTION}_{name}" for name in labels] if len(labels) > 1 else [PREDICTION]
    kind = kind_of(job, line)
    return {
        "task": task.word,
        "kind": kind,
        "names": [*names],
        "range": ends,
        "slope": 1.0 if line is None else line.slope,
        "intercept": 0.0 if line is None else line.intercept,
    }


def names_of_classes(job: JobSpec) -> Sequence[str]:
    return job.class_names or [str(number) for number in range(job.classes)]


def mask_of(outputs: Tensor) -> Tensor:
    """The class of each pixel. Shapes: (C, *size) -> (*size) int64."""
    return outputs.argmax(dim=0)


def calibrated(outputs_NC: Tensor, line: CalibrationLine | None) -> Tensor:
    """Logits that the softmax makes probabilities of. Shapes: -> (N, C) float64."""
    logits_NC = outputs_NC.double()
    if line is not None:
        logits_NC = line.slope * logits_NC
        logits_NC[:, 1] += line.intercept
    return logits_NC


def _classes(logits_NC: Tensor, job: JobSpec, what: str) -> Columns:
    names = names_of_classes(job)
    values_NC = logits_NC if what == "score" else logits_NC.softmax(dim=1)
    chosen: list[object] = [names[place] for place in logits_NC.argmax(dim=1).tolist()]
    return {PREDICTION: chosen, **_by_name(what, names, values_NC)}


def _labels(logits_NK: Tensor, job: JobSpec) -> Columns:
    names, chances_NK = names_of_classes(job), logits_NK.sigmoid()
    chosen: list[object] = [
        "; ".join(name for name, holds in zip(names, each, strict=True) if holds)
        for each in (chances_NK > THRESHOLD).tolist()
    ]
    return {PREDICTION: chosen, **_by_name("probability", names, chances_NK)}


def _numbers(outputs: Tensor, job: JobSpec) -> Columns:
    """In the label's own units: an answer is -1 at the task's `low` and 1 at its `high`."""
    task = job.method.task
    assert isinstance(task, Regression)
    flat_NK = task.low + (outputs.flatten(1) + 1.0) / 2.0 * (task.high - task.low)
    labels = job.label_columns
    if flat_NK.shape[1] == 1:
        return {PREDICTION: flat_NK[:, 0].tolist()}
    names = labels if len(labels) == flat_NK.shape[1] else [str(place) for place in range(flat_NK.shape[1])]
    return _by_name(PREDICTION, names, flat_NK)


def _survival(hazards_NJ: Tensor, job: JobSpec) -> Columns:
    """The chance of being alive after each interval: of no event in it and those before."""
    alive_NJ = torch.nn.functional.logsigmoid(-hazards_NJ).cumsum(dim=1).exp()
    return _by_name("survival_after_interval", [str(place) for place in range(alive_NJ.shape[1])], alive_NJ)


def _pixels(logits: Tensor, job: JobSpec) -> Columns:
    names, masks = names_of_classes(job), logits.argmax(dim=1).flatten(1)
    counts_NC = torch.stack([(masks == place).sum(dim=1) for place in range(len(names))], dim=1)
    return _by_name("pixels", names, counts_NC)


def _by_name(what: str, names: Sequence[str], values_NC: Tensor) -> Columns:
    return {f"{what}_{name}": values_NC[:, place].tolist() for place, name in enumerate(names)}


KINDS = {
    "classification": "probability",
    "multi-label": "probability",
    "regression": "number",
    "survival": "probability",
    "segmentation": "mask",
}
ANSWERS: Mapping[str, Callable[[Tensor, JobSpec], Columns]] = {
    "multi-label": _labels,
    "regression": _numbers,
    "survival": _survival,
    "segmentation": _pixels,
}
