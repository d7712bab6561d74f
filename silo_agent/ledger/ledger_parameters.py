"""What the ledger's statements are bound to.

They are built once: a phase runs some thirty, and to build one takes four times as long as to run it.
"""

from __future__ import annotations

from typing import Any, Protocol

from sqlalchemy import BindParameter, and_, bindparam
from sqlalchemy.sql import ColumnElement

OF_JOB: BindParameter[bytes] = bindparam("of_job")
OF_ROUND: BindParameter[int] = bindparam("of_round")
OF_PHASE: BindParameter[str] = bindparam("of_phase")
OF_DATA_SET: BindParameter[str] = bindparam("of_data_set")


class InPhase(Protocol):
    """A key of a phase, the terms of its session or what was recorded in it."""

    @property
    def job_digest(self) -> bytes: ...

    @property
    def round(self) -> int: ...

    @property
    def phase(self) -> str: ...


def same_phase(table: Any) -> ColumnElement[bool]:
    """Rows of one phase, bound by `of_phase`."""
    columns = table.c
    return and_(columns.job_digest == OF_JOB, columns.round == OF_ROUND, columns.phase == OF_PHASE)


def of_phase(key: InPhase) -> dict[str, Any]:
    return {"of_job": key.job_digest, "of_round": key.round, "of_phase": key.phase}
