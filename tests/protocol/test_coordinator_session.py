"""The coordinator's machine: what it takes from whom, what it survives, when it ends an attempt."""

from __future__ import annotations

import dataclasses
import gc
import itertools
from types import FunctionType, ModuleType

import numpy as np
import pytest

from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.projection import Projection
from crypto.identity.certificates import SignedBody
from crypto.noise.sensitivity import Noise
from crypto.session import bodies
from crypto.session.coordinator_session import TRANSITIONS, CoordinatorSession, CoordinatorState, Event
from crypto.session.messages import Cohort, Envelope, RecoveredSeeds, Shares, UnmaskShares
from tests.protocol.malice import with_first_envelope
from tests.support.sessions import NOW, STAGES, Exchange, make_coordinator, make_session

NOTHING = SignedBody(body=b"", signature=b"")
EMPTY = {
    Event.ADVERT: ("on_advert", NOTHING),
    Event.SHARES: ("on_shares", Shares(dealing=NOTHING, envelopes=())),
    Event.COMPLAINT: ("on_complaint", NOTHING),
    Event.CONSISTENCY: ("on_consistency", b""),
    Event.UNMASK_SHARES: ("on_unmask", UnmaskShares(self_mask_shares={}, recovery_shares={})),
    Event.RECOVERED_SEEDS: ("on_recovered", RecoveredSeeds(pair_seeds={})),
}
STAGE_OF = {
    Event.ADVERT: "advertise",
    Event.SHARES: "share",
    Event.COMPLAINT: "masked",
    Event.CONSISTENCY: "consistency",
    Event.UNMASK_SHARES: "unmask",
}
CLOSES = [f"close_{stage}" for stage in (*STAGES, "recover")]
BAD = "silo-005"


def send(session: CoordinatorSession, sender: str, event: Event) -> None:
    method, message = EMPTY[event]
    getattr(session, method)(sender, message)


def opened(stage: str, silos: int = 4) -> Exchange:
    """The coordinator is in that stage and no silo has answered in it yet."""
    exchange = make_session(silos)
    exchange.run_until(stage)
    if stage != "advertise":
        getattr(exchange.coordinator, CLOSES[STAGES.index(stage) - 1])()
    return exchange


WRONG_STAGE = [
    (stage, event)
    for stage, event in itertools.product(STAGES, EMPTY)
    if (CoordinatorState(stage), event) not in TRANSITIONS
]


@pytest.mark.parametrize("stage, event", WRONG_STAGE)
def test_message_of_another_stage_is_refused_and_the_session_goes_on(stage, event):
    session = opened(stage).coordinator
    match = f"not expected in state {stage}|a second one that differs"
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        send(session, "silo-000", event)
    assert caught.value.code is Refusal.STAGE
    assert session.state is CoordinatorState(stage)
    assert "silo-000" in session.awaited


@pytest.mark.parametrize("stage", ["advertise", "share"])
def test_masked_vector_before_its_stage_is_refused(stage):
    with pytest.raises(
        RemoteProtocolError, match=f"masked vector of silo-000: not expected in state {stage}"
    ):
        opened(stage).coordinator.on_masked("silo-000")


WRONG_CLOSE = [
    (stage, close) for stage, close in itertools.product(STAGES, CLOSES) if close != f"close_{stage}"
]


@pytest.mark.parametrize("stage, close", WRONG_CLOSE)
def test_closing_another_stage_is_our_own_mistake(stage, close):
    session = opened(stage).coordinator
    with pytest.raises(LocalProtocolError, match=f"cannot close .* in state {stage}"):
        getattr(session, close)()
    assert session.state is CoordinatorState(stage)


@pytest.mark.parametrize("event", STAGE_OF)
def test_bad_message_keeps_its_sender_out_and_the_sum_is_exact_without_it(event):
    exchange = make_session(6)
    exchange.hooks[STAGE_OF[event]] = lambda: check_excluded(exchange.coordinator, event)
    assert np.array_equal(exchange.run({STAGE_OF[event]: [BAD]}), exchange.expected())
    assert (BAD in exchange.coordinator.survivors) == (STAGE_OF[event] in ("consistency", "unmask"))


def check_excluded(session: CoordinatorSession, event: Event) -> None:
    assert BAD in session.awaited
    with pytest.raises(
        RemoteProtocolError, match=BAD if event is not Event.ADVERT else "another kind of message"
    ):
        send(session, BAD, event)
    assert BAD not in session.awaited
    with pytest.raises(RemoteProtocolError, match="it is not in this stage"):
        send(session, BAD, event)


