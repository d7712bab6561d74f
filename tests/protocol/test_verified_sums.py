"""Every silo of U2 checks the revealed sum: the true one passes, whatever else a coordinator shows fails."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import TAG_WORDS, Layout, Quantity
from crypto.fixed_point.ring import Words
from crypto.masking import masks
from crypto.session import bodies, seeds
from crypto.session.cohort import CohortRule
from crypto.session.messages import Consistency, Signatures
from crypto.session.silo_session import SiloState
from crypto.session.sum_check import SumCheck
from tests.support.sessions import STAGES, Exchange, indicator, make_session
from tests.support.soak import examples

Sums = dict[int, Words]


def losses(silos: int) -> int:
    return silos - CohortRule.for_members(silos).min_survivors


# every subset that a session outlives, at every stage; what fewer silos lead to is in test_dropouts.py
SUBSETS = [
    (silos, stage, tuple(f"silo-{index:03}" for index in dropped))
    for silos in range(3, 7)
    for stage in STAGES
    for size in range(losses(silos) + 1)
    for dropped in itertools.combinations(range(silos), size)
]


def revealed(silos: int, drops: Mapping[str, Collection[str]], *, attempt: int = 1) -> tuple[Exchange, Sums]:
    """A session to its end. A silo that drops at `masked` learns its masks; its upload does not arrive."""
    exchange = make_session(silos, attempt=attempt)
    exchange.advertise(drops.get("advertise", ()))
    exchange.share(drops.get("share", ()))
    for name, envelopes in exchange.coordinator.close_share().items():
        exchange.mask_one(name, envelopes)
        if name in drops.get("masked", ()):
            exchange.dropped.add(name)
        else:
            upload(exchange, name)
    exchange.consistency(drops.get("consistency", ()))
    closed = exchange.unmask(drops.get("unmask", ()))
    assert closed is exchange.plan
    return exchange, exchange.unmasked()


def upload(exchange: Exchange, name: str) -> None:
    """Its place holds 1 of the counts, its rank of the others, so that no two words of a sum are the same."""
    place = indicator(exchange.terms, [name])
    rank = 1 + exchange.terms.names.index(name)
    values = {"counts": place, "delta": place * rank / 8, "half": -place * rank / 16}
    encoder = Encoder(values, layout=exchange.terms.layout)
    exchange.masked[name] = b"".join(exchange.maskers[name].stream(encoder))
    exchange.coordinator.on_masked(name)


def copied(sums: Sums) -> Sums:
    return {ring_bits: words.copy() for ring_bits, words in sums.items()}


def tampered(exchange: Exchange, sums: Sums) -> Iterator[tuple[str, Sums]]:
    """What a coordinator may show instead, with what it knows: all but the keys of the silos."""
    for ring_bits, words in sums.items():
        for place in range(words.size):
            changed = copied(sums)
            changed[ring_bits][place] += words.dtype.type(1)
            yield f"word {place} of {ring_bits} bits changed", changed
    for ring_bits in (16, 32):
        changed = copied(sums)
        changed[ring_bits][[0, 1]] = changed[ring_bits][[1, 0]]
        yield f"words of {ring_bits} bits swapped", changed
    yield "scaled with its tags", {bits: words * words.dtype.type(2) for bits, words in sums.items()}
    yield "nothing at all", ring.zeros(exchange.terms.layout)
    for name in exchange.coordinator.survivors:
        yield f"without {name}", without(exchange, sums, name)


def without(exchange: Exchange, sums: Sums, name: str) -> Sums:
    """The coordinator takes a survivor's whole vector out of the sum, tags and all: as if it knew x(u)."""
    layout, masker = exchange.terms.layout, exchange.maskers[name]
    own = copied(masks.vectors_from_stream(layout, exchange.masked[name]))
    opposite = tuple(dataclasses.replace(each, sign=-each.sign) for each in masker.seeds)
    plan = masks.UnmaskPlan(
        layout=layout, cohort_digest=masker.cohort_digest, seeds=opposite, survivors=(name,)
    )
    plan.unmask(own)
    return {ring_bits: words - own[ring_bits] for ring_bits, words in sums.items()}


def assert_refused(exchange: Exchange, name: str, sums: Sums) -> None:
    with pytest.raises(RemoteProtocolError, match=r"sum: (its tags are not|a tagged word)") as caught:
        exchange.checks[name].check_sum(
            exchange.tagged_stream(sums), exchange.terms.layout.tagged, exchange.coordinator.survivors
        )
    assert caught.value.code is Refusal.SUM


