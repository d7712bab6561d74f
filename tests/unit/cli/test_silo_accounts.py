"""What `chorale silo ledger` shows of accounts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from chorale.runtime.audit import AuditLog
from silo_agent.account_units import open_accounts
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import load_policy
from silo_agent.settings import load_silo_settings
from tests.unit.cli.conftest import Calls, Desk, Ended, Settings


def table(desk: Desk, name: str, numbers: range) -> Settings:
    path = desk.folder / f"{name}.csv"
    path.write_text("age,sick\n" + "".join(f"{number},1\n" for number in numbers))
    return {"format": "csv", "path": str(path), "name": name}


def start(config: Path) -> None:
    """What an agent does with its data when it starts."""
    settings = load_silo_settings(config)
    settings.directory.mkdir(exist_ok=True)
    policies = {each.name: load_policy(settings.policy_of(each)) for each in settings.data_sets}
    with closing(Ledger(settings.ledger_path)) as ledger, closing(AuditLog(settings.audit_path)) as audit:
        open_accounts(settings, policies, ledger=ledger, audit=audit)


def accounts_in(ended: Ended) -> list[str]:
    return [line.partition(" spent, ")[0] for line in ended.out.splitlines() if "jobs" not in line][1:]


def test_the_ledger_shows_each_account_with_the_data_sets_that_share_it(desk: Desk, chorale: Calls) -> None:
    wards, trial = table(desk, "wards", range(10)), table(desk, "trial", range(9, 20))
    config = desk.silo(data=[wards, trial])
    start(config)
    assert accounts_in(chorale("silo", "ledger", "--config", config)) == [
        "data sets wards, trial (account data): epsilon 0 of 10",
    ]
    config = desk.silo(data=[wards | {"name": "data", "account": "data"}, trial | {"account": "labs"}])
    start(config)
    assert accounts_in(chorale("silo", "ledger", "--config", config)) == [
        "data set data: epsilon 0 of 10",
        "data set trial (account labs): epsilon 0 of 10",
    ]
    config = desk.silo(data=[trial | {"account": "labs"}])
    start(config)
    assert accounts_in(chorale("silo", "ledger", "--config", config)) == [
        "data set trial (account labs): epsilon 0 of 10",
        "account data: epsilon 0 of 10",
    ]