def test_byte_identical_repeats_are_ignored_in_every_stage_and_others_refused():
    exchange = make_session(6)
    session, name = exchange.coordinator, "silo-000"
    exchange.run_until("unmask", {"masked": [BAD]})
    session.on_masked(name)
    for event, message in messages_of(exchange, name).items():
        getattr(session, EMPTY[event][0])(name, message)
        with pytest.raises(RemoteProtocolError, match="a second one that differs") as caught:
            send(session, name, event)
        assert caught.value.code is Refusal.STAGE
    exchange.unmask()
    assert np.array_equal(exchange.revealed(), exchange.expected())


def messages_of(exchange: Exchange, name: str) -> dict[Event, object]:
    """What a silo sent up to CONSISTENCY."""
    sent = exchange.answers[name]
    return dict(zip((Event.ADVERT, Event.SHARES, Event.CONSISTENCY), sent, strict=True))


def test_repeated_answer_counts_once_towards_unmasking():
    exchange = opened("unmask", silos=4)  # t = 3
    session = exchange.coordinator
    answers = {name: silo.receive(session.unmask_request()) for name, silo in exchange.silos.items()}
    for _ in range(3):
        session.on_unmask("silo-000", answers["silo-000"])
    assert not session.can_unmask
    session.on_unmask("silo-001", answers["silo-001"])
    session.on_unmask("silo-002", answers["silo-002"])
    assert session.can_unmask
    assert session.awaited == {"silo-003"}
    exchange.close_unmask()
    assert np.array_equal(exchange.revealed(), exchange.expected())
    assert session.awaited == frozenset()
    assert not session.can_unmask


def test_strangers_are_refused_in_every_stage():
    for event, stage in STAGE_OF.items():
        with pytest.raises(RemoteProtocolError, match="of spare: it is not in this stage"):
            send(opened(stage).coordinator, "spare", event)


def test_advert_that_names_another_silo_than_its_sender_is_refused():
    exchange = make_session(4)
    advert = exchange.silos["silo-001"].advertise()
    with pytest.raises(RemoteProtocolError, match="advert of silo-000: it names another silo") as caught:
        exchange.coordinator.on_advert("silo-000", advert)
    assert caught.value.code is Refusal.ADVERT
    assert exchange.coordinator.awaited == set(exchange.terms.names) - {"silo-000"}


@pytest.mark.parametrize("field", ["channel_key", "mask_key"])
def test_advert_with_a_key_that_nobody_could_seal_to_is_refused(field):
    """Else one silo's X25519 key of low order would fail every other silo in SHARE."""
    exchange = make_session(4)
    sender = exchange.federation.silos["silo-000"]
    advert = bodies.read_advert(exchange.silos["silo-000"].advertise()).advert
    low_order = getattr(advert, field)[:-32] + bytes(32)
    signed = bodies.sign(sender, dataclasses.replace(advert, **{field: low_order}))
    with pytest.raises(RemoteProtocolError, match="expected an ML-KEM-768 and an X25519 key"):
        exchange.coordinator.on_advert("silo-000", signed)


def test_dealing_signed_for_another_cohort_is_refused():
    exchange = opened("share", silos=4)
    other = opened("share", silos=4)
    shares = exchange.silos["silo-000"].receive(cohort_of(exchange))
    elsewhere = other.silos["silo-000"].receive(cohort_of(other))
    mixed = dataclasses.replace(shares, dealing=elsewhere.dealing)
    with pytest.raises(RemoteProtocolError, match="dealing of silo-000: signed for another cohort or silo"):
        exchange.coordinator.on_shares("silo-000", mixed)


def cohort_of(exchange: Exchange) -> Cohort:
    adverts = exchange.coordinator._record.adverts
    return Cohort(adverts=tuple(adverts[name].signed for name in exchange.coordinator.cohort))


def test_shares_with_an_envelope_missing_or_spoilt_are_refused():
    exchange = opened("share", silos=4)
    cohort = cohort_of(exchange)
    shares = exchange.silos["silo-000"].receive(cohort)
    few = dataclasses.replace(shares, envelopes=shares.envelopes[:-1])
    with pytest.raises(
        RemoteProtocolError, match="shares of silo-000: expected 3 envelopes, got 2"
    ) as caught:
        exchange.coordinator.on_shares("silo-000", few)
    assert caught.value.code is Refusal.ENVELOPE
    swapped = exchange.silos["silo-001"].receive(cohort)
    swapped = dataclasses.replace(swapped, envelopes=swapped.envelopes[::-1])
    with pytest.raises(RemoteProtocolError, match="the dealing is not over these envelopes"):
        exchange.coordinator.on_shares("silo-001", swapped)


