"""At the agent's start: every data set's records are read once, and compared with what accounts hold.

Never in a job, and nothing of it leaves this machine. Source: docs/privacy.md "The ledger".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, repeat

import numpy as np

from chorale.observability.logs import get_logger
from chorale.runtime.audit import AuditLog
from crypto.errors import ConfigError
from silo_agent.disclosure.ledger.accounts import Accounts
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import Policy, load_policy
from silo_agent.settings import SiloSettings
from silo_agent.training.data.base import Records
from silo_agent.training.data.own_data import check_named
from silo_agent.training.data.records import records_of
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.data.units import unit_name
from silo_agent.training.unit_marks import Admitted, SideMarks, UnitKey, unit_bytes

log = get_logger("silo_agent.account_units")

PROGRESS_SECONDS = 2.0
ROWS = 4096  # hashed at once


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedData:
    """A data set as it is charged until it is opened again. budgets: epsilon of every data set of its
    account, each of which holds. closed: why it cannot be used."""

    admitted: Admitted
    budgets: frozenset[float]
    closed: ConfigError | None = None


def open_accounts(
    settings: SiloSettings,
    policies: Mapping[str, Policy],
    *,
    ledger: Ledger,
    audit: AuditLog,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, OpenedData]:
    """Every data set of the settings, by name. Raises ConfigError for a unit.key that is lost or another, and
    where accounts cannot be kept apart."""
    accounts = ledger.accounts()
    key = UnitKey.of(settings.unit_key_path, is_new=not accounts.has_key)
    accounts.check_key(key)
    closed: dict[str, ConfigError] = {}
    for data in settings.data_sets:
        accounts.open(data.account, delta=policies[data.name].privacy.delta)
        try:
            _learn(data, key, accounts, clock)
        except ConfigError as error:
            log.error("data set is closed until it is opened again", data=data.name, error=str(error))
            closed[data.name] = error
    accounts.check_apart()
    accounts.tell(audit)
    return {
        data.name: OpenedData(
            admitted=_admitted(data, key, accounts),
            budgets=account_budgets(settings, data.account, policies),
            closed=closed.get(data.name),
        )
        for data in settings.data_sets
    }


def account_budgets(
    settings: SiloSettings, account: str, policies: Mapping[str, Policy] | None = None
) -> frozenset[float]:
    """Epsilon of every data set that shares an account. policies: None: of the files, as they are now.

    Raises ConfigError.
    """
    sharing = (each for each in settings.data_sets if each.account == account)
    return frozenset(
        (load_policy(settings.policy_of(each)) if policies is None else policies[each.name]).privacy.epsilon
        for each in sharing
    )


def admitted_records(settings: SiloSettings, data_set: DataSettings, *, most: int | None) -> Admitted | None:
    """As the agent that runs admits them, for a process of its own; None where no agent keeps a ledger.

    most: of the policy in force, for private jobs. Raises ConfigError.
    """
    if not settings.ledger_path.exists():
        return None
    ledger = Ledger(settings.ledger_path, is_read_only=True)
    try:
        key = UnitKey.of(settings.unit_key_path, is_new=False)
        return _admitted(data_set, key, ledger.accounts(), most=most)
    finally:
        ledger.close()


def _admitted(data: DataSettings, key: UnitKey, accounts: Accounts, *, most: int | None = None) -> Admitted:
    return Admitted(key, None if data.source is not None else accounts.marks(data.account), most=most)


def _learn(data: DataSettings, key: UnitKey, accounts: Accounts, clock: Callable[[], float]) -> None:
    """The units that a data set holds, for its account. Raises ConfigError where they cannot be read."""
    if data.source is None:  # else a job asks for it
        check_named(data)
    records = records_of(data)
    if records is None:
        log.warning("no records can be read without a job: its account is the only one", data=data.name)
        return accounts.learn(data.account, None, divided_by="job")
    divided_by = "test split"
    if records.holdout is None:
        unit = data.unit or ("record" if records.units is None else "unit")
        divided_by = f"{unit} {data.holdout!r}"
    found = _read(data, records, key, accounts, clock)
    accounts.learn(data.account, found, divided_by=divided_by)


def _read(
    data: DataSettings, records: Records, key: UnitKey, accounts: Accounts, clock: Callable[[], float]
) -> SideMarks:
    units = repeat(None) if records.units is None else records.units
    train, held_out = [SideMarks().train], [SideMarks().train]
    count, names = 0, set[str]()
    passed = zip(_with_progress(data.name, records.train, clock), units, strict=records.units is not None)
    while chunk := list(islice(passed, ROWS)):
        rows = [row for row, _ in chunk if row is not None]
        count += len(rows)
        by, marks = rows, [key.rows(rows)]
        if records.units is not None:
            named = [(row, name) for row, unit in chunk if row is not None and (name := unit_name(unit))]
            by = [unit_bytes(name) for _, name in named]
            names.update(name for _, name in named)
            marks = [key.rows(row for row, _ in named), key.units(name for _, name in named)]
        is_held = np.zeros(len(by), np.bool_)
        if records.holdout is None:
            is_held = key.held_out(by, data.holdout)
        train += [each[~is_held] for each in marks]
        held_out += [each[is_held] for each in marks]
    if records.holdout is not None:
        tested = _with_progress(data.name, records.holdout, clock)
        held = [row for row in tested if row is not None]
        count += len(held)
        held_out.append(key.rows(held))
    accounts.note_contents(
        data.name,
        records=count if records.count is None else records.count,
        units=None if records.units is None else len(names),
        columns=records.columns,
    )
    return SideMarks(train=np.unique(np.concatenate(train)), held_out=np.unique(np.concatenate(held_out)))


def _with_progress(
    name: str, records: Iterable[bytes | None], clock: Callable[[], float]
) -> Iterator[bytes | None]:
    """The same records; a line in the log every few seconds."""
    last_logged, count = clock(), 0
    for count, record in enumerate(records, start=1):
        yield record
        if count % ROWS == 0 and clock() - last_logged >= PROGRESS_SECONDS:
            last_logged = clock()
            log.info("comparing records with the ledger", data=name, records=count)
    log.info("records compared", data=name, records=count)
