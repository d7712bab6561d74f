"""What a coordinator shows of a job convinces somebody who took no part, whatever happened in its rounds."""

from __future__ import annotations

import grpc
import pytest

from chorale.v1 import operations_pb2 as pb
from client.evidence.archive import files_of
from client.evidence.pack import archive_of, shown_of
from client.evidence.verify import Verified, examine, verify_archive
from crypto.errors import EvidenceMismatch, RemoteProtocolError
from crypto.identity.certificates import Role
from crypto.session.cohort import named_set
from tests.support.rpc_errors import rpc_fails


async def _messages(hub, digest, identity=None):
    stub = hub.operations(identity)
    return [each async for each in stub.FetchEvidence(pb.EvidenceRequest(job_digest=digest))]


def _archive(hub, digest, messages) -> bytes:
    authority = hub.ceremony.anchors
    shown = shown_of(messages, job_digest=digest, authority=authority, federation="test")
    return archive_of(shown, identity=hub.operator, authority=authority, silos={}, sboms={})


async def _verified(hub, digest) -> Verified:
    return verify_archive(_archive(hub, digest, await _messages(hub, digest)), authority=hub.ceremony.anchors)


def _results(held: Verified) -> list[tuple[int, str, str, int]]:
    return [(each.round, each.phase, each.result, each.verified_by) for each in held.statement.phases]


async def test_round_without_effect_and_lost_silo_stand_in_the_evidence(attended_hub):
    hub = await attended_hub(
        silos=4,
        silo_3={"lies": (1, {"weight": -0.75 + 2.0**-28})},
        silo_2={"vanish_on": ("train", "envelopes")},
    )
    digest, _, _ = await hub.run(rounds=2)
    held = await _verified(hub, digest)
    assert held.statement.status in ("done", "failed")
    assert (1, "train", "used-up") in [each[:3] for each in _results(held)]
    assert held.statement.phases[1].left_out[0].silo == "silo-2"
    assert held.notes == ()


async def test_evidence_of_drawn_rounds_names_whom_the_draw_names(attended_hub):
    hub = await attended_hub(silos=6)
    digest, _, _ = await hub.run(rounds=3, fraction=0.6)
    held = await _verified(hub, digest)
    seed = (await hub.state(digest))["method/draw_seed"].tobytes()
    trained = {each.round: each.cohort for each in held.statement.phases if each.phase == "train"}
    assert trained == {
        round: tuple(named_set(hub.names, on_roster=hub.names, round=round, fraction=0.6, draw_seed=seed))
        for round in (1, 2, 3)
    }
    assert {len(cohort) for cohort in trained.values()} == {4}
    assert ({each.named for each in held.facts.phases}, held.statement.status) == ({4, 6}, "done")


async def test_evidence_of_a_job_that_was_cancelled_under_two_rosters(start_hub):
    hub = await start_hub(silos=4)
    digest = await hub.submit(rounds=2)  # nobody attends
    hub.ceremony.publish()
    await hub.control(digest, "CANCEL")
    archive, authority = _archive(hub, digest, await _messages(hub, digest)), hub.ceremony.anchors
    held = examine(archive, authority=authority)
    assert (held.statement.status, held.statement.phases) == ("cancelled", ())
    assert held.facts.model_sha256 == held.facts.first_state_sha256
    with pytest.raises(EvidenceMismatch, match="the weakest phase is none: silos signed no phase"):
        verify_archive(archive, authority=authority)


async def test_another_operator_gets_no_evidence(make_hub):
    hub = make_hub()
    other = hub.ceremony.enroll(Role.OPERATOR, "other")
    hub.ceremony.publish(admins=("other",))
    await hub.start()
    digest = await hub.submit()
    with rpc_fails("PERMISSION_DENIED", "only this operator may fetch its model and"):
        await _messages(hub, digest, other)
    assert await _messages(hub, digest)
    with pytest.raises(grpc.aio.AioRpcError, match="not allowed to a silo"):
        await _messages(hub, digest, hub.ceremony.enroll(Role.SILO, "silo-0"))


async def test_what_a_coordinator_leaves_out_or_exchanges_is_found_before_an_archive_is_written(attended_hub):
    hub = await attended_hub(silos=4)
    digest, _, _ = await hub.run(rounds=2)
    messages = await _messages(hub, digest)
    files = files_of(_archive(hub, digest, messages))
    assert not [name for name in files if "safetensors" in name]
    proofs = [each for each in messages if each.WhichOneof("kind") == "proof"]
    assert [each.proof.proof.key.phase for each in proofs] == ["enrollment.0", "train", "train"]
    without = [each for each in messages if each is not proofs[1]]
    with pytest.raises(EvidenceMismatch, match=r"round 1 train: the proof that silos signed is missing"):
        _archive(hub, digest, without)
    with pytest.raises(RemoteProtocolError, match="the evidence is of another job than the one asked for"):
        _archive(hub, b"x" * 32, messages)
    with pytest.raises(RemoteProtocolError, match="expected the job before its evidence"):
        _archive(hub, digest, messages[1:])
