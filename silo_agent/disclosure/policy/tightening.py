"""Which of two policies allows more, field by field: each field declares its order on itself.

A running agent takes a changed policy by itself only where no field allows more than before.
Source: docs/operations.md, "Change a policy".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Tightens:
    """allows_no_more(now, held): whether a value of a field allows nothing that the held one does not. It is
    asked of two values that differ."""

    allows_no_more: Callable[[Any, Any], bool]


def toward(strictest: Enum) -> Tightens:
    """Of a field with two words."""
    return Tightens(lambda now, held: now is strictest)


def _both(compare: Callable[[Any, Any], bool]) -> Tightens:
    return Tightens(lambda now, held: None not in (now, held) and compare(now, held))


def _are_listed(now: Collection[str] | None, held: Collection[str] | None) -> bool:
    """null lists all."""
    if now is None or held is None:
        return held is None
    return all({name, name.partition("==")[0]} & {*held} for name in now)


# null is the job's or the product's own choice, which no number can be compared with
LOWER = _both(lambda now, held: now <= held)
HIGHER = _both(lambda now, held: now >= held)
FEWER = Tightens(_are_listed)  # names; of code as name or name==version
# only multiples: counts rounded to 10 and to 15 together tell more than either
COARSER = Tightens(lambda now, held: now % held == 0)
FIXED = Tightens(lambda now, held: False)


def order_of(field: FieldInfo) -> Tightens:
    """The order that a field declares; FIXED where it declares none, so that nothing is loosened unseen."""
    return next((each for each in field.metadata if isinstance(each, Tightens)), FIXED)


def loosened(held: BaseModel, now: BaseModel, *, prefix: str = "") -> list[str]:
    """Each field that allows more than in the held policy, or that the held file has and this one lacks."""
    found = []
    for name, field in type(held).model_fields.items():
        before, after = getattr(held, name), getattr(now, name)
        if name in held.model_fields_set - now.model_fields_set:
            found.append(f"{prefix}{name}: it is not there any more")
        elif isinstance(before, BaseModel):
            found += loosened(before, after, prefix=f"{prefix}{name}.")
        elif before != after and not order_of(field).allows_no_more(after, before):
            found.append(f"{prefix}{name}: {_shown(before)} became {_shown(after)}")
    return found


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value).lower()
