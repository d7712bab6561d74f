"""A coordinator that deviates between the steps of a regression: real agents, sessions and masks.

Each test sees honest steps before the deviation, and silos that refuse it by name. Source: docs/protocol.md
6.14 and 7.21.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from chorale.job import sign_job
from chorale.spec.analysis_spec import first_digest
from crypto.errors import Refusal
from silo_agent.training.analysis.cells import cell_counts
from silo_agent.training.analysis.table import DescribedTable
from strategies.analysis.counts import CELLS, COUNTS
from strategies.analysis.method import FIRST_STATE
from strategies.analysis.model_state import COEFFICIENTS, ITERATIONS, Status, status_in
from strategies.analysis.regression import INFORMATION, MODEL, MODEL_FIT
from strategies.analysis.values import VALUES
from strategies.base import Array
from tests.support.agents import FEDERATION, Exchange, Hub
from tests.support.described import analysis
from tests.unit.silo_agent.conftest import MakeHub

AGE = {"name": "age", "edges": [18, 45, 50, 55, 60, 65, 110]}
PRESSURE = {"name": "pressure", "edges": [60, 120, 130, 140, 150, 240]}
RECORDS, STEPS = 60, 3
POLICY = {"analyses": {"exact": "allow", "measurements": {"data": None}}}


def table_of(place: int) -> DescribedTable:
    """Of AGE and PRESSURE."""
    rng = np.random.default_rng(place)
    age_N = rng.normal(57, 9, RECORDS).clip(19, 109)
    value_N2 = np.stack([age_N, 80 + age_N + rng.normal(0, 8, RECORDS)], axis=1)
    parts, z = [], []
    for value_N, column in zip(value_N2.T, (AGE, PRESSURE), strict=True):
        edges = np.array(column["edges"], np.float64)
        half = (edges[-1] - edges[0]) / 2
        parts.append(np.searchsorted(edges, value_N, side="right") - 1)
        z.append((value_N - edges[0] - half) / half)
    return DescribedTable(parts_NC=np.stack(parts, axis=1), z_NK=np.stack(z, axis=1), name="data")


def take_job(hub: Hub, nonce: str = "1") -> None:
    model = {"outcome": "pressure", "family": "linear", "terms": [["age"]], "iterations": STEPS}
    spec = analysis(AGE, PRESSURE, federation=FEDERATION, silos=hub.names, model=model, min_cohort=3)
    spec = spec.filled(nonce=nonce * 32, initial_state=first_digest())
    hub.state = dict(FIRST_STATE)
    hub.put(hub.state)
    hub.job = hub.open(sign_job(spec.to_yaml(), hub.members.operator))


OPENING = ("enrollment.0", f"{COUNTS}.0", f"{VALUES}.0")


async def opened(make_hub: MakeHub, phases: Sequence[str] = OPENING) -> Hub:
    """Four silos, whose records are counted and measured, or less."""
    hub = make_hub()
    take_job(hub)
    for place, name in enumerate(hub.names):
        hub.add(name, **POLICY).table = table_of(place)
    for phase in phases:
        await hub.run(0, phase)
    return hub


async def all_refuse(hub: Hub, code: Refusal, **asked: object) -> None:
    for agent in hub.agents.values():
        assert await agent.refusal(**asked) == code
        assert agent.is_silent()


def least_squares(hub: Hub) -> Array:
    z_NK = np.concatenate([table_of(place).z_NK for place in range(len(hub.names))])
    design = np.stack([np.ones(len(z_NK)), z_NK[:, 0]], axis=1)
    return np.linalg.lstsq(design, z_NK[:, 1])[0]


async def test_honest_steps_end_with_a_fit(make_hub: MakeHub) -> None:
    """The control of all below."""
    hub = await opened(make_hub)
    assert status_in(hub.state) is Status.RUNNING
    for step in range(1, STEPS + 1):
        await hub.run(step, MODEL)
    await hub.run(STEPS, f"{MODEL_FIT}.0")
    assert status_in(hub.state) is Status.CONVERGED
    assert hub.state[COEFFICIENTS] == pytest.approx(least_squares(hub), abs=1e-6)


@pytest.mark.parametrize("name", [INFORMATION, "tag"])
async def test_a_step_with_another_sum_moves_no_silo(make_hub: MakeHub, name: str) -> None:
    hub = await opened(make_hub)
    exchange = await hub.until_revealed(1, MODEL)
    layout = exchange.session.terms.layout
    (bits,) = {each.ring_bits for each in layout.quantities if each.name == INFORMATION}
    place = layout.slices(bits)[name].start if name == INFORMATION else -1
    exchange.revealed[bits][place] += 1
    await all_refuse(hub, Refusal.SUM, revealed_sum=hub.shown(exchange))
    following = hub.following(exchange)
    await all_refuse(hub, Refusal.STATE, task=hub.begin(2, MODEL, state=following).task)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_step_is_not_taken_again_from_the_state_before(make_hub: MakeHub, is_restarted: bool) -> None:
    hub = await opened(make_hub)
    before = hub.state
    await hub.run(1, MODEL)
    if is_restarted:
        for agent in hub.agents.values():
            await agent.restart()
    await all_refuse(hub, Refusal.STATE, task=hub.begin(2, MODEL, state=before).task)
    await all_refuse(hub, Refusal.LATER_STATE, task=hub.begin(1, MODEL, attempt=2, state=before).task)
    await hub.run(2, MODEL)


async def test_a_step_from_coefficients_of_its_own_choice_is_refused(make_hub: MakeHub) -> None:
    """At coefficients that are chosen, sums are about the records near a plane that is chosen."""
    hub = await opened(make_hub)
    await hub.run(1, MODEL)
    chosen = {**hub.state, COEFFICIENTS: np.array([-1e3, 1e3])}
    await all_refuse(hub, Refusal.STATE, task=hub.begin(2, MODEL, state=chosen).task)
    fewer = {**hub.state, ITERATIONS: np.array(0)}
    await all_refuse(hub, Refusal.STATE, task=hub.begin(2, MODEL, state=fewer).task)
    await hub.run(2, MODEL)


async def left_out(hub: Hub, round: int, phase: str, *, attempt: int = 1) -> Exchange:
    """The masked vector of the last silo does not arrive."""
    exchange = hub.begin(round, phase, attempt=attempt)
    await hub.until_masked(exchange, late=[hub.names[-1]])
    return exchange


@pytest.mark.parametrize(("step", "phase"), [(0, f"{VALUES}.0"), (2, MODEL), (STEPS, f"{MODEL_FIT}.0")])
async def test_a_silo_is_not_left_out_of_one_sum(make_hub: MakeHub, step: int, phase: str) -> None:
    """At the same coefficients both sums would differ by what it holds: in a model that has converged. Values
    of fewer silos than were counted would tell how many records it has."""
    hub = await opened(make_hub, OPENING[: -1 if step == 0 else None])
    for each in range(1, step + (phase == f"{MODEL_FIT}.0")):
        await hub.run(each, MODEL)
    exchange = await left_out(hub, step, phase)
    survivors = exchange.close_masked()
    for name in exchange.session.survivors:
        assert await hub.agents[name].refusal(survivors=survivors) == Refusal.OVERLAPPING_COHORT
    assert not any(
        agent.reveals.is_revealed(exchange.key.job_digest, step, phase, silo=name)
        for name, agent in hub.agents.items()
    )
    await hub.run(step, phase, attempt=2)


async def test_a_step_whose_sum_was_withheld_is_not_asked_again_over_other_silos(make_hub: MakeHub) -> None:
    hub = await opened(make_hub)
    exchange = await hub.until_revealed(1, MODEL)
    await all_refuse(hub, Refusal.ALREADY_REVEALED, task=hub.begin(1, MODEL, attempt=2).task)
    await hub.agree(exchange)  # the control: the sum that it has is taken


async def test_a_job_that_ends_before_the_fit_was_the_one_analysis(make_hub: MakeHub) -> None:
    """Its last steps told the coordinator sums of the model; a second model would tell of other cells."""
    hub = await opened(make_hub)
    await hub.run(1, MODEL)
    take_job(hub, "2")
    for agent in hub.agents.values():
        agent.meet()
    await hub.run(0, "enrollment.0")
    await all_refuse(hub, Refusal.POLICY, task=hub.begin(0, f"{COUNTS}.0").task)


async def test_the_coordinator_and_one_silo_see_the_cells_of_the_others_together(make_hub: MakeHub) -> None:
    """And of none by itself: vectors that arrive hold no cell."""
    hub = await opened(make_hub, OPENING[:1])
    exchange = await hub.until_revealed(0, f"{COUNTS}.0")
    layout, tables = exchange.session.terms.layout, hub.job.spec.tables
    (bits,) = {each.ring_bits for each in layout.quantities}
    places = layout.slices(bits)[CELLS]
    of_silos = [cell_counts(table_of(place), tables)[CELLS] for place in range(len(hub.names))]
    others = exchange.revealed[bits][places].astype(np.int64) - of_silos[0]
    assert others.tolist() == np.sum(of_silos[1:], axis=0).tolist()
    summed = 0
    for name, cells in zip(hub.names, of_silos, strict=True):
        words = np.frombuffer(exchange.vectors[name], f"<u{bits // 8}")[places]
        assert not (words == cells).any()
        summed = summed + words
    assert not (
        summed == np.sum(of_silos, axis=0)
    ).any()  # masks of their own are in it, until t silos open them