@pytest.mark.parametrize(
    "part, value",
    [
        ("sealed_shares", b"x" * 2000),
        ("sealed_shares", b""),
        ("pair_seed_hash", b""),
        ("sealed_pair_seed", b""),
        ("sealed_pair_seed", b"x" * 2000),
    ],
)
def test_sealed_parts_of_another_length_are_refused(part, value):
    exchange = opened("share", silos=4)
    shares = exchange.silos["silo-000"].receive(cohort_of(exchange))
    spoilt = with_first_envelope(exchange, "silo-000", shares, **{part: value})
    with pytest.raises(RemoteProtocolError, match="missing, out of place or of another length"):
        exchange.coordinator.on_shares("silo-000", spoilt)


def test_pair_seed_from_the_greater_name_to_the_smaller_is_refused():
    exchange = opened("share", silos=4)
    shares = exchange.silos["silo-003"].receive(cohort_of(exchange))
    spoilt = with_first_envelope(
        exchange, "silo-003", shares, pair_seed_hash=b"h" * 32, sealed_pair_seed=b"s" * 1168
    )
    with pytest.raises(RemoteProtocolError, match="missing, out of place or of another length"):
        exchange.coordinator.on_shares("silo-003", spoilt)


def test_unmask_shares_for_other_names_are_refused():
    exchange = opened("unmask", silos=4)
    session = exchange.coordinator
    answer = exchange.silos["silo-000"].receive(session.unmask_request())
    few = dataclasses.replace(answer, self_mask_shares={})
    with pytest.raises(RemoteProtocolError, match="expected one of b for each survivor"):
        session.on_unmask("silo-000", few)
    surplus = dataclasses.replace(answer, recovery_shares={"silo-001": bytes(33)})
    with pytest.raises(RemoteProtocolError, match="expected one of r for each lost silo"):
        session.on_unmask("silo-001", surplus)


def test_shares_and_seeds_are_dropped_with_the_end_of_the_session():
    exchange = make_session(4)
    exchange.run()
    session = exchange.coordinator
    assert session.state is CoordinatorState.DONE
    assert not session._answers
    assert not session._seen
    assert not session._rebuilt.self_mask_seeds


def resume(exchange: Exchange, data: bytes) -> CoordinatorSession:
    federation = exchange.federation
    return CoordinatorSession.resume(data, roster=federation.roster, authority=federation.authority, now=NOW)


def test_coordinator_resumes_in_unmask_and_gets_the_identical_sum():
    exchange = opened("unmask", silos=6)
    first = exchange.coordinator
    data = first.snapshot()
    answers = {name: silo.receive(first.unmask_request()) for name, silo in exchange.silos.items()}
    first.on_unmask("silo-000", answers["silo-000"])  # then it is killed
    second = exchange.coordinator = resume(exchange, data)
    assert second.state is CoordinatorState.UNMASK
    assert second.snapshot() == data
    assert second.terms == exchange.terms
    assert second.cohort_digest == first.cohort_digest
    assert second.unmask_request() == first.unmask_request()
    assert second.awaited == set(exchange.terms.names)
    for name, silo in exchange.silos.items():
        assert silo.receive(second.unmask_request()) == answers[name]
        second.on_unmask(name, answers[name])
    exchange.close_unmask()
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_resumed_coordinator_knows_complaints_and_ignores_repeats_and_recovers():
    exchange = make_session(6)
    complaint_of = bodies.Complaint(cohort_digest=b"", sender=BAD, accused="silo-000")

    def complain():
        digest = exchange.coordinator.cohort_digest
        said = dataclasses.replace(complaint_of, cohort_digest=digest)
        exchange.coordinator.on_complaint(BAD, bodies.sign(exchange.federation.silos[BAD], said))

    exchange.hooks["masked"] = complain
    exchange.run_until("unmask", {"masked": [BAD]})
    exchange.coordinator.close_consistency()
    exchange.coordinator = resume(exchange, exchange.coordinator.snapshot())
    session = exchange.coordinator
    assert session.complaints == [(BAD, "silo-000")]
    for name in session.survivors:
        session.on_masked(name)
        for event, message in messages_of(exchange, name).items():
            getattr(session, EMPTY[event][0])(name, message)
    request = session.unmask_request()
    for name in session.survivors:
        session.on_unmask(name, exchange.silos[name].receive(request))
    exchange.close_unmask()
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_snapshot_keeps_every_field_of_the_layout():
    projection = Projection.of(100, seed=bytes(range(32)))
    layout = Layout(
        members=4,
        quantities=(
            Quantity(name="one", shape=(), bound=0.1, ring_bits=16, sensitivity_l2=0.3),
            Quantity(name="two", shape=(2, 3), bound=1e3, ring_bits=32),
            Quantity(name="three", shape=(1,), bound=7, is_count=True),
            Quantity(name="four", bound=0.5, noise=Noise(variance=99.5, scale=8.0)),
            Quantity(name="five", bound=0.5, noise=Noise(variance=99.5, scale=8.0, clip_l2=0.3)),
            Quantity(name="six", shape=(100,), bound=1.0, ring_bits=16, projection=projection),
            Quantity(name="seven", bound=0.5, is_tagged=True),
            Quantity(name="eight", bound=0.5, noise=Noise(variance=99.5, scale=8.0), is_tagged=True),
            Quantity(name="nine", bound=0.5, noise=Noise(variance=99.5, scale=8.0), is_whole_units=True),
        ),
    )
    exchange = make_session(4, layout=layout)
    exchange.advertise()
    exchange.share()
    for name, envelopes in exchange.coordinator.close_share().items():
        exchange.tell(name, envelopes)
        exchange.coordinator.on_masked(name)
    exchange.consistency()
    exchange.coordinator.close_consistency()
    resumed = resume(exchange, exchange.coordinator.snapshot())
    assert resumed.terms == exchange.terms
    assert resumed.terms.layout.digest == layout.digest


