from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest

from chorale.job import Job, SignedJob, open_job, sign_job
from chorale.spec.state import state_digest, state_to_bytes
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2
from crypto import encoding
from crypto.errors import ConfigError, LocalProtocolError, Refusal, RemoteProtocolError
from crypto.identity.certificates import Anchors, Identity, Role
from crypto.identity.issuing import new_authority
from crypto.session.cohort import draw_seed
from crypto.session.messages import SessionTerms
from strategies.base import DRAW_SEED, Array
from tests.unit.chorale.conftest import NOW, SILOS, MakeSpec, Party

NONCE = "ab" * 16
State = dict[str, Array]
MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(make_spec: MakeSpec, party: Party) -> MakeJob:
    def make(**fields: object) -> Job:
        spec = make_spec(**fields).filled(nonce=NONCE, initial_state=b"\x01" * 32)
        return open_job(sign_job(spec.to_yaml(), party.operator), **surroundings(party))

    return make


@pytest.fixture
def signed(make_spec: MakeSpec, party: Party) -> SignedJob:
    spec = make_spec().filled(nonce=NONCE, initial_state=b"\x01" * 32)
    return sign_job(spec.to_yaml(), party.operator)


def surroundings(party: Party, **changes: object) -> dict[str, object]:
    return {"roster": party.roster(), "authority": party.authority, "now": NOW} | changes


def terms_of(job: Job, party: Party, state: State, **changes: object) -> SessionTerms:
    digest = state_digest(state_to_bytes(state))
    fields = {"roster": party.roster(), "round": 1, "phase": "train", "attempt": 1, "state_digest": digest}
    return job.terms(state=state, **(fields | changes))


class TestOpening:
    @pytest.mark.parametrize("is_removed", [False, True])
    def test_a_roster_of_a_key_that_was_removed_opens_no_job(
        self, signed: SignedJob, party: Party, is_removed: bool
    ) -> None:
        """Its operators were of the new key; who else is a member the stolen one said."""
        stolen, old = new_authority("test", now=NOW, valid_days=9)
        both = Anchors((*party.authority.certificates, old))
        thief = dataclasses.replace(party, authority_key=stolen, authority=both)
        if not is_removed:
            assert open_job(signed, **surroundings(thief)).operator == "ops"
            return
        with pytest.raises(RemoteProtocolError, match="signed with no key") as caught:
            open_job(signed, **surroundings(thief, authority=party.authority))
        assert caught.value.code is Refusal.ROSTER

    def test_a_signed_job_opens(self, signed: SignedJob, party: Party) -> None:
        job = open_job(signed, **surroundings(party))
        assert job.digest == hashlib.sha256(signed.spec_bytes).digest()
        assert job.id == job.digest.hex()[:12] == signed.id
        assert job.operator == "ops"
        assert job.spec.silos == SILOS

    @pytest.mark.parametrize(
        ("signer", "message"),
        [
            (
                lambda party: party.issue(Role.OPERATOR, "ops"),
                "does not hold operator ops with this certificate",
            ),
            (lambda party: party.silos["clinic-a"], "expected role operator, got silo"),
        ],
        ids=["an operator outside the roster", "a silo"],
    )
    def test_only_an_operator_of_the_roster_signs_jobs(
        self, signed: SignedJob, party: Party, signer: Callable[[Party], Identity], message: str
    ) -> None:
        self.refuse(sign_job(signed.spec_bytes, signer(party)), party, message, Refusal.ROSTER)

    def test_a_revoked_or_expired_operator_is_refused(self, signed: SignedJob, party: Party) -> None:
        roster = party.roster(version=2, has_operator=False)
        with pytest.raises(RemoteProtocolError, match="version 2 does not hold operator ops"):
            open_job(signed, **surroundings(party, roster=roster))
        with pytest.raises(RemoteProtocolError, match="certificate expired at"):
            open_job(signed, **surroundings(party, now=NOW + timedelta(days=31)))

    def test_a_part_of_another_job_is_refused(self, signed: SignedJob, party: Party) -> None:
        signature = sign_job(signed.spec_bytes, party.issue(Role.OPERATOR, "other")).signature
        for changes, message, code in (
            ({"spec_bytes": signed.spec_bytes + b"\n"}, "job: the signature", Refusal.JOB_INVALID),
            ({"signature": signature}, "job: the signature is not valid", Refusal.JOB_INVALID),
            ({"operator_certificate": b"none"}, "expected an X.509 certificate", Refusal.MALFORMED),
        ):
            self.refuse(dataclasses.replace(signed, **changes), party, message, code)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (b"federation: test", b"federation: other", "expected federation test, got other"),
            (b"rounds: 10", b"rounds: -1", r"job [0-9a-f]{12}: rounds: "),
            (b"nonce: ", b"nonsense: ", "nonsense: unknown field"),
            (b"2026-11-22", b"2026-11-20", "has passed"),
            (b"nonce: " + NONCE.encode() + b"\n", b"", "nonce and initial_state are required"),
        ],
    )
    def test_an_unsound_job_is_refused_though_it_is_signed(
        self, signed: SignedJob, party: Party, old: bytes, new: bytes, message: str
    ) -> None:
        changed = signed.spec_bytes.replace(old, new)
        assert changed != signed.spec_bytes
        self.refuse(sign_job(changed, party.operator), party, message, Refusal.JOB_INVALID)

    @staticmethod
    def refuse(signed: SignedJob, party: Party, message: str, code: Refusal) -> None:
        with pytest.raises(RemoteProtocolError, match=message) as caught:
            open_job(signed, **surroundings(party))
        assert caught.value.code is code


