"""What a coordinator bends inside a session, and how a silo refuses it: one table, played at two levels.

In memory by tests/protocol/test_malicious_sessions.py, against real agents over mutual TLS by
tests/integration/test_malicious_coordinator.py. A row is a script: it yields what the coordinator does and is
sent what the silo answers. What can be played at one level alone stands in the tests of that level.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from crypto import encoding, envelope_tree
from crypto.errors import Refusal
from crypto.identity.certificates import Identity, Role, SignedBody
from crypto.session import bodies
from crypto.session.coordinator_session import CoordinatorSession
from crypto.session.messages import (
    Cohort,
    Envelopes,
    RecoverRequest,
    RelayedEnvelope,
    Shares,
    Signatures,
    Survivors,
)
from tests.support.ceremony import stranger

Message = Cohort | Envelopes | Survivors | Signatures | RecoverRequest
SPARE = "spare"  # on the roster, in no session
NOT_HELD = "signature of {0} over this cohort, U2 and U3: .* is not valid"
NOT_IN_THE_TREE = "envelope {0} to {1}: it is not in the dealing that was signed"


@dataclass(kw_only=True)
class Play:
    """A session of either level that has come to a stage. At `unmask` the last silo is lost.

    told: what an honest coordinator says next. earlier: an attempt before it that came as far, for a row
    that replays.
    """

    names: tuple[str, ...]
    silos: Mapping[str, Identity]  # the spare one too
    session: CoordinatorSession
    issue: Callable[..., Identity]  # another certificate of the authority
    told: Mapping[str, Message]
    dealt: Mapping[str, Shares]
    earlier: Play | None = None

    @property
    def dealer(self) -> str:
        """The first whose advert, envelope and signature a silo looks at."""
        return self.names[0]

    @property
    def victim(self) -> str:
        return self.names[1]

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != self.victim)

    @property
    def given(self) -> Any:
        return self.told[self.victim]

    @property
    def adverts(self) -> dict[str, SignedBody]:
        return dict(zip(self.names, self.given.adverts, strict=True))


def told_next(session: CoordinatorSession, stage: str) -> Mapping[str, Message]:
    """Close the stage before this one, as an honest coordinator does."""
    match stage:
        case "share":
            return dict.fromkeys(session.terms.names, session.close_advertise())
        case "masked":
            return session.close_share()
        case "consistency":
            return dict.fromkeys(session.terms.names, session.close_masked())
        case _:
            return dict.fromkeys(session.terms.names, session.close_consistency())


class Told(NamedTuple):
    """The silo answers, and the script goes on with its answer."""

    silo: str
    message: Message


class Refused(NamedTuple):
    """over_the_line: the reason, where the form of the message is refused before its session sees it."""

    silo: str
    message: Message
    code: Refusal
    reason: str
    over_the_line: str = ""


class Restarted(NamedTuple):
    """The silo keeps its files alone."""

    silo: str


class Advertises(NamedTuple):
    """The silo is asked for its advert again."""

    silo: str


class Unknown(NamedTuple):
    """The silo has no such session."""

    silo: str
    message: Message


Steps = Generator[Told | Refused | Restarted | Advertises | Unknown, Any, None]
Bend = Callable[[Play], Message]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """stage: which the coordinator bends. answers: whether a silo's true answer leaves before it refuses."""

    stage: str
    script: Callable[[Play], Steps]
    silos: int = 4  # t = 3: one may be lost
    replays: bool = False
    answers: bool = False


def bent(
    stage: str, code: Refusal, reason: str, bend: Bend, over_the_line: str = "", *, replays: bool = False
) -> Attack:
    """One message to the victim. reason: with the places of silos' names."""

    def script(play: Play) -> Steps:
        message = bend(play)
        assert message != play.given
        yield Refused(play.victim, message, code, reason.format(*play.names), over_the_line)

    return Attack(stage=stage, script=script, replays=replays)


# cohorts


def adverts_of(play: Play, names: Sequence[str]) -> Cohort:
    return Cohort(adverts=tuple(play.adverts[name] for name in names))


