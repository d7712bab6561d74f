from __future__ import annotations

from typing import Any

import pytest

from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError, Rule, SiloStage
from crypto.identity.certificates import SignedBody
from crypto.session import bodies
from crypto.session.messages import (
    Cohort,
    Envelopes,
    NextState,
    RecoveredSeeds,
    RecoverRequest,
    RelayedEnvelope,
    RevealedSum,
    Shares,
    Signatures,
    Survivors,
    UnmaskShares,
)

KEY = PhaseKey(job_digest=b"\x01" * 32, round=3, phase="train", attempt=2)
SIGNED = SignedBody(body=b"body", signature=b"signature")
OTHER = SignedBody(body=b"other", signature=b"signature")
RELAYED = RelayedEnvelope(dealing=SIGNED, envelope=b"envelope", path=b"\x01" * 64)

FROM_SILO: list[tuple[str, Any]] = [
    ("advert", SIGNED),
    ("shares", Shares(dealing=SIGNED, envelopes=(b"one", b"other"))),
    ("complaint", SIGNED),
    ("consistency", b"signature"),
    (
        "unmask_shares",
        UnmaskShares(
            self_mask_shares={"b": b"\x02" * 33, "a": b"\x01" * 33}, recovery_shares={"c": b"\x03" * 33}
        ),
    ),
    ("recovered_seeds", RecoveredSeeds(pair_seeds={"a": b"\x01" * 32})),
]
FROM_COORDINATOR: list[tuple[str, Any]] = [
    ("cohort", Cohort(adverts=(SIGNED, OTHER))),
    ("envelopes", Envelopes(sharers=("a", "b"), envelopes=(RELAYED,))),
    ("survivors", Survivors(survivors=("a", "b"))),
    ("signatures", Signatures(signatures={"b": b"its", "a": b"signature"})),
    ("recover", RecoverRequest(names=("a",))),
    (
        "revealed_sum",
        RevealedSum(
            survivors=("a", "b"),
            signatures=Signatures(signatures={"a": b"signature"}),
            sum_digest=b"\x01" * 32,
            self_mask_seeds={"a": b"\x02" * 32},
        ),
    ),
]


@pytest.mark.parametrize(("kind", "message"), FROM_SILO, ids=[kind for kind, _ in FROM_SILO])
def test_every_message_of_a_silo_survives_the_wire_with_its_key(kind: str, message: Any) -> None:
    sent = wire.to_coordinator(kind, message, KEY)
    received = pb.SiloMessage.FromString(sent.SerializeToString())
    assert received.WhichOneof("kind") == kind
    assert wire.from_silo(received) == message
    assert wire.key_from_wire(getattr(received, kind).key) == KEY


@pytest.mark.parametrize(("kind", "message"), FROM_COORDINATOR, ids=[kind for kind, _ in FROM_COORDINATOR])
def test_every_message_of_the_coordinator_survives_the_wire_with_its_key(kind: str, message: Any) -> None:
    received = pb.CoordinatorMessage.FromString(wire.to_silo(message, KEY).SerializeToString())
    assert received.WhichOneof("kind") == kind
    assert wire.from_coordinator(received) == message
    assert wire.key_from_wire(getattr(received, kind).key) == KEY


def test_a_refusal_survives_the_wire_with_its_key() -> None:
    for refused in (
        wire.Refused(code=Refusal.OVERLAPPING_COHORT),
        wire.Refused(code=Refusal.POLICY, rule=Rule.MAX_ROUNDS),
        wire.Refused(code=Refusal.REJECTED, text="the ethics board said no: 5/11"),
    ):
        sent = wire.refused_to_wire(refused, KEY)
        received = session_pb2.Refused.FromString(sent.SerializeToString())
        assert wire.refused_from_wire(received) == refused
        assert wire.key_from_wire(received.key) == KEY


def test_messages_of_no_session_and_of_another_kind_are_our_own_error() -> None:
    with pytest.raises(LocalProtocolError, match="session: hello is no message of a session"):
        wire.from_silo(pb.SiloMessage(hello=pb.Hello()))
    with pytest.raises(LocalProtocolError, match="session: task is no message of a session"):
        wire.from_coordinator(pb.CoordinatorMessage(task=pb.PhaseTask()))
    with pytest.raises(LocalProtocolError, match="session: SignedBody is no shares of a silo"):
        wire.to_coordinator("shares", SIGNED, KEY)


