"""Processes of the silo's own that read and decode samples ahead of training: torch's DataLoader.

What comes back is pickled between this process and those that it started. Arrays go through their pipes, not
through shared memory, of which a container has 64 MB. The processes are forked from one that has
loaded torch and has no threads, as the agent has. They end with the agent, also where it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.runtime import distributions
from chorale_models import data
from crypto.errors import ChoraleError, ConfigError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@dataclass(frozen=True, slots=True)
class Unread:
    """Why a sample could not be read."""

    why: str


Found: TypeAlias = tuple[NDArray[Any], NDArray[Any]] | Unread


def read_places(source: data.Samples, places: Sequence[int]) -> list[Found]:
    """Input and target at each place."""
    return [_read(source, place) for place in places]


def _read(source: data.Samples, place: int) -> Found:
    try:
        inputs, target = source[place]
        return np.asarray(inputs), np.asarray(target)
    except ChoraleError as error:
        return Unread(str(error))
    except Exception as error:  # a data set of the institution's own raises anything
        return Unread(f"{type(error).__name__}: {error}")


class Workers:
    """count: processes. ahead: batches that each reads before they are wanted."""

    def __init__(self, source: data.Samples, *, count: int, ahead: int) -> None:
        import torch
        from torch.utils.data import DataLoader

        multiprocessing.set_forkserver_preload(["torch.utils.data"])
        self._plan = _Plan()
        self._loader: DataLoader[Any] = DataLoader(
            _Reader(source),  # type: ignore[arg-type]
            batch_sampler=self._plan,
            num_workers=count,
            collate_fn=_as_read,
            prefetch_factor=ahead,
            persistent_workers=True,
            worker_init_fn=_end_with_the_agent,
            multiprocessing_context="forkserver",
            generator=torch.Generator(),  # not the one that dropout draws from
        )

    def read(self, plan: Sequence[list[int]]) -> Iterator[list[Found]]:
        """Raises ConfigError where a process cannot be started, or ends."""
        self._plan.batches = plan
        try:
            batches = iter(self._loader)
        except Exception as error:  # pickle's errors have no family
            why = f"the data set cannot go to another process ({error}); 0 reads in the agent's own"
            raise ConfigError(f"data.workers: {why}") from error
        while True:
            try:
                yield next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                raise ConfigError(f"data.workers: a process that reads samples ended: {error}") from error


class _Plan:
    """The batches of the pass that is under way."""

    batches: Sequence[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class _Reader:
    """What a process is given: torch asks it for a whole batch."""

    def __init__(self, source: data.Samples) -> None:
        self._source = source

    def __getitems__(self, places: Sequence[int]) -> list[Found]:
        return read_places(self._source, places)

    def __reduce__(self) -> tuple[Any, ...]:
        # pickled in this order: the process must know the files before it imports what the samples are of
        return _reader, (distributions.Running(), self._source)


def _reader(_: object, source: data.Samples) -> _Reader:
    return _Reader(source)


def _end_with_the_agent(_: int) -> None:
    # torch's own watch looks at the process that it was forked from, which lives on
    threading.Thread(target=_wait_for_its_end, daemon=True).start()


def _wait_for_its_end() -> None:
    agent = multiprocessing.parent_process()
    assert agent is not None
    agent.join()
    os._exit(1)


def _as_read(found: list[Found]) -> list[Found]:
    return found