def with_advert(play: Play, advert: SignedBody, place: int = 0) -> Cohort:
    return Cohort(adverts=tuple((play.adverts | {play.names[place]: advert}).values()))


def with_key_of_another(play: Play, field: str) -> Cohort:
    """Under the signature of the dealer."""
    signed = play.adverts[play.dealer]
    own, other = (getattr(bodies.read_advert(play.adverts[name]).advert, field) for name in play.names[::3])
    assert own in signed.body
    return with_advert(play, dataclasses.replace(signed, body=signed.body.replace(own, other)))


def resigned(play: Play, signer: Identity, **changes: str) -> Cohort:
    """The dealer's advert under another certificate."""
    advert = bodies.read_advert(play.adverts[play.dealer]).advert
    advert = dataclasses.replace(advert, **{"certificate": signer.certificate_der, **changes})
    return with_advert(play, bodies.sign(signer, advert))


def advert_cut_short(play: Play) -> Cohort:
    signed = play.adverts[play.dealer]
    return with_advert(play, dataclasses.replace(signed, body=signed.body[:-1]))


def advert_of_another_purpose(play: Play) -> Cohort:
    """A silo's other signatures cannot be passed off: each purpose is part of what was signed."""
    signed = play.silos[play.dealer].sign("complaint", bytes(32), play.dealer, play.victim)
    assert encoding.decode("complaint", signed.body)
    return with_advert(play, signed)


_ANOTHER_KEY = Refusal.ADVERT, "advert of {0}: advert: the signature is not valid"
_COHORTS: dict[str, tuple[Refusal, str, Bend]] = {
    "channel key of another": (*_ANOTHER_KEY, lambda play: with_key_of_another(play, "channel_key")),
    "mask key of another": (*_ANOTHER_KEY, lambda play: with_key_of_another(play, "mask_key")),
    "advert under another authority": (
        Refusal.ROSTER,
        "certificate: it was not issued by this federation's authority",
        lambda play: resigned(play, stranger(Role.SILO, play.dealer, now=play.session._now)),
    ),
    "advert of another member": (
        Refusal.ADVERT,
        "advert of {0}: the certificate is of {3}",
        lambda play: resigned(play, play.silos[play.names[3]]),
    ),
    "advert of a coordinator": (
        Refusal.ROSTER,
        "its extended key usage is not that of a silo",
        lambda play: resigned(play, play.issue(play.dealer, role=Role.COORDINATOR)),
    ),
    "advert of an operator": (
        Refusal.ROSTER,
        "certificate: expected role silo, got operator",
        lambda play: resigned(play, play.issue(play.dealer, role=Role.OPERATOR)),
    ),
    "advert under a certificate off the roster": (  # older, or stolen and issued again
        Refusal.ROSTER,
        "advert of {0}: certificate not on the roster",
        lambda play: resigned(play, play.issue(play.dealer)),
    ),
    "advert outside the named set": (
        Refusal.NOT_NAMED,
        "advert: the silo is not in the named set",
        lambda play: resigned(play, play.silos[SPARE], name=SPARE),
    ),
    "advert cut short": (Refusal.MALFORMED, "advert: ends early", advert_cut_short),
    "advert of another purpose": (
        Refusal.MALFORMED,
        "advert: the bytes belong to another kind of message",
        advert_of_another_purpose,
    ),
    "advert twice": (
        Refusal.ADVERT,
        "cohort: a silo adverts twice",
        lambda play: with_advert(play, play.adverts[play.names[3]]),
    ),
    "more adverts than silos": (
        Refusal.ADVERT,
        "cohort: more adverts than named silos",
        lambda play: adverts_of(play, [*play.names, play.dealer]),
    ),
    "left out of U1": (
        Refusal.LEFT_OUT,
        "cohort: this silo is not in U1",
        lambda play: adverts_of(play, play.others),
    ),
}


# envelopes


def relayed(shares: Shares, place: int) -> RelayedEnvelope:
    """What a coordinator that keeps no rule makes of a dealing."""
    tree = envelope_tree.levels([envelope_tree.leaf(each) for each in shares.envelopes])
    path = envelope_tree.paths(tree)[place]
    return RelayedEnvelope(dealing=shares.dealing, envelope=shares.envelopes[place], path=path)


