"""Which analyses a data set answers, and over which silos and records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from chorale.job import Job
from chorale.privacy.accountant import epsilon
from chorale.spec.analysis_spec import AnalysisSpec, first_digest
from chorale.transport.wire import PhaseKey
from cli.silo.recovery import at_most_released
from crypto.errors import PolicyRefusal, Refusal
from silo_agent.disclosure.ledger.ledger import RecoveredCharge
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.disclosure.policy.analysis_policy import AnalysisPolicy
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.local_storage.personal_models import PersonalModels
from silo_agent.metrics import SiloMetrics
from silo_agent.rounds.data_sets import DataSet, DataSets
from silo_agent.rounds.inputs.input_cache import InputCache
from silo_agent.training.analysis.table import DescribedTable
from silo_agent.training.phase_input import DataRefusal, PhaseRequest
from simulation.engine import unsigned_job
from strategies.analysis.method import COUNTS, FIRST_STATE, KINDS, VALUES
from strategies.base import TOTAL
from tests.support.agents import OneHot
from tests.support.described import AGE, SEX, analysis
from tests.unit.silo_agent.reveal_book import FIVE, FULL, NAMES, Book, refused

FIRST = {"round": 0, "phase": f"{COUNTS}.0"}


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    opened = Book(tmp_path)
    yield opened
    opened.ledger.close()


def analysis_in(book: Book, nonce: str = "4") -> Job:
    spec = analysis(AGE, SEX, group="sex", federation="test", silos=list(NAMES), nonce=nonce * 32)
    return recorded(book, spec)


def recorded(book: Book, spec: AnalysisSpec) -> Job:
    unsigned = unsigned_job(spec, FIRST_STATE)
    job = Job(spec=unsigned.spec, signed=unsigned.signed, operator="olga")
    book.ledger.record_job(job, is_approved=True)
    return job


def test_values_are_summed_over_the_silos_of_the_counts(book: Book) -> None:
    job = analysis_in(book)
    book.reveal(FIVE, job_digest=job.digest, **FIRST)
    book.reopen()
    for silos in (FULL, FIVE[:4]):
        refused(
            Refusal.OVERLAPPING_COHORT,
            "over other silos",
            lambda silos=silos: book.sign(silos, job_digest=job.digest, round=0, phase=f"{VALUES}.0"),
        )
    book.reveal(FIVE, job_digest=job.digest, round=0, phase=f"{VALUES}.0", attempt=2)


def test_a_second_analysis_is_refused_also_where_the_first_was_only_signed(book: Book) -> None:
    first, second = analysis_in(book), analysis_in(book, "5")
    book.reveals.check_attempt(book.terms(job_digest=second.digest, **FIRST))  # both may begin
    book.sign(FULL, job_digest=first.digest, **FIRST)
    terms = book.terms(job_digest=second.digest, **FIRST)
    refused(Refusal.POLICY, "at most 1", lambda: book.reveals.check_attempt(terms))
    refused(Refusal.POLICY, "at most 1", lambda: book.sign(FULL, job_digest=second.digest, **FIRST))
    book.sign(FULL, job_digest=second.digest, **FIRST, reveals=book.reveals_of("other-data"))


MONTHS = {"name": "months", "edges": [0, 6, 12]}
STATE = {"name": "state", "categories": ["alive", "dead"]}
OF_DEATH = {"survival": {"time": "months", "status": "state"}}


@pytest.mark.parametrize(
    ("columns", "fields", "is_cut_alike"),
    [
        ([AGE, MONTHS, STATE], {}, True),
        ([{**AGE, "show": ["counts"]}], {}, True),
        ([{**AGE, "edges": [30, 41, 50, 70]}], {}, False),
        ([{**AGE, "unit": "months"}], {}, False),
        ([STATE, {"name": "sex", "categories": ["men", "women"]}], {}, False),
        ([MONTHS, STATE], OF_DEATH, False),
    ],
    ids=["alike", "less-shown", "edges", "unit", "categories", "time"],
)
def test_a_column_is_cut_alike_in_all_analyses(
    book: Book, columns: list[dict[str, object]], fields: dict[str, object], is_cut_alike: bool
) -> None:
    book.policy = book.policy.model_copy(update={"analyses": AnalysisPolicy(most=2)})
    book.reopen()
    of = {"federation": "test", "silos": list(NAMES)}
    first = recorded(book, analysis(AGE, SEX, MONTHS, group="sex", nonce="4" * 32, **of))
    book.reveal(FIVE, job_digest=first.digest, **FIRST)
    second = recorded(book, analysis(*columns, **fields, nonce="5" * 32, **of))
    book.reopen()
    if is_cut_alike:
        book.reveals.check_analysis(second.digest)
        book.reveal(FIVE, job_digest=second.digest, **FIRST)
        return
    with pytest.raises(PolicyRefusal, match="cut alike in all analyses"):
        book.reveals.check_analysis(second.digest)
    refused(Refusal.POLICY, "cut alike", lambda: book.sign(FIVE, job_digest=second.digest, **FIRST))
    book.sign(FIVE, job_digest=second.digest, **FIRST, reveals=book.reveals_of("other-data"))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_columns_of_a_training_are_not_summed_over_nearly_the_silos_of_an_analysis(
    book: Book, kind: str
) -> None:
    """Both count the records of a category: over five silos and over six they differ by one silo's."""
    of_analysis = {"round": 0, "phase": f"{kind}.0", "job_digest": analysis_in(book).digest}
    moments = {"round": 0, "phase": "column-moments.0"}
    book.reveal(FIVE, **of_analysis)
    refused(Refusal.OVERLAPPING_COHORT, "nearly the same", lambda: book.sign(FULL, **moments))
    book.reveal(FIVE, **moments, attempt=2)
    book.reveal(FULL, round=1)  # of a model there may be