class TestWire:
    def test_a_signed_job_survives(self, signed: SignedJob) -> None:
        sent = federation_pb2.SignedJob.FromString(signed.to_wire().SerializeToString())
        assert SignedJob.from_wire(sent) == signed

    @pytest.mark.parametrize(
        ("field", "size", "message"),
        [
            ("spec", 0, "expected 1 to 262144 bytes, got 0"),
            ("spec", 262_145, "expected 1 to 262144 bytes, got 262145"),
            ("signature", 73, "expected 1 to 72 bytes, got 73"),
            ("operator_certificate", 0, "certificate of 1 to 8192 bytes, got 0"),
            ("operator_certificate", 8193, "certificate of 1 to 8192 bytes, got 8193"),
        ],
    )
    def test_odd_sizes_are_refused(self, signed: SignedJob, field: str, size: int, message: str) -> None:
        sent = signed.to_wire()
        setattr(sent, field, b"x" * size)
        with pytest.raises(RemoteProtocolError, match=message):
            SignedJob.from_wire(sent)


class TestSequence:
    def test_phases_follow_one_another_to_the_end(self, make_job: MakeJob) -> None:
        job = make_job(rounds=3)
        place: tuple[int, str] | None = (0, job.opening)
        seen = []
        while place is not None:
            seen.append(place)
            place = job.next_after(*place)
        assert seen == [(0, "enrollment.0"), (1, "train"), (2, "train"), (3, "train"), (3, "evaluate.0")]

    @pytest.mark.parametrize(
        ("place", "after"),
        [
            ((0, "enrollment.1"), (1, "train")),
            ((2, "enrollment.1"), (3, "train")),
            ((3, "enrollment.7"), (3, "evaluate.0")),
            ((3, "evaluate.4"), None),
        ],
    )
    def test_a_repeated_phase_leads_on(
        self, make_job: MakeJob, place: tuple[int, str], after: tuple[int, str] | None
    ) -> None:
        assert make_job(rounds=3).next_after(*place) == after

    def test_a_phase_of_another_method_is_refused(self, make_job: MakeJob) -> None:
        with pytest.raises(
            ConfigError, match="phase: expected one of enrollment, evaluate, train for fedavg"
        ):
            make_job().next_after(1, "class-presence.0")