def envelopes_among(play: Play, receiver: str, group: Sequence[str]) -> Envelopes:
    """What a group dealt to one silo, of what was given to all, as if the others had sent nothing."""
    dealers = [name for name in play.names if name != receiver]
    given = zip(dealers, play.told[receiver].envelopes, strict=True)
    return Envelopes(sharers=tuple(group), envelopes=tuple(each for name, each in given if name in group))


def signed_again(
    silos: Mapping[str, Identity],
    session: CoordinatorSession,
    dealer: str,
    shares: Shares,
    *,
    envelopes: tuple[bytes, ...],
    **changes: object,
) -> Shares:
    """Other envelopes, and the dealer's signature over them. changes: of the dealing."""
    root = envelope_tree.root(envelope_tree.levels([envelope_tree.leaf(each) for each in envelopes]))
    dealing = dealing_of(silos, session, dealer, shares)
    dealing = dataclasses.replace(dealing, **{"envelopes_root": root, **changes})
    return Shares(dealing=bodies.sign(silos[dealer], dealing), envelopes=envelopes)


def dealing_of(
    silos: Mapping[str, Identity], session: CoordinatorSession, dealer: str, shares: Shares
) -> bodies.Dealing:
    return bodies.open_dealing(
        shares.dealing,
        certificate=silos[dealer].certificate,
        cohort_digest=session.cohort_digest,
        sender=dealer,
    )


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def node_of(shares: Shares) -> bytes:
    """The bytes that are hashed to the node above the first two envelopes."""
    first, second, *_ = map(envelope_tree.leaf, shares.envelopes)
    return encoding.encode("envelope-node", first, second)


def with_first(given: Envelopes, **changes: object) -> Envelopes:
    """The envelope of the dealer, changed; the others as they came."""
    first, *others = given.envelopes
    return dataclasses.replace(given, envelopes=(dataclasses.replace(first, **changes), *others))


def at(play: Play, place: int) -> RelayedEnvelope:
    """Of the dealer's envelopes the one at that place; the victim's is the first."""
    return relayed(play.dealt[play.dealer], place)


def second(play: Play) -> RelayedEnvelope:
    """What the victim is given of another dealer."""
    return play.given.envelopes[1]


def first(**fields: Callable[[Play], object]) -> Bend:
    return lambda play: with_first(play.given, **{name: made(play) for name, made in fields.items()})


def first_is(play: Play, envelope: RelayedEnvelope) -> Envelopes:
    return dataclasses.replace(play.given, envelopes=(envelope, *play.given.envelopes[1:]))


def paths_swapped(play: Play) -> Envelopes:
    one, other, *rest = play.given.envelopes
    swapped = dataclasses.replace(one, path=other.path), dataclasses.replace(other, path=one.path)
    return dataclasses.replace(play.given, envelopes=(*swapped, *rest))


def dealing_changed(play: Play, field: str) -> SignedBody:
    shares = play.dealt[play.dealer]
    dealing = dealing_of(play.silos, play.session, play.dealer, shares)
    changed = dataclasses.replace(dealing, **{field: flipped(getattr(dealing, field))})
    return dataclasses.replace(shares.dealing, body=bodies.body_of(changed))


def dealing_cut_short(play: Play) -> SignedBody:
    dealing = play.given.envelopes[0].dealing
    return dataclasses.replace(dealing, signature=dealing.signature[:-1])


def tree_of_a_colluding_dealer(play: Play) -> Envelopes:
    """The root is right, and what is at the victim's place is for another."""
    shares = play.dealt[play.dealer]
    one, other, *rest = shares.envelopes
    swapped = signed_again(play.silos, play.session, play.dealer, shares, envelopes=(other, one, *rest))
    return first_is(play, relayed(swapped, 0))


def of_another_receiver(play: Play) -> Envelopes:
    return dataclasses.replace(play.given, envelopes=play.told[play.names[2]].envelopes)


