"""A federation for one test, gone with it whatever became of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import LocalFederation

MakeFederation = Callable[..., LocalFederation]
PATIENT = {"reconnect_grace_seconds": 60.0, "stage_deadline_seconds": 60.0}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--schedule-seed", type=int, help="the seed of the one schedule of faults to run")


@pytest.fixture
def make_federation(tmp_path: Path) -> Iterator[MakeFederation]:
    """Not started. Its coordinator waits long for silos unless told otherwise."""
    with ExitStack() as stack:

        def make(*, coordinator: dict[str, Any] | None = None, **fields: Any) -> LocalFederation:
            settings = {**PATIENT, **(coordinator or {})}
            fields = {"folder": tmp_path, **fields}
            return stack.enter_context(LocalFederation(coordinator=settings, **fields))

        yield make
