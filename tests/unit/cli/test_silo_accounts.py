"""What `chorale silo ledger` shows of accounts, and how a new one is opened for a data set that has one."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from chorale.runtime.audit import AuditLog
from silo_agent.account_units import open_accounts
from silo_agent.ledger.ledger import Ledger
from silo_agent.policy.policy import load_policy
from silo_agent.settings import load_silo_settings
from tests.unit.cli.conftest import Desk, Ended, Settings

Calls = Callable[..., Ended]


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
    return [line.partition(", ")[0] for line in ended.out.splitlines() if "jobs" not in line][1:]


def test_the_ledger_names_every_account_that_a_data_set_is_charged_to(desk: Desk, chorale: Calls) -> None:
    wards, trial = table(desk, "wards", range(10)), table(desk, "trial", range(9, 20))
    config = desk.silo(data=[wards, trial])
    start(config)
    assert accounts_in(chorale("silo", "ledger", "--config", config)) == [
        "data set wards: epsilon 0 of 10 spent",
        "data set trial: epsilon 0 of 10 spent",
        "  also charged to account wards",
    ]
    config = desk.silo(data=[wards | {"name": "stations"}])
    start(config)
    assert accounts_in(chorale("silo", "ledger", "--config", config)) == [
        "data set stations (account wards): epsilon 0 of 10 spent",
        "account trial: epsilon 0 of 10 spent",
    ]


def test_a_new_generation_is_opened_while_no_agent_runs(desk: Desk, chorale: Calls) -> None:
    config = desk.silo(data=[table(desk, "wards", range(10))])
    arguments = ("silo", "ledger", "--config", config, "--new-generation")
    refused = chorale(*arguments, "wards")
    assert (refused.code, "no such ledger; the agent makes it when it first runs" in refused.err) == (2, True)
    start(config)
    refused = chorale(*arguments, "trial")
    assert "--new-generation: expected one of wards, got trial" in refused.err
    with (desk.folder / "silo-0" / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = chorale(*arguments, "wards")
    assert "another agent is running" in refused.err
    # all records would have been left out from then on, without a word, and nothing undoes it
    refused = chorale(*arguments, "wards")
    assert refused.code == 2
    assert "data set wards has no new records: accounts hold all 10" in refused.err
    table(desk, "wards", range(4, 13))
    opened = chorale(*arguments, "wards")
    assert opened.code == 0
    assert "account wards#2 is open; from the agent's next start on" in opened.out
    assert "train on its 3 new records, and never again on the 6 that other accounts hold" in opened.out
    assert accounts_in(chorale("silo", "ledger", "--config", config)) == [
        "data set wards (account wards#2): epsilon 0 of 10 spent",
        "  a new generation: records that other accounts hold are left out",
        "account wards: epsilon 0 of 10 spent",
    ]


def test_a_new_generation_has_the_delta_that_an_administrator_gave_the_account_before(
    desk: Desk, chorale: Calls
) -> None:
    """It had the policy's, so that no policy file was right for both accounts."""
    config = desk.silo(data=[table(desk, "wards", range(10)) | {"unit": "age"}])
    start(config)
    assert chorale("silo", "ledger", "--config", config, "--delta", "wards", "1e-6").code == 0
    table(desk, "wards", range(12))
    opened = chorale("silo", "ledger", "--config", config, "--new-generation", "wards")
    assert "train on its 2 new units (age), and never again on the 10 that" in opened.out
    shown = [
        line for line in chorale("silo", "ledger", "--config", config).out.splitlines() if "delta" in line
    ]
    assert len(shown) == 2
    assert all("(delta 1e-06)" in line for line in shown)


def test_no_new_generation_of_records_that_nobody_can_say(desk: Desk, chorale: Calls) -> None:
    config = desk.silo(data={"format": "visits", "from": "hospital-data==1.0.0", "name": "wards"})
    refused = chorale("silo", "ledger", "--config", config, "--new-generation", "wards")
    assert "the records of data set wards cannot be read without a job" in refused.err