def one_missing(play: Play) -> Envelopes:
    return dataclasses.replace(play.given, envelopes=play.given.envelopes[:-1])


def dealt_node(play: Play) -> bytes:
    return node_of(play.dealt[play.dealer])


_PATH = "envelope: expected a path of 64 bytes, got"
_NOT_SIGNED = "dealing of {0}: dealing: the signature is not valid"
_ENVELOPES: dict[str, tuple[str, Bend]] = {  # nobody is accused: the answer is a refusal, and no complaint
    "path truncated": (_PATH, first(path=lambda play: at(play, 0).path[:-32])),
    "path longer": (_PATH, first(path=lambda play: at(play, 0).path + bytes(32))),
    "path empty": (_PATH, first(path=lambda _: b"")),
    "path of another dealer": (NOT_IN_THE_TREE, first(path=lambda play: second(play).path)),
    "path of another receiver": (NOT_IN_THE_TREE, first(path=lambda play: at(play, 1).path)),
    "paths of two dealers swapped": (NOT_IN_THE_TREE, paths_swapped),
    "envelope of another receiver": (NOT_IN_THE_TREE, first(envelope=lambda play: at(play, 1).envelope)),
    "envelope and path of another receiver": (NOT_IN_THE_TREE, lambda play: first_is(play, at(play, 1))),
    "envelopes of another receiver": (NOT_IN_THE_TREE, of_another_receiver),
    "envelope changed": (NOT_IN_THE_TREE, first(envelope=lambda play: flipped(at(play, 0).envelope))),
    "envelope of another dealer": (NOT_IN_THE_TREE, first(envelope=lambda play: second(play).envelope)),
    "node as a leaf": (_PATH, first(envelope=dealt_node, path=lambda play: at(play, 0).path[32:])),
    "node as a leaf, path filled up": (
        NOT_IN_THE_TREE,
        first(envelope=dealt_node, path=lambda play: at(play, 0).path[32:] + bytes(32)),
    ),
    "one envelope missing": ("envelopes: expected 3 to {1}, got 2", one_missing),
    "dealing cut short": (_NOT_SIGNED, first(dealing=dealing_cut_short)),
    "own share's hash changed": (
        _NOT_SIGNED,
        first(dealing=lambda play: dealing_changed(play, "self_mask_share_hash")),
    ),
    "root changed": (_NOT_SIGNED, first(dealing=lambda play: dealing_changed(play, "envelopes_root"))),
    "dealing of another silo": (_NOT_SIGNED, first(dealing=lambda play: second(play).dealing)),
    "tree of a colluding dealer": (
        "envelope {0} to {1}: made for another cohort, sender or receiver",
        tree_of_a_colluding_dealer,
    ),
}

ONE_MESSAGE = {
    **{name: bent("share", *row) for name, row in _COHORTS.items()},
    **{name: bent("masked", Refusal.ENVELOPE, *row) for name, row in _ENVELOPES.items()},
    "path cut within a hash": bent(
        "masked",
        Refusal.ENVELOPE,
        _PATH,
        first(path=lambda play: at(play, 0).path[:-1]),
        "path: expected at most 8 hashes, got 63 bytes",
    ),
    "advert of an earlier attempt": bent(
        "share",
        Refusal.ADVERT,
        "advert of {0}: made for another session",
        lambda play: with_advert(play, play.earlier.adverts[play.dealer]),
        replays=True,
    ),
    "own advert of an earlier attempt": bent(
        "share",
        Refusal.ADVERT,
        "advert of {1}: made for another session",
        lambda play: with_advert(play, play.earlier.adverts[play.victim], 1),
        replays=True,
    ),
    "dealing of another session": bent(
        "masked",
        Refusal.ENVELOPE,
        "dealing of {0}: signed for another cohort or silo",
        lambda play: first_is(play, play.earlier.given.envelopes[0]),
        replays=True,
    ),
    "left out of U2": bent(
        "masked",
        Refusal.LEFT_OUT,
        "sharers: this silo is left out",
        lambda play: envelopes_among(play, play.victim, play.others),
    ),
}