@pytest.mark.parametrize("silos, stage, dropped", SUBSETS)
def test_every_silo_of_u2_takes_the_true_sum_and_no_other(silos, stage, dropped):
    exchange, sums = revealed(silos, {stage: dropped})
    assert set(exchange.checks) == set(exchange.coordinator.sharers)
    for name in exchange.checks:
        exchange.check(name, exchange.tagged_stream(sums))
        for _, changed in tampered(exchange, sums):
            assert_refused(exchange, name, changed)


@st.composite
def mixed_drops(draw):
    silos = draw(st.sampled_from([4, 6, 7, 9, 10, 13]))
    names = [f"silo-{index:03}" for index in range(silos)]
    leaving = draw(st.dictionaries(st.sampled_from(names), st.sampled_from(STAGES), max_size=losses(silos)))
    return silos, {stage: {name for name, at in leaving.items() if at == stage} for stage in STAGES}


@given(mixed_drops(), st.data())
@examples(15)
def test_any_change_of_a_sum_is_found_when_silos_drop_in_several_stages(case, data):
    exchange, sums = revealed(*case)
    name = data.draw(st.sampled_from(sorted(exchange.checks)))
    exchange.check(name, exchange.tagged_stream(sums))
    changed = copied(sums)
    for ring_bits, place, power, odd in data.draw(
        st.lists(
            st.tuples(
                st.sampled_from([16, 32, 64]),
                st.integers(0, 12),
                st.integers(0, 63),
                st.sampled_from([1, -3]),
            ),
            min_size=1,
            max_size=4,
        )
    ):
        place %= changed[ring_bits].size
        before = int(changed[ring_bits][place])
        changed[ring_bits][place] = (before + (odd << power % ring_bits)) % 2**ring_bits
    if all(np.array_equal(sums[ring_bits], changed[ring_bits]) for ring_bits in sums):
        return  # one change undid another
    assert_refused(exchange, name, changed)


def test_two_silos_are_not_shown_two_sums():
    exchange, sums = revealed(4, {"masked": ["silo-003"]})
    exchange.check("silo-000", exchange.tagged_stream(sums))
    assert_refused(exchange, "silo-001", without(exchange, sums, "silo-000"))


def test_the_sum_of_another_session_is_refused_with_and_without_its_signatures():
    exchange, sums = revealed(4, {})
    yesterday, of_yesterday = revealed(4, {}, attempt=2)
    yesterday.check("silo-000", yesterday.tagged_stream(of_yesterday))
    assert_refused(exchange, "silo-000", of_yesterday)
    match = "sum: signature of silo-000 over this cohort, U2 and U3: .* is not valid"
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        exchange.checks["silo-000"].check_survivors(
            exchange.coordinator.survivors, yesterday.coordinator.unmask_request()
        )
    assert caught.value.code is Refusal.SIGNATURES
    exchange.check("silo-000", exchange.tagged_stream(sums))


def signed_by(exchange: Exchange, names: Collection[str], survivors: tuple[str, ...]) -> Signatures:
    """What these silos would have signed of that U3."""
    coordinator = exchange.coordinator
    said = [
        Consistency(
            cohort_digest=coordinator.cohort_digest,
            sender=name,
            sharers=coordinator.sharers,
            survivors=survivors,
        )
        for name in names
    ]
    silos = exchange.federation.silos
    return Signatures(
        signatures={each.sender: bodies.sign(silos[each.sender], each).signature for each in said}
    )


def test_survivors_are_those_that_t_of_them_signed():
    exchange, _ = revealed(6, {"masked": ["silo-005"]})  # t = 5
    check, names = exchange.checks["silo-005"], exchange.terms.names
    survivors = exchange.coordinator.survivors
    check.check_survivors(survivors, signed_by(exchange, survivors, survivors))
    four = signed_by(exchange, survivors[:4], survivors)
    forged = Signatures(signatures={**four.signatures, "silo-004": four.signatures["silo-000"]})
    for shown, signatures, match in (
        (survivors, four, "expected signatures of 5 survivors, got 4"),
        (survivors, forged, "signature of silo-004 over this cohort, U2 and U3: .* is not valid"),
        (survivors, signed_by(exchange, names, survivors), "a signature is of silo-005, which is not in U3"),
        (names, signed_by(exchange, survivors, survivors), "signature of silo-000 over .* is not valid"),
        (survivors[::-1], signed_by(exchange, survivors, survivors[::-1]), "expected a sorted subset of U2"),
        ((*survivors, "spare"), signed_by(exchange, survivors, survivors), "expected a sorted subset of U2"),
        (
            ("silo-000", *survivors),
            signed_by(exchange, survivors, survivors),
            "expected a sorted subset of U2",
        ),
    ):
        with pytest.raises(RemoteProtocolError, match=match) as caught:
            check.check_survivors(shown, signatures)
        assert caught.value.code is Refusal.SIGNATURES


