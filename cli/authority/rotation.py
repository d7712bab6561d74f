"""The authority changes its key, in three steps between which members have time.

1. `begin` makes the next key and a file of both certificates, for every member. The present key still signs,
   so that a member which has the old file alone reads new rosters.
2. `switch`, once every member has the file: the next key signs. Members get new certificates, one by one.
3. `finish`, once the roster lists none of the old key's certificates: the file is the new certificate alone.

In the folder: next.key until step 2, former.key (the old one, for a way back) until step 3, and then the old
certificate in former/, under which earlier rosters are read. A step that was cut short is run again.
Source: docs/protocol.md 1.6.
"""

from __future__ import annotations

from datetime import UTC, datetime

from chorale.runtime.files import write_atomic
from chorale.runtime.key_files import read_key
from cli.authority.folder import CERTIFICATE, FORMER, KEY, Folder
from cli.authority.history import MAX_FILE_BYTES
from cli.keys import PRIVATE
from client.errors import with_hint
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity.certificates import Anchors, certificate_to_pem, fingerprint, key_to_pem, load_key
from crypto.identity.issuing import new_authority
from crypto.identity.roster import Member, read_roster

NEXT_KEY, FORMER_KEY = "next.key", "former.key"


def begin(folder: Folder, *, valid_days: int) -> None:
    """Raises ConfigError while an earlier change is not finished."""
    if len(folder.anchors.certificates) > 1 or (folder.directory / FORMER_KEY).exists():
        step = "--switch" if (folder.directory / NEXT_KEY).exists() else "--finish"
        error = ConfigError(f"{folder.directory}: a change of the authority's key is under way")
        raise with_hint(error, f"the next step is `chorale authority rotate {step}`")
    folder.key()  # the present one belongs here
    key, certificate = new_authority(folder.federation, now=datetime.now(UTC), valid_days=valid_days)
    write_atomic(folder.directory / NEXT_KEY, key_to_pem(key), mode=PRIVATE)
    _write_anchors(folder, Anchors((folder.certificate, certificate)))


def switch(folder: Folder) -> None:
    """Raises ConfigError unless `begin` came before."""
    present, following = folder.directory / KEY, folder.directory / NEXT_KEY
    if not following.exists() or len(folder.anchors.certificates) == 1:
        error = ConfigError(f"{folder.directory}: no change of the authority's key has begun")
        raise with_hint(error, "`chorale authority rotate` begins one")
    old, new = read_key(present, MAX_FILE_BYTES), read_key(following, MAX_FILE_BYTES)
    if old != new:  # else it was cut short behind this
        write_atomic(folder.directory / FORMER_KEY, old, mode=PRIVATE)
        write_atomic(present, new, mode=PRIVATE)
    signing = load_key(new).public_key()
    ordered = sorted(folder.anchors.certificates, key=lambda one: one.public_key() != signing)
    _write_anchors(folder, Anchors(tuple(ordered)))
    following.unlink()


def finish(folder: Folder) -> None:
    """Raises ConfigError while the newest roster needs the old certificate."""
    former = folder.directory / FORMER_KEY
    if not former.exists() or (folder.directory / NEXT_KEY).exists():
        error = ConfigError(f"{folder.directory}: the authority's key was not changed")
        raise with_hint(error, "`chorale authority rotate`, then `chorale authority rotate --switch`")
    if len(folder.anchors.certificates) > 1:
        new, old = folder.anchors.certificates
        _check_unused(folder, Anchors((new,)))
        kept = folder.directory / FORMER
        kept.mkdir(exist_ok=True)
        write_atomic(kept / f"{fingerprint(old).hex()}.crt", certificate_to_pem(old), mode=0o644)
        _write_anchors(folder, Anchors((new,)))
    former.unlink()


def _check_unused(folder: Folder, new: Anchors) -> None:
    newest = folder.history.newest
    if newest is None:
        return
    try:
        read_roster(newest.signed, authority=new, federation=folder.federation)
    except RemoteProtocolError:
        error = ConfigError(f"roster version {newest.version} is signed with the old key")
        raise with_hint(error, "`chorale authority renew` signs it again") from None
    if waiting := [member.title for member in newest.members if not _is_issued_by(folder, member, new)]:
        error = ConfigError(f"these still have certificates of the old key: {', '.join(waiting)}")
        raise with_hint(error, "sign their new requests, and list the certificates with `authority roster`")


def _is_issued_by(folder: Folder, member: Member, new: Anchors) -> bool:
    certificate = folder.certificate_of(member)
    if certificate is None:
        return False  # its copy is gone from the folder, so nothing shows the new key
    try:
        new.issuers_of(certificate)
    except RemoteProtocolError:
        return False
    return True


def _write_anchors(folder: Folder, anchors: Anchors) -> None:
    write_atomic(folder.directory / CERTIFICATE, anchors.pem, mode=0o644)
