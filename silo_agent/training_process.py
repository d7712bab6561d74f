"""What each training process of a silo runs: it has data of its own, and a share of every batch."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from chorale.observability import logs
from chorale.spec.job_spec import JobSpec
from silo_agent.account_units import admitted_records
from silo_agent.disclosure.policy.policy import load_policy
from silo_agent.settings import SiloSettings
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.processes import worker
from silo_agent.training.processes.exchange import SETTINGS


def main(folder: Path) -> None:
    """Until the agent ends, or an error. folder: the agent's, with its settings. Raises nothing: it exits."""
    settings = SiloSettings.model_validate_json((folder / SETTINGS).read_bytes())
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # of the agent's log level
    logs.configure(level=settings.log_level, silo=settings.name)

    def load(spec: JobSpec, name: str) -> SiloData:
        data_set = settings.data_set(name)
        is_private = spec.privacy is not None
        most = load_policy(settings.policy_of(data_set)).most_records if is_private else None
        return load_data(data_set, spec, admitted=admitted_records(settings, data_set, most=most))

    worker.work(folder, settings, load)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
