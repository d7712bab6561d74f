"""A training process as silo_agent.training_process runs it, whose second one never gets its data."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from os import environ
from pathlib import Path

from chorale.spec.job_spec import JobSpec
from silo_agent.settings import SiloSettings
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.processes import worker
from silo_agent.training.processes.exchange import SETTINGS

PATIENCE = timedelta(seconds=3)


def main(folder: Path) -> None:
    settings = SiloSettings.model_validate_json((folder / SETTINGS).read_bytes())

    def load(spec: JobSpec, name: str) -> SiloData:
        if environ["RANK"] == "1":
            threading.Event().wait()
        return load_data(settings.data_set(name), spec)

    worker.work(folder, settings, load, patience=PATIENCE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