class TestTerms:
    def test_both_sides_compute_the_same_digest(self, make_job: MakeJob, party: Party, state: State) -> None:
        """The silo parses the job and the state from bytes, the coordinator holds its own."""
        job = make_job()
        again = open_job(SignedJob.from_wire(job.signed.to_wire()), **surroundings(party))
        assert terms_of(again, party, state).digest() == terms_of(job, party, state).digest()

    def test_terms_name_the_silos_sizes_and_layout(
        self, make_job: MakeJob, party: Party, state: State
    ) -> None:
        terms = terms_of(make_job(threshold=4), party, state)
        assert terms.names == tuple(sorted(SILOS))
        assert (terms.rule.members, terms.rule.threshold, terms.rule.min_cohort) == (4, 4, 3)
        assert terms.layout.members == 4
        assert [quantity.name for quantity in terms.layout.quantities] == [
            "delta",
            "buffers",
            "weight",
            "correct",
            "tested",
            "loss_sum",
            "clipped",
        ]

    @pytest.mark.parametrize(
        "changes",
        [
            {"round": 2},
            {"attempt": 2},
            {"round": 1, "phase": "enrollment.0"},
            {"round": 1, "phase": "enrollment.1"},
            {"round": 10, "phase": "evaluate.0"},
            {"state_digest": b"\x02" * 32},
        ],
    )
    def test_every_difference_makes_another_session(
        self, make_job: MakeJob, party: Party, state: State, changes: dict[str, object]
    ) -> None:
        job = make_job()
        assert terms_of(job, party, state, **changes).digest() != terms_of(job, party, state).digest()

    def test_another_job_state_or_roster_makes_another_session(
        self, make_job: MakeJob, party: Party, state: State
    ) -> None:
        first = terms_of(make_job(), party, state).digest()
        longer = {**state, "model/more": np.zeros(1, np.float32)}
        others = [
            terms_of(make_job(seed=1), party, state),
            terms_of(make_job(), party, longer),
            terms_of(make_job(), party, longer, state_digest=state_digest(state_to_bytes(state))),
            terms_of(make_job(), party, state, roster=party.roster(version=2)),
        ]
        assert first not in {one.digest() for one in others}
        assert len({one.digest() for one in others}) == len(others)

    def test_a_revoked_silo_is_not_named(self, make_job: MakeJob, party: Party, state: State) -> None:
        roster = party.roster(version=2, silos=SILOS[1:])
        assert terms_of(make_job(), party, state, roster=roster).names == SILOS[1:]
        with pytest.raises(ConfigError, match="silos: a round needs at least 3 named silos, got 2"):
            terms_of(make_job(), party, state, roster=party.roster(version=2, silos=SILOS[2:]))

    def test_a_drawn_round_names_some_and_every_other_phase_all(
        self, make_job: MakeJob, party: Party, state: State
    ) -> None:
        job = make_job(fraction=0.75)
        seeded = {**state, DRAW_SEED: np.arange(32, dtype=np.uint8)}
        drawn = {terms_of(job, party, seeded, round=round).names for round in range(1, 11)}
        assert {len(names) for names in drawn} == {3}
        assert len(drawn) > 1  # the same three in 10 rounds: 4 ** -9
        assert terms_of(job, party, state, round=0, phase="enrollment.0").names == SILOS
        assert terms_of(job, party, seeded, round=10, phase="evaluate.0").names == SILOS

    def test_the_draw_follows_from_the_states_seed_and_from_no_digest(
        self, make_job: MakeJob, party: Party, state: State
    ) -> None:
        """Job nonce, roster and the rest of the state are chosen by somebody; the seed is not."""

        def draws(job: Job, seed: int, **changes: object) -> list[tuple[str, ...]]:
            seeded = {**state, DRAW_SEED: np.full(32, seed, np.uint8), "method/kept": np.zeros(seed)}
            return [terms_of(job, party, seeded, round=round, **changes).names for round in range(1, 11)]

        first = draws(make_job(fraction=0.75), 1)
        assert draws(make_job(fraction=0.75, name="another"), 1) == first
        assert draws(make_job(fraction=0.75), 1, roster=party.roster(version=2)) == first
        assert draws(make_job(fraction=0.75), 2) != first

    @pytest.mark.parametrize(
        ("seed", "message"),
        [
            (None, "method/draw_seed: expected 32 bytes, got none"),
            (np.zeros(31, np.uint8), r"expected 32 bytes, got uint8 of shape \(31,\)"),
            (np.zeros((1, 32), np.uint8), r"expected 32 bytes, got uint8 of shape \(1, 32\)"),
            (np.zeros(32, np.int64), r"expected 32 bytes, got int64 of shape \(32,\)"),
        ],
    )
    def test_a_state_without_a_seed_of_32_bytes_gets_no_drawn_terms(
        self, make_job: MakeJob, party: Party, state: State, seed: Array | None, message: str
    ) -> None:
        given = state if seed is None else {**state, DRAW_SEED: seed}
        with pytest.raises(ConfigError, match=message):
            terms_of(make_job(fraction=0.75), party, given)
        if seed is None:  # full participation draws nothing
            assert terms_of(make_job(), party, given).names == SILOS
        else:  # and its states hold no other array of that name
            with pytest.raises(ConfigError, match=message):
                terms_of(make_job(), party, given)

    def test_a_first_state_that_brings_a_seed_gets_no_terms(
        self, make_job: MakeJob, party: Party, state: State
    ) -> None:
        """The operator's initial state would choose every draw."""
        seeded = {**state, DRAW_SEED: np.zeros(32, np.uint8)}
        for phase in ("enrollment.0", "enrollment.1"):
            opening = {"round": 0, "phase": phase}
            with pytest.raises(ConfigError, match="draw_seed: expected none before the opening enrollment"):
                terms_of(make_job(fraction=0.75), party, seeded, **opening)
            assert terms_of(make_job(), party, seeded, **opening).names == SILOS
        later = {"round": 5, "phase": "enrollment.1"}
        assert terms_of(make_job(fraction=0.75, enrollment_every=1), party, seeded, **later).names == SILOS

    @pytest.mark.parametrize(
        ("round", "phase", "message"),
        [
            (0, "train", "train: expected round 1 to 10, got 0"),
            (11, "train", "train: expected round 1 to 10, got 11"),
            (11, "evaluate.0", "evaluate.0: expected round 10, got 11"),
            (9, "evaluate.0", "evaluate.0: expected round 10, got 9"),
            (10, "evaluate.5", "evaluate.5: expected at most number 4 in round 10"),
            (0, "enrollment.5", "enrollment.5: expected at most number 4 in round 0"),
            (9, "enrollment.5", "enrollment.5: expected at most number 4 in round 9"),
            (10, "enrollment.10", "enrollment.10: expected at most number 9 in round 10"),
            (1, "train.0", "phases outside rounds, and only they, end"),
            (1, "evaluate", "phases outside rounds, and only they, end"),
            (
                1,
                "class-presence.0",
                "phase: expected one of enrollment, evaluate, train for fedavg, got class-presence",
            ),
        ],
    )
    def test_a_phase_that_the_job_does_not_have_gets_no_terms(
        self,
        make_job: MakeJob,
        party: Party,
        state: State,
        round: int,
        phase: str,
        message: str,
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            terms_of(make_job(), party, state, round=round, phase=phase)

    @pytest.mark.parametrize(
        ("round", "phase"),
        [(10, "evaluate.4"), (0, "enrollment.4"), (9, "enrollment.4"), (10, "enrollment.9")],
    )
    def test_the_last_repeat_that_a_job_can_come_to_gets_terms(
        self, make_job: MakeJob, party: Party, state: State, round: int, phase: str
    ) -> None:
        assert terms_of(make_job(), party, state, round=round, phase=phase).phase == phase


def test_context_and_layout_follow_job_and_state(make_job: MakeJob, state: State) -> None:
    job = make_job(update_bound=2.0, update_bits=16, min_weight=0.5)
    key = PhaseKey(job_digest=job.digest, round=4, phase="train", attempt=1)
    context = job.context(key, state, 4)
    assert (context.round, context.members, context.classes, context.min_weight) == (4, 4, 10, 0.5)
    assert context.trained == ("body.bias", "body.weight")
    assert context.buffers == ("norm.running_mean", "norm.running_var")
    delta = job.layout(key, state, 4).quantities[0]
    assert (delta.name, delta.shape, delta.bound, delta.ring_bits) == (
        "delta",
        (8,),
        2.0,
        32,
    )  # the first round's


PRIVATE = {"sums": {"clip_norm": 1.0, "noise_multiplier": 1.0}, "statistics_noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({}, 0.1 * 3 / 4),  # three of the job's four silos
        ({"min_weight": 0.5}, 0.5),
        ({"privacy": PRIVATE}, 0.1 * 3 / 4),
        ({"privacy": {**PRIVATE, "weight": 1e-4}}, 0.1 * 3e-4),  # each is to bring 1e-4
    ],
    ids=["plain", "min_weight", "private", "declared"],
)
def test_a_sum_of_weights_far_below_the_silos_share_is_not_applied(
    make_job: MakeJob, state: State, fields: dict[str, object], least: float
) -> None:
    job = make_job(**fields)
    key = PhaseKey(job_digest=job.digest, round=1, phase="train", attempt=1)
    state = {name: array for name, array in state.items() if "norm" not in name}  # no private job sums them
    context = job.context(key, state, 4)

    def reason(weight: float) -> str:
        quantities = job.layout(key, state, 4).quantities
        sums = {each.name: np.zeros(each.shape) for each in quantities} | {"weight": np.array(weight)}
        return job.next_state("train", context, sums, survivors=3).reason

    assert reason(0.99 * least) == "min-weight"
    assert reason(1.01 * least) == ""


