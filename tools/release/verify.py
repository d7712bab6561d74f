"""`make verify-release DIR=... KEY=...`: whether a folder is the release that its signature speaks of.

1. SHA256SUMS is signed by the key, and the signature's own words name version and commit.
2. The folder holds the files that SHA256SUMS lists, and no others, with those digests.
3. The provenance names the same files with the same digests, version and commit.
4. The wheel's files have the digest that digests.json tells, and so have those in each image.
5. Each chart's OCI archive holds the chart's .tgz; each chart installs the image that lies beside it.
6. Each bill of materials lists what is in its image, and what the wheel requires.

The first that does not hold ends it, in one sentence. Python's standard library and minisign are enough.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from tools.release import components, statement
from tools.release.archives import Layout, file_sha256
from tools.release.errors import ReleaseError
from tools.release.statement import DIGESTS, PROVENANCE, SIGNATURE, SUMS

MAX_TEXT_BYTES = 1 << 24
IMAGES = ("coordinator", "silo")
_HEX = re.compile(r"[0-9a-f]{64}")


def verify(folder: Path, key: Path | None) -> str:
    """A line on what was verified. key: the public one; None for a release that is not signed.

    Raises ReleaseError.
    """
    said = None if key is None else statement.check_signature(folder, key)
    listed = statement.read_sums(_text(folder, SUMS))
    _check_files(folder, listed, signed=key is not None)
    about = _provenance(folder, listed)
    if said is not None and said != statement.comment(version=about["version"], commit=about["commit"]):
        raise ReleaseError(f"{SIGNATURE}: it is of {said[:100]}, {PROVENANCE} of another version or commit")
    digests = _json(folder, DIGESTS)
    wheel = folder / f"chorale-{about['version']}-py3-none-any.whl"
    _check_wheel(folder, wheel, digests, version=about["version"])
    images = digests.get("images")
    if not isinstance(images, dict) or set(images) not in (set(), set(IMAGES)):
        raise ReleaseError(f"{DIGESTS}: images: expected both or none")
    for name in IMAGES:
        _check_chart(folder, f"chorale-{name}-{about['version']}", digests, image=images.get(name, ""))
        if images:
            _check_image(folder, f"chorale-{name}-{about['version']}", wheel, image=str(images[name]))
    signed = f"signed by {key.name}" if key is not None else "not signed"
    return f"chorale {about['version']}, commit {about['commit'][:12]}: {len(listed)} files fit, {signed}"


def _check_files(folder: Path, listed: dict[str, str], *, signed: bool) -> None:
    there = {path.name for path in folder.iterdir()} - {SUMS} - ({SIGNATURE} if signed else set())
    if missing := sorted(listed.keys() - there):
        raise ReleaseError(f"{missing[0]}: missing, {SUMS} lists it")
    if added := sorted(there - listed.keys()):
        raise ReleaseError(f"{added[0]}: in the folder, {SUMS} does not list it")
    for name, sha256 in sorted(listed.items()):
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise ReleaseError(f"{name}: expected a file")
        if (found := file_sha256(path)) != sha256:
            raise ReleaseError(f"{name}: SHA-256 is {found}, {SUMS} says {sha256}")


def _provenance(folder: Path, listed: dict[str, str]) -> dict[str, str]:
    """Version and commit. Raises ReleaseError."""
    found = _json(folder, PROVENANCE)
    try:
        subjects = {each["name"]: each["digest"]["sha256"] for each in found["subject"]}
        definition = found["predicate"]["buildDefinition"]
        version = str(definition["externalParameters"]["version"])
        commit = str(definition["resolvedDependencies"][0]["digest"]["gitCommit"])
        types = (found["_type"], found["predicateType"], definition["buildType"])
    except (KeyError, TypeError, IndexError):
        raise ReleaseError(f"{PROVENANCE}: no statement of subjects, version and commit") from None
    expected = (statement.STATEMENT_TYPE, statement.PREDICATE_TYPE, statement.BUILD_TYPE)
    if types != expected:
        raise ReleaseError(f"{PROVENANCE}: expected a statement of type {expected[2]}")
    built = {name: sha256 for name, sha256 in listed.items() if name != PROVENANCE}
    if odd := sorted({*subjects.items()} ^ {*built.items()}):
        raise ReleaseError(f"{PROVENANCE}: {odd[0][0]}: {SUMS} says otherwise")
    return {"version": version, "commit": commit}


def _check_wheel(folder: Path, wheel: Path, digests: dict[str, Any], *, version: str) -> None:
    if not wheel.is_file():
        raise ReleaseError(f"{wheel.name}: missing, {PROVENANCE} is of version {version}")
    metadata = components.wheel_metadata(wheel)
    if (metadata["Name"], metadata["Version"]) != ("chorale", version):
        raise ReleaseError(
            f"{wheel.name}: it is {metadata['Name']} {metadata['Version']}, not chorale {version}"
        )
    if (found := components.software_sha256(wheel)) != digests.get("software"):
        raise ReleaseError(
            f"{wheel.name}: its files have SHA-256 {found}, {DIGESTS} says {digests.get('software')}"
        )
    entries = _bill(folder, f"chorale-{version}.cdx.json")
    if lacking := sorted(components.required(metadata) - {name for _, name, _ in entries}):
        raise ReleaseError(f"chorale-{version}.cdx.json: {lacking[0]}: the wheel requires it")


def _check_chart(folder: Path, name: str, digests: dict[str, Any], *, image: str) -> None:
    packed, archive = folder / f"{name}.tgz", folder / f"{name}.chart.oci.tar"
    for path in (packed, archive):
        if not path.is_file():
            raise ReleaseError(f"{path.name}: missing")
    layout = Layout(archive)
    expected = (digests.get("charts") or {}).get(name)
    if layout.digest != expected:
        raise ReleaseError(f"{archive.name}: its manifest is {layout.digest}, {DIGESTS} says {expected}")
    if layout.layers != [f"sha256:{file_sha256(packed)}"]:
        raise ReleaseError(f"{archive.name}: it holds another chart than {packed.name}")
    if (found := components.image_digest_of(packed)) != image:
        raise ReleaseError(
            f"{packed.name}: it installs the image {found or 'of a tag'}, expected {image or 'none'}"
        )


def _check_image(folder: Path, name: str, wheel: Path, *, image: str) -> None:
    archive = folder / f"{name}.image.oci.tar"
    if not archive.is_file():
        raise ReleaseError(f"{archive.name}: missing")
    layout = Layout(archive)
    if layout.digest != image:
        raise ReleaseError(f"{archive.name}: its manifest is {layout.digest}, {DIGESTS} says {image}")
    content = components.ImageContent(layout, packages=components.top_folders(wheel), what=archive.name)
    if content.software_sha256 != components.software_sha256(wheel):
        raise ReleaseError(f"{archive.name}: its Chorale has other files than {wheel.name}")
    entries = _bill(folder, f"{name}.image.cdx.json")
    if odd := sorted(entries ^ {each.key for each in content.components}):
        kind, package, version = odd[0]
        where = "the image has no" if odd[0] in entries else "it leaves out the image's"
        raise ReleaseError(f"{name}.image.cdx.json: {where} {package} {version} ({kind})")


def _bill(folder: Path, name: str) -> set[tuple[str, str, str]]:
    """Kind, name and version of every component."""
    try:
        return {
            (str(each["purl"]).removeprefix("pkg:").partition("/")[0], each["name"], each["version"])
            for each in _json(folder, name)["components"]
        }
    except (KeyError, TypeError):
        raise ReleaseError(f"{name}: expected components with name, version and purl") from None


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads(_text(folder, name))
    except (ValueError, RecursionError):
        raise ReleaseError(f"{name}: no JSON") from None
    if not isinstance(found, dict):
        raise ReleaseError(f"{name}: expected an object")
    return found


def _text(folder: Path, name: str) -> str:
    path = folder / name
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ReleaseError(f"{name}: longer than {MAX_TEXT_BYTES} bytes")
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        raise ReleaseError(f"{name}: missing, or no text") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="make verify-release", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the release lies")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--key", type=Path, help="the public key of the release, from a source you trust")
    which.add_argument("--unsigned", action="store_true", help="check a release that nobody has signed")
    given = parser.parse_args()
    try:
        if not given.folder.is_dir():
            raise ReleaseError(f"{given.folder}: no such folder")
        print(f"chorale: {verify(given.folder, given.key)}")
    except ReleaseError as error:
        sys.exit(f"chorale: error: {error}")


if __name__ == "__main__":
    main()
