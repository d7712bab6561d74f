"""`make release`: everything that is given to institutions, in one folder, the same bytes for one commit."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from tools.release import build, contents, images, statement
from tools.release.errors import ReleaseError


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/release"), help="Where to.")
@click.option("--commit", default="HEAD", help="What to release; a working tree's changes are not in it.")
@click.option(
    "--key", type=click.Path(path_type=Path, exists=True), help="minisign's secret key; none: unsigned."
)
@click.option(
    "--password-file", type=click.File(), help="Of the key; -, the default, reads one line.", default="-"
)
@click.option(
    "--builder", default="urn:chorale:builder:unnamed", help="URI of who builds, for the provenance."
)
@click.option(
    "--images/--no-images", "with_images", default=True, help="Whether to build images, by buildah."
)
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
        out = out.absolute()  # each tool runs in a folder of its own
        given = dict(_pair(each) for each in arguments)
        if with_images and images.BASE_DIGEST not in given:
            raise ReleaseError(f"{images.BASE_DIGEST}: missing; the base of the images has no default digest")
        engine = (
            images.Builder(command=buildah, options=bud_options, arguments=given) if with_images else None
        )
        tools = build.tools(helm=helm, buildah=buildah if with_images else None)
        made = build.commit_of(contents.ROOT, commit)
        if out.exists() and not (out / statement.SUMS).exists():
            raise ReleaseError(f"{out}: exists and is no release, name another folder")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".release-", dir=out.parent) as folder:
            part = Path(folder) / "out"
            part.mkdir()
            version = contents.make(Path(folder), part, made, engine=engine, helm=helm)
            contents.state(part, version=version, commit=made, builder=builder, arguments=given, tools=tools)
            if key is not None:
                said = statement.comment(version=version, commit=made.sha)
                statement.sign(part, key, said=said, password=password_file.readline().rstrip("\n"))
            shutil.rmtree(out, ignore_errors=True)
            part.rename(out)
    except ReleaseError as error:
        sys.exit(f"chorale: error: {error}")
    signed = f"signed by {key.name}" if key is not None else "not signed: no --key was given"
    click.echo(f"chorale: release {version} in {out}, {len(list(out.iterdir()))} files, {signed}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ReleaseError(f"--build-arg: expected NAME=VALUE, got {text}")
    return name, value


if __name__ == "__main__":
    os.umask(0o022)
    main()
