"""A coordinator that deviates between levels of a tree, and a silo that lies: real agents, sessions, masks.

Each test sees honest levels before the deviation, and silos that refuse it by name. Source: docs/protocol.md
6 and 7, docs/threat-model.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from crypto.errors import Refusal
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array
from strategies.phases.trees import GRADIENTS, GROWN, RECORDS, SPLIT_ON, THRESHOLD, VALUE
from tests.support.agents import SAMPLES, Hub
from tests.unit.silo_agent.conftest import MakeHub

POLICY = {"class_statistics": "allow", "initial_state": "computed"}
DEPTH, ROUNDS = 2, 5


def data_of(place: int) -> SiloData:
    """Who is above in the second input is of class 1, most of them."""
    rng = np.random.default_rng(place)
    x_ND = rng.normal(size=(SAMPLES + 25, 2)).astype(np.float32)
    label_N = (x_ND[:, 1] + 0.3 * rng.normal(size=len(x_ND)) > 0).astype(np.int64)
    held = slice(SAMPLES, None)
    return SiloData(
        train=Samples(features=x_ND[:SAMPLES], labels=label_N[:SAMPLES]),
        holdout=Samples(features=x_ND[held], labels=label_N[held]),
        name="data",
    )


class Growing:
    """The product's own sums, bent by a silo that lies."""

    def __init__(self, *, bend: Callable[[dict[str, Array]], None] = lambda values: None) -> None:
        self._inner = TorchObjective(device="cpu")
        self._bend = bend

    def compute(self, work: Work) -> Mapping[str, Array]:
        values = dict(self._inner.compute(replace(work, data=data_of(work.spec.silos.index(work.silo)))))
        if RECORDS in values:
            self._bend(values)
        return values


def take_job(hub: Hub, nonce: str = "1") -> None:
    trees = {
        "strategy": {"preset": "trees", "options": {"depth": DEPTH, "bins": 8}},
        "model": {"name": "trees"},
        "rounds": ROUNDS,
        "min_cohort": 3,
        "nonce": nonce * 32,
    }
    hub.state = dict(initial_state(hub.sign(**trees).training))
    hub.job = hub.sign(**trees, initial_state=hub.put(hub.state).hex())


async def opened(make_hub: MakeHub, **liar: Callable[[dict[str, Array]], None]) -> Hub:
    """Four silos, after the round of the base score."""
    hub = make_hub()
    take_job(hub)
    for place, name in enumerate(hub.names):
        hub.add(name, objective=Growing(**(liar if place == 0 else {})), **POLICY)  # type: ignore[arg-type]
    await hub.run(0, "enrollment.0")
    await hub.run(1, "train")
    return hub


async def all_refuse(hub: Hub, code: Refusal, **asked: object) -> None:
    for agent in hub.agents.values():
        assert await agent.refusal(**asked) == code
        assert agent.is_silent()


async def test_honest_levels_end_with_a_tree(make_hub: MakeHub) -> None:
    """The control of all below."""
    hub = await opened(make_hub)
    for round in range(2, 2 + DEPTH):
        await hub.run(round, "train")
    assert hub.state[GROWN].tolist() == [1, 0]
    split_on = hub.state[SPLIT_ON][0, 0]
    assert split_on[0] == 2
    assert not hub.state[VALUE][0, 0][split_on > 0].any()  # of nodes that are no leaves
    assert np.count_nonzero(hub.state[VALUE][0, 0]) == np.count_nonzero(split_on) + 1


@pytest.mark.parametrize("name", [RECORDS, "tag"])
async def test_a_level_with_another_sum_moves_no_silo(make_hub: MakeHub, name: str) -> None:
    hub = await opened(make_hub)
    exchange = await hub.until_revealed(2)
    layout = exchange.session.terms.layout
    (bits,) = {each.ring_bits for each in layout.quantities if each.name == RECORDS}
    exchange.revealed[bits][layout.slices(bits)[name].start if name == RECORDS else -1] += 1
    await all_refuse(hub, Refusal.SUM, revealed_sum=hub.shown(exchange))


async def test_a_tree_of_its_own_choice_is_refused(make_hub: MakeHub) -> None:
    """Nodes that are chosen are groups of records that are chosen."""
    hub = await opened(make_hub)
    await hub.run(2, "train")
    edge = hub.state[THRESHOLD].copy()
    edge[0, 0, 0] = 2.9
    for chosen in ({THRESHOLD: edge}, {GROWN: np.zeros(2, np.int64)}, {VALUE: 9.0 * hub.state[VALUE]}):
        asked = hub.begin(3, "train", state={**hub.state, **chosen}).task
        await all_refuse(hub, Refusal.STATE, task=asked)
    await hub.run(3, "train")


async def test_a_level_is_not_summed_again_from_the_state_before(make_hub: MakeHub) -> None:
    hub = await opened(make_hub)
    before = hub.state
    await hub.run(2, "train")
    await all_refuse(hub, Refusal.STATE, task=hub.begin(3, "train", state=before).task)
    await all_refuse(hub, Refusal.LATER_STATE, task=hub.begin(2, "train", attempt=2, state=before).task)
    await hub.run(3, "train")


async def test_trees_of_another_job_are_refused(make_hub: MakeHub) -> None:
    hub = await opened(make_hub)
    await hub.run(2, "train")
    grown = hub.state
    take_job(hub, "2")
    for agent in hub.agents.values():
        agent.meet()
    await hub.run(0, "enrollment.0")
    await all_refuse(hub, Refusal.STATE, task=hub.begin(1, "train", state=grown).task)
    await hub.run(1, "train")


async def test_a_silo_is_not_left_out_of_one_level(make_hub: MakeHub) -> None:
    """Records by input and bin are the same at each root: both sums differ by what it holds."""
    hub = await opened(make_hub)
    exchange = hub.begin(2, "train")
    await hub.until_masked(exchange, late=[hub.names[-1]])
    survivors = exchange.close_masked()
    for name in exchange.session.survivors:
        assert await hub.agents[name].refusal(survivors=survivors) == Refusal.OVERLAPPING_COHORT
    await hub.run(2, "train", attempt=2)


def other_totals(values: dict[str, Array]) -> None:
    values[RECORDS] = values[RECORDS].copy()
    values[RECORDS][0, 0, 0, 0] += 1


def steep(values: dict[str, Array]) -> None:
    values[GRADIENTS] = values[GRADIENTS] + 9.0 * SAMPLES


@pytest.mark.parametrize("bend", [other_totals, steep])
async def test_a_silo_that_claims_what_no_records_give_stops_the_level_and_moves_nothing(
    make_hub: MakeHub, bend: Callable[[dict[str, Array]], None]
) -> None:
    lies = []
    hub = await opened(make_hub, bend=lambda values: bend(values) if lies else None)
    before = hub.state
    lies.append(True)
    exchange = await hub.until_revealed(2)
    assert hub.outcome(exchange).reason == "implausible"
    await hub.agree(exchange)
    assert hub.state.keys() == before.keys()
    assert all(np.array_equal(hub.state[name], before[name]) for name in before)
