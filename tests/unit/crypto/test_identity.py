from __future__ import annotations

import base64
import ipaddress
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InternalError
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID

from crypto import encoding
from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from crypto.identity import certificates, issuing
from crypto.identity.certificates import CLOCK_SKEW, Anchors, Identity, MemberId, PrivateKey, Role, SignedBody

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
VERSION_3, VERSION_9 = bytes.fromhex("a003020102"), bytes.fromhex("a003020108")  # X.509 counts from 0
SILO = MemberId(federation="hospitals", role=Role.SILO, name="clinic-a")


def forge(
    authority,
    member: str | None,
    *,
    change=lambda builder: builder,
    usage=ExtendedKeyUsageOID.CLIENT_AUTH,
    key=None,
    until: datetime = NOW + timedelta(days=1),
):
    """A certificate that the authority did sign but `sign_csr` would never have made."""
    key = key or certificates.new_key()
    builder = (
        x509.CertificateBuilder()
        .serial_number(7)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(until)
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
    )
    if member is not None:
        uri = x509.UniformResourceIdentifier(member)
        builder = builder.add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    if usage is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return change(builder).sign(authority.key, hashes.SHA256())


def check(
    certificate, authority, *, role: Role = Role.SILO, federation: str = "hospitals", now: datetime = NOW
):
    return certificates.check_certificate(
        certificate, authority=Anchors((authority.certificate,)), role=role, federation=federation, now=now
    )


class TestMemberId:
    def test_uri_and_parse_are_inverse(self) -> None:
        assert SILO.uri == "spiffe://hospitals/silo/clinic-a"
        assert MemberId.parse(SILO.uri) == SILO

    @pytest.mark.parametrize(
        "uri",
        [
            "",
            "spiffe:hospitals/silo/clinic-a",
            "https://hospitals/silo/clinic-a",
            "spiffe://hospitals/silo",
            "spiffe://hospitals/silo/clinic-a/more",
            "spiffe://hospitals/nurse/clinic-a",
            "spiffe://hospitals/silo/Clinic-A",
            "spiffe://hospitals/silo/",
            "spiffe://hos pitals/silo/clinic-a",
            "spiffe://hospitals/silo/clinic-a\n",
        ],
    )
    def test_parse_refuses_what_names_no_member(self, uri: str) -> None:
        with pytest.raises(RemoteProtocolError, match="expected a name spiffe://"):
            MemberId.parse(uri)

    @pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a" * 64, "é"])
    def test_names_outside_the_pattern_are_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="silo: expected 1 to 63"):
            MemberId(federation="hospitals", role=Role.SILO, name=name)
        with pytest.raises(ConfigError, match="federation: expected 1 to 63"):
            MemberId(federation=name, role=Role.SILO, name="clinic-a")

    def test_longest_name_is_accepted(self) -> None:
        assert MemberId(federation="h", role=Role.OPERATOR, name="a" * 63).name == "a" * 63


