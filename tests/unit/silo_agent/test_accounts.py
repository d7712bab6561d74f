"""Accounts know a data set by its units: a new name opens no new budget, and no record has two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from chorale.job import Job
from crypto.errors import ConfigError, PolicyRefusal
from silo_agent.account_units import admitted_records
from silo_agent.ledger.ledger import Ledger
from tests.support.old_files import restore
from tests.unit.silo_agent.account_book import AccountBook, marks_of, numbers
from tests.unit.silo_agent.privacy_book import SUMS, policy, private_job, refused


@pytest.fixture
def book(tmp_path: Path) -> Iterator[AccountBook]:
    opened = AccountBook(tmp_path, epsilon=4.0)
    yield opened
    opened.stop()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return private_job(tmp_path, SUMS)


def spend_all(book: AccountBook, name: str, job: Job) -> int:
    for inputs in range(1000):
        try:
            book.reserve(name, job).spend()
        except PolicyRefusal:
            return inputs
    raise AssertionError("no end of the budget")


def spent_inputs(book: AccountBook, name: str) -> int:
    return sum(each.inputs for each in book.sets[name].budget.balance().jobs)


def test_a_renamed_data_set_stays_its_account(book: AccountBook, job: Job) -> None:
    # each name showed epsilon 10 where one data set had lost 15.1
    book.write("wards", range(40))
    book.start()
    spend_all(book, "wards", job)
    spent, sides = book.spent("wards"), numbers(book.load("wards"))
    book.rename("wards", "stations")
    book.start()
    assert book.account("stations") == "wards"
    assert book.spent("stations") == spent
    refused("on data set wards", lambda: book.reserve("stations", job))
    assert numbers(book.load("stations")) == sides  # the hold-out goes by the account and not by the name
    assert book.fixed() == {"wards": True}
    book.write("theatres", range(100, 140))  # the control: records that no account holds
    book.start()
    assert book.opened["theatres"].charged.also == ()
    assert spend_all(book, "theatres", job) > 0
    assert book.audited() == [("wards", "wards", []), ("stations", "wards", []), ("theatres", "theatres", [])]


def test_a_name_that_comes_back_with_other_records_opens_an_account_of_its_own_id(book: AccountBook) -> None:
    book.write("wards", range(10))
    book.start()
    book.rename("wards", "stations")
    book.start()
    book.write("wards", range(100, 110))
    book.start()  # its name is bound to the first account, and stays so
    assert book.account("wards") == book.account("stations") == "wards"


def test_an_overlapping_data_set_is_charged_to_both_and_fits_both(book: AccountBook, job: Job) -> None:
    book.write("wards", range(40))
    book.write("trial", range(39, 60))
    book.start()
    assert book.opened["trial"].charged.also == ("wards",)
    assert book.opened["wards"].charged.also == ()
    assert spend_all(book, "wards", job) == spent_inputs(book, "wards")
    refused("on account wards, which holds records of data set trial", lambda: book.reserve("trial", job))
    book.write("trial", range(40, 60))  # without the record that both held
    book.start()
    book.reserve("trial", job).spend()
    assert spent_inputs(book, "trial") == 1
    book.write("trial", range(39, 60))
    book.start()
    refused("on account wards", lambda: book.reserve("trial", job))


def test_a_record_that_moves_on_is_shown_with_all_that_it_lost(book: AccountBook, job: Job) -> None:
    book.write("trial", range(5))
    book.start()
    book.reserve("trial", job).spend()
    book.write("wards", range(4, 40))
    del book.fields["trial"]
    book.fields["wards"] |= {"name": "wards"}
    book.write("other", range(50, 60))
    book.start()
    assert book.account("wards") == "trial"  # its only records with an account are of it: it was renamed
    assert book.spent("wards") > book.spent("other") == 0.0


def test_a_charge_that_is_given_back_is_given_back_in_every_account(book: AccountBook, job: Job) -> None:
    book.write("wards", range(10))
    book.write("trial", range(9, 20))
    book.start()
    book.reserve("trial", job).release()
    assert book.sets["wards"].budget.balance().held == 0.0
    book.reserve("trial", job)
    book.start()  # a crash
    assert [each.budget.balance().held for each in book.sets.values()] == [0.0, 0.0]


def test_records_that_appear_after_the_start_wait_for_the_next(book: AccountBook) -> None:
    book.write("wards", range(40))
    book.start()
    book.write("wards", range(80))
    for is_private in (True, False):
        train, held = numbers(book.load("wards", is_private=is_private))
        assert sorted(train + held) == list(range(40))
    book.start()
    train, held = numbers(book.load("wards"))
    assert sorted(train + held) == list(range(80))
    assert book.account("wards") == "wards"
    assert book.fixed() == {"wards": True}


def test_a_new_generation_trains_on_records_of_no_account_alone(book: AccountBook, job: Job) -> None:
    book.write("wards", range(40))
    book.write("trial", range(30, 50))
    book.start()
    spend_all(book, "wards", job)
    assert book.new_generation("wards") == "wards#2"
    book.write("wards", range(60))
    book.start()
    assert book.opened["wards"].charged.also == ()
    train, held = numbers(book.load("wards"))
    assert sorted(train + held) == list(range(50, 60))
    assert book.spent("wards") == 0.0
    book.reserve("wards", job).spend()
    assert spent_inputs(book, "wards") == 1
    own = admitted_records(book.settings, "wards")  # what a training process of its own finds
    assert own is not None
    assert own.account == "wards#2"
    book.rename("wards", "stations")
    book.start()
    assert book.account("stations") == "wards#2"
    train, held = numbers(book.load("stations"))
    assert sorted(train + held) == list(range(50, 60))


def test_a_new_generation_needs_accounts_that_say_their_units(book: AccountBook, job: Job) -> None:
    book.write("wards", range(10))
    book.start()
    with closing(Ledger(book.settings.ledger_path)) as ledger:
        ledger.budget(policy=book.sets["wards"].policy, data_set="of-old").open_account()
    with pytest.raises(ConfigError, match="the units of account of-old are not known"):
        book.new_generation("wards")
    book.start()
    assert book.opened["wards"].charged.also == ("of-old",)  # it may hold any of them


def test_accounts_of_a_release_before_learn_their_units_at_the_first_start(book: AccountBook) -> None:
    path = book.folder / "state" / "ledger.sqlite"
    path.parent.mkdir()
    first, second, *_ = names = restore("ledger", path)["data_sets"]
    with closing(Ledger(path)) as ledger:
        budgets = {name: ledger.budget(policy=policy(), data_set=name) for name in names}
        spent = {name: budget.balance().spent for name, budget in budgets.items()}
    book.write(first, range(10))
    book.start()
    assert book.account(first) == first
    assert book.spent(first) == pytest.approx(max(spent.values()))  # the others may hold any unit of it
    assert book.opened[first].charged.also == tuple(sorted({*names} - {first}))
    for place, name in enumerate(names):
        book.write(name, range(100 * place, 100 * place + 10))
    book.start()
    assert not any(each.charged.also for each in book.opened.values())
    assert book.fixed() == dict.fromkeys(names, False)  # on which sides its units were nobody wrote down
    book.rename(second, "another")
    book.start()
    assert book.account("another") == second
    assert book.spent("another") == pytest.approx(spent[second])


@pytest.mark.parametrize("change", [{"holdout": 0.5}, {"holdout": 0.1}])
def test_a_unit_that_changes_sides_is_noted_for_good(book: AccountBook, change: dict[str, float]) -> None:
    book.write("wards", range(200))
    book.start()
    book.write("wards", range(300), holdout=0.2)  # the control: it grows, and 0.2 is what it was
    book.start()
    assert book.fixed() == {"wards": True}
    book.write("wards", range(300), **change)
    book.start()
    assert book.fixed() == {"wards": False}
    book.write("wards", range(300))
    book.start()
    assert book.fixed() == {"wards": False}


def test_a_record_of_a_test_split_is_held_out_by_its_array(tmp_path: Path, book: AccountBook) -> None:
    def write(train: range, test: range) -> None:
        x = {"x_train": np.array(train, "f8")[:, None], "x_test": np.array(test, "f8")[:, None]}
        np.savez(tmp_path / "a.npz", y_train=np.zeros(len(train)), y_test=np.zeros(len(test), "i8"), **x)

    book.fields["wards"] = {"format": "npz", "path": tmp_path / "a.npz", "name": "wards"}
    write(range(10), range(10, 20))
    book.start()
    write(range(1, 11), range(11, 21))  # 10 went over, 0 and 20 are gone and new
    assert numbers(book.load("wards")) == (list(range(1, 10)), list(range(11, 20)))
    assert book.fixed() == {"wards": True}
    book.start()
    assert book.fixed() == {"wards": False}
    assert numbers(book.load("wards")) == (list(range(1, 11)), list(range(11, 21)))


def test_a_patient_of_two_tables_is_one_unit_whatever_their_columns_are(book: AccountBook) -> None:
    for name, people in (("wards", range(10)), ("trial", range(9, 12))):
        book.write(name, ())
        path = book.fields[name]["path"]
        path.write_text("age,sick,person\n" + "".join(f"{each},1,{each}\n" for each in people))
    visits = book.folder / "visits.csv"
    visits.write_text("sick,patient,age\n" + "".join(f"1,{each},3\n" for each in range(9, 20)))
    book.fields["visits"] = {"format": "csv", "path": visits, "name": "visits"}
    book.start()
    assert book.opened["visits"].charged.also == ()  # no row of it is a row of the others
    for name in book.fields:
        book.fields[name] |= {"unit": "patient" if name == "visits" else "person"}
    book.start()
    assert book.opened["trial"].charged.also == ("wards",)
    assert book.opened["visits"].charged.also == ("trial", "wards")
    with visits.open("a") as file:
        file.write("0,19,4\n0,20,1\n")  # a known patient's new visit waits, as a new patient does
    train, held = book.load("visits", is_private=True).train, book.load("visits").holdout
    assert len(train) + len(held) == 11
    book.start()
    assert len(book.load("visits").train) + len(book.load("visits").holdout) == 13


def test_data_that_cannot_be_read_close_the_data_set_and_no_other(book: AccountBook, job: Job) -> None:
    book.write("wards", range(10))
    book.write("trial", range(20, 30))
    book.start()
    text = book.fields["trial"]["path"].read_text()
    book.fields["trial"]["path"].write_text("")
    book.start()
    assert "expected a header line" in str(book.opened["trial"].closed)
    assert book.opened["wards"].closed is None
    assert book.opened["wards"].charged.also == ()
    book.fields["trial"]["path"].write_text(text)
    book.start()
    assert book.opened["trial"].closed is None
    assert book.fixed() == {"wards": True, "trial": True}


def test_the_key_of_the_units_is_neither_lost_nor_another(book: AccountBook) -> None:
    book.write("wards", range(10))
    book.start()
    path = book.settings.unit_key_path
    assert path.stat().st_mode & 0o777 == 0o600
    key = path.read_bytes()
    path.unlink()
    with pytest.raises(ConfigError, match="without it no record can be compared with the ledger's accounts"):
        book.start()
    path.write_bytes(bytes(32))
    with pytest.raises(ConfigError, match="its accounts were made with another unit.key"):
        book.start()
    path.write_bytes(key)
    book.start()
    assert book.account("wards") == "wards"


def test_no_record_can_be_told_from_the_ledger_without_the_key(book: AccountBook, tmp_path: Path) -> None:
    book.write("wards", range(50))
    book.start()
    other = AccountBook(tmp_path / "other")
    other.folder.mkdir()
    other.write("wards", range(50))
    other.start()
    other.stop()
    own, theirs = (set(np.concatenate(list(marks_of(each))).tolist()) for each in (book, other))
    assert len(own) == len(theirs) == 50
    assert not own & theirs  # another silo's key marks the same records in another way


def test_a_long_comparison_tells_how_far_it_is(book: AccountBook, caplog: pytest.LogCaptureFixture) -> None:
    book.write("wards", range(3 * 4096))
    clock = iter(range(0, 1000, 3))
    with caplog.at_level("INFO"):
        book.start(clock=lambda: float(next(clock)))
    messages = [
        record.getMessage() for record in caplog.records if "comparing records" in record.getMessage()
    ]
    assert len(messages) == 3, messages
