"""The signed statement of a release: its provenance, its digests, its checksums.

Times are left out: two builds of one commit say the same. Source: in-toto Statement v1, SLSA provenance v1
(slsa.dev/provenance/v1).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tools.release.archives import as_json, file_sha256
from tools.release.errors import ReleaseError

SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.minisig"
PROVENANCE, DIGESTS = "provenance.json", "digests.json"
STATEMENT_TYPE, PREDICATE_TYPE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:chorale:make-release:1"
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._@-]*)")


def provenance(
    folder: Path,
    *,
    version: str,
    commit: str,
    builder: str,
    parameters: Mapping[str, str],
    tools: Mapping[str, str],
    materials: Iterable[Mapping[str, Any]],
) -> bytes:
    """Of every file that is in the folder now. builder: URI of who ran it. parameters: build arguments.

    tools: versions of what built; with others the same content may be other bytes.
    """
    subjects = [
        {"name": path.name, "digest": {"sha256": file_sha256(path)}} for path in sorted(folder.iterdir())
    ]
    source = {"uri": "git+urn:chorale", "digest": {"gitCommit": commit}}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": version, "buildArguments": _public(parameters)},
                "internalParameters": {"tools": dict(tools)},
                "resolvedDependencies": [source, *materials],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }
    return as_json(statement)


def sums(folder: Path) -> str:
    """As `sha256sum` writes and `sha256sum --check` reads, of every file that is in the folder now."""
    return "".join(f"{file_sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir()))


def read_sums(text: str) -> dict[str, str]:
    """SHA-256 by name. Raises ReleaseError for what `sums` would not have written."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match.group(2) in found:
            raise ReleaseError(
                f"{SUMS}: expected lines of a digest and the name of a file, got {line[:80]!r}"
            )
        found[match.group(2)] = match.group(1)
    return found


def comment(*, version: str, commit: str) -> str:
    """What the signature says of itself, signed with it."""
    return f"chorale {version} {commit}"


def sign(folder: Path, key: Path, *, said: str, password: str, name: str = SUMS) -> None:
    """Sign the checksums by minisign. password: of the key, where it is encrypted. name: of their file.

    Raises ReleaseError.
    """
    arguments = ["-S", "-s", str(key.resolve()), *_signed(folder, name), "-t", said]
    done = _minisign(arguments, folder=folder, given=f"{password}\n")
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ReleaseError(f"{key}: not signed: {lines[-1] if lines else 'minisign failed'}")


def check_signature(folder: Path, key: Path) -> str:
    """What the signature of the checksums says of itself. key: the public one. Raises ReleaseError."""
    if not (folder / SIGNATURE).is_file():
        raise ReleaseError(f"{SIGNATURE}: missing, the release is not signed")
    if not key.is_file():
        raise ReleaseError(f"{key}: no such file, expected the public key of the release")
    arguments = ["-V", "-Q", "-p", str(key.resolve()), *_signed(folder, SUMS)]
    done = _minisign(arguments, folder=folder, given="")
    if done.returncode != 0:
        raise ReleaseError(f"{SIGNATURE}: not a signature of {SUMS} by {key.name}")
    return done.stdout.strip()


def _signed(folder: Path, name: str) -> list[str]:
    """Absolute: a name that begins with a dash is no option then."""
    path = str(folder.resolve() / name)
    return ["-m", path, "-x", f"{path}.minisig"]


def _minisign(arguments: list[str], *, folder: Path, given: str) -> subprocess.CompletedProcess[str]:
    """Security: never a program that came with the release, whatever PATH says."""
    found = shutil.which("minisign")
    if found is None:
        raise ReleaseError("minisign: not on PATH; it is Debian's package minisign")
    program = Path(found).resolve()
    # a link out of the folder is of the folder, too
    if any(each.is_relative_to(folder.resolve()) for each in (program, Path(found).parent.resolve())):
        raise ReleaseError(f"minisign: PATH finds {found} in the release's own folder; it is not run")
    return subprocess.run(
        [str(program), *arguments], input=given, capture_output=True, text=True, check=False
    )


def _public(parameters: Mapping[str, str]) -> dict[str, str]:
    """Build arguments without the logins of their URLs."""
    found = {}
    for name, value in sorted(parameters.items()):
        url = urlsplit(value)
        host = url.netloc.rpartition("@")[2]
        found[name] = urlunsplit(url._replace(netloc=host)) if url.netloc else value
    return found
