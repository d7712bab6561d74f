"""A job's rounds in a real MLflow server on loopback, read back by MLflow's own client."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

from chorale import Federation
from chorale.spec.state import state_to_bytes
from client.errors import PeerFailed
from crypto.errors import ConfigError
from tests.support.federation import LocalFederation
from tests.support.processes import wait_until

for needed in ("mlflow", "flask", "alembic", "graphene", "aiohttp"):
    pytest.importorskip(needed, reason="a server of MLflow needs it")

pytestmark = [pytest.mark.gate, pytest.mark.timeout(300)]
ROUNDS = 2
# it tells its authors of its use unless told not to, and starts workers for what is not used here
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


def _answers(address: str) -> bool:
    try:
        with urlopen(f"http://{address}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    host, port = address.split(":")
    store = ("--backend-store-uri", f"sqlite:///{folder}/runs.sqlite", "--artifacts-destination", str(folder))
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", port, "--workers", "1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *store], stdout=log, stderr=log, cwd=folder, env={**os.environ, **QUIET}
        )
    try:
        wait_until(
            lambda: _answers(address) or process.poll() is not None,
            "MLflow's server",
            seconds=150,
            detail=(folder / "log").read_text,
        )
        assert process.poll() is None, (folder / "log").read_text()
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def test_rounds_of_a_job_are_in_mlflow(server: str, tmp_path: Path) -> None:
    """What MLflow gives back is what the federation's own table says; exported twice, it is there once."""
    from mlflow import MlflowClient

    init = tmp_path / "initial.safetensors"
    init.write_bytes(state_to_bytes({"model/votes": np.zeros(4, np.float32)}))
    with LocalFederation(folder=tmp_path, silos=3) as running:
        running.start()
        federation = Federation(running.operator_file())
        job = federation.submit(running.job(rounds=ROUNDS), init=init)
        assert len(list(federation.watch(job))) == ROUNDS
        run_id = federation.to_mlflow(job, server)
        done = running.cli("job", "export", job.id, "--mlflow", server)
        assert done.returncode == 0, done.stderr
        table = federation.results(job)
    assert done.stdout.split()[-1] == run_id
    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("test")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name, run.data.tags["chorale.job"]) == (
        "FINISHED",
        "one-hot",
        job.id,
    )
    for name in ("accuracy", "loss", "silos", "seconds", "data_share", "upload_bytes"):
        history = client.get_metric_history(run_id, name)
        assert [(each.step, each.value) for each in history] == list(table[name].items()), name
    params = run.data.params
    assert (params["operator"], params["silos"], params["rounds"]) == ("ops", "3", str(ROUNDS))
    assert params["training.learning_rate"] == "0.1"
    assert "silo-0" not in repr((params, run.data.tags)), "names of silos stay here"


def test_a_server_that_is_not_there_is_told_without_the_login(tmp_path: Path) -> None:
    from chorale.v1.records_pb2 import JobSummary
    from client.history import JobHistory
    from client.mlflow_export import export

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    history = JobHistory(summary=JobSummary(job_digest=bytes(32), name="x"))
    with pytest.raises(PeerFailed, match=f"^MLflow at http://{address}: ") as failed:
        export(history, f"http://me:secret@{address}", experiment="test")
    assert "secret" not in str(failed.value)
    for uri in ("sqlite:///runs.db", "databricks", "/tmp/mlruns", "http://"):
        with pytest.raises(ConfigError, match="--mlflow: expected http://HOST:PORT"):
            export(history, uri, experiment="test")
