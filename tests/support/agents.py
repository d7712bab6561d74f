"""Agents without sockets: real ledgers, policies and participants against a real coordinator session.

Silo i contributes p times the one-hot vector e_i: a 2 in the sum is a replay.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml
from cryptography import x509

from chorale.job import Job, SignedJob, open_job, sign_job
from chorale.runtime.audit import AuditLog
from chorale.runtime.files import write_atomic
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_from_bytes, state_to_bytes
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import records_pb2, session_pb2
from crypto.errors import Refusal, RemoteProtocolError, SiloStage
from crypto.fixed_point import ring
from crypto.fixed_point.ring import Words
from crypto.identity import issuing
from crypto.identity.certificates import Anchors, Identity, MemberId, PrivateKey, Role
from crypto.identity.roster import Member, Roster, open_roster, sign_roster
from crypto.masking import masks
from crypto.masking.masks import Masker, Source, UnmaskPlan
from crypto.masking.stored_sum import StoredSum
from crypto.session import bodies
from crypto.session.coordinator_session import CoordinatorSession
from crypto.session.messages import RevealedSum, SessionTerms
from crypto.session.statements import AbandonedProof, CohortProof, Signer, StateProof
from silo_agent.connection.own_certificates import OwnCertificates
from silo_agent.disclosure.ledger.audit_trail import SPENT_EVENT, spend_fields
from silo_agent.disclosure.ledger.budget import Spend
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.in_force import HeldPolicy, InForce
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.local_storage.personal_models import PersonalModels
from silo_agent.local_storage.state_files import StateFiles
from silo_agent.metrics import SiloMetrics
from silo_agent.rounds.data_sets import DataSet, DataSets
from silo_agent.rounds.first_state import FirstStates
from silo_agent.rounds.inputs.input_cache import InputCache
from silo_agent.rounds.message_handler import MessageHandler
from silo_agent.rounds.offered_jobs import OfferedJobs
from silo_agent.rounds.revealed_sums import RevealedSums
from silo_agent.rounds.rosters import Rosters
from silo_agent.rounds.state_chain import StateChain
from silo_agent.rounds.task_checks import TaskChecks
from silo_agent.settings import SiloSettings
from silo_agent.training.analysis.table import DescribedTable
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.objective import Work
from strategies.base import Array, Arrays, PhaseResult
from strategies.phases.enrollment import draw_seed_in
from tests.support.ceremony import issue
from tests.support.sessions import NOW
from tests.support.settings import silo_settings

FEDERATION = "test"
PATIENCE_SECONDS = 100.0  # the first answer may load scipy and dp-accounting: 15 s on an idle machine
SAMPLES = 100


@dataclass(frozen=True)
class Members:
    """Three or more silos and an operator, enrolled under one authority."""

    authority_key: PrivateKey
    authority: Anchors
    silos: dict[str, Identity]
    operator: Identity

    def roster(
        self,
        *,
        version: int = 7,
        without: Sequence[str] = (),
        readmitted: Mapping[str, int] = MappingProxyType({}),
        issued: datetime = NOW,
    ) -> Roster:
        """readmitted: versions, by name."""
        members = [
            Member(
                role=one.member.role,
                name=one.member.name,
                fingerprint=one.fingerprint,
                readmitted_in=readmitted.get(one.member.name, 0),
            )
            for one in (*self.silos.values(), self.operator)
            if one.member.name not in without
        ]
        signed = sign_roster(
            authority_key=self.authority_key,
            federation=FEDERATION,
            version=version,
            issued=issued,
            expires=issued + timedelta(days=30),
            members=members,
        )
        return open_roster(signed, authority=self.authority, federation=FEDERATION, now=issued)


@functools.cache
def make_members(silos: int) -> Members:
    key, authority = issuing.new_authority(FEDERATION, now=NOW - timedelta(days=1), valid_days=365)
    names = [f"silo-{place}" for place in range(silos)]
    return Members(
        authority_key=key,
        authority=Anchors((authority,)),
        silos={name: _issue(key, authority, Role.SILO, name) for name in names},
        operator=_issue(key, authority, Role.OPERATOR, "ops"),
    )


def with_another_certificate(members: Members, name: str) -> Members:
    """The same federation, in which the silo has another key."""
    another = _issue(members.authority_key, members.authority.certificates[0], Role.SILO, name)
    return dataclasses.replace(members, silos=members.silos | {name: another})


def with_operator(members: Members, name: str) -> Members:
    """The same federation with another operator."""
    another = _issue(members.authority_key, members.authority.certificates[0], Role.OPERATOR, name)
    return dataclasses.replace(members, operator=another)


def _issue(key: PrivateKey, authority: x509.Certificate, role: Role, name: str) -> Identity:
    return issue(key, authority, MemberId(federation=FEDERATION, role=role, name=name), now=NOW)


class OneHot:
    """delta = p e_i. `gate`, if given, is awaited in the training thread."""

    def __init__(self, *, gate: Callable[[Work], None] = lambda work: None, spoil: float = 1.0) -> None:
        self.works: list[Work] = []
        self._gate = gate
        self._spoil = spoil

    def compute(self, work: Work) -> Mapping[str, Array]:
        self.works.append(work)
        self._gate(work)
        place = work.spec.silos.index(work.silo)
        tested = {"correct": np.array(place), "tested": np.array(20), "loss_sum": np.array(0.5)}
        if work.phase_kind == "evaluate":
            return tested
        delta_P = np.zeros(len(work.spec.silos))
        delta_P[place] = work.weight * self._spoil
        return {"delta": delta_P, "weight": np.array(work.weight), **tested}


def write_policy(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(fields), explicit_end=True, sort_keys=False))


class MemoryTransfers:
    """Hands out the hub's states and keeps what is uploaded."""

    def __init__(self, folder: Path, states: dict[bytes, bytes]) -> None:
        self._folder = folder
        self._states = states
        self.moved_bytes = 0
        self.uploads: asyncio.Queue[tuple[PhaseKey, bytes]] = asyncio.Queue()
        self.downloaded: list[bytes] = []
        self.maskers: dict[PhaseKey, Masker] = {}

    async def download(
        self, *, job_digest: bytes, digest: bytes, size_bytes: int, target: Path, is_kept: bool = True
    ) -> None:
        data = self._states.get(digest, b"")
        if len(data) != size_bytes or hashlib.sha256(data).digest() != digest:
            raise RemoteProtocolError("download: other bytes than announced", code=Refusal.STATE)
        if target.exists():
            return  # it may be mapped: who cuts a file that another reads kills the process
        self.downloaded.append(digest)
        write_atomic(target, data)

    async def upload(self, key: PhaseKey, masker: Masker, source: Source, *, total_bytes: int) -> None:
        self.maskers[key] = masker
        await self.uploads.put((key, b"".join(masker.stream(source))))