@pytest.mark.parametrize("phase", ["train", "enrollment.0", "enrollment.999999", "a" * 32])
def test_phase_names(phase: str) -> None:
    key = PhaseKey(job_digest=b"\x01" * 32, round=0, phase=phase, attempt=1)
    assert wire.key_from_wire(wire.key_to_wire(key)) == key
    assert key.kind == phase.split(".")[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"job_digest": b"\x01" * 31}, "job digest: expected 32 bytes, got 31"),
        ({"phase": ""}, "expected a phase name"),
        ({"phase": "Train"}, "expected a phase name"),
        ({"phase": "train\n"}, "expected a phase name"),
        ({"phase": "a" * 33}, "expected a phase name"),
        ({"phase": "enrollment.00"}, "expected a phase name"),  # a second name for enrollment.0: a replay
        ({"phase": "enrollment.1000000"}, "expected a phase name"),
        ({"phase": "enrollment."}, "expected a phase name"),
        ({"round": (1 << 20) + 1}, "round or attempt is out of range"),
        ({"attempt": (1 << 20) + 1}, "round or attempt is out of range"),
    ],
)
def test_a_session_key_out_of_form_is_refused(fields: dict[str, Any], message: str) -> None:
    sent = wire.key_to_wire(KEY)
    for name, value in fields.items():
        setattr(sent, name, value)
    with pytest.raises(RemoteProtocolError, match=message):
        wire.key_from_wire(sent)


@pytest.mark.parametrize(
    ("body", "signature", "message"),
    [
        (b"", b"s", "signed body: expected 1 to 16384 bytes, got 0"),
        (b"b" * 16_385, b"s", "signed body: expected 1 to 16384 bytes, got 16385"),
        (b"b", b"", "signature: expected 1 to 72 bytes, got 0"),
        (b"b", b"s" * 73, "signature: expected 1 to 72 bytes, got 73"),
    ],
)
def test_a_signed_body_out_of_size_is_refused(body: bytes, signature: bytes, message: str) -> None:
    sent = session_pb2.SignedBody(body=body, signature=signature)
    with pytest.raises(RemoteProtocolError, match=message):
        wire.signed_body_from_wire(sent)
    with pytest.raises(RemoteProtocolError, match=message):
        wire.from_coordinator(pb.CoordinatorMessage(cohort=session_pb2.Cohort(adverts=[sent])))


SIGNATURES_OUT_OF_FORM = [
    ([("a", b"")], "signature: expected 1 to 72 bytes, got 0"),
    ([("a", b"s" * 73)], "signature: expected 1 to 72 bytes, got 73"),
    ([("a", b"s"), ("a", b"s")], "signatures: a is given twice"),
    ([("a", b"s"), ("b", b"s"), ("a", b"other")], "signatures: a is given twice"),
    ([("", b"s")], "names: expected 1 to 63"),
    ([("A", b"s")], "names: expected 1 to 63"),
    ([(f"a{number}", b"s") for number in range(201)], "signatures: expected at most 200, got 201"),
]


@pytest.mark.parametrize(("given", "message"), SIGNATURES_OUT_OF_FORM)
def test_signatures_out_of_form_are_refused_wherever_they_stand(
    given: list[tuple[str, bytes]], message: str
) -> None:
    def asked(named: list[session_pb2.NamedSignature]) -> None:
        sent = session_pb2.Signatures(signatures=named)
        wire.from_coordinator(pb.CoordinatorMessage(signatures=sent))

    def of_a_sum(named: list[session_pb2.NamedSignature]) -> None:
        sent = session_pb2.RevealedSum(signatures=named, sum_digest=bytes(32))
        wire.from_coordinator(pb.CoordinatorMessage(revealed_sum=sent))

    def of_an_earlier_sum(named: list[session_pb2.NamedSignature]) -> None:
        wire.cohort_proof_from_wire(session_pb2.CohortProof(key=wire.key_to_wire(KEY), signatures=named))

    named = [session_pb2.NamedSignature(name=name, signature=signature) for name, signature in given]
    for read in (asked, of_a_sum, of_an_earlier_sum):
        read([session_pb2.NamedSignature(name="a", signature=b"s" * 72)])  # the control
        with pytest.raises(RemoteProtocolError, match=message):
            read(named)