def test_an_analysis_is_not_summed_over_nearly_the_silos_of_columns_of_a_training(book: Book) -> None:
    job = analysis_in(book)
    book.reveal(FULL, round=0, phase="column-moments.0")
    refused(
        Refusal.OVERLAPPING_COHORT,
        "nearly the same",
        lambda: book.sign(FIVE, job_digest=job.digest, **FIRST),
    )
    book.reveal(FULL, job_digest=job.digest, **FIRST, attempt=2)


def test_an_analysis_is_recovered_as_often_as_the_ledger_is_put_back(book: Book) -> None:
    """The second time its note was there already, and the recovery ended in a crash."""
    job, later = analysis_in(book), analysis_in(book, "5")

    def recover(*accounts: str) -> None:
        charge = RecoveredCharge(
            job_digest=job.digest, spec=job.spec, policy=book.policy, accounts=accounts, releases=None
        )
        book.ledger.recover([charge])

    recover("data")
    recover("data")
    recover("other-data", "data")
    for data_set in ("data", "other-data"):
        reveals = book.reveals_of(data_set)
        refused(Refusal.POLICY, "at most 1", lambda reveals=reveals: reveals.check_analysis(later.digest))
    book.reveals_of("a third").check_analysis(later.digest)


def test_a_noised_analysis_that_may_have_run_is_charged_and_counts_as_none(book: Book) -> None:
    """Its plan, and once more for each start of the agent since; exact ones are counted beside it."""
    privacy = {"epsilon": 2.0, "statistics_noise_multiplier": 4.0}
    spec = analysis(AGE, SEX, group="sex", federation="test", silos=list(NAMES), privacy=privacy)
    job = unsigned_job(spec, FIRST_STATE)
    released = at_most_released(job.digest, job.spec, {}, 1, 1)
    assert released is not None
    assert len(released) == 2 * 4  # samples, cells, sums and squares
    charge = RecoveredCharge(
        job_digest=job.digest, spec=job.spec, policy=book.policy, accounts=("data",), releases=released
    )
    book.ledger.recover([charge])
    balance = book.ledger.budget(policy=book.policy, data_set="data").balance()
    assert balance.spent >= epsilon(released, balance.delta)  # without a plan beside it
    assert balance.unnoised == 0
    book.reveals_of("data").check_analysis(analysis_in(book).digest)