class TestIdentity:
    def test_load_gives_back_what_was_issued(self, silo: Identity) -> None:
        loaded = Identity.load(
            certificates.certificate_to_pem(silo.certificate), certificates.key_to_pem(silo.key)
        )
        assert loaded.member == SILO
        assert loaded.certificate_der == silo.certificate_der
        assert loaded.fingerprint == certificates.fingerprint(silo.certificate_der)

    def test_repr_shows_no_key(self, silo: Identity) -> None:
        number = silo.key.private_numbers().private_value
        assert "key=" not in repr(silo)
        assert str(number) not in repr(silo)

    def test_load_refuses_a_key_of_another(self, silo: Identity) -> None:
        pem = certificates.certificate_to_pem(silo.certificate)
        with pytest.raises(ConfigError, match="does not belong to the certificate"):
            Identity.load(pem, certificates.key_to_pem(certificates.new_key()))

    def test_load_says_where_the_authoritys_certificate_stands_first(self, silo: Identity, authority) -> None:
        own, before = (certificates.certificate_to_pem(x) for x in (silo.certificate, authority.certificate))
        assert Identity.load(own + before, certificates.key_to_pem(silo.key)).member == SILO
        with pytest.raises(ConfigError, match="expected the member's own certificate first in its file"):
            Identity.load(before + own, certificates.key_to_pem(silo.key))

    def test_load_refuses_a_certificate_without_member(self, authority) -> None:
        pem = certificates.certificate_to_pem(authority.certificate)
        with pytest.raises(ConfigError, match="expected a name spiffe://"):
            Identity.load(pem, certificates.key_to_pem(authority.key))

    @pytest.mark.parametrize(
        "pem", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
    )
    def test_load_refuses_what_is_no_certificate(self, pem: bytes, silo: Identity) -> None:
        with pytest.raises(ConfigError, match="expected a PEM certificate"):
            Identity.load(pem, certificates.key_to_pem(silo.key))

    @pytest.mark.parametrize("pem", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
    def test_load_refuses_what_is_no_key(self, pem: bytes, silo: Identity) -> None:
        with pytest.raises(ConfigError, match="expected an unencrypted PEM private key"):
            Identity.load(certificates.certificate_to_pem(silo.certificate), pem)

    def test_load_refuses_an_encrypted_key(self, silo: Identity) -> None:
        pem = silo.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
        with pytest.raises(ConfigError, match="expected an unencrypted PEM private key"):
            certificates.load_key(pem)

    @pytest.mark.parametrize(
        "make", [lambda: ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate]
    )
    def test_load_refuses_a_key_that_is_not_p256(self, make: Callable[[], PrivateKey]) -> None:
        with pytest.raises(ConfigError, match="expected a P-256 key"):
            certificates.load_key(certificates.key_to_pem(make()))


class TestSignatures:
    def test_verify_returns_the_signed_fields(self, silo: Identity) -> None:
        signed = silo.sign("advert", 1, ["x"])
        assert certificates.verify(signed, purpose="advert", certificate=silo.certificate) == [1, ["x"]]

    def test_a_signature_holds_for_one_purpose_only(self, silo: Identity) -> None:
        signed = silo.sign("advert", 1)
        with pytest.raises(RemoteProtocolError, match="another kind of message") as caught:
            certificates.verify(
                signed, purpose="envelope", certificate=silo.certificate, code=Refusal.ENVELOPE
            )
        assert caught.value.code is Refusal.ENVELOPE

    @pytest.mark.parametrize(
        "change",
        [
            lambda signed, other: replace(signed, body=encoding.encode("advert", 2)),
            lambda signed, other: replace(signed, signature=signed.signature[:-1]),
            lambda signed, other: replace(signed, signature=b""),
            lambda signed, other: other.sign("advert", 1),
            # nothing is read before the signature held
            lambda signed, other: SignedBody(body=b"no encoding at all", signature=bytes(70)),
        ],
        ids=["body", "short signature", "no signature", "another's", "no encoding"],
    )
    def test_verify_refuses_what_was_not_signed(self, silo: Identity, coordinator: Identity, change) -> None:
        signed = change(silo.sign("advert", 1), coordinator)
        with pytest.raises(RemoteProtocolError, match="advert: the signature is not valid") as caught:
            certificates.verify(signed, purpose="advert", certificate=silo.certificate, code=Refusal.ADVERT)
        assert caught.value.code is Refusal.ADVERT


class TestIssuing:
    def test_a_silo_gets_client_auth_and_no_host(self, silo: Identity) -> None:
        extensions = silo.certificate.extensions
        assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
            ExtendedKeyUsageOID.CLIENT_AUTH
        ]
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [name.value for name in names] == [SILO.uri]
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca

    def test_a_coordinator_gets_server_auth_and_hosts_of_request_and_command(self, authority) -> None:
        key = certificates.new_key()
        member = MemberId(federation="hospitals", role=Role.COORDINATOR, name="hub")
        certificate = issuing.sign_csr(
            issuing.new_csr(key, member, ["hub.example.org", "::1"]),
            authority_key=authority.key,
            authority_certificate=authority.certificate,
            role=Role.COORDINATOR,
            now=NOW,
            valid_days=30,
            hosts=["hub.example.org", "10.0.0.1"],
        )
        extensions = certificate.extensions
        assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
            ExtendedKeyUsageOID.SERVER_AUTH
        ]
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["hub.example.org"]
        assert names.get_values_for_type(x509.IPAddress) == [
            ipaddress.ip_address("::1"),
            ipaddress.ip_address("10.0.0.1"),
        ]
        assert check(certificate, authority, role=Role.COORDINATOR) == member

    def test_dates_leave_room_for_skew_and_end_with_the_authority(self, authority) -> None:
        certificate = authority.issue(Role.SILO, "clinic-a", valid_days=3000).certificate
        assert certificate.not_valid_before_utc == NOW - CLOCK_SKEW
        assert certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc

    def test_requested_member_reads_the_request(self) -> None:
        assert issuing.requested_member(issuing.new_csr(certificates.new_key(), SILO)) == SILO

    @pytest.mark.parametrize(
        ("member", "hosts", "role", "message"),
        [
            (SILO, [], Role.OPERATOR, "expected role operator, got silo"),
            (SILO, [], Role.COORDINATOR, "expected role coordinator, got silo"),
            (SILO, ["hub.example.org"], Role.SILO, "only a coordinator has host names"),
            (
                replace(SILO, role=Role.OPERATOR),
                ["10.0.0.1"],
                Role.OPERATOR,
                "only a coordinator has host names",
            ),
            (replace(SILO, role=Role.COORDINATOR), [], Role.COORDINATOR, "needs at least one host"),
            (replace(SILO, federation="banks"), [], Role.SILO, "expected federation hospitals, got banks"),
        ],
    )
    def test_sign_csr_refuses_what_the_role_may_not_have(
        self, authority, member, hosts, role, message
    ) -> None:
        request = issuing.new_csr(certificates.new_key(), member, hosts)
        with pytest.raises(ConfigError, match=message):
            sign_request(authority, request, role=role)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"hosts": ["hub.example.org"]}, "only a coordinator has host names"),
            ({"now": NOW + timedelta(days=366)}, "authority: the certificate is expired"),
        ],
    )
    def test_sign_csr_refuses_hosts_given_for_a_silo_and_an_expired_authority(
        self, authority, given, message
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            sign_request(authority, issuing.new_csr(certificates.new_key(), SILO), **given)

    def test_sign_csr_refuses_a_request_whose_signature_does_not_hold(self, authority) -> None:
        der = bytearray(
            x509.load_pem_x509_csr(issuing.new_csr(certificates.new_key(), SILO)).public_bytes(
                serialization.Encoding.DER
            )
        )
        der[der.index(b"clinic-a/"[:-1])] ^= 1
        request = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
        with pytest.raises(ConfigError, match="the signature is not valid"):
            sign_request(authority, request)

    @pytest.mark.parametrize(
        "key", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())]
    )
    def test_sign_csr_refuses_other_kinds_of_key(self, authority, key) -> None:
        request = raw_request([x509.UniformResourceIdentifier(SILO.uri)], key=key)
        with pytest.raises(ConfigError, match="request with a P-256 key"):
            sign_request(authority, request)

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            ([], "no readable subject alternative name"),
            ([x509.DNSName("clinic-a")], "request: expected one URI, got 0"),
            ([x509.UniformResourceIdentifier(SILO.uri)] * 2, "request: expected one URI, got 2"),
            ([x509.UniformResourceIdentifier("https://x")], "request: expected a name spiffe"),
            ([x509.UniformResourceIdentifier(SILO.uri), x509.RFC822Name("a@b.c")], "only a URI, host names"),
        ],
    )
    def test_sign_csr_refuses_odd_names(self, authority, names, message) -> None:
        with pytest.raises(ConfigError, match=message):
            sign_request(authority, raw_request(names))

    def test_sign_csr_refuses_what_is_no_request(self, authority) -> None:
        with pytest.raises(ConfigError, match="expected a PEM certificate request"):
            sign_request(authority, b"nonsense")

    def test_sign_csr_refuses_a_request_of_another_version(self, authority) -> None:
        request = x509.load_pem_x509_csr(issuing.new_csr(certificates.new_key(), SILO))
        der = request.public_bytes(serialization.Encoding.DER)
        version_1 = b"\x02\x01\x00"
        start = der.index(version_1)
        odd = der[:start] + b"\x02\x01\x08" + der[start + len(version_1) :]
        with pytest.raises(ConfigError, match="expected a PEM certificate request"):
            sign_request(authority, pem("CERTIFICATE REQUEST", odd))

    @pytest.mark.parametrize("valid_days", [0, -1, 3651])
    def test_validity_is_bounded(self, authority, valid_days: int) -> None:
        with pytest.raises(ConfigError, match="valid_days: expected 1 to 3650"):
            issuing.new_authority("hospitals", now=NOW, valid_days=valid_days)
        with pytest.raises(ConfigError, match="valid_days: expected 1 to 3650"):
            authority.issue(Role.SILO, "clinic-a", valid_days=valid_days)

    @pytest.mark.parametrize(
        "host", ["", "Hub.example.org", "a..b", "*.example.org", "h" * 64, "ä.de", "a." * 127 + "a"]
    )
    def test_odd_hosts_are_refused(self, host: str) -> None:
        with pytest.raises(ConfigError, match="host: expected a lower-case host name"):
            issuing.new_csr(certificates.new_key(), replace(SILO, role=Role.COORDINATOR), [host])

    def test_a_zone_of_an_address_is_not_left_out(self) -> None:
        member = replace(SILO, role=Role.COORDINATOR)
        issuing.new_csr(certificates.new_key(), member, ["fe80::1"])
        with pytest.raises(ConfigError, match="names no zone: expected fe80::1, got fe80::1%eth0"):
            issuing.new_csr(certificates.new_key(), member, ["fe80::1%eth0"])

    def test_an_authority_names_its_federation(self, authority, silo: Identity) -> None:
        assert certificates.federation_of(authority.certificate) == "hospitals"
        with pytest.raises(ConfigError, match="does not name a federation"):
            certificates.federation_of(silo.certificate)
        with pytest.raises(ConfigError, match="does not name a federation"):
            certificates.federation_of(forge(authority, None))
        with pytest.raises(ConfigError, match="federation: expected 1 to 63"):
            issuing.new_authority("Hospitals", now=NOW, valid_days=1)


