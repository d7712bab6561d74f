"""An institution's data sets as csv files, and the accounts that an agent's start opens for them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from chorale.job import Job
from chorale.privacy.releases import Release, releases_from_json
from chorale.runtime.audit import AuditLog
from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from chorale.spec.state import state_to_bytes
from chorale.transport.wire import PhaseKey
from cli.silo.recovery import at_most_released
from silo_agent.account_units import OpenedData, open_accounts
from silo_agent.disclosure.ledger.budget import Charge
from silo_agent.disclosure.ledger.ledger import Ledger, RecoveredCharge
from silo_agent.rounds.data_sets import DataSet
from silo_agent.settings import SiloSettings
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.unit_marks import Marks, UnitKey
from tests.support.sessions import NOW
from tests.support.settings import silo_settings
from tests.unit.data import loading
from tests.unit.silo_agent.privacy_book import MEMBERS, RECORDS, STATE, policy

SPEC = loading.make_job(
    2,
    (1,),
    columns=(ColumnSpec(name="age", mean=0.0, scale=1.0, fill=0.0),),
    label_column="sick",
    privacy={"records": {**RECORDS["records"]}, "statistics_noise_multiplier": 20.0},
)
PLAIN = loading.make_job(2, (1,), columns=SPEC.columns, label_column="sick")


def row(number: int) -> str:
    return f"{number},{number % 2}"


class AccountBook:
    """files: the rows of each data set, by name, as they are written at once. `start` is the agent's."""

    def __init__(self, folder: Path, **privacy: Any) -> None:
        self.folder = folder
        self.privacy = privacy
        self.privacies: dict[str, dict[str, Any]] = {}  # of single data sets
        self.fields: dict[str, dict[str, Any]] = {}
        self.opened: dict[str, OpenedData] = {}
        self.sets: dict[str, DataSet] = {}
        self.ledger: Ledger | None = None
        self.phases = 0

    def write(self, name: str, numbers: Iterable[int], **fields: Any) -> None:
        """A data set of these rows, in a file of its own; by default of an account of its own, too."""
        path = self.folder / f"{name.replace('#', '-')}.csv"
        path.write_text("\n".join(["age,sick", *map(row, numbers)]) + "\n")
        self.fields[name] = {"format": "csv", "path": path, "name": name, "account": name, **fields}

    def rename(self, before: str, after: str) -> None:
        self.fields[after] = {**self.fields.pop(before), "name": after}

    @property
    def settings(self) -> SiloSettings:
        return silo_settings(self.folder, data=list(self.fields.values()))

    def start(self, **clock: Callable[[], float]) -> None:
        self.stop()
        settings = self.settings
        settings.directory.mkdir(exist_ok=True)
        self.ledger = Ledger(settings.ledger_path, clock=lambda: NOW)
        policies = {
            each.name: policy(**self.privacy | self.privacies.get(each.name, {}))
            for each in settings.data_sets
        }
        with closing(AuditLog(settings.audit_path)) as audit:
            self.opened = open_accounts(settings, policies, ledger=self.ledger, audit=audit, **clock)
        self.sets = {
            name: DataSet.of(
                self.ledger,
                name=name,
                policy=policies[name],
                account=settings.data_set(name).account,
                budgets=each.budgets,
            )
            for name, each in self.opened.items()
        }
        for each in self.sets.values():
            each.budget.open_account()
        next(iter(self.sets.values())).budget.release_dead()

    def stop(self) -> None:
        if self.ledger is not None:
            self.ledger.close()
            self.ledger = None

    def snapshot(self) -> bytes:
        self.stop()
        copy = self.settings.ledger_path.read_bytes()
        self.start()
        return copy

    def put_back(self, copy: bytes, jobs: Iterable[Job], *, restarts: int) -> None:
        """A snapshot, and what `silo ledger --recover` makes of it: any data set may have run the jobs."""
        self.stop()
        for path in self.settings.directory.glob("ledger.sqlite*"):
            path.unlink()
        self.settings.ledger_path.write_bytes(copy)
        self.start()
        assert self.ledger is not None
        own = policy(**self.privacy)
        self.ledger.recover(
            [
                RecoveredCharge(
                    job_digest=job.digest,
                    spec=job.spec,
                    policy=own,
                    accounts=tuple(sorted({each.account for each in self.settings.data_sets})),
                    releases=at_most_released(
                        job.digest,
                        job.spec,
                        {str(job.spec.initial_state): state_to_bytes(STATE)},
                        restarts,
                        own.colluders(job.spec),
                    ),
                )
                for job in jobs
            ]
        )

    def reserve(self, name: str, job: Job, phase: str = "train", members: int = MEMBERS) -> Charge:
        self.phases += 1
        key = PhaseKey(job_digest=job.digest, round=self.phases, phase=phase, attempt=1)
        return self.sets[name].budget.reserve(job, key, STATE, members=members)

    def load(self, name: str, *, is_private: bool = True) -> SiloData:
        """As the agent loads it for a job, from the file as it is now."""
        return self.load_for(SPEC if is_private else PLAIN, name)

    def load_for(self, spec: JobSpec, name: str) -> SiloData:
        return load_data(self.settings.data_set(name), spec, admitted=self.opened[name].admitted)

    def fixed(self) -> dict[str, bool]:
        """Of every account: whether its settings always divided its units in one way."""
        assert self.ledger is not None
        return {each.id: each.sides_are_fixed for each in self.ledger.accounts().all()}

    def spent(self, name: str) -> float:
        return self.sets[name].budget.spent()[0]

    def charges(self) -> dict[str, Counter[Release]]:
        """What was spent of each account, from the file's tables and no code of the ledger's."""
        with closing(sqlite3.connect(self.settings.ledger_path)) as connection:
            rows = connection.execute(
                "SELECT data_set, releases FROM releases JOIN costs ON digest = cost_digest"
                " WHERE status = 'spent'"
            ).fetchall()
        found: dict[str, Counter[Release]] = {}
        for account, text in rows:
            found.setdefault(account, Counter()).update(releases_from_json(text))
        return found

    def owner(self, number: int) -> str:
        """The one account that a row belongs to."""
        key = UnitKey.of(self.settings.unit_key_path, is_new=False)
        (mark,) = key.rows([row(number).replace(",", "\n").encode()]).tolist()
        with closing(sqlite3.connect(self.settings.ledger_path)) as connection:
            rows = connection.execute("SELECT account, marks FROM unit_marks").fetchall()
        owners = {account for account, marks in rows if mark in set(np.frombuffer(marks, "S16").tolist())}
        (owner,) = owners
        return str(owner)


def numbers(data: SiloData) -> tuple[list[int], list[int]]:
    """The rows in training and in the hold-out."""
    return tuple(sorted(int(x) for x in each.features[:, 0]) for each in (data.train, data.holdout))  # type: ignore[return-value]


def marks_of(book: AccountBook) -> Iterator[Marks]:
    with closing(sqlite3.connect(book.settings.ledger_path)) as connection:
        for (marks,) in connection.execute("SELECT marks FROM unit_marks"):
            yield np.frombuffer(marks, "S16")