def table_of(records: int, *, seed: int = 0) -> DescribedTable:
    """Of AGE and SEX."""
    rng = np.random.default_rng(seed)
    parts_NC = np.stack([rng.integers(0, 3, records), rng.integers(0, 2, records)], axis=1)
    return DescribedTable(parts_NC=parts_NC, z_NK=rng.uniform(-1, 1, (records, 1)), name="data")


def inputs_over(book: Book, tables: list[DescribedTable]) -> InputCache:
    """Of a silo that has just started. tables: what it finds each time that it reads its data."""
    allowing = {"exact": "allow", "measurements": {"data": None}}
    policy = Policy.model_validate({"federation": "test", "analyses": allowing})
    data_set = DataSet.of(book.ledger, name="data", policy=policy, format="csv")
    data_set.budget.open_account()

    def no_data(*_: object) -> NoReturn:
        raise AssertionError("an analysis reads a table")

    return InputCache(
        silo="silo-0",
        data_sets=DataSets([data_set], ledger=book.ledger),
        metrics=SiloMetrics(),
        local=LocalStates(book.folder / "local"),
        personal=PersonalModels(book.folder / "personal", is_revealed=lambda key: False),
        load_data=no_data,
        load_table=lambda job, *_: tables.pop(0),
        load_objective=OneHot,
        tell_stage=lambda stage: None,
    )


async def test_the_sums_of_an_analysis_are_all_of_the_same_records(book: Book) -> None:
    """A coordinator asked for the counts again under the next number, as after a loss, once somebody had been
    withdrawn: the difference was that person."""
    job = analysis_in(book)
    state = {**FIRST_STATE, TOTAL: np.array(600)}

    async def asked(inputs: InputCache, phase: str) -> None:
        key = PhaseKey(job_digest=job.digest, round=0, phase=phase, attempt=1)
        request = PhaseRequest.of(job, key, state, members=6)
        prepared = await inputs.get(request, state_digest=first_digest())
        prepared.charge.release()
        inputs.drop_phase(key)

    whole = table_of(60)
    shuffled = np.random.default_rng(1).permutation(60)
    again = DescribedTable(parts_NC=whole.parts_NC[shuffled], z_NK=whole.z_NK[shuffled], name="data")
    fewer = DescribedTable(parts_NC=whole.parts_NC[1:], z_NK=whole.z_NK[1:], name="data")
    for tables, phases in (
        ([whole], [f"{COUNTS}.0", f"{COUNTS}.1"]),
        ([again], [f"{COUNTS}.2"]),  # a database in another order
    ):
        inputs = inputs_over(book, tables)
        for phase in phases:
            await asked(inputs, phase)
        inputs.close()
    inputs = inputs_over(book, [fewer, whole])
    with pytest.raises(DataRefusal, match="other records than the analysis counted first"):
        await asked(inputs, f"{COUNTS}.3")
    inputs.close()
    assert book.ledger.decision(job.digest) is Decision.SUSPENDED


@pytest.mark.parametrize("place", [0, 1])
def test_a_record_of_another_part_or_value_makes_other_records(place: int) -> None:
    table = table_of(60)
    parts_NC, z_NK = table.parts_NC.copy(), table.z_NK.copy()
    if place == 0:
        parts_NC[7, 1] ^= 1
    else:
        z_NK[7, 0] = np.nan
    assert DescribedTable(parts_NC=parts_NC, z_NK=z_NK, name="data").digest != table.digest
    assert DescribedTable(parts_NC=table.parts_NC.copy(), z_NK=z_NK * 0, name="x").digest != table.digest
    assert table_of(60).digest == table.digest
    assert table_of(0).digest != table_of(1).digest


def test_a_second_analysis_leaves_no_silo_out(book: Book) -> None:
    """Where the policy allows two: their difference would be the table of that silo."""
    first, second = analysis_in(book), analysis_in(book, "5")
    reveals = book.reveals_of("data", analyses=AnalysisPolicy(most=2))
    book.reveal(FULL, job_digest=first.digest, **FIRST, reveals=reveals)
    refused(
        Refusal.OVERLAPPING_COHORT,
        "over other silos",
        lambda: book.sign(FIVE, job_digest=second.digest, **FIRST, reveals=reveals),
    )
    book.reveal(FULL, job_digest=second.digest, **FIRST, attempt=2, reveals=reveals)
