"""The files of certificate, key and authority change while a process runs. Source: docs/protocol.md 8.8."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry, Gauge

from chorale.credentials import CredentialFiles, Credentials
from chorale.transport.tls import IdentityFiles
from crypto.errors import ConfigError
from crypto.identity import issuing
from crypto.identity.certificates import Anchors, MemberId, Role, certificate_to_pem, key_to_pem
from tests.support.ceremony import issue

Chain = tuple[x509.Certificate, ...]

NOW = datetime.now(UTC)
OLD_KEY, OLD = issuing.new_authority("test", now=NOW, valid_days=30)
NEW_KEY, NEW = issuing.new_authority("test", now=NOW, valid_days=30)
OTHER = issuing.new_authority("banks", now=NOW, valid_days=30)[1]


@pytest.mark.parametrize(
    ("is_renewed", "before", "after", "trusted"),
    [
        (True, (OLD, NEW), (NEW,), (NEW,)),
        (False, (OLD, NEW), (NEW,), (NEW,)),
        (False, (OLD,), (NEW,), (NEW,)),  # it slept through the step with both
        (True, (OLD, NEW), (OTHER,), (OLD, NEW)),  # a mistake: no authority of this federation
        (False, (OLD, NEW), (), (OLD, NEW)),  # nor is an empty file
    ],
)
def test_a_removed_certificate_is_trusted_no_more_whatever_the_own_one_is(
    tmp_path: Path, is_renewed: bool, before: Chain, after: Chain, trusted: Chain
) -> None:
    """The files were refused as a whole, and the process went on trusting a stolen key."""
    member = MemberId(federation="test", role=Role.SILO, name="clinic-a")
    key, authority = (NEW_KEY, NEW) if is_renewed else (OLD_KEY, OLD)
    mine = issue(key, authority, member, now=NOW, days=5)
    names = IdentityFiles(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    names.certificate.write_bytes(certificate_to_pem(mine.certificate))
    names.key.write_bytes(key_to_pem(mine.key))
    names.key.chmod(0o600)
    path = tmp_path / "authority.crt"
    path.write_bytes(Anchors(before).pem)
    files = CredentialFiles(names, path, role=Role.SILO, federation="test", clock=lambda: datetime.now(UTC))
    credentials = Credentials(*files.read())
    refused = Gauge("refused", "Whether they were.", registry=CollectorRegistry())

    path.write_bytes(b"".join(map(certificate_to_pem, after)))
    files.refresh(credentials, refused)

    assert credentials.authority.certificates == trusted
    is_out = trusted == (NEW,) and not is_renewed
    assert refused.collect()[0].samples[0].value == (is_out or trusted != after)
    if is_out:
        with pytest.raises(ConfigError, match="not issued by this federation's authority"):
            files.check(credentials.identity, credentials.authority)
    else:
        files.check(credentials.identity, credentials.authority)
