"""What a release holds: everything that is built, and how it is reported."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from cyclonedx.model.component import ComponentType

from tools.release import build, components, images, licences, locks, sbom, statement, vulnerabilities
from tools.release.archives import Layout, as_json, file_sha256
from tools.release.components import Component
from tools.release.errors import ReleaseError

ROOT = Path(__file__).resolve().parents[2]


class Engine(Protocol):
    """images.Builder."""

    def build(self, source: Path, name: str, out: Path, *, commit: build.Commit, version: str) -> str: ...


def make(work: Path, out: Path, commit: build.Commit, *, engine: Engine | None, helm: str) -> str:
    """Build everything into `out`, with what it holds; the version. work: an empty folder.

    engine: builds images; None leaves them out. Raises ReleaseError.
    """
    source = work / "source"
    build.export(ROOT, commit, source)
    context = work / "context"  # setuptools writes into its own
    build.export(ROOT, commit, context)
    if engine is not None:  # what a mirror needs lies in the working tree, and in no commit
        shutil.copytree(ROOT / "deploy" / "mirror", context / "deploy" / "mirror", dirs_exist_ok=True)
    locks.check(
        {name: locks.lock_of(name).read_text() for name in ("build", *locks.EXTRAS)},
        (context / "constraints.txt").read_text(),
    )
    wheel, _ = build.python_archives(source, out, epoch=commit.epoch)
    version = str(components.wheel_metadata(wheel)["Version"])
    digests: dict[str, Any] = {"software": components.software_sha256(wheel), "images": {}, "charts": {}}
    lock = (context / "deploy" / "requirements-coordinator.txt").read_text()
    parts: dict[str, list[Component]] = {wheel.name: list(_locked(lock))}
    bills: list[tuple[str, str, ComponentType, Path]] = [
        (f"chorale-{version}", wheel.name, ComponentType.APPLICATION, wheel)
    ]
    for name in images.NAMES:
        full = f"chorale-{name}-{version}"
        if engine is not None:
            archive = out / f"{full}.image.oci.tar"
            digests["images"][name] = engine.build(context, name, archive, commit=commit, version=version)
            content = components.ImageContent(
                Layout(archive), packages=components.top_folders(wheel), what=archive.name
            )
            parts[archive.name] = content.components
            bills.append((f"{full}.image", archive.name, ComponentType.CONTAINER, archive))
        _, digests["charts"][full] = build.chart(
            context / "helm" / f"chorale-{name}",
            out,
            helm=helm,
            image_digest=digests["images"].get(name),
            epoch=commit.epoch,
        )
    for name, part, kind, path in bills:
        document = sbom.of(
            parts[part],
            name=name,
            version=version,
            kind=kind,
            sha256=file_sha256(path),
            epoch=commit.epoch,
            hashes=locks.hashes(lock) if path == wheel else {},
        )
        (out / f"{name}.cdx.json").write_bytes(document)
    for unit in (context / "deploy" / "podman").iterdir():
        shutil.copy(unit, out)
    (out / statement.DIGESTS).write_bytes(as_json(digests))
    (out / "licences.txt").write_text(licences.report(parts))
    files = [context / "deploy" / f"requirements-{name}.txt" for name in locks.EXTRAS]
    (out / "vulnerabilities.txt").write_text(vulnerabilities.report(files))
    return version


def state(
    out: Path,
    *,
    version: str,
    commit: build.Commit,
    builder: str,
    arguments: Mapping[str, str],
    tools: Mapping[str, str],
) -> None:
    """Write provenance and checksums of what lies in the folder."""
    materials: list[dict[str, Any]] = [
        {"uri": f"file:deploy/{path.name}", "digest": {"sha256": file_sha256(path)}}
        for path in map(locks.lock_of, ("build", *locks.EXTRAS))
    ]
    if images.BASE_DIGEST in arguments:
        base = arguments.get(images.BASE, "docker.io/library/python:3.11-slim-bookworm")
        sha256 = arguments[images.BASE_DIGEST].removeprefix("sha256:")
        materials.append({"uri": f"oci:{base}", "digest": {"sha256": sha256}})
    about = statement.provenance(
        out,
        version=version,
        commit=commit.sha,
        builder=builder,
        parameters=arguments,
        tools=tools,
        materials=materials,
    )
    (out / statement.PROVENANCE).write_bytes(about)
    (out / statement.SUMS).write_text(statement.sums(out))


def _locked(lock: str) -> list[Component]:
    """What a lock pins, with what the installed distribution of that version says. Raises ReleaseError."""
    found = []
    for name, version in locks.pins(lock).items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise ReleaseError(f"{name}: not installed here, its licence is unknown: make setup") from None
        if installed.version != version:
            raise ReleaseError(
                f"{name}: version {installed.version} is installed, expected {version}: make setup"
            )
        text = installed.read_text("METADATA") or ""
        found.append(components.of_metadata(text, record=b""))
    return found
