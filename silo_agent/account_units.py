"""At the agent's start: every data set's records are read once, and compared with what accounts hold.

Never in a job, and nothing of it leaves this machine. Source: docs/privacy.md "The ledger".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat

import numpy as np

from chorale.observability.logs import get_logger
from chorale.runtime.audit import AuditLog
from crypto.errors import ConfigError
from silo_agent.data.private import is_held_out, unit_bytes
from silo_agent.data.records import records_of
from silo_agent.data.settings import DataSettings
from silo_agent.data.units import unit_name
from silo_agent.ledger.accounts import Accounts, Charged
from silo_agent.ledger.ledger import Ledger
from silo_agent.ledger.unit_marks import Admitted, SideMarks, UnitKey
from silo_agent.policy.policy import Policy
from silo_agent.settings import SiloSettings

log = get_logger("silo_agent.account_units")

PROGRESS_SECONDS = 2.0
ROWS = 4096  # hashed at once


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedData:
    """A data set as it is charged until the agent's next start.

    limits: the other accounts that its inputs are charged to, and the most epsilon of each. admitted: None:
    all records. closed: why none can be used.
    """

    charged: Charged
    limits: Mapping[str, float]
    admitted: Admitted | None
    closed: str | None = None


def open_accounts(
    settings: SiloSettings,
    policies: Mapping[str, Policy],
    *,
    ledger: Ledger,
    audit: AuditLog,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, OpenedData]:
    """Every data set of the settings, by name. Raises ConfigError for a unit.key that is lost or another."""
    accounts = ledger.accounts()
    key = UnitKey.of(settings.unit_key_path, is_new=not accounts.has_key)
    accounts.check_key(key)
    found: dict[str, SideMarks | None] = {}
    closed: dict[str, str] = {}
    for data in settings.data_sets:
        try:
            marks = _units(data, key, accounts, policies, clock)
        except ConfigError as error:
            log.error("data set is closed until the next start", data=data.name, error=str(error))
            closed[data.name] = str(error)
            accounts.bind(
                data.name, None, delta=policies[data.name].privacy.delta, configured=policies.keys()
            )
            continue
        found[data.name] = marks
    accounts.settle(found)
    accounts.tell(audit)
    charged = {name: accounts.charged(name) for name in policies}
    budgets = {name: policy.privacy.epsilon for name, policy in policies.items()}
    # of an account that no data set has now the highest one of those that are charged to it
    most = {
        other: max(budgets[name] for name in charged if other in charged[name].also)
        for each in charged.values()
        for other in each.also
    }
    most |= {each.account: budgets[name] for name, each in charged.items()}
    return {
        name: OpenedData(
            charged=each,
            limits={other: most[other] for other in each.also},
            admitted=None if found.get(name) is None else _admitted(accounts, key, each),
            closed=closed.get(name),
        )
        for name, each in charged.items()
    }


def admitted_records(settings: SiloSettings, data_set: str) -> Admitted | None:
    """As the agent that runs admits them, for a process of its own; None: all, where no agent keeps a ledger.

    Raises ConfigError.
    """
    if settings.data_set(data_set).source is not None or not settings.ledger_path.exists():
        return None
    ledger = Ledger(settings.ledger_path, is_read_only=True)
    try:
        accounts = ledger.accounts()
        key = UnitKey.of(settings.unit_key_path, is_new=False)
        return _admitted(accounts, key, accounts.charged(data_set))
    finally:
        ledger.close()


def new_units(
    data: DataSettings, key: UnitKey, accounts: Accounts, *, clock: Callable[[], float] = time.monotonic
) -> tuple[int, int]:
    """How many units of a data set no account holds, and how many some account holds.

    Raises ConfigError where they cannot be read, or not without a job.
    """
    records = records_of(data)
    if records is None:
        raise ConfigError(f"data set {data.name}: its records cannot be read without a job")
    if records.units is None:
        rows = chain(_with_progress(data.name, records.train, clock), records.holdout or ())
        marks = np.unique(key.rows(row for row in rows if row is not None))
    else:
        marks = np.unique(key.units(name for unit in records.units if (name := unit_name(unit))))
    known = accounts.marks(each.id for each in accounts.all()).all
    new = len(np.setdiff1d(marks, known, assume_unique=True))
    return new, len(marks) - new


def _admitted(accounts: Accounts, key: UnitKey, charged: Charged) -> Admitted:
    return Admitted(charged.account, key=key, marks=accounts.marks([charged.account, *charged.also]))


def _units(
    data: DataSettings,
    key: UnitKey,
    accounts: Accounts,
    policies: Mapping[str, Policy],
    clock: Callable[[], float],
) -> SideMarks | None:
    """The units that a data set holds, learned by its account; None where nobody can say them."""
    split_by = accounts.charged(data.name).account
    found = _read(data, key, accounts, split_by, clock)
    delta = policies[data.name].privacy.delta
    account = accounts.bind(data.name, found, delta=delta, configured=policies.keys())
    if found is not None and account != split_by:  # renamed: the sides go by the account's id
        found = _read(data, key, accounts, account, clock)
    if found is None:
        log.warning("no records can be read without a job: charged to every account", data=data.name)
    accounts.learn(account, found)
    return found


def _read(
    data: DataSettings, key: UnitKey, accounts: Accounts, account: str, clock: Callable[[], float]
) -> SideMarks | None:
    """Raises ConfigError where the data cannot be read."""
    records = records_of(data)
    if records is None:
        return None
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
            is_held = np.array([is_held_out(each, name=account, fraction=data.holdout) for each in by], bool)
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
