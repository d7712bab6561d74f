"""Silos fast and slow, messages repeated and late: who is slow decides who is in, never what the sum is."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.errors import Refusal, RemoteProtocolError
from crypto.masking.masks import UnmaskPlan
from crypto.session.coordinator_session import CoordinatorState, SessionAborted
from tests.support.sessions import Exchange, make_session
from tests.support.soak import examples

CLOSES = {
    CoordinatorState.ADVERTISE: "close_advertise",
    CoordinatorState.SHARE: "close_share",
    CoordinatorState.MASKED: "close_masked",
    CoordinatorState.CONSISTENCY: "close_consistency",
    CoordinatorState.UNMASK: "close_unmask",
}
MESSAGE_METHODS = {
    "bytes": "on_consistency",
    "Shares": "on_shares",
    "UnmaskShares": "on_unmask",
}


class Network:
    """Delivers what is under way, from whom and to whom drawn at random, sometimes twice or too late."""

    def __init__(self, exchange: Exchange, random: Random) -> None:
        self.exchange = exchange
        self.random = random
        self.to_coordinator: list[tuple[str, str, tuple[Any, ...]]] = []
        self.to_silos: list[tuple[str, Any]] = []

    def run(self) -> None:
        for name, silo in self.exchange.silos.items():
            self.to_coordinator.append((name, "on_advert", (silo.advertise(),)))
        while self.exchange.coordinator.state in CLOSES:
            self.step()

    def step(self) -> None:
        session = self.exchange.coordinator
        is_idle = not self.to_coordinator and not self.to_silos
        if is_idle or (self.has_enough() and self.random.random() < 0.2):
            self.close(getattr(session, CLOSES[session.state])())
        elif self.to_silos and (not self.to_coordinator or self.random.random() < 0.5):
            self.deliver_to_silo(self.random.choice(self.to_silos)[0])
        else:
            self.deliver_to_coordinator(self.random.randrange(len(self.to_coordinator)))

    def has_enough(self) -> bool:
        """Closing earlier would only end the attempt."""
        session = self.exchange.coordinator
        if session.state is CoordinatorState.UNMASK:
            return session.can_unmask
        in_stage = {
            CoordinatorState.ADVERTISE: self.exchange.terms.names,
            CoordinatorState.SHARE: session.cohort,
            CoordinatorState.MASKED: session.sharers,
            CoordinatorState.CONSISTENCY: session.survivors,
        }[session.state]
        return len(in_stage) - len(session.awaited) >= self.exchange.terms.rule.min_survivors

    def close(self, closed: Any) -> None:
        session = self.exchange.coordinator
        if isinstance(closed, UnmaskPlan):
            self.exchange.plan = closed
            return
        receivers = {
            CoordinatorState.SHARE: session.cohort,
            CoordinatorState.MASKED: session.sharers,
            CoordinatorState.CONSISTENCY: session.survivors,
            CoordinatorState.UNMASK: session.survivors,
        }[session.state]
        for name in receivers:
            self.to_silos.append((name, closed[name] if isinstance(closed, dict) else closed))

    def deliver_to_silo(self, name: str) -> None:
        """Its oldest message: a stream keeps the order, so an honest silo never has to refuse one."""
        oldest = next(place for place, (receiver, _) in enumerate(self.to_silos) if receiver == name)
        answer = self.exchange.tell(*self.to_silos.pop(oldest))
        if type(answer).__name__ == "Masker":
            self.exchange.maskers[name] = answer
            self.to_coordinator.append((name, "upload", ()))
        else:
            self.to_coordinator.append((name, MESSAGE_METHODS[type(answer).__name__], (answer,)))

    def deliver_to_coordinator(self, place: int) -> None:
        name, method, message = self.to_coordinator[place]
        if self.random.random() < 0.8:  # else it stays under way and comes again
            self.to_coordinator.pop(place)
        receive = self.exchange.upload if method == "upload" else None
        try:
            if receive is not None:
                receive(name)
            else:
                getattr(self.exchange.coordinator, method)(name, *message)
        except RemoteProtocolError as error:
            if error.code is not Refusal.STAGE:  # too late for its stage
                raise


@given(silos=st.sampled_from([4, 6, 7, 10]), random=st.integers(0, 2**32).map(Random))
@examples(30)
def test_sum_is_exact_in_every_order_of_delivery(silos, random):
    exchange = make_session(silos)
    try:
        Network(exchange, random).run()
    except SessionAborted:
        assert exchange.plan is None
        return
    assert np.array_equal(exchange.revealed(), exchange.expected())
    assert not exchange.coordinator.liars


def test_most_orders_reveal_a_sum():
    """So that the test above is no test of failures alone. Seeds 0 to 19, decided beforehand."""
    revealed = 0
    for seed in range(20):
        exchange = make_session(6)
        try:
            Network(exchange, Random(seed)).run()
        except SessionAborted:
            continue
        revealed += int(exchange.revealed().sum() >= exchange.terms.rule.min_survivors)
    assert revealed >= 5


def test_answer_after_its_stage_was_closed_is_refused_and_changes_nothing():
    exchange = make_session(6)
    exchange.run_until("masked")
    late = exchange.silos["silo-005"]
    envelopes = exchange.coordinator.close_share()
    for name in exchange.terms.names[:5]:
        exchange.maskers[name] = exchange.tell(name, envelopes[name])
        exchange.upload(name)
    exchange.dropped.add("silo-005")
    exchange.maskers["silo-005"] = late.receive(envelopes["silo-005"])
    exchange.consistency()
    with pytest.raises(RemoteProtocolError, match="not expected in state consistency") as caught:
        exchange.upload("silo-005")
    assert caught.value.code is Refusal.STAGE
    exchange.unmask()
    assert np.array_equal(exchange.revealed(), exchange.expected())
