"""What a doctor found: each finding with one fix, told as it is known."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

from crypto.errors import ChoraleError


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, and will not for long, or not as well as it could
    PROBLEM = "problem"
    LEFT_OUT = "left out"  # not looked at, because of a problem that was told


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """check: what was looked at. fix: one action that repairs it; empty where nothing has to be."""

    check: str
    state: State
    message: str
    fix: str = ""


class Findings:
    """All that was found so far."""

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        self.found: list[Finding] = []
        self._tell = tell

    def fine(self, check: str, message: str) -> None:
        self._add(Finding(check=check, state=State.OK, message=message))

    def warn(self, check: str, message: str, *, fix: str) -> None:
        self._add(Finding(check=check, state=State.WARNING, message=message, fix=fix))

    def problem(self, check: str, message: str, *, fix: str) -> None:
        self._add(Finding(check=check, state=State.PROBLEM, message=message, fix=fix))

    def leave_out(self, check: str, why: str) -> None:
        self._add(Finding(check=check, state=State.LEFT_OUT, message=f"not looked at: {why}"))

    def count(self, state: State) -> int:
        return sum(each.state is state for each in self.found)

    def step(self, check: str, *, fix: str) -> Step:
        """An error in it is a problem, and the next step follows."""
        return Step(self, check, fix)

    def _add(self, finding: Finding) -> None:
        self.found.append(finding)
        self._tell(finding)


@dataclass(frozen=True, slots=True)
class Step(AbstractContextManager[None]):
    """One thing that is looked at, and what repairs it where that fails, unless the error says it."""

    findings: Findings
    check: str
    fix: str

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, ChoraleError | OSError):
            return error is None
        message, _, own_fix = " ".join(str(error).split()).partition(": run ")
        self.findings.problem(self.check, message, fix=own_fix or self.fix)
        return True