class TestCheckCertificate:
    def test_accepts_each_role_as_issued(self, authority, silo: Identity, coordinator: Identity) -> None:
        operator = authority.issue(Role.OPERATOR, "lead")
        assert check(silo.certificate, authority) == silo.member
        assert check(coordinator.certificate, authority, role=Role.COORDINATOR) == coordinator.member
        assert check(operator.certificate, authority, role=Role.OPERATOR) == operator.member

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"now": NOW - CLOCK_SKEW - timedelta(seconds=1)}, "is not valid before 2026-11-21T11:55"),
            ({"now": NOW + timedelta(days=31)}, "certificate expired at 2026-12-21"),
            ({"now": NOW + timedelta(days=366)}, "authority expired"),
            ({"role": Role.OPERATOR}, "expected role operator, got silo"),
            ({"role": Role.COORDINATOR}, "extended key usage is not that of a coordinator"),
            ({"federation": "banks"}, "expected federation banks, got hospitals"),
        ],
    )
    def test_refuses_another_time_role_or_federation(
        self, authority, silo: Identity, changes, message
    ) -> None:
        assert check(silo.certificate, authority, now=NOW - CLOCK_SKEW)
        with pytest.raises(RemoteProtocolError, match=message) as caught:
            check(silo.certificate, authority, **changes)
        assert caught.value.code is Refusal.ROSTER

    def test_refuses_another_authority_of_the_same_name(
        self, authority, other_authority, silo: Identity, coordinator: Identity
    ) -> None:
        with pytest.raises(RemoteProtocolError, match="not issued by this federation's authority") as caught:
            check(silo.certificate, other_authority)
        assert caught.value.code is Refusal.ROSTER
        with pytest.raises(RemoteProtocolError, match="extended key usage is not that of a silo"):
            check(coordinator.certificate, authority)

    @pytest.mark.parametrize(
        ("forgery", "message"),
        [
            ({"member": None}, "no readable subject alternative name"),
            ({"member": "spiffe://hospitals/silo"}, "expected a name spiffe"),
            ({"member": SILO.uri, "usage": ExtendedKeyUsageOID.SERVER_AUTH}, "extended key usage is not"),
            ({"member": SILO.uri, "usage": None}, "usage are missing"),
        ],
    )
    def test_refuses_signed_but_odd_certificates(self, authority, forgery, message) -> None:
        with pytest.raises(RemoteProtocolError, match=message):
            check(forge(authority, **forgery), authority)

    def test_refuses_hosts_at_a_silo_and_a_second_authority(self, authority) -> None:
        names = [x509.UniformResourceIdentifier(SILO.uri), x509.DNSName("hub.example.org")]
        with_host = forge(
            authority,
            None,
            change=lambda b: b.add_extension(x509.SubjectAlternativeName(names), critical=False),
        )
        with pytest.raises(RemoteProtocolError, match="only a coordinator has host names"):
            check(with_host, authority)
        is_ca = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        deputy = forge(
            authority,
            SILO.uri,
            usage=None,
            change=lambda b: b.add_extension(is_ca, critical=True).add_extension(usage, critical=False),
        )
        with pytest.raises(RemoteProtocolError, match="an authority's own, expected a member's"):
            check(deputy, authority)

    def test_refuses_a_silo_that_could_also_serve(self, authority) -> None:
        """With serverAuth in addition to clientAuth a silo could pose as coordinator."""
        is_member = x509.BasicConstraints(ca=False, path_length=None)
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        certificate = forge(
            authority,
            SILO.uri,
            usage=None,
            change=lambda b: b.add_extension(is_member, critical=True).add_extension(both, critical=False),
        )
        with pytest.raises(RemoteProtocolError, match="extended key usage is not that of a silo"):
            check(certificate, authority)

    def test_refuses_a_key_of_another_kind(self, authority) -> None:
        certificate = forge(authority, SILO.uri, key=ec.generate_private_key(ec.SECP384R1()))
        with pytest.raises(RemoteProtocolError, match="expected a P-256 key"):
            check(certificate, authority)

    @pytest.mark.parametrize("critical", [True, False])
    def test_refuses_a_critical_extension_that_it_does_not_know(self, authority, critical: bool) -> None:
        """Its issuer said that a reader who does not know it must not go by the certificate."""
        unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00")
        certificate = forge(authority, SILO.uri, change=lambda b: b.add_extension(unknown, critical=critical))
        if not critical:  # the control
            assert check(certificate, authority) == SILO
            return
        with pytest.raises(RemoteProtocolError, match=r"unknown critical extension \(1\.3\.6") as caught:
            check(certificate, authority)
        assert caught.value.code is Refusal.ROSTER

    def test_refuses_known_extensions_that_it_does_not_read_where_they_are_critical(self, authority) -> None:
        constraints = x509.NameConstraints([x509.DNSName("example.org")], None)
        certificate = forge(authority, SILO.uri, change=lambda b: b.add_extension(constraints, critical=True))
        with pytest.raises(RemoteProtocolError, match=r"unknown critical extension \(2\.5\.29\.30\)"):
            check(certificate, authority)

    def test_refuses_a_key_that_may_not_sign(self, authority) -> None:
        uses = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign",
             "crl_sign", "encipher_only", "decipher_only", "digital_signature"), False
        )  # fmt: skip
        sealing = x509.KeyUsage(**{**uses, "key_agreement": True})
        certificate = forge(authority, SILO.uri, change=lambda b: b.add_extension(sealing, critical=True))
        with pytest.raises(RemoteProtocolError, match="its key usage lacks digital_signature"):
            check(certificate, authority)