SEEDS = {name: bytes([place]) * 32 for place, name in enumerate(SILOS)}


class TestDrawSeed:
    """What an enrollment writes of the silos' self-mask seeds."""

    def enrolled(self, job: Job, state: State, round: int, phase: str, **changes: object) -> State:
        key = PhaseKey(job_digest=job.digest, round=round, phase=phase, attempt=1)
        sums = {"silos": np.array(4), "samples": np.array(400)}
        given = {"survivors": 4, "self_mask_seeds": SEEDS} | changes
        result = job.next_state(phase, job.context(key, state, 4), sums, **given)
        assert result.state is not None
        return dict(result.state)

    def test_the_opening_writes_it_for_the_jobs_rounds(
        self, make_job: MakeJob, state: State, party: Party
    ) -> None:
        job = make_job(fraction=0.75)
        after = self.enrolled(job, state, 0, "enrollment.0")
        seed = after[DRAW_SEED]
        assert (seed.dtype, seed.shape) == (np.uint8, (32,))
        assert seed.tobytes() == draw_seed(job.digest, SEEDS)
        assert len(terms_of(job, party, after).names) == 3
        assert DRAW_SEED not in self.enrolled(make_job(), state, 0, "enrollment.0", self_mask_seeds=None)

    def test_a_second_opening_writes_it_where_the_first_was_used_up(
        self, make_job: MakeJob, state: State
    ) -> None:
        assert DRAW_SEED in self.enrolled(make_job(fraction=0.75), state, 0, "enrollment.1")

    def test_no_later_enrollment_replaces_it(self, make_job: MakeJob, state: State) -> None:
        job = make_job(fraction=0.75, enrollment_every=1)
        first = self.enrolled(job, state, 0, "enrollment.0")
        others = dict.fromkeys(SILOS, b"\xff" * 32)
        for round, phase in ((3, "enrollment.1"), (0, "enrollment.1")):
            later = self.enrolled(job, first, round, phase, self_mask_seeds=others)
            assert later[DRAW_SEED].tobytes() == first[DRAW_SEED].tobytes()
        assert DRAW_SEED not in self.enrolled(job, state, 3, "enrollment.1", self_mask_seeds=others)

    @pytest.mark.parametrize("seeds", [None, {"clinic-a": bytes(32)}])
    def test_an_opening_without_every_survivors_seed_is_not_applied(
        self, make_job: MakeJob, state: State, seeds: dict[str, bytes] | None
    ) -> None:
        with pytest.raises(LocalProtocolError, match=r"enrollment\.0: expected 4 self-mask seeds"):
            self.enrolled(make_job(fraction=0.75), state, 0, "enrollment.0", self_mask_seeds=seeds)


