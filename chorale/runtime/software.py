"""Which files of Chorale this process runs: a digest to log, to tell, and to compare with a release's.

A pod cannot read the digest of its image. The rule is that of a job's distributions (docs/protocol.md 7.15),
so `make release` tells the same digest of the wheel. A process says it of itself: that finds a mistake, not a
lie.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

from chorale.runtime.distributions import installed
from crypto.errors import ConfigError, RemoteProtocolError

DISTRIBUTION = "chorale"
DIGEST_BYTES = 32
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """sha256: hexadecimal, empty where there is none. why_none: a sentence then."""

    version: str
    sha256: str = ""
    why_none: str = ""


def own_software() -> Software:
    """What is installed here; a checkout has no digest."""
    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return Software(version=UNKNOWN, why_none="chorale is not installed, it runs from a folder")
    try:
        return Software(version=version, sha256=installed(f"{DISTRIBUTION}=={version}").sha256)
    except ConfigError as error:
        return Software(version=version, why_none=str(error))


def installed_packages() -> dict[str, str]:
    """Name and version of Chorale and of all that it needs, with its extras, as far as they are installed."""
    found: dict[str, str] = {}
    waiting = [DISTRIBUTION]
    while waiting:
        name = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if key in found:
            continue
        found[key] = distribution.version
        for each in distribution.requires or ():
            # what another package could use besides is none of Chorale's
            if key == DISTRIBUTION or "extra ==" not in each:
                waiting += re.findall(r"^[A-Za-z0-9._-]+", each)
    return dict(sorted(found.items()))


def check_own_digest(software: Software, *, expected: str | None) -> None:
    """expected: what the site approved, None: anything. Raises ConfigError."""
    if expected is None or software.sha256 == expected:
        return
    got = software.sha256 or f"none: {software.why_none}"
    raise ConfigError(f"software_digest: expected {expected}, got {got}")


def told_digest(data: bytes) -> str:
    """What a peer says of its own files, in hexadecimal; empty for none. Raises RemoteProtocolError."""
    if len(data) not in (0, DIGEST_BYTES):
        raise RemoteProtocolError(f"software digest: expected none or {DIGEST_BYTES} bytes, got {len(data)}")
    return data.hex()
