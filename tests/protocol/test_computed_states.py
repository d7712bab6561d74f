"""The whole end of a phase without sockets: every silo of U2 checks U3, S and b(v), and signs what follows.

Exhaustive over what 3 to 6 silos can lose at every stage and still reveal. Which single words of S a silo
finds changed is in test_verified_sums.py; here are the lies about whose sum it is, when, and what follows.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import session_pb2
from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import SignedBody
from crypto.session import bodies
from crypto.session.messages import NextState, Signatures
from tests.protocol.test_verified_sums import SUBSETS, Sums, assert_refused, losses, revealed, without
from tests.support.sessions import STAGES, Exchange
from tests.support.soak import examples

FORGED = b"\x13" * 32
NOT_SIGNED = "not in U3|is not valid"  # what t silos signed is of other silos, or over other sets


@functools.cache
def yesterday(silos: int) -> tuple[Exchange, Sums]:
    """Another attempt of the same phase, in which nobody is lost."""
    return revealed(silos, {}, attempt=2)


def honest_check(exchange: Exchange, name: str, sums: Sums) -> None:
    """All that a silo checks. The control of each lie."""
    check, coordinator = exchange.checks[name], exchange.coordinator
    check.check_survivors(coordinator.survivors, coordinator.unmask_request())
    exchange.check(name, exchange.tagged_stream(sums))
    check.check_self_mask_seeds(coordinator.self_mask_seeds, coordinator.survivors)


def other_survivors(exchange: Exchange) -> Iterator[tuple[str, ...]]:
    """Every other subset of U2, the empty one included."""
    sharers = exchange.coordinator.sharers
    for size in range(len(sharers) + 1):
        for shown in itertools.combinations(sharers, size):
            if shown != exchange.coordinator.survivors:
                yield shown


def assert_no_other_sum(exchange: Exchange, name: str, sums: Sums) -> None:
    check, coordinator = exchange.checks[name], exchange.coordinator
    signatures, before = coordinator.unmask_request(), yesterday(len(exchange.terms.names))
    for shown in other_survivors(exchange):
        with pytest.raises(RemoteProtocolError, match=NOT_SIGNED) as caught:
            check.check_survivors(shown, signatures)
        assert caught.value.code is Refusal.SIGNATURES
    for few in range(check.threshold):
        some = Signatures(signatures=dict(list(signatures.signatures.items())[:few]))
        with pytest.raises(
            RemoteProtocolError, match=f"signatures of {check.threshold} survivors, got {few}"
        ):
            check.check_survivors(coordinator.survivors, some)
    with pytest.raises(RemoteProtocolError, match=NOT_SIGNED):
        check.check_survivors(coordinator.survivors, before[0].coordinator.unmask_request())
    assert_refused(exchange, name, before[1])
    assert_refused(exchange, name, without(exchange, sums, coordinator.survivors[0]))
    seeds = dict(coordinator.self_mask_seeds)
    for survivor in coordinator.survivors:
        with pytest.raises(RemoteProtocolError, match=f"self-mask seed of {survivor}: not the one"):
            check.check_self_mask_seeds({**seeds, survivor: FORGED}, coordinator.survivors)
        fewer = {other: seed for other, seed in seeds.items() if other != survivor}
        with pytest.raises(RemoteProtocolError, match="self-mask seeds: expected one of each survivor"):
            check.check_self_mask_seeds(fewer, coordinator.survivors)


def statement(exchange: Exchange, name: str, sums: Sums, next_digest: bytes | None = None) -> SignedBody:
    """What the silo signs of the sum; the state stands for whatever the method computes of it."""
    coordinator, stream = exchange.coordinator, exchange.tagged_stream(sums)
    said = NextState(
        federation="test",
        session_digest=exchange.terms.digest(),
        cohort_digest=coordinator.cohort_digest,
        sender=name,
        survivors=coordinator.survivors,
        parent_digest=exchange.terms.state_digest,
        sum_digest=hashlib.sha256(stream).digest(),
        next_digest=next_digest or hashlib.sha256(b"next" + stream).digest(),
        draw_seed=b"",
    )
    return bodies.sign(exchange.federation.silos[name], said)


def check_proof(exchange: Exchange, sums: Sums, signed: Mapping[str, SignedBody], **changes: bytes) -> None:
    """What a silo that was not there makes of these statements."""
    terms, stream = exchange.terms, exchange.tagged_stream(sums)
    key = PhaseKey(job_digest=terms.job_digest, round=terms.round, phase=terms.phase, attempt=terms.attempt)
    fields = {
        "cohort_digest": exchange.coordinator.cohort_digest,
        "parent_digest": terms.state_digest,
        "sum_digest": hashlib.sha256(stream).digest(),
        "next_digest": hashlib.sha256(b"next" + stream).digest(),
    }
    message = session_pb2.StateProof(
        key=wire.key_to_wire(key),
        roster=wire.signed_body_to_wire(exchange.federation.roster.signed),
        layout_digest=terms.layout.digest,
        survivors=exchange.coordinator.survivors,
        **(fields | changes),
    )
    for name, each in signed.items():
        certificate = exchange.federation.silos[name].certificate_der
        message.signers.add(name=name, certificate=certificate, signature=each.signature)
    job_digest, proof = wire.proof_from_wire(message)
    proof.check(job_digest=job_digest, roster=exchange.federation.roster, names=terms.names, rule=terms.rule)


def assert_no_proof(exchange: Exchange, sums: Sums, signed: Mapping[str, SignedBody], match: str) -> None:
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        check_proof(exchange, sums, signed)
    assert caught.value.code is Refusal.SIGNATURES


def assert_t_statements_prove(exchange: Exchange, sums: Sums) -> None:
    """Any t of the silos that checked, and no fewer; a colluder among t gains nothing by another state."""
    threshold = exchange.terms.rule.threshold
    signed = {name: statement(exchange, name, sums) for name in exchange.checks}
    for signing in itertools.combinations(signed, threshold):
        check_proof(exchange, sums, {name: signed[name] for name in signing})
    few = dict(itertools.islice(signed.items(), threshold - 1))
    assert_no_proof(exchange, sums, few, f"signatures of {threshold} silos, got {threshold - 1}")
    colluder = next(name for name in signed if name not in few)
    lie = statement(exchange, colluder, sums, FORGED)
    assert_no_proof(exchange, sums, few | {colluder: lie}, "signature is not valid")
    with pytest.raises(RemoteProtocolError, match="signature is not valid"):
        check_proof(exchange, sums, signed | {colluder: lie}, next_digest=FORGED)
    for field in ("cohort_digest", "parent_digest", "sum_digest"):
        with pytest.raises(RemoteProtocolError, match="signature is not valid"):
            check_proof(exchange, sums, signed, **{field: FORGED})


@pytest.mark.parametrize("silos, stage, dropped", SUBSETS)
def test_every_silo_finds_each_lie_about_a_sum_and_what_follows(
    silos: int, stage: str, dropped: Collection[str]
) -> None:
    exchange, sums = revealed(silos, {stage: dropped})
    for name in exchange.checks:
        honest_check(exchange, name, sums)
        assert_no_other_sum(exchange, name, sums)
    assert_t_statements_prove(exchange, sums)


@st.composite
def drops_at_several_stages(draw: st.DrawFn) -> tuple[int, dict[str, set[str]]]:
    silos = draw(st.integers(3, 10))
    names = [f"silo-{index:03}" for index in range(silos)]
    leaving = draw(st.dictionaries(st.sampled_from(names), st.sampled_from(STAGES), max_size=losses(silos)))
    return silos, {stage: {name for name, at in leaving.items() if at == stage} for stage in STAGES}


@given(drops_at_several_stages(), st.data())
@examples(10)
def test_silos_that_drop_at_several_stages_leave_no_lie_unfound(
    case: tuple[int, dict[str, set[str]]], data: st.DataObject
) -> None:
    exchange, sums = revealed(*case)
    name = data.draw(st.sampled_from(sorted(exchange.checks)))
    honest_check(exchange, name, sums)
    shown = data.draw(
        st.sets(st.sampled_from(exchange.coordinator.sharers)).map(lambda names: tuple(sorted(names)))
    )
    if shown != exchange.coordinator.survivors:
        with pytest.raises(RemoteProtocolError, match=NOT_SIGNED):
            exchange.checks[name].check_survivors(shown, exchange.coordinator.unmask_request())
        with pytest.raises(RemoteProtocolError, match="its tags are not"):
            exchange.checks[name].check_sum(exchange.tagged_stream(sums), exchange.terms.layout.tagged, shown)
    signing = data.draw(st.sets(st.sampled_from(sorted(exchange.checks))))
    signed = {each: statement(exchange, each, sums) for each in signing}
    if len(signed) >= exchange.terms.rule.threshold:
        check_proof(exchange, sums, signed)
        liar = data.draw(st.sampled_from(sorted(signed)))
        signed[liar] = statement(exchange, liar, sums, FORGED)
        assert_no_proof(exchange, sums, signed, "signature is not valid")
    else:
        assert_no_proof(exchange, sums, signed, r"expected signatures of \d+ silos")


def test_a_statement_of_another_session_proves_nothing() -> None:
    exchange, sums = revealed(4, {})
    other, _ = yesterday(4)
    signed = {name: statement(exchange, name, sums) for name in exchange.checks}
    check_proof(exchange, sums, signed)
    of_other = {
        name: dataclasses.replace(statement(other, name, sums), body=each.body)
        for name, each in signed.items()
    }
    assert_no_proof(exchange, sums, of_other, "signature is not valid")