class TestDer:
    def test_der_is_read_back(self, silo: Identity) -> None:
        assert certificates.certificate_from_der(silo.certificate_der) == silo.certificate

    def test_der_of_something_else_is_refused(self, authority, silo: Identity) -> None:
        for data in (b"", b"nonsense", silo.certificate_der + b"\0", silo.certificate_der[:-1]):
            with pytest.raises(RemoteProtocolError, match="expected an X.509 certificate"):
                certificates.certificate_from_der(data)
        curve = bytes.fromhex("2a8648ce3d030107")
        unknown_curve = silo.certificate_der.replace(curve, curve[:-1] + b"\x77")
        with pytest.raises(RemoteProtocolError, match="its key is unreadable"):
            certificates.certificate_from_der(unknown_curve)
        other_kind = forge(authority, SILO.uri, key=ec.generate_private_key(ec.SECP384R1()))
        with pytest.raises(RemoteProtocolError, match="expected a P-256 key"):
            certificates.certificate_from_der(other_kind.public_bytes(serialization.Encoding.DER))

    @pytest.mark.parametrize(
        ("right", "odd"),
        [
            pytest.param(VERSION_3, VERSION_9, id="version"),
            pytest.param(b"\x18\x0f2051", b"\x18\x0f0000", id="year"),
        ],
    )
    def test_der_of_an_odd_version_or_year_is_refused(self, authority, right: bytes, odd: bytes) -> None:
        """cryptography raised InvalidVersion past every handler, and the reader of adverts ended."""
        dated = forge(authority, SILO.uri, until=NOW.replace(year=2051))
        der = dated.public_bytes(serialization.Encoding.DER)
        assert der.count(right) == 1
        with pytest.raises(RemoteProtocolError, match="expected an X.509 certificate"):
            certificates.certificate_from_der(der.replace(right, odd))
        with pytest.raises(ConfigError, match="expected a PEM certificate"):
            certificates.load_certificate(pem("CERTIFICATE", der.replace(right, odd)))

    @pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
    @pytest.mark.parametrize("serial", [0, 0xFF])  # one byte, with a sign
    def test_a_serial_number_that_is_not_positive_is_refused(self, authority, serial: int) -> None:
        """The library only warned of it, and will raise an error of its own."""
        der = forge(authority, SILO.uri).public_bytes(serialization.Encoding.DER)
        right = VERSION_3 + bytes((2, 1, 7))
        assert der.count(right) == 1
        odd = der.replace(right, VERSION_3 + bytes((2, 1, serial)))
        with pytest.raises(RemoteProtocolError, match="its serial number is not positive"):
            certificates.certificate_from_der(odd)
        with pytest.raises(ConfigError, match="its serial number is not positive"):
            certificates.load_certificate(pem("CERTIFICATE", odd))

    @pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
    def test_no_byte_of_a_certificate_makes_anything_but_the_family_escape(
        self, authority, silo: Identity, coordinator: Identity
    ) -> None:
        """InvalidVersion was one of several errors of a parser that are no ValueError."""

        def readings(odd: x509.Certificate) -> list[Callable[[], object]]:
            return [
                lambda: certificates.member_of(odd),
                lambda: certificates.federation_of(odd),
                lambda: check(odd, authority),
                lambda: certificates._is_issued_by(odd, authority.certificate),
                lambda: certificates._member_with_usage(odd, Role.SILO),
                lambda: certificates._member_with_usage(odd, Role.COORDINATOR),
                lambda: certificates._is_issued_by(silo.certificate, odd),
                lambda: Anchors((odd,)),
                lambda: certificates._check_critical("certificate", odd, allows="digital_signature"),
            ]

        read = 0
        for der in (silo.certificate_der, coordinator.certificate_der):
            for odd in one_byte_changed(der):
                with suppress(ConfigError):
                    certificates.load_certificate(pem("CERTIFICATE", odd))
                with suppress(RemoteProtocolError):
                    certificate = certificates.certificate_from_der(odd)
                    for reading in readings(certificate):
                        with suppress(ConfigError, RemoteProtocolError):
                            reading()
                    read += 1
        assert read > 1000  # of them, most in a serial number, a name, a date, a key's place or a signature

    def test_no_byte_of_a_key_or_request_makes_anything_but_the_family_escape(
        self, authority, silo: Identity
    ) -> None:
        key = silo.key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for odd in one_byte_changed(key):
            with suppress(ConfigError):
                certificates.load_key(pem("PRIVATE KEY", odd))
        request = x509.load_pem_x509_csr(issuing.new_csr(silo.key, SILO))
        for odd in one_byte_changed(request.public_bytes(serialization.Encoding.DER)):
            with suppress(ConfigError):
                sign_request(authority, pem("CERTIFICATE REQUEST", odd))

    @pytest.mark.parametrize(
        "error", [NotImplementedError("x400"), OverflowError("year"), KeyError("oid"), InternalError("", [])]
    )
    def test_what_the_parser_may_raise_stays_inside_the_family(
        self, silo: Identity, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def raising(data: bytes) -> x509.Certificate:
            raise error

        monkeypatch.setattr(x509, "load_der_x509_certificate", raising)
        monkeypatch.setattr(x509, "load_pem_x509_certificate", raising)
        with pytest.raises(RemoteProtocolError, match="expected an X.509 certificate"):
            certificates.certificate_from_der(b"read by nobody before" + type(error).__name__.encode())
        with pytest.raises(ConfigError, match="expected a PEM certificate"):
            certificates.load_certificate(certificates.certificate_to_pem(silo.certificate))


def one_byte_changed(data: bytes) -> Iterator[bytes]:
    """Every byte replaced in turn: by its neighbors, by the ends of its range and by other tags' classes."""
    for place, byte in enumerate(data):
        for other in {byte ^ 1, byte ^ 0x20, byte ^ 0x80, (byte + 1) & 0xFF, (byte - 1) & 0xFF, 0, 0xFF} - {
            byte
        }:
            yield data[:place] + bytes([other]) + data[place + 1 :]


def pem(label: str, der: bytes) -> bytes:
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n".encode()


def sign_request(authority, request: bytes, *, role: Role = Role.SILO, now: datetime = NOW, hosts=()):
    return issuing.sign_csr(
        request,
        authority_key=authority.key,
        authority_certificate=authority.certificate,
        role=role,
        now=now,
        valid_days=30,
        hosts=hosts,
    )


def raw_request(names: list[x509.GeneralName], *, key=None) -> bytes:
    key = key or certificates.new_key()
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)