@pytest.mark.parametrize("size", [0, 73])
def test_a_consistency_signature_out_of_size_is_refused(size: int) -> None:
    sent = pb.SiloMessage(consistency=session_pb2.Consistency(signature=b"s" * size))
    with pytest.raises(RemoteProtocolError, match=f"signature: expected 1 to 72 bytes, got {size}"):
        wire.from_silo(sent)


def test_a_statement_with_the_longest_names_is_read_and_a_roster_may_be_larger() -> None:
    said = NextState(
        federation="f" * 63,
        session_digest=bytes(32),
        cohort_digest=bytes(32),
        sender="s" * 63,
        survivors=tuple("s" * 60 + f"{number:03}" for number in range(wire.MAX_SILOS)),
        parent_digest=bytes(32),
        sum_digest=bytes(32),
        next_digest=bytes(32),
        draw_seed=bytes(32),
    )
    statement = session_pb2.SignedBody(body=bodies.body_of(said), signature=b"s" * 72)
    wire.from_silo(pb.SiloMessage(next_state=session_pb2.NextState(statement=statement)))
    roster = session_pb2.SignedBody(body=b"b" * wire.MAX_ROSTER_BYTES, signature=b"s")
    wire.signed_body_from_wire(roster, max_bytes=wire.MAX_ROSTER_BYTES)
    longer = session_pb2.SignedBody(body=roster.body + b"b", signature=b"s")
    with pytest.raises(RemoteProtocolError, match="expected 1 to 1048576 bytes"):
        wire.signed_body_from_wire(longer, max_bytes=wire.MAX_ROSTER_BYTES)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 64, "a\n", "clinic-ä"])
def test_a_name_out_of_form_is_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="names: expected 1 to 63"):
        wire.from_coordinator(pb.CoordinatorMessage(survivors=session_pb2.Survivors(survivors=["a", name])))
    seeds = session_pb2.RecoveredSeeds(pair_seeds=[secret(name, 32)])
    with pytest.raises(RemoteProtocolError, match="names: expected 1 to 63"):
        wire.from_silo(pb.SiloMessage(recovered_seeds=seeds))


def test_more_silos_than_a_job_has_are_refused() -> None:
    names = [f"a{number}" for number in range(wire.MAX_SILOS + 1)]
    survivors = session_pb2.Survivors(survivors=names)
    cohort = session_pb2.Cohort(adverts=[signed()] * len(names))
    unmask_shares = session_pb2.UnmaskShares(self_mask_shares=[secret(name, 33) for name in names])
    envelopes = session_pb2.Envelopes(envelopes=[session_pb2.RelayedEnvelope(dealing=signed())] * len(names))
    shares = session_pb2.Shares(dealing=signed(), envelopes=[b"e"] * len(names))
    for read, sent, what in [
        (wire.from_coordinator, pb.CoordinatorMessage(survivors=survivors), "names"),
        (wire.from_coordinator, pb.CoordinatorMessage(cohort=cohort), "adverts"),
        (wire.from_coordinator, pb.CoordinatorMessage(envelopes=envelopes), "envelopes"),
        (wire.from_silo, pb.SiloMessage(shares=shares), "envelopes"),
        (wire.from_silo, pb.SiloMessage(unmask_shares=unmask_shares), "secrets"),
    ]:
        with pytest.raises(RemoteProtocolError, match=f"{what}: expected at most 200, got 201"):
            read(sent)


