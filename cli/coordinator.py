"""`chorale coordinator`: the party that drives rounds and sees sums alone."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import click

from chorale.runtime import disk
from chorale.runtime.files import PRIVATE, sync_directory
from chorale.runtime.machine import allow_descriptors, check_memory
from cli.keys import csr_command
from coordinator.process import MIN_MEMORY_BYTES
from crypto.errors import ConfigError

STREAM = Path("-")
config_option = click.option(
    "--config", required=True, type=click.Path(path_type=Path), help="The coordinator's settings file."
)


@click.group()
def coordinator() -> None:
    """Run the coordinator, back it up and bring it back."""


coordinator.add_command(csr_command("coordinator"))


@coordinator.command()
@config_option
def run(config: Path) -> None:
    """Serve silos and operators until stopped (SIGTERM or Ctrl-C)."""
    check_memory(MIN_MEMORY_BYTES, what="a coordinator")
    from coordinator.server import run as run_server
    from coordinator.settings import load_coordinator_settings

    run_server(load_coordinator_settings(config))


@coordinator.command()
@config_option
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="A new file, a folder that gets one named by federation and time, or - for standard output.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="Keep so many of the federation's newest backups in that folder, and remove the others.",
)
def backup(config: Path, out: Path, keep: int | None) -> None:
    """Write all that the coordinator keeps into one file, also while it runs.

    The file holds jobs, rosters, models, sums and the audit log as they are at one moment: a coordinator that
    is restored from it goes on as if it had been killed then. It holds no private key and no settings. Keep
    it as private as the coordinator's own disk: its models are the federation's.
    """
    from coordinator.settings import load_coordinator_settings
    from coordinator.storage.backup import note_backup, write_backup

    settings = load_coordinator_settings(config)
    allow_descriptors()  # all files are open at once
    now = datetime.now(UTC)
    is_folder = out != STREAM and out.is_dir()
    if keep is not None and not is_folder:
        raise ConfigError(f"--keep: expected a folder as --out, got {out}")
    path = out / f"chorale-{settings.federation}-{now:%Y%m%dT%H%M%SZ}.tar" if is_folder else out
    with _new_file(path) as file:
        manifest = write_backup(settings.directory, federation=settings.federation, now=now, out=file)
    try:
        note_backup(settings.directory, manifest.made)
    except OSError as error:  # such as a directory that is mounted read-only
        why = (error.strerror or str(error)).lower()
        click.echo(f"{settings.directory}: {why}, so no metric shows the backup", err=True)
    size_bytes = sum(entry.bytes for entry in manifest.files.values())
    destination = "standard output" if path == STREAM else path
    click.echo(
        f"backed up {len(manifest.files)} files, {size_bytes} bytes: {destination}", err=path == STREAM
    )
    if keep is not None:
        # by the whole form: the names of other federations may begin alike
        form = f"chorale-{settings.federation}-{'[0-9]' * 8}T{'[0-9]' * 6}Z.tar"
        for old in sorted(out.glob(form))[:-keep]:
            old.unlink()


@coordinator.command()
@config_option
@click.option(
    "--from",
    "source",
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="The backup, or - for standard input.",
)
@click.option(
    "--set-aside", is_flag=True, help="Move what the directory holds to a folder replaced-<time> in it."
)
def restore(config: Path, source: Path, set_aside: bool) -> None:
    """Bring a backup back into the settings' directory, which must be empty; no coordinator may run on it.

    All of the backup is checked before any of it is in its place, and nothing is overwritten. Then start the
    coordinator. Jobs go on where the silos have not gone on without it since; a job in which they have ends
    as failed, and `chorale job watch` says so.
    """
    from coordinator.settings import load_coordinator_settings
    from coordinator.storage.restore import restore_backup

    with _read_whole(source) as file:
        settings = load_coordinator_settings(config)
        manifest = restore_backup(
            file,
            name="standard input" if source == STREAM else str(source),
            directory=settings.directory,
            federation=settings.federation,
            now=datetime.now(UTC),
            sets_aside=set_aside,
        )
    click.echo(f"restored {len(manifest.files)} files of {manifest.made:%Y-%m-%d %H:%M:%S} UTC")


@contextmanager
def _read_whole(source: Path) -> Iterator[IO[bytes]]:
    """A file, or standard input, which is read to its end after a refusal too.

    `kubectl exec --stdin` waits for ever where nobody reads what it sends.
    """
    try:
        file = sys.stdin.buffer if source == STREAM else source.open("rb")
    except OSError as error:
        raise ConfigError(f"{source}: {(error.strerror or str(error)).lower()}") from error
    with file:
        try:
            yield file
        finally:
            while source == STREAM and file.read(1 << 20):
                pass


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that is whole once it has its name, and replaces none; or standard output."""
    if path == STREAM:
        if sys.stdout.isatty():
            raise ConfigError("--out: expected a file or a pipe, got a terminal")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists():
        raise ConfigError(f"{path}: it exists already, and a backup overwrites nothing")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        if disk.is_full(error, path.parent):
            raise disk.NoRoom(f"{path}: it finds no room: {disk.full_in_words(path.parent)}") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
