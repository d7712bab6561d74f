"""What a wheel and an image hold, read from their own metadata: packages of Python and of Debian.

Nothing of them runs. Python's standard library alone, so that `make verify-release` needs no installation.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

from chorale.runtime.distributions import installed_in
from crypto.errors import ConfigError
from tools.release.archives import Layout
from tools.release.errors import ReleaseError
from tools.release.locks import normalized

SITE = re.compile(r"opt/chorale/lib/python3\.\d+/site-packages/")
DPKG_STATUS, DPKG_INFO, DEBIAN_DOCS = "var/lib/dpkg/status", "var/lib/dpkg/info/", "usr/share/doc/"
DEB, PYPI = "deb", "pypi"
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Component:
    """kind: DEB or PYPI. stated: what it says of its licence. files_sha256: of its own list of its files."""

    kind: str
    name: str
    version: str
    architecture: str = ""
    stated: tuple[str, ...] = ()
    files_sha256: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.name, self.version


def of_metadata(text: str, *, record: bytes) -> Component:
    """A distribution of Python, from its METADATA and RECORD."""
    metadata = Parser().parsestr(text, headersonly=True)
    return Component(
        kind=PYPI,
        name=normalized(metadata["Name"]),
        version=metadata["Version"],
        stated=tuple(_stated(metadata)),
        files_sha256=hashlib.sha256(record).hexdigest(),
    )


def wheel_metadata(wheel: Path) -> Message:
    """Raises ReleaseError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            # setuptools brings others' below a folder of its own
            (name,) = (each for each in archive.namelist() if _METADATA.fullmatch(each))
            return Parser().parsestr(archive.read(name).decode(), headersonly=True)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ReleaseError(f"{wheel.name}: no wheel: {error}") from None


def required(metadata: Message) -> frozenset[str]:
    """Names of what a distribution requires without an extra."""
    lines = [line for line in metadata.get_all("Requires-Dist") or [] if ";" not in line]
    return frozenset(normalized(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in lines)


def software_sha256(wheel: Path) -> str:
    """The digest that a process tells of this wheel once it is installed. Raises ReleaseError."""
    metadata = wheel_metadata(wheel)
    with zipfile.ZipFile(wheel) as archive:
        files = {each: archive.read(each) for each in archive.namelist() if not each.endswith("/")}
    return _digest_of(files, version=metadata["Version"], what=wheel.name)


class ImageContent:
    """Components and Chorale's own files of an image. packages: top folders of Chorale's wheel."""

    def __init__(self, layout: Layout, *, packages: Iterable[str], what: str) -> None:
        tops = frozenset(packages)

        def is_wanted(path: str) -> bool:
            if found := SITE.match(path):
                parts = PurePosixPath(path[found.end() :]).parts
                return parts[0] in tops or parts[0].endswith(".dist-info")
            return (
                path == DPKG_STATUS
                or (path.startswith(DPKG_INFO) and path.endswith(".md5sums"))
                or (path.startswith(DEBIAN_DOCS) and path.endswith("/copyright"))
            )

        files = layout.files(is_wanted)
        self._what = what
        self._own = {path[found.end() :]: files[path] for path in files if (found := SITE.match(path))}
        self.components = sorted((*_python_components(self._own), *_debian_components(files)))
        if not any(each.name == "chorale" for each in self.components):
            raise ReleaseError(f"{what}: no distribution chorale in it")

    @property
    def software_sha256(self) -> str:
        """The digest that a process of this image tells. Raises ReleaseError."""
        version = next(each.version for each in self.components if each.name == "chorale")
        return _digest_of(self._own, version=version, what=self._what)


def image_digest_of(packed: Path) -> str:
    """What a packed chart's values say of its image: sha256:..., or nothing. Raises ReleaseError."""
    try:
        with tarfile.open(packed, "r:gz") as tar:
            place = re.compile(r"[^/]+/values\.yaml")
            (entry,) = (each for each in tar if each.isfile() and place.fullmatch(each.name))
            file = tar.extractfile(entry)
            values = file.read().decode() if file is not None else ""
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise ReleaseError(f"{packed.name}: no chart: {error}") from None
    found = re.findall(r'^  digest: "?([^"\n]*)"?$', values, re.MULTILINE)
    if len(found) != 1:
        raise ReleaseError(f"{packed.name}: values.yaml has {len(found)} image digests, expected 1")
    return str(found[0])


def top_folders(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as archive:
        tops = {each.split("/")[0] for each in archive.namelist()}
    return frozenset(top for top in tops if not top.endswith(".dist-info"))


def _digest_of(files: Mapping[str, bytes], *, version: str, what: str) -> str:
    """files: of site-packages, by path. Raises ReleaseError."""
    with tempfile.TemporaryDirectory(prefix="chorale-release-") as folder:
        for path, data in files.items():
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise ReleaseError(f"{what}: {path} leads out of it")
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        try:
            return installed_in(Path(folder), f"chorale=={version}").sha256
        except ConfigError as error:
            raise ReleaseError(f"{what}: {error}") from None


def _python_components(files: Mapping[str, bytes]) -> Iterator[Component]:
    for path, data in files.items():
        folder, _, name = path.rpartition("/")
        if name == "METADATA" and folder.endswith(".dist-info"):
            yield of_metadata(data.decode(), record=files.get(f"{folder}/RECORD", b""))


def _debian_components(files: Mapping[str, bytes]) -> Iterator[Component]:
    for paragraph in files.get(DPKG_STATUS, b"").decode().split("\n\n"):
        fields = Parser().parsestr(paragraph.lstrip(), headersonly=True)
        if not str(fields["Status"] or "").endswith(" installed"):
            continue
        name, architecture = fields["Package"], fields["Architecture"]
        listings = (f"{DPKG_INFO}{name}.md5sums", f"{DPKG_INFO}{name}:{architecture}.md5sums")
        listing = next((files[each] for each in listings if each in files), b"")
        copyright_text = files.get(f"{DEBIAN_DOCS}{name}/copyright", b"").decode(errors="replace")
        stated = sorted(set(re.findall(r"^License:[ \t]*(\S[^\n]*)", copyright_text, re.MULTILINE)))
        yield Component(
            kind=DEB,
            name=name,
            version=fields["Version"],
            architecture=architecture,
            stated=tuple(each.strip() for each in stated),
            files_sha256=hashlib.sha256(listing).hexdigest() if listing else "",
        )


def _stated(metadata: Message) -> Iterator[str]:
    """What a distribution says of its licence, the most exact first."""
    if expression := metadata["License-Expression"]:
        yield expression
    if (text := metadata["License"]) and "\n" not in text.strip():
        yield text.strip()
    for each in metadata.get_all("Classifier") or []:
        if each.startswith("License :: "):
            yield each
