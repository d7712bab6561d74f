"""Findings of a check, a line each as they are known, and what several checks look at."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from crypto.errors import ChoraleError
from silo_agent.disclosure.policy.policy import Approval, Policy
from silo_agent.settings import SiloSettings

if TYPE_CHECKING:
    from silo_agent.disclosure.ledger.ledger import Ledger


@dataclass(slots=True)
class Findings:
    """What was looked at, a line each as it is known, and how many problems and warnings there were."""

    problems: int = 0
    warnings: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def fine(self, what: str, message: str) -> None:
        self._tell("ok", what, message)

    def problem(self, what: str, message: str) -> None:
        self.problems += 1
        self._tell("problem", what, message)

    def warn(self, what: str, message: str) -> None:
        """What may be wrong, as a person has to judge."""
        self.warnings += 1
        self._tell("warning", what, message)

    def accepted(self, policy: Policy) -> None:
        by = f", signed by {' or '.join(policy.operators)}" if policy.operators else ""
        waits = ", once it is approved (chorale silo approve)" if policy.approval is Approval.MANUAL else ""
        self.fine("acceptance", f"the policy accepts this job{by}{waits}")

    def _tell(self, state: str, what: str, message: str) -> None:
        self.rows.append({"state": state, "what": what, "message": message})
        click.echo(f"{state:<8} {what}: {message}")

    def step(self, what: str, *, slow: str = "") -> Step:
        """An error in it is a problem, and the next step follows. slow: what to say before it begins."""
        if slow:
            click.echo(slow, err=True)
        return Step(self, what)


@dataclass(frozen=True, slots=True)
class Step(AbstractContextManager[None]):
    """One thing that is looked at."""

    findings: Findings
    what: str

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return error is None
        # a data function, a model or an objective of this institution may raise anything
        message = str(error) if isinstance(error, ChoraleError) else f"{type(error).__name__}: {error}"
        message = message.removeprefix(f"{self.what}: ")  # which the finding begins with
        self.findings.problem(
            self.what, " ".join("; ".join([message, *getattr(error, "__notes__", ())]).split())
        )
        return True


@contextmanager
def read_ledger(settings: SiloSettings) -> Iterator[Ledger]:
    """The silo's ledger, to read; where no agent has run yet, an empty one that is gone afterwards."""
    from silo_agent.disclosure.ledger.ledger import Ledger

    if settings.ledger_path.exists():
        with closing(Ledger(settings.ledger_path, is_read_only=True)) as ledger:
            yield ledger
        return
    with tempfile.TemporaryDirectory() as folder, closing(Ledger(Path(folder) / "ledger.sqlite")) as empty:
        yield empty
