"""A job's rounds in an MLflow tracking server: one run a job, one step a round.

What goes there: the job's settings, who asked, how many silos were in each sum, and the figures of the sums.
No name of a silo, no reason of a refusal and no model. It needs the extra `mlflow`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from chorale.spec.kinds import any_spec
from client.errors import PeerFailed, require_extra
from client.history import JobHistory
from client.results import results_of
from crypto.errors import ConfigError
from strategies.phases.arms import OF_ARM

if TYPE_CHECKING:
    from mlflow.entities import Metric

TAG = "chorale.job"  # by which a job's run is found again
MAX_PARAM_CHARACTERS = 500  # MLflow takes 6,000; the longest fields say nothing in a table
MAX_UNIX_SECONDS = 1 << 38  # MLflow keeps milliseconds in 64 bits
METRICS_A_CALL = 1000  # MLflow's own limit
NOT_IN_NAMES = re.compile(r"[^\w.\- /]", re.ASCII)
STATUS = {"done": "FINISHED", "cancelled": "KILLED", "stopped": "FINISHED", "failed": "FAILED"}


def check_uri(uri: str) -> None:
    """Raises ConfigError for a URI of another kind than http(s)://host."""
    address = urlsplit(uri)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"--mlflow: expected http://HOST:PORT or https://HOST:PORT, got {_shown(uri)}")


def export(history: JobHistory, uri: str, *, experiment: str) -> str:
    """Write a job's run, or what it has more by now, into an experiment, which is made if it is not there.

    uri: http(s)://host:port of the server; a login may stand in it or in MLflow's own variables. A second
    export of a job adds to its run. Returns the run's id. Raises ConfigError for another kind of URI and
    without the extra `mlflow`, PeerFailed where the server does not answer or does not take it.
    """
    check_uri(uri)
    require_extra("mlflow", "mlflow", what="the export to MLflow")
    # MLflow reports its use to its authors unless this is set, and tries a server for minutes
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        return _export(MlflowClient(tracking_uri=uri), history, experiment)
    except MlflowException as error:
        message = " ".join(str(error).replace(uri, _shown(uri)).split())
        raise PeerFailed(f"MLflow at {_shown(uri)}: {message[:300]}") from None


def _export(client: Any, history: JobHistory, experiment: str) -> str:
    summary, job = history.summary, history.summary.job_digest.hex()
    found = client.get_experiment_by_name(experiment)
    place = client.create_experiment(experiment) if found is None else found.experiment_id
    runs = client.search_runs([place], f"tags.`{TAG}` = '{job}'", max_results=1)
    started = summary.submitted_unix_seconds
    run = (
        runs[0]
        if runs
        else client.create_run(
            place, start_time=_milliseconds(started), run_name=summary.name, tags={TAG: job}
        )
    )
    for name, value in _params(history):
        client.log_param(run.info.run_id, name, value)
    metrics = list(_metrics(history, started))
    for start in range(0, len(metrics), METRICS_A_CALL):
        client.log_batch(run.info.run_id, metrics=metrics[start : start + METRICS_A_CALL])
    if summary.status in STATUS:
        seconds = sum(record.wall_seconds for record in history.records)
        ended = _milliseconds(started + seconds)
        client.set_terminated(run.info.run_id, STATUS[summary.status], end_time=ended)
    return str(run.info.run_id)


def _params(history: JobHistory) -> Iterator[tuple[str, str]]:
    """The fields of the signed job that were set, without the silos' names."""
    if history.signed is None:
        return
    yield "operator", history.signed.operator
    try:
        spec = any_spec(history.signed.spec_bytes, source="job")
    except ConfigError:  # not readable by this version
        return
    fields = spec.model_dump(mode="json", exclude_unset=True, by_alias=True)
    hidden = ("silos", "nonce", "initial_state")
    yield "silos", str(len(spec.silos))
    for name, value in fields.items():
        for path, leaf in _leaves(name, value):
            if name not in hidden:
                yield path, str(leaf)[:MAX_PARAM_CHARACTERS]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{path}.{NOT_IN_NAMES.sub('_', str(name))}", inner)
    elif value is not None:
        yield path, value


def _metrics(history: JobHistory, started: float) -> Iterator[Metric]:
    """By round; times are those at which its phases ended, so that a second export writes the same again."""
    from mlflow.entities import Metric

    results = results_of(history)
    figures, seconds = results.figures_by_round(), 0.0
    for each in results.rounds:
        seconds += each.wall_seconds
        metrics = {
            "silos": float(len(each.silos)),
            "data_share": each.data_share,
            "seconds": each.wall_seconds,
            "upload_bytes": float(each.upload_bytes),
            **figures[each.round],
        }
        at = _milliseconds(started + seconds)
        for name, value in metrics.items():
            if math.isfinite(value):
                yield Metric(NOT_IN_NAMES.sub("_", name.replace(OF_ARM, ".arm")), value, at, each.round)


def _milliseconds(unix_seconds: float) -> int:
    """0 for what is no time: the coordinator tells it."""
    return round(1000 * unix_seconds) if 0 <= unix_seconds < MAX_UNIX_SECONDS else 0


def _shown(uri: str) -> str:
    """Without a login."""
    return re.sub(r"//[^/]*@", "//", uri)