def test_a_sum_is_refused_under_survivors_that_are_not_those_of_the_session():
    """Even with t signatures: the offsets of others are not in the sum."""
    exchange, sums = revealed(6, {"masked": ["silo-005"]})
    tagged, stream = exchange.terms.layout.tagged, exchange.tagged_stream(sums)
    for shown in (exchange.terms.names, exchange.terms.names[:4], exchange.terms.names[1:]):
        with pytest.raises(RemoteProtocolError, match="sum: its tags"):
            exchange.checks["silo-000"].check_sum(stream, tagged, shown)


def test_a_stream_of_another_length_is_refused():
    exchange, sums = revealed(3, {})
    stream = exchange.tagged_stream(sums)
    exchange.check("silo-000", stream)
    for damaged in (b"", stream[:-1], stream[:-8], stream + bytes(8)):
        with pytest.raises(RemoteProtocolError, match="sum: masked vector: expected") as caught:
            exchange.check("silo-000", damaged)
        assert caught.value.code is Refusal.SUM


def test_a_layout_of_another_session_is_our_own_mistake():
    exchange, sums = revealed(3, {})
    layout, stream = exchange.terms.layout, exchange.tagged_stream(sums)
    untagged = Layout(members=3, quantities=(Quantity(name="x", bound=1.0),))
    for other in (dataclasses.replace(layout, members=4), untagged):
        with pytest.raises(LocalProtocolError, match="not that of this session's tagged quantities"):
            exchange.checks["silo-000"].check_sum(stream, other, exchange.coordinator.survivors)


def test_self_mask_seeds_are_those_that_the_survivors_committed_to():
    exchange, _ = revealed(4, {"masked": ["silo-003"]})
    check, survivors = exchange.checks["silo-003"], exchange.coordinator.survivors
    given = dict(exchange.coordinator.self_mask_seeds)
    check.check_self_mask_seeds(given, survivors)
    assert given == {name: exchange.maskers[name].seeds[0].seed for name in survivors}
    surplus = {**given, "silo-003": exchange.maskers["silo-003"].seeds[0].seed}
    for wrong in ({}, {name: given[name] for name in survivors[1:]}, surplus):
        with pytest.raises(RemoteProtocolError, match="self-mask seeds: expected one of each survivor"):
            check.check_self_mask_seeds(wrong, survivors)
    swapped = {**given, "silo-000": given["silo-001"], "silo-001": given["silo-000"]}
    for wrong in (
        swapped,
        {**given, "silo-000": bytes(32)},
        {**given, "silo-000": given["silo-000"] + b"\0"},
    ):
        with pytest.raises(RemoteProtocolError, match="self-mask seed of silo-000: not the one"):
            check.check_self_mask_seeds(wrong, survivors)


def test_a_session_shows_no_self_mask_seed_before_it_is_done():
    exchange = make_session(3)
    exchange.run_until("unmask")
    assert not exchange.coordinator.self_mask_seeds
    exchange.unmask()
    assert set(exchange.coordinator.self_mask_seeds) == set(exchange.terms.names)


def test_a_silo_keeps_its_check_from_its_masks_to_its_signature():
    exchange = make_session(3)
    silo = exchange.silos["silo-000"]
    assert silo.sum_check is None
    exchange.advertise()
    exchange.share()
    assert silo.sum_check is None
    exchange.mask()
    assert silo.state is SiloState.MASKED
    assert silo.sum_check == exchange.checks["silo-000"]
    exchange.consistency()
    assert silo.sum_check is None


def test_a_layout_without_tags_has_no_further_words():
    layout = Layout(
        members=3,
        quantities=tuple(
            dataclasses.replace(each, is_tagged=False) for each in make_session(3).terms.layout.quantities
        ),
    )
    exchange = make_session(3, layout=layout)
    assert np.array_equal(exchange.run(), exchange.expected())
    for check in exchange.checks.values():  # of U3 alone: there is no sum to check
        check.check_survivors(exchange.coordinator.survivors, exchange.coordinator.unmask_request())
    tagged = make_session(3)
    tagged.run()
    assert len(tagged.masked["silo-000"]) == len(exchange.masked["silo-000"]) + 8 * TAG_WORDS


