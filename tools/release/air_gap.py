"""`python -m tools.release.air_gap RELEASE`: all wheels of a party in one archive, for want of a network.

Its requirements.txt pins every wheel by SHA-256 and is what minisign signs: pip takes no other file then. The
wheels are for x86-64 Linux.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from tools.release import archives, components, locks, statement
from tools.release.build import last_line
from tools.release.errors import ReleaseError

REQUIREMENTS = "requirements.txt"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
TORCH_INDEX_URL = "https://download.pytorch.org/whl/cpu"


@click.command()
@click.argument("release", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--party", type=click.Choice(sorted(locks.EXTRAS)), default="silo", help="Of whom.")
@click.option("--python", default=locks.PYTHON, help="Of the machine, as 3.11.")
@click.option("--torch-index-url", default=TORCH_INDEX_URL, help="Where torch comes from, for CPU or GPU.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("build"), help="Folder of the archive.")
@click.option(
    "--key", type=click.Path(path_type=Path, exists=True), required=True, help="minisign's secret key."
)
@click.option(
    "--password-file", type=click.File(), help="Of the key; -, the default, reads one line.", default="-"
)
def main(
    release: Path, party: str, python: str, torch_index_url: str, out: Path, key: Path, password_file: Any
) -> None:
    """Gather the wheels of a party and of the release that lies in a folder, sign them and pack them."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".air-gap-", dir=out) as work:
            folder = gather(release, Path(work), party=party, python=python, torch_index_url=torch_index_url)
            password = password_file.readline().rstrip("\n")
            statement.sign(folder, key, said=folder.name, password=password, name=REQUIREMENTS)
            archives.pack(Path(work), out / f"{folder.name}.tar", epoch=archives.FIXED_TIME)
    except ReleaseError as error:
        sys.exit(f"chorale: error: {error}")
    click.echo(f"chorale: {out / folder.name}.tar, signed by {key.name}")


def gather(release: Path, work: Path, *, party: str, python: str, torch_index_url: str) -> Path:
    """A folder in `work` with every wheel, and requirements.txt. Raises ReleaseError."""
    wheels = list(release.glob("chorale-*.whl"))
    if len(wheels) != 1:
        raise ReleaseError(f"{release}: expected the wheel of one release, got {len(wheels)}")
    folder = work / f"chorale-{party}-{components.wheel_metadata(wheels[0])['Version']}-python{python}"
    folder.mkdir()
    _download(folder, python, "--no-deps", "--require-hashes", "--requirement", str(locks.lock_of(party)))
    if party == "silo":  # CUDA's packages come with it; the folder has the others already
        known = ["--constraint", str(locks.ROOT / "constraints.txt"), "--find-links", str(folder)]
        _download(folder, python, *known, "--index-url", torch_index_url, *locks.OF_TORCHS_INDEX)
    shutil.copy(wheels[0], folder)
    (folder / REQUIREMENTS).write_text("".join(sorted(map(_pin, folder.glob("*.whl")))))
    # for an image that is built without a network
    _download(folder, python, "--no-deps", "--require-hashes", "--requirement", str(locks.lock_of("build")))
    return folder


def _download(folder: Path, python: str, *what: str) -> None:
    fixed = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    platforms = [part for each in PLATFORMS for part in ("--platform", each)]
    command = [sys.executable, "-m", "pip", "download", *fixed, *platforms, "--dest", str(folder), *what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"pip download: {last_line(done.stderr)}")


def _pin(wheel: Path) -> str:
    metadata = components.wheel_metadata(wheel)
    return f"{metadata['Name']}=={metadata['Version']} --hash=sha256:{archives.file_sha256(wheel)}\n"


if __name__ == "__main__":
    main()
