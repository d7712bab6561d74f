"""The rest of the table of attacks: who is in the sum, whose signatures open it, scripts of several steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from crypto.errors import Refusal
from crypto.session import bodies
from crypto.session.coordinator_session import CoordinatorSession
from crypto.session.messages import Consistency, Envelopes, RecoverRequest, Signatures, Survivors
from tests.support.attacks import (
    NOT_HELD,
    ONE_MESSAGE,
    SPARE,
    Advertises,
    Attack,
    Bend,
    Message,
    Play,
    Refused,
    Restarted,
    Steps,
    Told,
    Unknown,
    adverts_of,
    bent,
    envelopes_among,
    relayed,
)

Shown = dict[str, bytes]

_SUBSET = Refusal.MALFORMED, "survivors: expected a sorted subset of the set before it"
_SURVIVORS: dict[str, tuple[Refusal, str, Bend]] = {
    "a stranger in U3": (*_SUBSET, lambda play: Survivors(survivors=(*play.names[:3], SPARE))),
    "a survivor twice": (*_SUBSET, lambda play: Survivors(survivors=(*play.names[:3], play.names[2]))),
    "survivors out of order": (*_SUBSET, lambda play: Survivors(survivors=(play.names[1], *play.others))),
    "signatures before the silo signed": (
        Refusal.STAGE,
        "got Signatures in state masked",
        lambda play: Signatures(signatures={name: signed_over(play, name) for name in play.names}),
    ),
}


# signatures: no body travels, so nothing but the signature and its name say what was signed, and by whom


def signed_over(play: Play, signer: str, **changes: Any) -> bytes:
    """What that silo's key makes of the sets of this session, but for these changes."""
    said = Consistency(
        cohort_digest=play.session.cohort_digest,
        sender=signer,
        sharers=play.session.sharers,
        survivors=play.session.survivors,
    )
    return bodies.sign(play.silos[signer], dataclasses.replace(said, **changes)).signature


def _first_is(made: Callable[[Play, Shown], bytes]) -> Callable[[Play, Shown], Shown]:
    return lambda play, shown: {**shown, play.dealer: made(play, shown)}


def _over(changes: Callable[[CoordinatorSession], dict[str, Any]]) -> Callable[[Play, Shown], Shown]:
    return _first_is(lambda play, _: signed_over(play, play.dealer, **changes(play.session)))


_TOO_FEW = "expected signatures of 3 survivors, got "
# what is shown of the true ones, the reason, and that over the line where it is another
SIGNATURES: dict[str, tuple[Callable[[Play, Shown], Shown], str, str]] = {
    "signature of another": (_first_is(lambda play, shown: shown[play.names[2]]), NOT_HELD, ""),
    "one signature for all": (
        lambda play, shown: dict.fromkeys(shown, shown[play.dealer]),
        NOT_HELD.replace("{0}", "{1}"),
        "",
    ),
    "body in the name of another": (
        _first_is(lambda play, _: signed_over(play, play.names[2], sender=play.dealer)),
        NOT_HELD,
        "",
    ),
    "over another U3": (_over(lambda session: {"survivors": session.sharers}), NOT_HELD, ""),
    "over another U2": (_over(lambda session: {"sharers": session.survivors}), NOT_HELD, ""),
    "over swapped sets": (
        _over(lambda session: {"sharers": session.survivors, "survivors": session.sharers}),
        NOT_HELD,
        "",
    ),
    "over another cohort": (_over(lambda _: {"cohort_digest": bytes(32)}), NOT_HELD, ""),
    "too few": (lambda play, shown: {name: shown[name] for name in play.names[:2]}, _TOO_FEW + "2", ""),
    "nobody's": (lambda *_: {}, _TOO_FEW + "0", ""),
    "of a lost silo": (  # of U2 minus U3, over these very sets
        lambda play, shown: {**shown, play.names[3]: signed_over(play, play.names[3])},
        "a signature is of {3}, which is not in U3",
        "",
    ),
    "of a silo that is not named": (
        lambda play, shown: {**shown, SPARE: shown[play.dealer]},
        "a signature is of spare, which is not in U3",
        "",
    ),
    "empty": (_first_is(lambda *_: b""), NOT_HELD, "signature: expected 1 to 72 bytes, got 0"),
    "too long": (
        _first_is(lambda play, shown: shown[play.dealer] + bytes(1 << 16)),
        NOT_HELD,
        "signature: expected 1 to 72 bytes, got 656",
    ),
    "cut short": (_first_is(lambda play, shown: shown[play.dealer][:-1]), NOT_HELD, ""),
}


def signatures_shown(play: Play, name: str) -> Signatures:
    """What a row of SIGNATURES makes of those that t survivors made."""
    true = dict(play.session.unmask_request().signatures)
    return Signatures(signatures=SIGNATURES[name][0](play, true))


def _unmasking(name: str) -> Attack:
    reason, over_the_line = SIGNATURES[name][1:]
    shown = partial(signatures_shown, name=name)
    return bent("unmask", Refusal.SIGNATURES, f"unmask: {reason}", shown, over_the_line)


# scripts


def groups_of_three_of_ten(stage: str) -> Callable[[Play], Steps]:
    """Three sums of three or four silos, had the silos believed in t = 3."""

    def told(play: Play, name: str, group: Sequence[str]) -> tuple[str, Message]:
        match stage:
            case "share":
                return "cohort", adverts_of(play, group)
            case "masked":
                return "sharers", envelopes_among(play, name, group)
        return "survivors", Survivors(survivors=tuple(group))

    def script(play: Play) -> Steps:
        for group in (play.names[:3], play.names[3:6], play.names[6:]):
            for name in group:
                what, message = told(play, name, group)
                reason = f"{what}: expected at least 7 silos, got {len(group)}"
                yield Refused(name, message, Refusal.COHORT_TOO_SMALL, reason)

    return script


