"""One or two certificates of the authority: what one of them signed holds, and nothing else does.

Source: docs/protocol.md 1.6.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity import roster
from crypto.identity.certificates import (
    Anchors,
    Identity,
    Role,
    certificate_to_pem,
    check_certificate,
    fingerprint,
)
from crypto.identity.roster import Member, open_roster
from tests.unit.crypto.conftest import NOW, Authority, make_authority


@pytest.fixture(scope="module")
def old() -> Authority:
    return make_authority(now=NOW - timedelta(days=300), valid_days=310)


@pytest.fixture(scope="module")
def new() -> Authority:
    return make_authority(now=NOW - timedelta(days=1))


def pem(*authorities: Authority) -> bytes:
    return b"".join(certificate_to_pem(one.certificate) for one in authorities)


def check(who: Identity, anchors: Anchors, *, days: int = 0) -> None:
    now = NOW + timedelta(days=days)
    check_certificate(who.certificate, authority=anchors, role=Role.SILO, federation="hospitals", now=now)


def read(by: Authority, anchors: Anchors, *, days: int = 0) -> None:
    """A roster that `by` signed at that time."""
    now = NOW + timedelta(days=days)
    signed = roster.sign_roster(
        authority_key=by.key,
        federation="hospitals",
        version=3,
        issued=now,
        expires=now + timedelta(days=9),
        members=[Member(Role.SILO, "a", fingerprint(by.certificate))],
    )
    open_roster(signed, authority=anchors, federation="hospitals", now=now)


@pytest.mark.parametrize("is_old_first", [True, False])
def test_members_and_rosters_of_both_hold_in_either_order(
    old: Authority, new: Authority, is_old_first: bool
) -> None:
    anchors = Anchors.load(pem(old, new) if is_old_first else pem(new, old))
    for one in (old, new):
        check(one.issue(Role.SILO, "a"), anchors)
        read(one, anchors)
    assert Anchors.load(anchors.pem) == anchors
    stranger = make_authority(now=NOW - timedelta(days=1))
    with pytest.raises(RemoteProtocolError, match="not issued by this federation's authority"):
        check(stranger.issue(Role.SILO, "a"), anchors)
    with pytest.raises(RemoteProtocolError, match="the signature is not valid"):
        read(stranger, anchors)


def test_a_stolen_key_signs_nothing_for_who_has_removed_its_certificate(
    old: Authority, new: Authority
) -> None:
    anchors = Anchors.load(pem(new))
    with pytest.raises(RemoteProtocolError, match="not issued by this federation's authority"):
        check(old.issue(Role.SILO, "a"), anchors)
    with pytest.raises(RemoteProtocolError, match="the signature is not valid"):
        read(old, anchors)


def test_an_expired_one_of_two_is_not_trusted(old: Authority, new: Authority) -> None:
    """Its key could have signed rosters for as long as somebody left it in the file."""
    anchors, days = Anchors.load(pem(old, new)), 20
    member = new.issue(Role.SILO, "a", valid_days=90)
    check(member, anchors, days=days)
    read(new, anchors, days=days)
    with pytest.raises(RemoteProtocolError, match="authority expired"):
        check(old.issue(Role.SILO, "a"), anchors, days=days)
    with pytest.raises(RemoteProtocolError, match="the signature is not valid"):
        read(old, anchors, days=days)
    with pytest.raises(RemoteProtocolError, match="authority expired"):
        read(old, Anchors.load(pem(old)), days=days)


def test_each_mistake_in_the_file_has_a_sentence(
    old: Authority, new: Authority, authority: Authority, silo: Identity
) -> None:
    other = make_authority("banks", now=NOW)
    cases = {
        pem(old, new, authority): "authority: expected one or two certificates, got 3",
        pem(new, other): "authority: expected one federation, got hospitals and banks",
        pem(new, new): "authority: expected two different certificates, got the same twice",
        pem(new)
        + certificate_to_pem(
            silo.certificate
        ): "authority: expected the certificate of the federation's authority",
        b"": "certificate: expected a PEM certificate",
        pem(new)[:-40]: "certificate: expected a PEM certificate",
        b"\n".join([pem(new), b"-----END CERTIFICATE-----"]): "certificate: expected a PEM certificate",
    }
    for content, sentence in cases.items():
        with pytest.raises(ConfigError, match=sentence):
            Anchors.load(content)


def test_two_certificates_of_one_key_hold_until_the_later_one_expires(new: Authority) -> None:
    """An authority that lasts longer may keep its key."""
    renewed = Authority(new.key, _again(new))
    anchors = Anchors.load(pem(new, renewed))
    member = renewed.issue(Role.SILO, "a", valid_days=500)
    check(member, anchors, days=400)
    read(new, anchors, days=400)


def test_of_two_certificates_of_one_key_the_one_that_is_valid_now_counts(new: Authority) -> None:
    """The one that ends last was asked alone: it was handed out early, and every certificate was refused."""
    later = Authority(new.key, _again(new, begins_in_days=2))
    anchors, member = (
        Anchors((new.certificate, later.certificate)),
        later.issue(Role.SILO, "a", valid_days=500),
    )
    check(member, anchors)
    check(member, anchors, days=400)
    with pytest.raises(RemoteProtocolError, match="authority is not valid before"):
        check(member, Anchors(anchors.certificates[1:]))


def _again(one: Authority, *, begins_in_days: int = -1) -> x509.Certificate:
    builder = x509.CertificateBuilder(
        issuer_name=one.certificate.issuer,
        subject_name=one.certificate.subject,
        public_key=one.key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=NOW.replace(tzinfo=None) + timedelta(days=begins_in_days),
        not_valid_after=NOW.replace(tzinfo=None) + timedelta(days=700),
        extensions=list(one.certificate.extensions),
    )
    return builder.sign(one.key, hashes.SHA256())