@pytest.mark.parametrize(
    ("envelope", "path", "message"),
    [
        (b"", b"", "envelope: expected 1 to 16384 bytes, got 0"),
        (b"e" * 16_385, b"", "envelope: expected 1 to 16384 bytes, got 16385"),
        (b"e", b"p" * 31, "path: expected at most 8 hashes, got 31 bytes"),
        (b"e", b"p" * 288, "path: expected at most 8 hashes, got 288 bytes"),
    ],
)
def test_an_envelope_or_a_path_out_of_size_is_refused(envelope: bytes, path: bytes, message: str) -> None:
    relayed = session_pb2.RelayedEnvelope(dealing=signed(), envelope=envelope, path=path)
    with pytest.raises(RemoteProtocolError, match=message):
        wire.from_coordinator(pb.CoordinatorMessage(envelopes=session_pb2.Envelopes(envelopes=[relayed])))
    if not path:
        with pytest.raises(RemoteProtocolError, match=message):
            wire.from_silo(pb.SiloMessage(shares=session_pb2.Shares(dealing=signed(), envelopes=[envelope])))


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ([("a", 33), ("a", 33)], "a is given twice"),
        ([("a", 32)], "expected 33 bytes, got 32"),
        ([("a", 34)], "expected 33 bytes, got 34"),
    ],
)
@pytest.mark.parametrize("field", ["self_mask_shares", "recovery_shares"])
def test_shares_out_of_form_are_refused(field: str, secrets: list[tuple[str, int]], message: str) -> None:
    sent = session_pb2.UnmaskShares(**{field: [secret(name, size) for name, size in secrets]})  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match=message):
        wire.from_silo(pb.SiloMessage(unmask_shares=sent))


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ({"code": "we hold 17 samples"}, "the code or its rule is not on the closed list"),
        ({"code": "policy", "rule": "max_step_ratio"}, "the code or its rule is not on the closed list"),
        ({"code": "policy", "rule": "max_rounds: 17"}, "the code or its rule is not on the closed list"),
        ({"code": "data", "rule": "max_rounds"}, "data comes without a rule"),
        ({"code": "policy", "text": "we hold 17 samples"}, "a text comes with rejected, and with no other"),
        ({"code": "rejected"}, "a text comes with rejected"),
        ({"code": "rejected", "text": "x" * 201}, "at most 200 printable characters"),
        ({"code": "rejected", "text": "no\x1b[2Jyes"}, "at most 200 printable characters"),
        ({"code": "rejected", "text": "\u202eon"}, "at most 200 printable characters"),
    ],
)
def test_a_refusal_carries_words_of_closed_lists_and_a_text_when_rejected_alone(
    refused: dict[str, str], message: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        wire.refused_from_wire(session_pb2.Refused(**refused))


def test_a_stage_is_on_the_closed_list_or_nothing() -> None:
    assert wire.stage_from_wire(pb.Stage(stage="loading-torch")) is SiloStage.LOADING_TORCH
    assert wire.stage_from_wire(pb.Stage()) is None
    with pytest.raises(RemoteProtocolError, match="the word is not on the closed list"):
        wire.stage_from_wire(pb.Stage(stage="reading 17 samples"))


def test_the_largest_messages_fit_the_limit_of_grpc() -> None:
    """200 silos with names of usual length; sizes of adverts and envelopes as the session makes them."""
    names = [f"hospital-{number:03}" for number in range(wire.MAX_SILOS)]
    signatures = [session_pb2.NamedSignature(name=name, signature=b"s" * 72) for name in names]
    advert, envelope = signed(3_500), b"e" * 3_000
    relayed = session_pb2.RelayedEnvelope(
        dealing=signed(300), envelope=envelope, path=b"p" * wire.MAX_PATH_BYTES
    )
    for largest in (
        session_pb2.Signatures(signatures=signatures),
        session_pb2.Cohort(adverts=[advert] * wire.MAX_SILOS),
        session_pb2.Shares(dealing=signed(300), envelopes=[envelope] * wire.MAX_SILOS),
        session_pb2.Envelopes(sharers=names, envelopes=[relayed] * wire.MAX_SILOS),
    ):
        assert largest.ByteSize() < wire.MAX_MESSAGE_BYTES


def secret(name: str, size: int) -> session_pb2.NamedSecret:
    return session_pb2.NamedSecret(name=name, secret=b"\x01" * size)


def signed(size: int = 1) -> session_pb2.SignedBody:
    return session_pb2.SignedBody(body=b"b" * size, signature=b"s" * 72)
