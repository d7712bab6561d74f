"""Archives that are the same bytes for the same content: tar, and OCI layouts in one file.

Entries are sorted, belong to root, and carry one time. Readers check each blob against its digest.
Source: OCI image-spec 1.0, image-layout.md and manifest.md; Docker's manifest schema 2 has the same fields.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from tools.release.errors import ReleaseError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MAX_JSON_BYTES = 1 << 22
# of what several releases share, which a commit's own time would change: 1980, where zip's time begins
FIXED_TIME = 315532800
# by an engine, into an image's configuration
_OF_ONE_BUILD = ("container", "container_config", "parent")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_json(value: object) -> bytes:
    """One form for one value."""
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"


def repack(path: Path, *, epoch: int) -> None:
    """A .tar.gz in place: the same files in order, with one owner, one time and modes 644 or 755."""
    with tarfile.open(path, "r:gz") as old:
        entries = sorted((each for each in old if each.isfile()), key=lambda each: each.name)
        files = [(each.name, each.mode & 0o100, _content(old, each)) for each in entries]
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for name, is_executable, data in files:
            entry = _entry(name, len(data), epoch=epoch, mode=0o755 if is_executable else 0o644)
            new.addfile(entry, io.BytesIO(data))


def pack(folder: Path, out: Path, *, epoch: int) -> None:
    """The files below a folder, as one uncompressed tar."""
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            with path.open("rb") as file:
                name = path.relative_to(folder).as_posix()
                tar.addfile(_entry(name, path.stat().st_size, epoch=epoch, mode=0o644), file)


def write_layout(folder: Path, *, config: bytes, layer: Path, media: tuple[str, str], name: str) -> str:
    """An OCI layout with one manifest of a configuration and one layer; the manifest's digest.

    media: types of configuration and layer. name: what the manifest is called in the layout.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifest = {
        "schemaVersion": 2,
        "config": _put(blobs, config, media[0]),
        "layers": [_put(blobs, layer.read_bytes(), media[1])],
    }
    described = _put(blobs, as_json(manifest), MANIFEST)
    _write_index(folder, described, name=name)
    return str(described["digest"])


