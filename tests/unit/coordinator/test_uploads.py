"""Masked vectors over lines that break and silos that send nonsense."""

from __future__ import annotations

import asyncio
import hashlib
import re
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest

from chorale.v1 import federation_pb2 as pb
from crypto.fixed_point.encoder import Encoder
from crypto.masking.masks import Masker
from crypto.session.messages import SessionTerms
from tests.support.records import left_out, train_of
from tests.unit.coordinator.fake_silo import FakeSilo


class Uploader(FakeSilo):
    """Sends its vector as the test wants; `receipts` and `refusals` are what it was answered."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.receipts: list[int] = []
        self.refusals: list[str] = []

    async def _upload(self, key: Any, terms: SessionTerms, masker: Masker) -> None:
        encoded = Encoder(self.inputs[key.round, key.phase], layout=terms.layout).encode()
        await self.send(key, b"".join(masker.stream(encoded)))

    async def send(self, key: Any, data: bytes) -> None:
        raise AssertionError("a test says how")

    async def open(self, key: Any, total_bytes: int) -> tuple[Any, pb.UploadReceipt]:
        call = self._stub.Upload()
        await call.write(pb.UploadMessage(header=pb.UploadHeader(key=key, total_bytes=total_bytes)))
        receipt = await call.read()
        self.receipts.append(receipt.received_bytes)
        return call, receipt

    async def finish(self, call: Any, data: bytes, *, start: int) -> None:
        await call.write(pb.UploadMessage(chunk=pb.Chunk(offset=start, data=data[start:])))
        await call.write(pb.UploadMessage(end=pb.UploadEnd(sha256=hashlib.sha256(data).digest())))
        assert (await call.read()).complete

    async def refused(self, key: Any, data: bytes, *messages: pb.UploadMessage, size: int = 0) -> None:
        try:
            call, _ = await self.open(key, size or len(data))
            for message in messages:
                await call.write(message)
            await call.read()
        except grpc.aio.AioRpcError as error:
            self.refusals.append(f"{error.code().name}: {error.details()}")


class BrokenLine(Uploader):
    async def send(self, key: Any, data: bytes) -> None:
        call, _ = await self.open(key, len(data))
        await call.write(pb.UploadMessage(chunk=pb.Chunk(offset=0, data=data[:10])))
        call.cancel()
        start = 0
        while start == 0:  # the coordinator may still be reading what came before the break
            call, receipt = await self.open(key, len(data))
            start = receipt.received_bytes
            if start == 0:
                call.cancel()
        await self.finish(call, data, start=start)


class Repeating(Uploader):
    async def send(self, key: Any, data: bytes) -> None:
        call, _ = await self.open(key, len(data))
        await self.finish(call, data, start=0)
        _, receipt = await self.open(key, len(data))
        assert receipt.complete


class Nonsense(Uploader):
    async def send(self, key: Any, data: bytes) -> None:
        wrong_end = pb.UploadMessage(end=pb.UploadEnd(sha256=b"0" * 32))
        whole = pb.UploadMessage(chunk=pb.Chunk(offset=0, data=data))
        await self.refused(key, data, pb.UploadMessage(chunk=pb.Chunk(offset=5, data=data[:5])))
        await self.refused(key, data, pb.UploadMessage(chunk=pb.Chunk(offset=0, data=data + b"x")))
        await self.refused(key, data, wrong_end)
        await self.refused(key, data, size=len(data) + 1)
        await self.refused(key, data, whole, wrong_end)
        call, _ = await self.open(key, len(data))
        await self.finish(call, data, start=0)


async def run_with(hub, kind):
    await hub.start()
    hub.start_silos(silo_0={"kind": kind})
    digest, summary, records = await hub.run(rounds=1)
    assert summary.status == "done"
    assert [record.attempts for record in records] == [1, 1, 1]
    assert all(list(record.cohort) == hub.names for record in records)
    await hub.check_votes(digest, np.full(3, 1 / 3))
    return hub.fakes["silo-0"]


async def test_upload_that_broke_goes_on_where_it_was(make_hub):
    silo = await run_with(make_hub(silos=3), BrokenLine)
    assert 10 in silo.receipts


async def test_silo_that_missed_its_receipt_is_told_again_and_its_vector_added_once(make_hub):
    # it was refused once the stage had closed, and dropped out of a session that held its vector
    silo = await run_with(make_hub(silos=3), Repeating)
    assert len(silo.receipts) == 6


async def test_nonsense_is_refused_and_bends_no_sum(make_hub):
    silo = await run_with(make_hub(silos=3), Nonsense)
    sentences = [
        "offset 5, expected 0",
        "for this layout",
        "ended after 0 bytes",
        "for this layout",
        "digest",
    ]
    assert len(silo.refusals) == 3 * len(sentences)
    for refusal, sentence in zip(silo.refusals, sentences * 3, strict=True):
        assert refusal.startswith("INVALID_ARGUMENT")
        assert sentence in refusal


async def test_vector_of_a_stage_that_has_closed_is_refused(make_hub):
    hub = make_hub(silos=4, stage_deadline_seconds=3.0, stage_hard_cap_seconds=3.0)
    late = {}

    class Late(Uploader):
        async def send(self, key: Any, data: bytes) -> None:
            if key.phase == "enrollment.0":
                call, _ = await self.open(key, len(data))
                late["call"], late["data"] = call, data
            else:
                call, _ = await self.open(key, len(data))
                await self.finish(call, data, start=0)

    await hub.start()
    hub.start_silos(silo_0={"kind": Late})
    digest, _, records = await hub.run(rounds=1)
    assert left_out(records[0]) == [("silo-0", "masked", "no-answer")]
    call, data = late["call"], late["data"]
    await call.write(pb.UploadMessage(chunk=pb.Chunk(offset=0, data=data)))
    with pytest.raises(grpc.aio.AioRpcError, match="FAILED_PRECONDITION(?s:.)*the stage has closed"):
        await call.read()
    assert int((await hub.state(digest))["method/total"]) == 300


async def test_an_upload_whose_chunks_stop_ends_and_the_silo_may_go_on_where_it_was(make_hub):
    # the call stayed for as long as the silo liked, and its stage with it
    hub = make_hub(silos=3, stage_deadline_seconds=0.5, min_upload_bytes_per_second=10**6)
    held = asyncio.Event()

    class Standing(Uploader):
        async def send(self, key: Any, data: bytes) -> None:
            start = 0
            if not self.refusals:
                await self.refused(key, data, pb.UploadMessage(chunk=pb.Chunk(offset=0, data=data[:10])))
                held.set()
            call, receipt = await self.open(key, len(data))
            start = receipt.received_bytes
            await self.finish(call, data, start=start)

    await hub.start()
    hub.start_silos(silo_0={"kind": Standing})
    await hub.submit(rounds=1)
    await held.wait()
    # the settings' 0.5 s and a chunk at the minimum rate, 1.05 s; the rest is what three silos take
    (refusal,) = hub.fakes["silo-0"].refusals
    assert re.fullmatch(r"DEADLINE_EXCEEDED: upload: nothing came for 1\.5[5-9]\d* seconds", refusal)


@pytest.mark.parametrize("repeats", [False, True])
async def test_silo_that_asks_again_for_its_receipt_is_not_waited_for_the_longer(make_hub, repeats):
    # each header was progress, in stages without an upload too, and no hard cap ends this test
    rates = {"min_upload_bytes_per_second": 5000, "stage_hard_cap_seconds": 3600.0}
    hub = make_hub(silos=3, stage_deadline_seconds=1.0, **rates)

    class Unsigned(Uploader):
        async def send(self, key: Any, data: bytes) -> None:
            call, _ = await self.open(key, len(data))
            await self.finish(call, data, start=0)
            if key.phase.startswith("train"):
                await self.wait_for("survivors", 2)
                with suppress(grpc.aio.AioRpcError):  # the attempt is over
                    while repeats:
                        await self.open(key, len(data))

        def say(self, message: pb.SiloMessage) -> None:
            if not message.consistency.key.phase.startswith("train"):
                super().say(message)

    await hub.start()
    for name in hub.names:
        hub.silo(name, kind=Unsigned)
    _, records = await hub.finish(await hub.submit(rounds=1, max_attempts=1))
    train = train_of(records)
    assert (train.result, train.reason) == ("used-up", "too-few-silos")
