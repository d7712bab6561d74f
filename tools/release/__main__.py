"""`make release`: everything that is given to institutions, in one folder, the same bytes for one commit."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from cyclonedx.model.component import ComponentType

from tools.release import build, components, images, licences, locks, sbom, statement, vulnerabilities
from tools.release.archives import Layout, as_json, file_sha256
from tools.release.components import Component
from tools.release.errors import ReleaseError

ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "build" / "release", help="Where to.")
@click.option("--commit", default="HEAD", help="What to release; a working tree's changes are not in it.")
@click.option("--key", type=click.Path(path_type=Path, exists=True), help="minisign's secret key; none: unsigned.")
@click.option("--password-file", type=click.File(), help="Of the key; -, the default, reads one line.", default="-")
@click.option("--builder", default="urn:chorale:builder:unnamed", help="URI of who builds, for the provenance.")
@click.option("--images/--no-images", "with_images", default=True, help="Whether to build images, by buildah.")
@click.option("--build-arg", "arguments", multiple=True, help="NAME=VALUE for the images, as PYTHON_DIGEST.")
@click.option("--helm", default="helm", help="The program; 3.6 or newer.")
@click.option("--buildah", default="buildah", help="The program with its own options.")
@click.option("--bud-options", default="", help="Of `buildah bud`, such as volumes with a mirror's settings.")
def main(
    out: Path,
    commit: str,
    key: Path | None,
    password_file: Any,
    builder: str,
    with_images: bool,
    arguments: tuple[str, ...],
    helm: str,
    buildah: str,
    bud_options: str,
) -> None:
    """Wheel, source distribution, images and charts, with bills of materials, provenance and checksums."""
    try:
        given = dict(_pair(each) for each in arguments)
        if with_images and images.BASE_DIGEST not in given:
            raise ReleaseError(f"{images.BASE_DIGEST}: missing; the base of the images has no default digest")
        engine = images.Builder(command=buildah, options=bud_options, arguments=given) if with_images else None
        if shutil.which(helm) is None:
            raise ReleaseError(f"{helm}: not on PATH, expected Helm 3.6 or newer")
        made = build.commit_of(ROOT, commit)
        if out.exists():
            shutil.rmtree(out)
        out.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="chorale-release-") as folder:
            version = _make(Path(folder), out, made, engine, helm)
        _state(out, version=version, commit=made, builder=builder, arguments=given)
        if key is not None:
            said = statement.comment(version=version, commit=made.sha)
            statement.sign(out, key, said=said, password=password_file.readline().rstrip("\n"))
    except ReleaseError as error:
        sys.exit(f"chorale: error: {error}")
    signed = f"signed by {key.name}" if key is not None else "not signed: no --key was given"
    click.echo(f"chorale: release {version} in {out}, {len(list(out.iterdir()))} files, {signed}")


def _make(work: Path, out: Path, commit: build.Commit, engine: images.Builder | None, helm: str) -> str:
    """Everything that is built and what it holds; the version."""
    source = work / "source"
    build.export(ROOT, commit, source)
    context = work / "context"  # setuptools writes into its own
    build.export(ROOT, commit, context)
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
    (out / statement.DIGESTS).write_bytes(as_json(digests))
    (out / "licences.txt").write_text(licences.report(parts))
    files = [context / "deploy" / f"requirements-{name}.txt" for name in locks.EXTRAS]
    (out / "vulnerabilities.txt").write_text(vulnerabilities.report(files))
    return version


def _state(
    out: Path, *, version: str, commit: build.Commit, builder: str, arguments: Mapping[str, str]
) -> None:
    """Provenance and checksums of what lies in the folder."""
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
            raise ReleaseError(f"{name}: version {installed.version} is installed, expected {version}: make setup")
        text = installed.read_text("METADATA") or ""
        found.append(components.of_metadata(text, record=b""))
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ReleaseError(f"--build-arg: expected NAME=VALUE, got {text}")
    return name, value


if __name__ == "__main__":
    os.umask(0o022)
    main()