def test_what_a_silo_keeps_says_what_the_sum_is_of():
    exchange, _ = revealed(4, {"share": ["silo-001"]})
    terms, check = exchange.terms, exchange.checks["silo-002"]
    assert (check.federation, check.job_digest, check.round) == (
        terms.federation,
        terms.job_digest,
        terms.round,
    )
    assert (check.phase, check.attempt, check.state_digest) == (
        terms.phase,
        terms.attempt,
        terms.state_digest,
    )
    assert (check.session_digest, check.layout_digest) == (terms.digest(), terms.layout.digest)
    assert (check.threshold, check.members) == (terms.rule.threshold, terms.rule.members)
    assert check.cohort_digest == exchange.coordinator.cohort_digest
    assert (check.name, check.sharers) == ("silo-002", exchange.coordinator.sharers)
    assert check.certificates == {
        name: exchange.federation.silos[name].certificate_der for name in check.sharers
    }
    assert SumCheck.from_bytes(check.to_bytes()) == check


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sum_key": bytes(31)}, "expected 32 bytes, got 31"),
        ({"cohort_digest": b""}, "expected 32 bytes, got 0"),
        ({"state_digest": bytes(33)}, "expected 32 bytes, got 33"),
        ({"certificates": {}}, "expected a certificate and a commitment of each of U2"),
        ({"self_mask_commitments": {}}, "expected a certificate and a commitment of each of U2"),
        ({"sharers": ("silo-000",)}, "expected a certificate and a commitment of each of U2"),
    ],
)
def test_a_damaged_row_is_refused(change, match):
    exchange, _ = revealed(3, {})
    data = dataclasses.replace(exchange.checks["silo-000"], **change).to_bytes()
    with pytest.raises(RemoteProtocolError, match=match):
        SumCheck.from_bytes(data)
    for damaged in (b"", data[:-1], data + b"\0", data.replace(b"sum-check", b"sun-check")):
        with pytest.raises(RemoteProtocolError, match=r"sum-check|sum check"):
            SumCheck.from_bytes(damaged)


def test_all_silos_of_u2_hold_the_same_key_and_it_is_that_of_cohort_and_u2_alone():
    exchange, _ = revealed(5, {"share": ["silo-004"]})
    (key,) = {check.sum_key for check in exchange.checks.values()}
    again, _ = revealed(5, {"share": ["silo-004"]})
    assert key not in {check.sum_key for check in again.checks.values()}
    keys = {"a": b"1" * 32, "b": b"2" * 32, "c": b"3" * 32}
    made = [
        seeds.cohort_sum_key(keys, cohort_digest=bytes(32)),
        seeds.cohort_sum_key(keys, cohort_digest=b"\1" * 32),
        seeds.cohort_sum_key({**keys, "c": b"4" * 32}, cohort_digest=bytes(32)),
        seeds.cohort_sum_key({"a": keys["a"], "b": keys["b"]}, cohort_digest=bytes(32)),
        seeds.cohort_sum_key({"a": keys["a"], "b": keys["b"], "d": keys["c"]}, cohort_digest=bytes(32)),
        seeds.cohort_sum_key({"a": keys["b"], "b": keys["a"], "c": keys["c"]}, cohort_digest=bytes(32)),
    ]
    assert len(set(made)) == len(made)
    assert seeds.cohort_sum_key(dict(reversed(keys.items())), cohort_digest=bytes(32)) == made[0]


def test_no_message_row_or_repr_holds_a_sum_key():
    """The control: they are where they must be, and a self-mask share is found where one leaves."""
    exchange = make_session(4)
    exchange.advertise()
    own = {name: silo._held.secrets.sum_key for name, silo in exchange.silos.items()}
    exchange.share()
    exchange.mask(["silo-003"])
    exchange.consistency()
    exchange.unmask()
    keys = {*own.values(), *(check.sum_key for check in exchange.checks.values())}
    assert len(keys) == 5
    rows = [row.to_bytes() for ledger in exchange.ledgers.values() for row in ledger.revealed.values()]
    seen = b"".join(
        [
            repr([exchange.sent, exchange.last_messages, exchange.checks, exchange.maskers]).encode(),
            *(stream for stream in exchange.masked.values()),
            *rows,
            exchange.coordinator._record.to_bytes(),
        ]
    )
    for key in keys:
        for spelled in (key, key.hex().encode(), repr(key)[2:-1].encode()):
            assert spelled not in seen
    assert exchange.sent["silo-000"].self_mask_shares["silo-001"] in seen
    assert next(iter(exchange.checks.values())).sum_key in next(iter(exchange.checks.values())).to_bytes()
