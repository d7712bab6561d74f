"""docs/architecture.md draws the ways of values through the code: here a job is run, and what was called
is compared with what the page says.

Coordinator and silo agents run in this process, over real gRPC and mutual TLS, and every call of a
function that a drawing names is noted as it happens, in all threads.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_to_bytes
from coordinator.storage.store import Store
from crypto.identity.certificates import Role
from silo_agent.agent import run_agent
from silo_agent.settings import SiloSettings
from silo_agent.training.models.starting import initial_state
from silo_agent.training.torch_objective import TorchObjective
from tests.unit.coordinator.conftest import Hub, make_hub, submission

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SILOS = 3
POLICY = """\
federation: test
approval: automatic
class_statistics: allow
min_class_holders: 2
"""

__all__ = ["make_hub"]  # the fixture


@dataclass(frozen=True)
class Step:
    """A line of a drawing: `path  function  what it does`."""

    line: int
    path: str
    function: str

    def __str__(self) -> str:
        return f"docs/architecture.md:{self.line}: {self.path} {self.function}"


def drawings(heading: str) -> list[list[Step]]:
    """The drawings of a section, in order."""
    found: list[list[Step]] = []
    section, is_inside = "", False
    for number, line in enumerate(PAGE.read_text().splitlines(), start=1):
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif section == heading and line.startswith("```"):
            is_inside = not is_inside
            if is_inside:
                found.append([])
        elif section == heading and is_inside and (step := re.match(r"(\S+\.py)\s+([\w.]+)", line)):
            found[-1].append(Step(number, step[1], step[2]))
    return found


# a phase ends when the coordinator stores how; no other function of these needs a name here
END_OF_A_PHASE = Store.end_phase.__code__
TRAINING = TorchObjective._train.__code__
UPDATE, SOFT_LABELS = "The way of an update", "The way of the FedDW soft-label matrix"


class Calls:
    """The calls of the functions that steps name, in the order in which they began, phase by phase."""

    def __init__(self, steps: list[Step]) -> None:
        self._files = {END_OF_A_PHASE.co_filename, *(str(ROOT / step.path) for step in steps)}
        self._names = {(str(ROOT / step.path), step.function) for step in steps}
        self.phases: list[list[tuple[str, str]]] = [[]]
        self.called: dict[str, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_filename not in self._files:
            return
        path = str(Path(code.co_filename).relative_to(ROOT))
        self.called.setdefault(path, set()).add(code.co_qualname)
        if (code.co_filename, code.co_qualname) in self._names:
            self.phases[-1].append((path, code.co_qualname))
        if code is END_OF_A_PHASE:
            self.phases.append([])

    @contextmanager
    def noted(self) -> Iterator[None]:
        sys.setprofile(self)
        threading.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def training(self) -> list[list[tuple[str, str]]]:
        """The phases in which silos trained."""
        path = str(Path(TRAINING.co_filename).relative_to(ROOT))
        return [seen for seen in self.phases if (path, TRAINING.co_qualname) in seen]


def check(way: list[Step], seen: list[tuple[str, str]], calls: Calls) -> None:
    """The steps were called one after the other. Fails with the line of the page that is wrong."""
    place = 0
    for before, step in zip([None, *way], way, strict=False):
        try:
            place = seen.index((step.path, step.function), place) + 1
        except ValueError:
            there = ", ".join(sorted(calls.called.get(step.path, {"nothing"})))
            after = f" after {before.function}" if before is not None else ""
            pytest.fail(f"{step} was not called{after}; of this file were called: {there}")


def settings_of(hub: Hub, place: int) -> SiloSettings:
    name, ceremony = hub.names[place], hub.ceremony
    policy = hub.folder / "policy.yaml"
    policy.write_text(
        "federation: test\napproval: automatic\nclass_statistics: allow\nmin_class_holders: 2\n...\n"
    )
    return SiloSettings.model_validate(
        {
            "name": name,
            "federation": "test",
            "coordinator": hub.host.grpc_address,
            "identity": {
                "certificate": ceremony.path_of(Role.SILO, name, "crt"),
                "key": ceremony.path_of(Role.SILO, name, "key"),
            },
            "authority": ceremony.certificate_path,
            "directory": hub.folder / name,
            "metrics_listen": None,
            "policy": policy,
            "data": {
                "format": "digits",
                "partition": {"kind": "iid", "silos": SILOS, "index": place},
            },
        }
    )


async def run_job(hub: Hub, preset: str, *, rounds: int) -> None:
    """A job to its end, by agents that train with torch."""
    await hub.start()
    fields: dict[str, Any] = {
        "rounds": rounds,
        "not_after": datetime.now(UTC) + timedelta(days=1),
        "strategy": {"preset": preset},
        "model": {"name": "mlp", "hidden": [8]},
        "classes": 10,
        "input_shape": [1, 8, 8],
    }
    draft = JobSpec.from_yaml(hub.job(**fields)[0].spec_bytes, source="job")
    state = state_to_bytes(initial_state(draft, base=draft.base()))
    signed, _ = hub.job(**fields, initial_state=state_digest(state).hex())
    agents = [asyncio.ensure_future(run_agent(settings_of(hub, place))) for place in range(SILOS)]
    try:
        await hub.operations().SubmitJob(submission(signed, state))
        finishing = asyncio.ensure_future(hub.finish(signed.digest))
        await asyncio.wait({finishing, *agents}, return_when=asyncio.FIRST_COMPLETED)
        for agent in agents:
            assert not agent.done(), agent.exception()
        summary, records = await finishing
        assert (summary.status, {record.result for record in records}) == ("done", {"applied"})
    finally:
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)


async def test_an_update_goes_the_documented_way(make_hub: Callable[..., Hub]) -> None:
    (way,) = drawings(UPDATE)
    calls = Calls(way)
    with calls.noted():
        await run_job(make_hub(SILOS), "fedavg", rounds=1)
    (training,) = calls.training()
    check(way, training, calls)


async def test_the_soft_label_matrix_goes_the_documented_way(make_hub: Callable[..., Hub]) -> None:
    """Three legs in one round, the fourth in the next."""
    from_silo, at_coordinator, computed, back_at_silo = drawings(SOFT_LABELS)
    calls = Calls([*from_silo, *at_coordinator, *computed, *back_at_silo])
    with calls.noted():
        await run_job(make_hub(SILOS), "feddw", rounds=2)
    first, second = calls.training()
    check([*from_silo, *at_coordinator, *computed], first, calls)
    check(back_at_silo, second, calls)


def test_no_drawing_is_empty_or_has_a_step_twice() -> None:
    for way in (*drawings(UPDATE), *drawings(SOFT_LABELS)):
        assert len(way) > 3
        assert len({(step.path, step.function) for step in way}) == len(way)


def test_a_step_that_is_not_taken_is_named() -> None:
    way = [Step(1, "a.py", "first"), Step(2, "b.py", "second")]
    calls = Calls(way)
    calls.called = {"b.py": {"second", "third"}}
    expected = r"architecture.md:2: b.py second was not called after first; .*: second, third"
    with pytest.raises(pytest.fail.Exception, match=expected):
        check(way, [("b.py", "second"), ("a.py", "first")], calls)
    check(way, [("a.py", "first"), ("a.py", "first"), ("b.py", "second")], calls)
