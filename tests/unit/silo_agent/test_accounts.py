"""A data set's settings say its account, and its units are used for no other: a new name opens no new budget,
and no record has two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.job import Job
from crypto.errors import ConfigError, PolicyRefusal
from silo_agent.account_units import admitted_records
from tests.unit.silo_agent.account_book import AccountBook, marks_of, numbers
from tests.unit.silo_agent.privacy_book import SUMS, private_job, refused


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


def test_an_account_follows_from_the_settings_alone(book: AccountBook, job: Job) -> None:
    book.write("wards", range(40), account="data")
    book.start()
    spend_all(book, "wards", job)
    spent, sides = book.spent("wards"), numbers(book.load("wards"))
    book.rename("wards", "stations")
    book.write("theatres", range(100, 140), account="data")  # shares no record with it
    book.start()
    assert book.spent("stations") == book.spent("theatres") == spent
    for name in ("stations", "theatres"):
        refused("of account data", lambda name=name: book.reserve(name, job))
    assert numbers(book.load("stations")) == sides
    book.write("theatres", range(100, 140), account="theatres")  # what it began with is the first one's
    book.write("labs", range(200, 240))  # the control: records that no account holds, and its own account
    book.start()
    assert numbers(book.load("theatres")) == ([], [])
    assert spend_all(book, "theatres", job) == spend_all(book, "labs", job) > 0
    assert sum(map(len, numbers(book.load("labs")))) == 40


def test_a_record_of_two_accounts_is_used_by_the_first_alone(book: AccountBook, job: Job) -> None:
    # it was charged to both, and whether that was refused told whether there was such a record
    book.write("wards", range(40))
    book.write("trial", range(39, 60))
    book.start()
    spend_all(book, "wards", job)
    book.reserve("trial", job).spend()
    for is_private in (True, False):
        train, held = numbers(book.load("trial", is_private=is_private))
        assert sorted(train + held) == list(range(40, 60))
    own = admitted_records(
        book.settings, book.settings.data_set("trial"), most=1_000
    )  # what a training process of its own finds
    assert own is not None
    assert own.units(["40"]) == [None]  # a record is no unit
    book.write("wards", range(10))
    book.start()  # the record stays the first one's, wherever it is now
    assert 39 not in [*numbers(book.load("trial"))[0], *numbers(book.load("trial"))[1]]


def test_an_account_keeps_to_the_budget_of_every_data_set_that_shares_it(book: AccountBook, job: Job) -> None:
    book.privacies["trial"] = {"epsilon": 3.0}
    book.write("wards", range(40), account="data")
    book.write("trial", range(50, 60), account="data")
    book.start()
    spend_all(book, "wards", job)
    assert 1.5 < book.spent("wards") <= 3.0
    assert book.sets["wards"].budget.balance().budget == 3.0
    del book.fields["trial"]
    book.start()
    book.reserve("wards", job)


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
    assert book.fixed() == {"wards": True}


def test_records_that_are_not_known_leave_room_for_one_account(book: AccountBook) -> None:
    book.write("wards", range(10), account="data")
    book.fields["scans"] = {"format": "visits", "from": "hospital-data==1.0.0", "name": "scans"}
    book.start()
    assert book.fixed() == {"data": False}
    book.write("trial", range(20, 30))
    with pytest.raises(ConfigError, match="expected one account of all data sets .* got data beside trial"):
        book.start()


@pytest.mark.parametrize("change", [{"holdout": 0.5}, {"holdout": 0.1}, {"unit": "age"}])
def test_settings_that_divide_records_in_another_way_are_noted_for_good(
    book: AccountBook, change: dict[str, Any]
) -> None:
    book.write("wards", range(200), account="data")
    book.start()
    book.write("wards", range(300), holdout=0.2, account="data")  # the control: it grows, 0.2 is what it was
    book.start()
    assert book.fixed() == {"data": True}
    book.write("trial", range(900, 902), account="data", **change)  # of any data set, whatever it holds
    book.start()
    assert book.fixed() == {"data": False}
    del book.fields["trial"]
    book.start()
    assert book.fixed() == {"data": False}


def test_a_record_of_a_test_split_is_held_out_by_its_array(tmp_path: Path, book: AccountBook) -> None:
    def write(train: range, test: range) -> None:
        x = {"x_train": np.array(train, "f8")[:, None], "x_test": np.array(test, "f8")[:, None]}
        np.savez(tmp_path / "a.npz", y_train=np.zeros(len(train)), y_test=np.zeros(len(test), "i8"), **x)

    book.fields["wards"] = {"format": "npz", "path": tmp_path / "a.npz", "name": "wards"}
    write(range(10), range(10, 20))
    book.start()
    write(range(1, 11), range(11, 21))  # 10 went over, 0 and 20 are gone and new
    assert numbers(book.load("wards")) == (list(range(1, 10)), list(range(11, 20)))
    book.start()  # what went over stays what it was, whether it is 10 or all: no bit of the account follows
    assert book.fixed() == {"data": True}
    assert numbers(book.load("wards")) == (list(range(1, 10)), list(range(11, 21)))
    write(range(1, 11), range(5, 21))  # in both: it is for training
    book.start()
    assert numbers(book.load("wards")) == (list(range(1, 10)), list(range(10, 21)))


def test_a_patient_of_two_tables_is_one_unit_whatever_their_columns_are(book: AccountBook) -> None:
    for name, people in (("wards", range(10)), ("trial", range(9, 12))):
        book.write(name, ())
        path = book.fields[name]["path"]
        path.write_text("age,sick,person\n" + "".join(f"{each},1,{each}\n" for each in people))
    visits = book.folder / "visits.csv"
    visits.write_text("sick,patient,age\n" + "".join(f"1,{each},3\n" for each in range(9, 20)))
    book.fields["visits"] = {"format": "csv", "path": visits, "name": "visits", "account": "visits"}
    for name in book.fields:
        book.fields[name] |= {"unit": "patient" if name == "visits" else "person"}
    book.start()
    assert [len(book.load(name).train) + len(book.load(name).holdout) for name in book.fields] == [10, 2, 8]
    with visits.open("a") as file:
        file.write("0,19,4\n0,20,1\n")  # a known patient's new visit waits, as a new patient does
    assert len(book.load("visits").train) + len(book.load("visits").holdout) == 8
    book.start()
    assert len(book.load("visits").train) + len(book.load("visits").holdout) == 10


def test_data_that_cannot_be_read_close_the_data_set_and_no_other(book: AccountBook, job: Job) -> None:
    book.write("wards", range(10))
    book.write("trial", range(20, 30))
    book.start()
    text = book.fields["trial"]["path"].read_text()
    book.fields["trial"]["path"].write_text("")
    book.start()
    assert "expected a header line" in str(book.opened["trial"].closed)
    assert book.opened["wards"].closed is None
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
