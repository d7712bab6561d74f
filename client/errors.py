"""What to do about an error, and extras that are missing.

A hint travels as a note on the exception (`error.add_note`), so code below client/ can give one too.
"""

from __future__ import annotations

from importlib.util import find_spec

from crypto.errors import ChoraleError, ConfigError

UNREACHABLE_HINT = "check that the coordinator runs, its address, and that this certificate is on its roster"

UNKNOWN_HOST_HINT = (
    "check how coordinator is spelled, and that this machine can look it up: getent hosts NAME"
)

UNTRUSTED_HINT = (
    "check authority, and set coordinator_name where the dialed host is not the one in the certificate"
)


def with_hint(error: ChoraleError, hint: str) -> ChoraleError:
    """The error, carrying one action that may help."""
    error.add_note(hint)
    return error


def require_extra(extra: str, *modules: str, what: str) -> None:
    """Raises ConfigError that names the extra where one of its modules is not installed; imports none."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{what} needs the extra '{extra}' (no {', '.join(missing)} here): pip install 'chorale[{extra}]'"
        )
