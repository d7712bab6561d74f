"""A job's history as rows and curves: what the page's table, its charts and rounds.json hold."""

from __future__ import annotations

import json

from chorale.spec.settings_file import parse_mapping
from client.history import (
    JobHistory,
    curves_facts,
    figure_by_round,
    personal_figures,
    phase_facts,
)
from crypto.errors import ConfigError
from strategies.phases.training import TRAIN
from web.shared.charts import Curve, charts
from web.shared.phases import Document
from web.shared.templating import size

NEWEST = 25  # phases on a job's own page; another page has more
MOST_ROWS = 2_000  # of that one; the downloads have all


def phases(history: JobHistory, *, newest: int | None = None) -> list[Document]:
    """Oldest first."""
    records = history.records if newest is None else history.records[-newest:]
    return [phase_facts(record, title=history.title(record)) for record in records]


def figures(history: JobHistory) -> list[tuple[str, list[Curve]]]:
    """Charts of the main figure and of loss, which have an axis each; none before a round was tested."""
    points = curves_facts(history)
    if not any(points.values()):
        return []
    names = dict.fromkeys((history.main, "loss"))
    return [(name, charts(points, name, silos=len(history.summary.silos))) for name in names]


def as_json(history: JobHistory) -> bytes:
    """rounds.json, oldest first."""
    summary = history.summary
    head = {"job": summary.job_digest.hex(), "name": summary.name, "status": summary.status}
    document = {**head, "main": history.main, "phases": phases(history)}
    return json.dumps(document, indent=1, allow_nan=False).encode()


def facts(history: JobHistory) -> list[tuple[str, str]]:
    """What a person looks for first, as words and figures."""
    trained = [record for record in history.of_kind(TRAIN) if record.result == "applied"]
    measured = [value for value in figure_by_round(history, history.main) if value is not None]
    closing, personal = history.closing(history.main), personal_figures(history)
    last = closing if closing is not None else (measured[-1] if measured else None)
    sent = sum(record.upload_bytes for record in history.records)
    pairs = [
        (
            f"{'Final' if closing is not None else 'Newest'} {history.main}",
            "" if last is None else str(last),
        ),
        ("Personal models", "" if personal is None else str(personal)),
        ("Sent by a silo so far", size(sent) if sent else ""),
        (
            "Silos in the newest sum",
            f"{len(trained[-1].cohort)} of {len(history.summary.silos)}" if trained else "",
        ),
        ("Times a silo was left out", str(sum(len(record.left_out) for record in history.records))),
        ("Model", size(history.summary.float32_bytes) if history.summary.float32_bytes else ""),
    ]
    return [(word, text) for word, text in pairs if text]


def terms(spec_bytes: bytes, history: JobHistory) -> list[tuple[str, str]]:
    """The signed job in words; no more than it says. Its values are the operator's text."""
    try:
        said = parse_mapping(spec_bytes, source="job")
    except ConfigError:
        return []
    privacy = said.get("privacy")
    summed = sorted({name for record in history.records for name in record.quantities})
    strategy = said.get("strategy")
    method = {"name": history.summary.strategy, **strategy} if isinstance(strategy, dict) else strategy
    entries = {
        "Signed by operator": history.summary.operator,
        "Name": _words(said.get("name")),
        "Method": _words(method),
        "Model": _words(said.get("model")),
        "Task": _words(said.get("task")),
        "Silos": _words(said.get("silos")),
        "Rounds": _words(said.get("rounds")),
        "Steps": _words(said.get("steps")),
        "Ends at the latest": _words(said.get("not_after")),
        "Noise": "none: sums go out exact" if not privacy else _words(privacy),
        "Epsilon spent": "each silo's own ledger counts it, and tells its own institution" if privacy else "",
        "Summed so far": ", ".join(summed),
    }
    return [(word, text) for word, text in entries.items() if text]


def is_private(spec_bytes: bytes) -> bool:
    """Whether the signed job asks for noise."""
    try:
        return bool(parse_mapping(spec_bytes, source="job").get("privacy"))
    except ConfigError:
        return False


def _words(value: object) -> str:
    """A value of the job, in one line: mappings as `name value`, nested ones in brackets. What a method or
    model is called stands there without a word before it."""
    if isinstance(value, dict):
        inner = (
            f"{'' if key == 'name' else f'{key} '}"
            f"{f'({_words(each)})' if isinstance(each, dict) else _words(each)}"
            for key, each in value.items()
            if each not in (None, {}, [])
        )
        return ", ".join(inner)
    if isinstance(value, list):
        return ", ".join(_words(each) for each in value)
    return "" if value is None else str(value)
