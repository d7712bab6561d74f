"""A mistake is told in Python by the sentence and the hint that the command ends with, as a ChoraleError."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chorale import AsyncFederation, Federation
from crypto.errors import ChoraleError
from tests.unit.cli.conftest import Calls, Desk

Mistake = Callable[[Desk], tuple[dict[str, Any], list[str | Path], Callable[[Federation], object]]]


def _list(desk: Desk, **changes: Any) -> tuple[dict[str, Any], list[str | Path], Callable[..., object]]:
    """A command that only connects, with other settings."""
    config = desk.operator(**changes)
    return {"config": config}, ["job", "watch", "ab", "--config", config], lambda f: list(f.watch("ab"))


def _submit(
    desk: Desk, *options: str, job: Path | None = None, init: Path | None = None
) -> tuple[dict[str, Any], list[str | Path], Callable[..., object]]:
    config, file = desk.operator(), job or desk.job(model={"name": "custom"})
    given: list[str | Path] = [] if init is None else ["--init", init]
    return (
        {"config": config},
        ["job", "submit", file, "--config", config, *given],
        lambda f: f.submit(file, init=init),
    )


def _config(config: Path) -> tuple[dict[str, Any], list[str | Path], Callable[..., object]]:
    return {"config": config}, ["job", "list", "--config", config], lambda f: f


MISTAKES: dict[str, Mistake] = {
    "no such settings": lambda desk: _config(desk.folder / "nothing.yaml"),
    "settings lack a field": lambda desk: _config(desk.write("operator.yaml", {"federation": "test"})),
    "settings are no yaml": lambda desk: _config(_text(desk, "operator.yaml", "a: [")),
    "nothing at all": lambda _desk: ({}, ["job", "list"], lambda f: f),
    "no such certificate": lambda desk: _list(desk, authority="nothing.crt"),
    "nobody listens": lambda desk: _list(desk),
    "no such host": lambda desk: _list(desk, coordinator="coordinator.invalid:443"),
    "no such job file": lambda desk: _submit(desk, job=desk.folder / "nothing.yaml"),
    "unknown field of a job": lambda desk: _submit(desk, job=desk.job(rouns=3)),
    "no weights for a model of one's own": lambda desk: _submit(desk),
    "a pickle": lambda desk: _submit(desk, init=desk.folder / "model.pt"),
    "weights that are none": lambda desk: _submit(desk, init=_text(desk, "w.safetensors", "no weights")),
}


def _text(desk: Desk, name: str, text: str) -> Path:
    path = desk.folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_python_says_what_the_command_says(mistake: str, desk: Desk, chorale: Calls) -> None:
    arguments, command, call = MISTAKES[mistake](desk)
    ended = chorale(*command)
    with pytest.raises(ChoraleError) as raised:
        call(Federation(**arguments))
    *hints, last = ended.err.splitlines()
    assert last == f"chorale: error: {' '.join(str(raised.value).split())}"
    notes = [" ".join(note.split()) for note in getattr(raised.value, "__notes__", ())]
    assert hints == ([f"chorale: hint: {'; '.join(notes)}"] if notes else [])
    assert ended.code in (1, 2)


def test_an_unreachable_coordinator_is_told_inside_a_running_loop(desk: Desk) -> None:
    """As in a notebook, whose cells run inside one: the probe of the line needs a loop of its own."""
    federation = Federation(desk.operator())

    async def cell() -> None:
        list(federation.watch("ab"))

    with pytest.raises(ChoraleError, match="127.0.0.1:1"):
        asyncio.run(cell())


async def test_async_calls_raise_the_same(desk: Desk) -> None:
    federation = AsyncFederation(desk.operator())
    with pytest.raises(ChoraleError, match="127.0.0.1:1"):
        await federation.fetch("ab")
    with pytest.raises(ChoraleError, match="127.0.0.1:1"):
        await anext(federation.watch("ab"))
