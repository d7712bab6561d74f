"""Two institutions that differ by one record: same accounts, same sides of all others, same answers.

An answer that carries no noise is not charged, so it must not depend on a record.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import PolicyRefusal, Refusal
from silo_agent.training.phase_input import PhaseRequest, encoded, phase_values
from simulation.engine import unsigned_job
from strategies.base import TOTAL
from tests.unit.data import loading
from tests.unit.silo_agent.account_book import SPEC, AccountBook, numbers
from tests.unit.silo_agent.privacy_book import RECORDS, SUMS, policy, private_job

ODD = 39  # the record in which neighbors differ
Institution = Callable[[AccountBook, bool], None]
PAGE = Path(__file__).parents[3] / "docs" / "privacy-proofs.md"


def rows(*parts: Iterable[int], odd: bool) -> list[int]:
    return [row for part in parts for row in part if odd or row != ODD]


def in_two_accounts(book: AccountBook, is_there: bool) -> None:
    book.write("trial", rows(range(50, 60), [ODD], odd=is_there))


def in_one_account(book: AccountBook, is_there: bool) -> None:
    book.write("trial", rows(range(50, 60), [ODD], odd=is_there), account="wards")


def under_a_new_name(book: AccountBook, is_there: bool) -> None:
    del book.fields["wards"]
    book.write("trial", rows(range(100, 400), [ODD], odd=is_there), account="trial")


def in_the_last_account(book: AccountBook, is_there: bool) -> None:
    book.write("trial", rows([50], odd=True) if is_there else [])


def in_its_own_test_split(book: AccountBook, is_there: bool) -> None:
    parts = {"train": range(30, 45), "test": rows(range(60, 70), [ODD], odd=is_there)}
    arrays = {f"x_{name}": np.array(part, "f8")[:, None] for name, part in parts.items()}
    arrays |= {f"y_{name}": np.array([each % 2 for each in part]) for name, part in parts.items()}
    np.savez(book.folder / "trial.npz", **arrays)
    book.fields["trial"] = {"format": "npz", "path": book.folder / "trial.npz", "name": "trial"}
    book.fields["trial"]["account"] = "trial"


def moved_to_the_test_split(book: AccountBook, is_there: bool) -> None:
    in_its_own_test_split(book, False)
    book.start()
    in_its_own_test_split(book, is_there)


INSTITUTIONS = (
    in_two_accounts,
    in_one_account,
    under_a_new_name,
    in_the_last_account,
    in_its_own_test_split,
    moved_to_the_test_split,
)


def lived(folder: Path, institution: Institution, *, is_there: bool) -> tuple[Any, ...]:
    """What a ledger charges, the answers that an operator gets, and the sides of all other records."""
    book = AccountBook(folder, epsilon=4.0)
    book.write("wards", range(40))
    book.settings.directory.mkdir(parents=True)
    book.settings.unit_key_path.write_bytes(bytes(range(32)))  # one silo, with and without the record
    first, second = (private_job(folder, SUMS, nonce=nonce, rounds=9) for nonce in range(2))
    book.start()
    book.reserve("wards", first).spend()
    institution(book, is_there)
    book.start()
    answers = []
    for job in (first, second):
        for _ in range(9):
            try:
                book.reserve("trial", job).spend()
                answers.append("input")
            except PolicyRefusal as refusal:
                answers.append(refusal.code.value)
    sides = [set(side) - {ODD, 50} for name in book.fields for side in numbers(book.load(name))]
    book.stop()
    with closing(sqlite3.connect(book.settings.ledger_path)) as connection:
        queries = {
            "accounts": "SELECT * FROM accounts",
            "releases": "SELECT data_set, job_digest, round, phase, cost_digest, delta, status FROM releases",
            "plans": "SELECT account, job_digest, cost_digest, times, is_first, sides_were_fixed FROM plans",
        }
        charged = {name: connection.execute(query).fetchall() for name, query in queries.items()}
    return charged, answers, sides


@pytest.mark.parametrize("institution", INSTITUTIONS, ids=lambda each: each.__name__)
def test_charges_budget_refusals_and_sides_of_others_follow_from_no_record(
    tmp_path: Path, institution: Institution
) -> None:
    """Red before: `budget` or an input by one record that also lay in a spent data set, by a training record
    that also lay in the test split; 306 of 995 others changed sides under a new name."""
    without, with_it = (tmp_path / name for name in ("without", "with"))
    for folder in (without, with_it):
        folder.mkdir()
    found = [lived(folder, institution, is_there=folder is with_it) for folder in (without, with_it)]
    assert found[0] == found[1]
    assert {"input", "budget"} == set(found[0][1])  # both were tried


# what an operator's job makes of one odd record
LINES = {"text": "old,1", "not a number": "nan,1", "far": "1e300,0", "no label": "3,", "label beyond": "3,7"}
LINES |= {"nothing": "", "a cell too few": "3", "one more": "3,1", "quotes": '"3,1'}
STRATEGIES: dict[str, dict[str, Any]] = {
    "records": {"privacy": RECORDS},
    "a teacher": {"privacy": RECORDS, "strategy": {"preset": "fedntd"}},
    "sums": {"privacy": SUMS},
}


def answered(folder: Path, lines: list[str], job: dict[str, Any]) -> list[str]:
    """The answer to each phase of a private job."""
    from silo_agent.training.models.starting import initial_state
    from silo_agent.training.torch_objective import TorchObjective

    spec = loading.make_job(3, (1,), columns=SPEC.columns, label_column="sick", **job)
    state = initial_state(spec)
    signed, objective = unsigned_job(spec, state), TorchObjective(device="cpu")
    book = AccountBook(folder)
    book.write("wards", [])
    book.fields["wards"]["path"].write_text("\n".join(["age,sick", *lines, ""]))
    book.start()
    answers = []
    for phase in ("enrollment.0", "train", "evaluate.0"):
        key = PhaseKey(job_digest=signed.digest, round=1, phase=phase, attempt=1)
        request = PhaseRequest.of(signed, key, {**state, TOTAL: np.array(400)}, members=3)
        try:
            values = phase_values(
                request,
                silo="a",
                rules=policy(),
                load_data=lambda: book.load_for(spec, "wards"),
                objective=objective,
                is_cancelled=lambda: False,
                seed=1,
            )
            encoded(request, values)
            answers.append("input")
        except PolicyRefusal as refusal:
            answers.append(f"{refusal.code.value}: {refusal}")
    book.stop()
    return answers


@pytest.mark.parametrize("job", STRATEGIES.values(), ids=STRATEGIES)
def test_every_phase_of_a_private_job_is_answered_whatever_one_record_holds(
    tmp_path: Path, job: dict[str, Any]
) -> None:
    """Red before: a silo that lost its last record could not fill up a teacher's answers: `internal`."""
    pytest.importorskip("torch", reason="trains: needs the extra silo")
    for place, lines in enumerate([[], ["1,0"], *(["1,0", "2,1", line] for line in LINES.values())]):
        folder = tmp_path / str(place)
        folder.mkdir()
        assert answered(folder, lines, job) == ["input"] * 3, lines


