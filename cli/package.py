"""`chorale package`: the distribution that pins a model, task or data set of one's own."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from chorale.runtime.distributions import DATA, MODELS, PARTS, TASKS
from chorale_models import Data, Loss, Model, Regularizer, Task
from client.errors import require_extra
from crypto.errors import ConfigError

PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "{version}"
[tool.setuptools]
py-modules = [{modules}]
"""
# setuptools comes with torch
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
NAME = re.compile("[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
DIGITS = 12  # of the content's SHA-256 in a version

Offer = tuple[str, str, str]  # group, name, module:attribute


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--name", required=True, metavar="NAME", help="Of the distribution, such as hospital-models.")
@click.option(
    "--out", default=Path("dist"), show_default=True, type=click.Path(path_type=Path), help="Folder for it."
)
def package(folder: Path, name: str, out: Path) -> None:
    """Make the distribution of FOLDER's modules that jobs name.

    FOLDER's Python files are imported, so this runs their code. What they define with chorale_models is
    offered under its own name: models (@model), tasks, losses and regularizers (classes), and functions that
    are annotated to return Data. The version is that of the content: other files are another version.
    """
    require_extra("silo", "torch", what="package, which imports your modules,")
    if not NAME.fullmatch(name):
        raise ConfigError(f"--name: expected letters, digits and inner hyphens, got {name!r}")
    files = sorted(path for path in folder.glob("*.py") if not path.name.startswith(("test_", "conftest")))
    if not files:
        raise ConfigError(f"{folder}: expected Python files, found none")
    if wrong := [path.name for path in files if not path.stem.isidentifier()]:
        raise ConfigError(f"{folder}: {wrong[0]} is no name of a module")
    offers = list(_offers(folder, [path.stem for path in files]))
    if not offers:
        raise ConfigError(f"{folder}: its modules define nothing with chorale_models, such as a @model")
    version = f"0+{_digest(files)}"
    wheel = _built(files, offers, name=name, version=version, out=out)
    click.echo(f"{wheel}")
    for group, offered, value in offers:
        place = group.removeprefix("chorale.")
        click.echo(f"  {place}: {{name: {offered}, from: {name}=={version}}}  # {value}")


def _offers(folder: Path, modules: list[str]) -> Iterator[Offer]:
    sys.path.insert(0, str(folder.resolve()))
    try:
        for each in modules:
            module = importlib.import_module(each)
            for attribute, value in vars(module).items():
                group = _group(value)
                made = value.build if isinstance(value, Model) else value
                if group and getattr(made, "__module__", "") == each and not attribute.startswith("_"):
                    yield group, attribute.lower().replace("_", "-"), f"{each}:{attribute}"
    except Exception as error:  # what modules of anyone raise is on no list
        raise ConfigError(f"{folder}: it cannot be imported: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(str(folder.resolve()))


def _group(value: object) -> str:
    """Where jobs and settings look for it; "" for what is none of it."""
    if isinstance(value, Model):
        return MODELS
    if isinstance(value, type) and issubclass(value, Task | Loss | Regularizer):
        return TASKS if issubclass(value, Task) else PARTS
    if inspect.isfunction(value) and value.__annotations__.get("return") in (Data, Data.__name__):
        return DATA
    return ""


def _digest(files: list[Path]) -> str:
    whole = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        whole.update(f"{path.name} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:DIGITS]


def _built(files: list[Path], offers: list[Offer], *, name: str, version: str, out: Path) -> Path:
    """Raises ConfigError that names what setuptools found wrong."""
    out.mkdir(parents=True, exist_ok=True)
    modules = ", ".join(f'"{each.stem}"' for each in files)
    lines = [PROJECT.format(name=name, version=version, modules=modules)]
    for group in dict.fromkeys(group for group, _, _ in offers):
        lines.append(f'[project.entry-points."{group}"]')
        lines += [f'{offered} = "{value}"' for of, offered, value in offers if of == group]
    with TemporaryDirectory() as made:
        for path in files:
            shutil.copy(path, made)
        (Path(made) / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-c", BUILD, str(out.resolve())]
        ran = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        why = (ran.stderr.strip().splitlines() or ["no word"])[-1]
        raise ConfigError(f"--name {name}: setuptools builds no wheel: {why[:200]}")
    return out / ran.stdout.splitlines()[-1]