def test_an_update_in_16_bits_is_bound_by_the_rounds_before(make_job: MakeJob, state: State) -> None:
    job = make_job(update_bound=2.0, update_bits=16)
    key = PhaseKey(job_digest=job.digest, round=4, phase="train", attempt=1)
    known = {**state, "method/update_rms": np.array(0.01)}
    delta = job.layout(key, known, 4).quantities[0]
    assert (delta.shape, delta.bound, delta.ring_bits) == ((8,), 0.01 * 32 / math.sqrt(2), 16)
    assert delta.projection is not None
    assert (delta.projection.size, delta.projection.words) == (8, 16)


def test_the_projection_is_fresh_in_each_round_and_phase_and_the_same_in_each_attempt(
    make_job: MakeJob, party: Party, state: State
) -> None:
    job, known = make_job(update_bits=16), {**state, "method/update_rms": np.array(0.01)}
    digests = {
        (round, attempt): terms_of(
            job, party, known, round=round, phase="train", attempt=attempt
        ).layout.digest
        for round in (1, 2)
        for attempt in (1, 2)
    }
    assert digests[1, 1] == digests[1, 2] != digests[2, 1] == digests[2, 2]
    key = PhaseKey(job_digest=job.digest, round=1, phase="train", attempt=1)
    seed = job.context(key, state, 4).public_seed
    assert seed == encoding.digest("projection", job.digest, 1, "train")
    assert seed != make_job(update_bits=16, seed=99).context(key, state, 4).public_seed


@pytest.mark.parametrize(
    "rms",
    [
        np.array(math.nan),
        np.array(math.inf),
        np.array(-1.0),
        np.array([0.01]),
        np.array(0.01, np.float32),
        np.array(1),
    ],
)
def test_a_state_with_an_odd_size_of_updates_gets_no_terms(
    make_job: MakeJob, party: Party, state: State, rms: Array
) -> None:
    with pytest.raises(ConfigError, match="state: method/update_rms: expected "):
        terms_of(make_job(update_bits=16), party, {**state, "method/update_rms": rms}, round=1, phase="train")


def test_context_of_a_private_phase_says_how_strong_its_sums_noise_is(
    make_job: MakeJob, state: State
) -> None:
    privacy = {
        "records": {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.1},
        "statistics_noise_multiplier": 3.0,
    }
    for job, least in ((make_job(), 0), (make_job(privacy=privacy), 1)):
        key = PhaseKey(job_digest=job.digest, round=0, phase="enrollment.0", attempt=1)
        noise = job.context(key, state, 4).noise
        assert len(noise) == least
    # 3 by the two silos of four that are relied on; the sum has that of all four
    assert noise == {"samples": pytest.approx(3.0 * 2**0.5, rel=1e-3)}