# Where each code of a private job is decided. SETTINGS: before the data are opened, by what peers know, the
# ledger and the settings (`budget`: above). STRUCTURE: by the form of the data, which no record decides:
# above, and test_private_loading.py. PEERS: in a session, by what peers sent.
SETTINGS, STRUCTURE, PEERS = "settings", "structure", "peers"
DECIDED_BY = {
    **dict.fromkeys(
        (
            "job-invalid",
            "job-not-approved",
            "rejected",
            "policy",
            "budget",
            "ledger",
            "code",
            "roster",
            "not-named",
            "terms",
            "state",
            "later-state",
            "not-enrolled",
            "already-revealed",
            "overlapping-cohort",
            "state-used-up",
            "settings",
        ),
        SETTINGS,
    ),
    "data": STRUCTURE,
    "configuration": STRUCTURE,
    "internal": STRUCTURE,
    **dict.fromkeys(
        (
            "cohort-too-small",
            "left-out",
            "advert",
            "envelope",
            "signatures",
            "sum",
            "stage",
            "malformed",
        ),
        PEERS,
    ),
}


def table(columns: int) -> dict[str, str]:
    """The last cell of the page's table of so many columns, by each name in the first cell."""
    section = PAGE.read_text().partition("### Every message of a private job\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {
        name: row[-1].strip()
        for row in cells
        if len(row) == columns
        for name in re.findall("`(.+?)`", row[0])
    }


def test_the_page_says_of_every_message_and_code_what_it_depends_on() -> None:
    sent = {field.name for field in pb.SiloMessage.DESCRIPTOR.oneofs_by_name["kind"].fields}
    sent |= {f"upload.{each.name}" for each in pb.UploadMessage.DESCRIPTOR.oneofs_by_name["kind"].fields}
    sent |= {f"download.{each.name}" for each in pb.DownloadRequest.DESCRIPTOR.fields}
    assert table(3).keys() == sent
    found = table(2)
    assert found.keys() == DECIDED_BY.keys() == {each.value for each in Refusal}
    for code, decided in DECIDED_BY.items():
        assert found[code].startswith(decided), code