def reachable(root: object) -> list[bytes]:
    """Every bytes object that is kept alive by this one."""
    found, seen, left = [], set(), [root]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, bytes):
            found.append(one)
        left += gc.get_referents(one)
    return found


def envelopes_of(exchange: Exchange) -> list[Envelope]:
    """All that were dealt."""
    names = exchange.terms.names
    pairs = [(dealer, receiver) for dealer in names for receiver in names if receiver != dealer]
    dealt = [data for dealer in names for data in exchange.answers[dealer][1].envelopes]
    cohort_digest = exchange.coordinator.cohort_digest
    return [
        bodies.read_envelope(data, cohort_digest=cohort_digest, sender=dealer, receiver=receiver)
        for (dealer, receiver), data in zip(pairs, dealt, strict=True)
    ]


def test_envelopes_are_held_once_and_only_until_they_are_relayed():
    exchange = make_session(6)
    exchange.run_until("masked")
    made, held = envelopes_of(exchange), reachable(exchange.coordinator)
    assert len(made) == 30
    assert all(sum(each.sealed_shares in data for data in held) == 1 for each in made)
    exchange.coordinator.close_share()
    held = reachable(exchange.coordinator)
    assert not any(each.sealed_shares in data for each in made for data in held)
    assert all(
        sum(each.sealed_pair_seed in data for data in held) == 1 for each in made if each.pair_seed_hash
    )


@pytest.mark.parametrize("lost", [(), ("silo-002",), ("silo-000", "silo-011")])
def test_snapshot_has_a_hash_of_each_pair_and_sealed_seeds_for_lost_silos_alone(lost):
    exchange = make_session(12)
    exchange.run_until("unmask", {"masked": lost})
    session = exchange.coordinator
    session.close_consistency()
    data, names, survivors = session.snapshot(), exchange.terms.names, session.survivors
    adverts = sum(len(each[0].body) + len(each[0].signature) for each in exchange.answers.values())
    pairs = [(survivor, other) for survivor in survivors for other in lost]
    sealed = sum(1168 for survivor, other in pairs if survivor < other)
    hashes = 32 * (len(names) * len(survivors) + len(pairs))
    assert 0 < len(data) - adverts - sealed - hashes < 300 * len(names)  # names, signatures, the terms
    for made in envelopes_of(exchange):
        assert made.sealed_shares not in data
        if made.pair_seed_hash:
            is_needed = made.sender in survivors and made.receiver in lost
            assert (made.sealed_pair_seed in data) == is_needed


@pytest.mark.parametrize("stage", STAGES[:4])
def test_no_snapshot_before_unmask(stage):
    with pytest.raises(LocalProtocolError, match=f"no snapshot in state {stage}, expected unmask"):
        opened(stage).coordinator.snapshot()


def test_damaged_snapshot_is_refused():
    exchange = opened("unmask", silos=4)
    data = exchange.coordinator.snapshot()
    start = data.index(b"0x1.")
    for damaged in (
        data[:-1],
        data + b"\0",
        b"",
        data[:start] + b"zzzz" + data[start + 4 :],
        data.replace(b"train", b"brain"),
        data.replace(b"counts", b"accounts"[:6]),
    ):
        with pytest.raises(RemoteProtocolError, match="session record: damaged"):
            resume(exchange, damaged)


@pytest.mark.parametrize("silos", [40, pytest.param(100, marks=pytest.mark.soak)])
def test_many_silos_sum_exactly_with_a_third_lost(silos):
    exchange = make_session(silos)
    names, lost = exchange.terms.names, (silos - 1) // 3
    total = exchange.run({"share": names[:3], "masked": names[3:lost]})
    assert np.array_equal(total, exchange.expected())
    assert total.sum() == silos - lost
    assert make_coordinator(exchange.federation, exchange.terms).awaited == set(names)