def advert_from_before_a_restart(play: Play) -> Steps:
    """The same attempt, other keys: the others would seal to keys that are gone."""
    yield Restarted(play.victim)
    advert = yield Advertises(play.victim)
    assert advert != play.adverts[play.victim]
    yield Refused(play.victim, play.given, Refusal.ADVERT, "this silo's own advert is not the one it sent")


def different_cohorts(play: Play) -> Steps:
    """Three silos deal to three, but the third of them was told of all: it signs for another cohort."""
    three, dealt = play.names[:3], {}
    for name in play.names:
        group = three if name in three[:2] else play.names
        shares = yield Told(name, adverts_of(play, group))
        receivers = [peer for peer in group if peer != name]
        dealt[name] = {peer: relayed(shares, place) for place, peer in enumerate(receivers)}
    for name in three:
        envelopes = tuple(dealt[peer][name] for peer in three if peer != name)
        other = three[0] if name == three[2] else three[2]
        yield Refused(
            name,
            Envelopes(sharers=three, envelopes=envelopes),
            Refusal.ENVELOPE,
            f"dealing of {other}: signed for another cohort or silo",
        )


def different_survivors(play: Play) -> Steps:
    """Of seven silos, t = 5, three are told that the last is lost, the others that the first is."""
    names, signed = play.names, {}
    told = {name: names[:6] if name in names[:3] else names[1:] for name in names}
    for name in names:
        signed[name] = yield Told(name, Survivors(survivors=told[name]))
    for name in names:
        same = {peer: signed[peer] for peer in names if told[peer] == told[name]}
        of_its_u3 = {peer: signed[peer] for peer in told[name]}
        outside = names[6] if name in names[:3] else names[0]
        for shown, reason in (
            (same, f"expected signatures of 5 survivors, got {len(same)}"),
            (signed, f"a signature is of {outside}, which is not in U3"),
            (of_its_u3, "signature of .* over this cohort, U2 and U3: .* is not valid"),
        ):
            yield Refused(name, Signatures(signatures=shown), Refusal.SIGNATURES, f"unmask: {reason}")
            yield Restarted(name)


def left_out_of_u3(play: Play) -> Steps:
    others = play.others
    reason = "survivors: this silo is left out"
    yield Refused(play.victim, Survivors(survivors=others), Refusal.LEFT_OUT, reason)
    yield Restarted(play.victim)
    signatures = {name: signed_over(play, name, survivors=others) for name in others}
    yield Unknown(play.victim, Signatures(signatures=signatures))


def signatures_of_an_earlier_attempt(play: Play) -> Steps:
    """They were collected and never used."""
    for name in play.session.survivors:
        reason = "unmask: " + NOT_HELD.format(*play.names)
        yield Refused(name, play.earlier.given, Refusal.SIGNATURES, reason)


def both_shares_of_one_silo(play: Play) -> Steps:
    """Asked again it gives the same answer, also after a restart, and for lost silos alone."""
    silo, lost = play.victim, play.names[3]
    answer = yield Told(silo, play.given)
    assert set(answer.self_mask_shares) == set(play.names[:3])
    assert set(answer.recovery_shares) == {lost}
    more = Survivors(survivors=play.names)  # now the last is said to have survived
    yield Refused(silo, more, Refusal.STAGE, "got Survivors in state revealed")
    not_lost = Refusal.SIGNATURES, "recover: a name is not in U2 minus U3"
    not_distinct = Refusal.MALFORMED, "recover: expected distinct names of lost silos"
    for message, code, reason in (
        (more, Refusal.STAGE, "got Survivors in state revealed"),
        (RecoverRequest(names=(play.dealer,)), *not_lost),
        (RecoverRequest(names=(lost, play.dealer)), *not_lost),
        (RecoverRequest(names=(SPARE,)), *not_lost),
        (RecoverRequest(names=()), *not_distinct),
        (RecoverRequest(names=(lost, lost)), *not_distinct),
    ):
        yield Restarted(silo)
        assert (yield Told(silo, play.given)) == answer
        yield Refused(silo, message, code, reason)


def recovery_before_the_signatures(play: Play) -> Steps:
    request = RecoverRequest(names=(play.names[3],))
    yield Refused(play.victim, request, Refusal.STAGE, "got RecoverRequest in state signed")
    yield Restarted(play.victim)
    yield Refused(play.victim, request, Refusal.STAGE, "got RecoverRequest in state signed")


ATTACKS: dict[str, Attack] = {
    **ONE_MESSAGE,
    "own advert from before a restart": Attack(stage="share", script=advert_from_before_a_restart),
    "different cohorts": Attack(stage="share", script=different_cohorts),
    **{name: bent("consistency", *row) for name, row in _SURVIVORS.items()},
    "left out of U3": Attack(stage="consistency", script=left_out_of_u3),
    **{f"signatures: {name}": _unmasking(name) for name in SIGNATURES},
    "signatures of an earlier attempt": Attack(
        stage="unmask", script=signatures_of_an_earlier_attempt, replays=True
    ),
    "recovery before the signatures": Attack(stage="unmask", script=recovery_before_the_signatures),
    "both shares of one silo": Attack(stage="unmask", script=both_shares_of_one_silo, answers=True),
    "different survivors of seven": Attack(stage="consistency", script=different_survivors, silos=7),
    **{
        f"groups of three of ten at {stage}": Attack(
            stage=stage, script=groups_of_three_of_ten(stage), silos=10
        )
        for stage in ("share", "masked", "consistency")
    },
}