class Agent:
    """One silo; `restart` forgets all but its files."""

    def __init__(self, hub: Hub, name: str, *, policy: Policy, objective: OneHot, samples: int) -> None:
        self.hub, self.name, self.policy = hub, name, policy
        self.objective, self.samples = objective, samples
        self.table: DescribedTable | None = None  # what an analysis describes
        self.folder = hub.folder / name
        self.folder.mkdir()
        self.seconds = 0.0  # by the clock of its inputs, which no wall moves
        self._start()

    async def restart(self) -> None:
        await self.close()
        self._start()
        self.meet()

    async def close(self) -> None:
        await self.handler.close()
        self.audit.close()
        self.ledger.close()

    def meet(self) -> None:
        """What the coordinator says first."""
        self.tell(roster=pb.RosterUpdate(roster=wire.signed_body_to_wire(self.hub.roster.signed)))
        self.tell(job=pb.JobOffer(job=self.hub.job.signed.to_wire()))

    def tell(self, **kind: Any) -> None:
        self.handler.receive(pb.CoordinatorMessage(**kind))

    async def answer(self, kind: str, **asked: Any) -> Any:
        """The next message out, which must be of this kind; `asked` is what it is told before."""
        if asked:
            self.tell(**asked)
        async with asyncio.timeout(PATIENCE_SECONDS):
            message = await self.sent.get()
        assert message.WhichOneof("kind") == kind, message
        return getattr(message, kind)

    async def refusal(self, **asked: Any) -> str:
        return str((await self.answer("refused", **asked)).code)

    async def uploaded(self) -> tuple[PhaseKey, bytes]:
        """The next masked vector out."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.transfers.uploads.get()

    def is_silent(self) -> bool:
        return self.sent.empty() and self.transfers.uploads.empty()

    def _start(self) -> None:
        own = OwnCertificates(self.hub.members.silos[self.name], self.hub.members.authority)
        self.credentials = own
        clock = lambda: self.hub.now  # noqa: E731
        self.sent: asyncio.Queue[pb.SiloMessage] = asyncio.Queue()
        self.stages: list[SiloStage | None] = []
        self.ledger = Ledger(self.folder / "ledger.sqlite", clock=clock)
        self.audit = AuditLog(self.folder / "audit.jsonl")
        self.metrics = SiloMetrics()
        self.transfers = MemoryTransfers(self.folder, self.hub.states)
        self.settings, held = self._files()
        data_set = DataSet.of(self.ledger, name="data", policy=held.policy, tell_spend=self._tell_spend)
        self.reveals, self.budget = data_set.reveals, data_set.budget
        self.budget.release_dead()
        data_sets = self.data_sets = DataSets([data_set], ledger=self.ledger)
        rosters = Rosters(
            credentials=own,
            ledger=self.ledger,
            data_sets=data_sets,
            lowest_version=1,
            audit=self.audit,
            clock=clock,
        )
        jobs = OfferedJobs(
            silo=self.name, ledger=self.ledger, data_sets=data_sets, credentials=own, clock=clock
        )
        self.local = LocalStates(self.folder / "local")
        self.known = self.ledger.known_states()
        self.files = StateFiles(self.folder / "cache")
        self.personal = PersonalModels(
            self.folder / "personal",
            is_revealed=lambda key: self.reveals.is_revealed(
                key.job_digest, key.round, key.phase, silo=self.name
            ),
        )
        self.handler = MessageHandler(
            rosters=rosters,
            jobs=jobs,
            checks=TaskChecks(
                credentials=own,
                jobs=jobs,
                rosters=rosters,
                data_sets=data_sets,
                first_states=FirstStates(self.folder / "first", data_sets=data_sets),
                metrics=self.metrics,
                clock=clock,
                files=InForce(self.settings, {"data": held}, take=data_sets.take, audit=self.audit),
            ),
            inputs=InputCache(
                silo=self.name,
                data_sets=data_sets,
                metrics=self.metrics,
                local=self.local,
                personal=self.personal,
                load_data=lambda job, _: self._data(job),
                load_table=lambda *_: self._table(),
                load_objective=lambda: self.objective,
                tell_stage=self.stages.append,
                clock=lambda: self.seconds,
                sleep=self._sleep,
            ),
            local=self.local,
            chain=StateChain(
                silo=self.name,
                known=self.known,
                data_sets=data_sets,
                local=self.local,
                credentials=own,
            ),
            sums=RevealedSums(
                jobs=jobs,
                rosters=rosters,
                known=self.known,
                data_sets=data_sets,
                files=self.files,
                local=self.local,
                downloads=self.transfers,
                audit=self.audit,
                metrics=self.metrics,
            ),
            files=self.files,
            transfers=self.transfers,
            audit=self.audit,
            metrics=self.metrics,
            send=self.sent.put_nowait,
        )

    def _files(self) -> tuple[SiloSettings, HeldPolicy]:
        """Settings of a real agent, and its policy file."""
        path = self.folder / "policy.yaml"
        write_policy(path, self.policy.model_dump(mode="json", exclude_unset=True))
        settings = silo_settings(self.folder, name=self.name, directory=self.folder, policy=path)
        return settings, HeldPolicy.read(path, federation=FEDERATION)

    async def _sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def _tell_spend(self, spend: Spend) -> None:
        self.audit.append_unflushed(SPENT_EVENT, **spend_fields(spend))

    def _data(self, job: Job) -> SiloData:
        return SiloData(train=_zeros(self.samples), holdout=_zeros(25), name="data")

    def _table(self) -> DescribedTable:
        assert self.table is not None
        return self.table


@dataclass
class Exchange:
    """One attempt at one phase, seen from the coordinator."""

    key: PhaseKey
    session: CoordinatorSession
    task: pb.PhaseTask
    dealt: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, bytes] = field(default_factory=dict)
    revealed: dict[int, Words] = field(default_factory=dict)  # the whole sum, by word size
    self_mask_seeds: dict[str, bytes] = field(default_factory=dict)

    @property
    def wire_key(self) -> Any:
        return wire.key_to_wire(self.key)

    # what the coordinator sends after each stage

    def close_advertise(self) -> Any:
        return wire.to_silo(self.session.close_advertise(), self.key).cohort

    def close_share(self) -> dict[str, Any]:
        """By silo."""
        sent = self.session.close_share()
        return {name: wire.to_silo(each, self.key).envelopes for name, each in sent.items()}

    def close_masked(self) -> Any:
        return wire.to_silo(self.session.close_masked(), self.key).survivors

    def unmask_request(self) -> Any:
        return wire.to_silo(self.session.unmask_request(), self.key).signatures


class Hub:
    """An honest coordinator in memory, which a test may bend."""

    def __init__(
        self,
        folder: Path,
        *,
        silos: int = 4,
        members: Members | None = None,
        now: datetime = NOW,
        **job: Any,
    ) -> None:
        self.folder = folder
        self.now = now
        self.members = members or make_members(silos)
        self.roster = self.members.roster(issued=now)
        self.states: dict[bytes, bytes] = {}
        self.state: Arrays = {"model/votes": np.zeros(len(self.names), np.float32)}
        self.proofs: dict[bytes, list[StateProof]] = {}  # of each job: of the opening phase, of the newest
        self.cohorts: dict[bytes, list[session_pb2.CohortProof]] = {}  # of each job, over its newest model
        self.abandoned: dict[bytes, list[session_pb2.AbandonedProof]] = {}
        self.job = self.sign(**job)
        self.agents: dict[str, Agent] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self.members.silos)

    def sign(self, **fields: Any) -> Job:
        """A job as the operator would submit it."""
        values: dict[str, Any] = {
            "name": "one-hot",
            "federation": FEDERATION,
            "nonce": "0" * 32,
            "not_after": self.now + timedelta(days=3),
            "silos": tuple(self.names),
            "rounds": 3,
            "model": {"name": "custom"},
            "classes": 2,
            "input_shape": (2,),
            "training": {"learning_rate": 0.1},
            "initial_state": self.put(self.state).hex(),
        }
        spec = JobSpec.model_validate(values | fields)
        signed = sign_job(spec.to_yaml(), self.members.operator)
        return self.open(signed)

    def open(self, signed: SignedJob) -> Job:
        return open_job(signed, roster=self.roster, authority=self.members.authority, now=self.now)

    def put(self, state: Arrays) -> bytes:
        data = state_to_bytes(state)
        digest = hashlib.sha256(data).digest()
        self.states[digest] = data
        return digest

    def add(
        self,
        name: str,
        *,
        objective: OneHot | None = None,
        samples: int = SAMPLES,
        **policy: Any,
    ) -> Agent:
        values = {"federation": FEDERATION, "approval": "automatic", "initial_state": "given"} | policy
        agent = Agent(
            self, name, policy=Policy.model_validate(values), objective=objective or OneHot(), samples=samples
        )
        self.agents[name] = agent
        agent.meet()
        return agent

    def add_all(self, **options: Any) -> None:
        for name in self.names:
            self.add(name, **options)

    async def close(self) -> None:
        for agent in self.agents.values():
            await agent.close()

    def begin(self, round: int, phase: str, *, attempt: int = 1, state: Arrays | None = None) -> Exchange:
        """Terms, session and task of an attempt; no silo is told yet."""
        terms = self.terms(round, phase, attempt=attempt, state=state)
        digest = terms.state_digest
        key = PhaseKey(job_digest=self.job.digest, round=round, phase=phase, attempt=attempt)
        task = pb.PhaseTask(
            key=wire.key_to_wire(key),
            state_digest=digest,
            state_bytes=len(self.states[digest]),
            session_digest=terms.digest(),
            proofs=[
                wire.proof_to_wire(proof, key.job_digest) for proof in self.proofs.get(key.job_digest, [])
            ],
            cohorts=self.cohorts.get(key.job_digest, []),
            abandoned=self.abandoned.get(key.job_digest, []),
        )
        session = CoordinatorSession(
            terms=terms, roster=self.roster, authority=self.members.authority, now=self.now
        )
        return Exchange(key=key, session=session, task=task)

    def terms(self, round: int, phase: str, *, attempt: int = 1, state: Arrays | None = None) -> SessionTerms:
        chosen = self.state if state is None else state
        return self.job.terms(
            roster=self.roster,
            round=round,
            phase=phase,
            attempt=attempt,
            state=chosen,
            state_digest=self.put(chosen),
        )

    def prove(self, state: Arrays, round: int, phase: str, *, signers: int | None = None) -> StateProof:
        """Go on from a state that the last t silos sign as the outcome of this phase, and nobody computed."""
        terms = self.terms(round, phase)
        unsigned = StateProof(
            roster=self.roster.signed,
            round=round,
            phase=phase,
            attempt=1,
            layout_digest=terms.layout.digest,
            cohort_digest=bytes(32),
            survivors=terms.names,
            parent_digest=terms.state_digest,
            sum_digest=bytes(32),
            next_digest=self.put(state),
            draw_seed=draw_seed_in(state),
            signers={},
        )
        names = terms.names[-(terms.rule.threshold if signers is None else signers) :]
        self.state = state
        return self.add_proof(dataclasses.replace(unsigned, signers=self.signed(unsigned, terms, names)))

    def signed(self, proof: StateProof, terms: SessionTerms, names: Sequence[str]) -> dict[str, Signer]:
        """Signatures of these silos over what the proof says."""
        signers = {}
        for name in names:
            identity = self.members.silos[name]
            said = proof.statement(name, federation=FEDERATION, session_digest=terms.digest())
            signers[name] = Signer(
                certificate=identity.certificate_der, signature=bodies.sign(identity, said).signature
            )
        return signers

    def add_proof(self, proof: StateProof) -> StateProof:
        """Tasks bring it from now on."""
        known = self.proofs.setdefault(self.job.digest, [])
        known[:] = [each for each in known if self.job.opens_draw(each.round, each.phase)] + [proof]
        if proof.next_digest != proof.parent_digest:  # of the model before, none is asked for any more
            self.cohorts.pop(self.job.digest, None)
            self.abandoned.pop(self.job.digest, None)
        return proof

    def add_cohort(self, exchange: Exchange) -> None:
        """Tasks prove from now on who was in this sum, revealed or not, as t silos signed it."""
        session = exchange.session
        proof = CohortProof(survivors=session.survivors, signatures=session.unmask_request())
        self.cohorts.setdefault(exchange.key.job_digest, []).append(
            wire.cohort_proof_to_wire(exchange.key, proof)
        )

    async def abandon(self, exchange: Exchange, *, without: Sequence[str] = ()) -> None:
        """All named silos but these sign that they never reveal the phase; tasks bring it from now on."""
        key, signers = exchange.key, {}
        for name in self._here(exchange.session.terms.names, without):
            said = await self.ask_abandon(exchange, name)
            signers[name] = Signer(certificate=said.certificate, signature=said.statement.signature)
        proof = AbandonedProof(roster=self.roster.signed, round=key.round, phase=key.phase, signers=signers)
        self.abandoned.setdefault(key.job_digest, []).append(
            wire.abandoned_proof_to_wire(proof, key.job_digest)
        )

    async def ask_abandon(self, exchange: Exchange, name: str) -> Any:
        abandon = session_pb2.Abandon(key=exchange.wire_key)
        return await self.agents[name].answer("abandoned", abandon=abandon)

    # the stages

    async def advertise(self, exchange: Exchange, *, without: Sequence[str] = ()) -> None:
        for name in self._here(self.names, without):
            self.agents[name].tell(task=exchange.task)
        for name in self._here(self.names, without):
            advert = await self.agents[name].answer("advert")
            exchange.session.on_advert(name, wire.from_silo(pb.SiloMessage(advert=advert)))

    async def share(self, exchange: Exchange, *, without: Sequence[str] = ()) -> None:
        cohort = exchange.close_advertise()
        for name in self._here(exchange.session.cohort, without):
            self.agents[name].tell(cohort=cohort)
            shares = await self.agents[name].answer("shares")
            exchange.dealt[name] = wire.from_silo(pb.SiloMessage(shares=shares))
            exchange.session.on_shares(name, exchange.dealt[name])

    async def mask(
        self, exchange: Exchange, *, without: Sequence[str] = (), late: Sequence[str] = ()
    ) -> None:
        """`late` silos send vectors that do not arrive."""
        for name, envelopes in exchange.close_share().items():
            if name in without:
                continue
            self.agents[name].tell(envelopes=envelopes)
            key, exchange.vectors[name] = await self.agents[name].uploaded()
            assert key == exchange.key
            if name not in late:
                exchange.session.on_masked(name)

    async def consistency(self, exchange: Exchange, *, without: Sequence[str] = ()) -> None:
        survivors = exchange.close_masked()
        for name in self._here(exchange.session.survivors, without):
            self.agents[name].tell(survivors=survivors)
            signed = await self.agents[name].answer("consistency")
            exchange.session.on_consistency(name, wire.from_silo(pb.SiloMessage(consistency=signed)))

    async def unmask(self, exchange: Exchange) -> dict[str, np.ndarray[Any, Any]]:
        """The decoded sums."""
        exchange.session.close_consistency()
        for name in exchange.session.survivors:
            shares = await self.ask_shares(exchange, name)
            exchange.session.on_unmask(name, wire.from_silo(pb.SiloMessage(unmask_shares=shares)))
        plan = exchange.session.close_unmask()
        assert isinstance(plan, UnmaskPlan)
        return self.reveal(exchange, plan)

    async def ask_shares(self, exchange: Exchange, name: str) -> Any:
        return await self.agents[name].answer("unmask_shares", signatures=exchange.unmask_request())

    def reveal(self, exchange: Exchange, plan: UnmaskPlan) -> dict[str, np.ndarray[Any, Any]]:
        layout = exchange.session.terms.layout
        total = ring.zeros(layout)
        for name in plan.survivors:
            ring.add_into(total, masks.vectors_from_stream(layout, exchange.vectors[name]))
        plan.unmask(total)
        exchange.revealed = total
        exchange.self_mask_seeds = plan.self_mask_seeds
        return ring.decode(total, layout=layout)

    async def until_signed(
        self, exchange: Exchange, *, lost: Sequence[str] = (), late: Sequence[str] = ()
    ) -> None:
        """All stages before UNMASK; `lost` silos send no vector, those of `late` ones do not arrive."""
        await self.until_masked(exchange, lost=lost, late=late)
        await self.consistency(exchange)

    async def until_shared(self, exchange: Exchange) -> None:
        await self.advertise(exchange)
        await self.share(exchange)

    async def until_masked(
        self, exchange: Exchange, *, lost: Sequence[str] = (), late: Sequence[str] = ()
    ) -> None:
        await self.until_shared(exchange)
        await self.mask(exchange, without=lost, late=late)

    async def until_revealed(
        self, round: int, phase: str = "train", *, lost: Sequence[str] = (), late: Sequence[str] = ()
    ) -> Exchange:
        """A phase whose sum the coordinator knows, and no silo."""
        exchange = self.begin(round, phase)
        await self.until_signed(exchange, lost=lost, late=late)
        await self.unmask(exchange)
        return exchange

    async def run(self, round: int, phase: str, *, attempt: int = 1) -> dict[str, np.ndarray[Any, Any]]:
        """One whole phase; every silo computes what follows and is told the outcome."""
        exchange = self.begin(round, phase, attempt=attempt)
        await self.until_signed(exchange)
        sums = await self.unmask(exchange)
        await self.agree(exchange)
        self.tell_outcome(exchange, cohort=exchange.session.survivors)
        return sums

    async def agree(self, exchange: Exchange, *, without: Sequence[str] = ()) -> None:
        """The silos that sent vectors check the sum and sign the state that it leads to; where nothing is
        tagged, none is asked."""
        terms = exchange.session.terms
        if terms.layout.tagged is None:
            return
        revealed = self.revealed(exchange)
        unsigned = self.unsigned(exchange, revealed)
        signers = {}
        for name in self._here(list(exchange.vectors), without):
            signed = (await self.ask_state(exchange, name, revealed)).statement
            said = unsigned.statement(name, federation=FEDERATION, session_digest=terms.digest())
            assert signed.body == bodies.body_of(said), "another state than this coordinator's"
            certificate = self.members.silos[name].certificate_der
            signers[name] = Signer(certificate=certificate, signature=signed.signature)
        self.add_proof(dataclasses.replace(unsigned, signers=signers))
        self.state = state_from_bytes(self.states[unsigned.next_digest])

    def unsigned(self, exchange: Exchange, revealed: RevealedSum) -> StateProof:
        """What silos sign that check this sum and compute what follows from it."""
        session, following = exchange.session, self.following(exchange)
        return StateProof(
            roster=self.roster.signed,
            round=exchange.key.round,
            phase=exchange.key.phase,
            attempt=exchange.key.attempt,
            layout_digest=session.terms.layout.digest,
            cohort_digest=session.cohort_digest,
            survivors=session.survivors,
            parent_digest=session.terms.state_digest,
            sum_digest=revealed.sum_digest,
            next_digest=self.put(following),
            draw_seed=draw_seed_in(following),
            signers={},
        )

    def revealed(self, exchange: Exchange) -> RevealedSum:
        """What members of U2 are sent of the sum, whose tagged part they can then fetch."""
        stream = self.tagged_stream(exchange)
        digest = hashlib.sha256(stream).digest()
        self.states[digest] = stream
        return RevealedSum(
            survivors=exchange.session.survivors,
            signatures=exchange.session.unmask_request(),
            sum_digest=digest,
            self_mask_seeds=dict(exchange.session.self_mask_seeds),
        )

    def tagged_stream(self, exchange: Exchange) -> bytes:
        layout = exchange.session.terms.layout
        stream = b"".join(masks.tagged_stream(layout, exchange.revealed))
        write_atomic(self.folder / "tagged", stream)
        return stream

    def following(self, exchange: Exchange) -> Arrays:
        """The next global state, as the method computes it."""
        result = self.outcome(exchange)
        return self.state if result.state is None else result.state

    def outcome(self, exchange: Exchange) -> PhaseResult:
        """What the revealed sum does, or why it does nothing."""
        terms, key = exchange.session.terms, exchange.key
        self.tagged_stream(exchange)
        assert terms.layout.tagged is not None
        return self.job.outcome(
            key.phase,
            self.job.context(key, self.state, len(terms.names)),
            StoredSum(self.folder / "tagged", layout=terms.layout.tagged),
            survivors=len(exchange.session.survivors),
            self_mask_seeds=dict(exchange.session.self_mask_seeds),
        )

    async def ask_state(self, exchange: Exchange, name: str, revealed: RevealedSum) -> Any:
        shown = wire.to_silo(revealed, exchange.key).revealed_sum
        return await self.agents[name].answer("next_state", revealed_sum=shown)

    def shown(self, exchange: Exchange) -> Any:
        """The message that asks for the state after this sum."""
        return wire.to_silo(self.revealed(exchange), exchange.key).revealed_sum

    def tell_outcome(self, exchange: Exchange, *, cohort: Sequence[str], result: str = "applied") -> None:
        record = records_pb2.PhaseRecord(
            job_digest=exchange.key.job_digest,
            round=exchange.key.round,
            phase=exchange.key.phase,
            result=result,
            cohort=cohort,
            left_out=[
                records_pb2.LeftOut(silo=name, stage="masked", reason="disconnected")
                for name in self.names
                if name not in cohort
            ],
            data_share=len(cohort) / len(self.names),
        )
        for agent in self.agents.values():
            agent.tell(outcome=pb.PhaseOutcome(record=record))

    def _here(self, names: Sequence[str], without: Sequence[str]) -> list[str]:
        return [name for name in names if name not in without]


def changed(task: pb.PhaseTask, **fields: Any) -> pb.PhaseTask:
    """The same task but for these fields."""
    copy = pb.PhaseTask()
    copy.CopyFrom(task)
    for name, value in fields.items():
        if isinstance(value, bytes | int):
            setattr(copy, name, value)
        else:
            getattr(copy, name).CopyFrom(value)
    return copy


def other_attempt(key: PhaseKey, attempt: int) -> PhaseKey:
    return dataclasses.replace(key, attempt=attempt)


def _zeros(count: int) -> Samples:
    return Samples(features=np.zeros((count, 2), np.float32), labels=np.zeros(count, np.int64))