def layout_of_image(pushed: Path, folder: Path, *, name: str, epoch: int) -> None:
    """An OCI layout of an image that an engine wrote to a folder: its blobs by their digest, manifest.json.

    The configuration loses what names one build of several, and carries the time `epoch`.
    name: what the manifest is called in the layout.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifest = json.loads((pushed / "manifest.json").read_text())
    for digest in {_hex_of(layer) for layer in manifest["layers"]}:  # an empty layer may be there twice
        (pushed / digest).rename(blobs / digest)
    config = json.loads((pushed / _hex_of(manifest["config"])).read_text())
    for field in _OF_ONE_BUILD:
        config.pop(field, None)
    config["config"].pop("Hostname", None)
    for step in config["history"]:
        step.pop("comment", None)  # the image that the step began from
    config["created"] = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    manifest["config"] = _put(blobs, as_json(config), manifest["config"]["mediaType"])
    _write_index(folder, _put(blobs, as_json(manifest), manifest["mediaType"]), name=name)


class Layout:
    """An OCI layout in a tar, with exactly one manifest. Raises ReleaseError for another, or for a blob
    whose bytes have another digest than its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as tar:
            self._check_blobs(tar)
            index = self._json(tar, "index.json")
            if not isinstance(index, dict) or len(index.get("manifests", ())) != 1:
                raise ReleaseError(f"{path.name}: expected an index with one manifest")
            self.digest = str(index["manifests"][0].get("digest"))
            manifest = self._json(tar, self._blob(self.digest))
            try:
                self.config = str(manifest["config"]["digest"])
                self.layers = [str(each["digest"]) for each in manifest["layers"]]
            except (KeyError, TypeError):
                raise ReleaseError(f"{path.name}: its manifest names no configuration and layers") from None
            held = {self._blob(each) for each in (self.digest, self.config, *self.layers)}
            held |= {"index.json", "oci-layout"}
            names = tar.getnames()
            if odd := sorted(set(names) ^ held):
                raise ReleaseError(f"{path.name}: {odd[0]} is missing, or nothing names it")
            if len(names) != len(held):
                raise ReleaseError(f"{path.name}: a file is in it twice")

    def files(self, is_wanted: Callable[[str], bool]) -> dict[str, bytes]:
        """Regular files of the image by path without a leading slash, as its layers leave them."""
        found: dict[str, bytes] = {}
        with self._opened() as tar:
            for layer in self.layers:
                file = tar.extractfile(self._blob(layer))
                with tarfile.open(fileobj=file, mode="r|*") as entries:
                    apply_layer(found, entries, is_wanted)
        return found

    @contextmanager
    def _opened(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self._path, "r:") as tar:
                yield tar
        except (tarfile.TarError, EOFError, KeyError) as error:
            raise ReleaseError(f"{self._path.name}: no OCI archive: {error}") from None

    def _check_blobs(self, tar: tarfile.TarFile) -> None:
        for entry in tar:
            if not entry.isfile():
                raise ReleaseError(f"{self._path.name}: {entry.name} is no file")
            place = PurePosixPath(entry.name)
            if str(place.parent) != "blobs/sha256":
                continue
            file = tar.extractfile(entry)
            if file is None or hashlib.file_digest(file, "sha256").hexdigest() != place.name:  # type: ignore[arg-type]
                raise ReleaseError(f"{self._path.name}: {entry.name} has another digest than its name")

    def _json(self, tar: tarfile.TarFile, name: str) -> Any:
        entry = tar.getmember(name)
        if entry.size > MAX_JSON_BYTES:
            raise ReleaseError(f"{self._path.name}: {name} is longer than {MAX_JSON_BYTES} bytes")
        try:
            return json.loads(_content(tar, entry))
        except (ValueError, RecursionError):
            raise ReleaseError(f"{self._path.name}: {name} is no JSON") from None

    def _blob(self, digest: str) -> str:
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or not value.isalnum():
            raise ReleaseError(f"{self._path.name}: expected a digest sha256:..., got {digest[:80]}")
        return f"blobs/sha256/{value}"


def apply_layer(found: dict[str, bytes], entries: tarfile.TarFile, is_wanted: Callable[[str], bool]) -> None:
    """One layer over those below: a whiteout hides what they have. Source: OCI image-spec, layer.md."""
    folders = {str(parent) for name in found for parent in PurePosixPath(name).parents}
    own: dict[str, bytes] = {}
    for entry in entries:
        path = PurePosixPath(entry.name.removeprefix("./").lstrip("/"))
        if path.name == _OPAQUE:
            _hide(found, str(path.parent))
        elif path.name.startswith(_WHITEOUT):
            _hide(found, str(path.with_name(path.name.removeprefix(_WHITEOUT))))
        elif not entry.isdir():
            own.pop(str(path), None)
            found.pop(str(path), None)
            if str(path) in folders:  # a link in a folder's place
                _hide(found, str(path))
            if entry.isfile() and is_wanted(str(path)):
                own[str(path)] = _content(entries, entry)
    found.update(own)


def _put(blobs: Path, data: bytes, media_type: str) -> dict[str, Any]:
    """Write a blob; its descriptor."""
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _hex_of(described: dict[str, Any]) -> str:
    return str(described["digest"]).removeprefix("sha256:")


def _write_index(folder: Path, described: dict[str, Any], *, name: str) -> None:
    """The two files by which a reader finds the manifest."""
    described["annotations"] = {"org.opencontainers.image.ref.name": name}
    (folder / "oci-layout").write_bytes(as_json({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_bytes(as_json({"schemaVersion": 2, "manifests": [described]}))


def _hide(found: dict[str, bytes], path: str) -> None:
    """Remove a file, or all of a folder."""
    for name in [each for each in found if path == "." or each == path or each.startswith(f"{path}/")]:
        del found[name]


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry)
    if file is None:
        raise ReleaseError(f"{entry.name}: expected a file in the archive")
    return file.read()


def _entry(name: str, size: int, *, epoch: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, epoch, mode
    return entry
