"""Which columns and labels of a data set jobs may read: the policy's `inputs` and `labels`.

They are compared with the signed job alone, never with the data, so a refusal is the same whether or not the
data set has such a column. Source: docs/threat-model.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

from chorale.spec.fields import DataSetName
from chorale.spec.samples.column_specs import Heading, names_of
from crypto.errors import Rule
from silo_agent.disclosure.policy.privacy_policy import refusal_by
from silo_agent.disclosure.policy.tightening import Tightens


def _all_ranges(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        names_of(name)
    return names


Names = Annotated[tuple[Heading, ...], Field(max_length=1_000), AfterValidator(_all_ranges)]
Readable: TypeAlias = dict[DataSetName, Names | None]  # by data set; null: all of it


def check_readable(
    readable: Mapping[str, Sequence[str] | None] | None, read: Sequence[str], *, data_set: str, rule: Rule
) -> None:
    """Raises PolicyRefusal where a job reads what is not listed for its data set.

    readable: None: it may read all. read: names of what it reads; none where the data have no names for it.
    rule: the field that lists.
    """
    if readable is None:
        return
    if data_set not in readable:  # a data set that was renamed is not open by that
        raise refusal_by(", ".join(readable) or "none", f"data set {data_set} in {rule.value}", rule)
    listed = readable[data_set]
    if listed is None:
        return
    names = _expanded(listed)
    beyond = [name for name in read if name not in names]
    if beyond or not read:
        got = ", ".join(map(repr, beyond)) or f"{rule.value} without names"
        expected = f"{rule.value} of {', '.join(listed) or 'none'} (data set {data_set})"
        raise refusal_by(got, expected, rule)


def readable_told(what: str, readable: Mapping[str, Sequence[str] | None] | None) -> list[str]:
    """What is refused, line by line."""
    if readable is None:
        return []
    listed = {name: names for name, names in readable.items() if names is not None}
    return [
        f"{what} of other data sets than {', '.join(readable) or 'none'}",
        *(f"{what} of data set {name} but {', '.join(each) or 'none'}" for name, each in listed.items()),
    ]


def _reads_no_more(now: Readable | None, held: Readable | None) -> bool:
    if held is None or now is None:
        return held is None
    return all(name in held and _are_fewer(names, held[name]) for name, names in now.items())


def _are_fewer(now: Names | None, held: Names | None) -> bool:
    if held is None or now is None:
        return held is None
    return _expanded(now) <= _expanded(held)


def _expanded(headings: Sequence[str]) -> set[str]:
    return {name for heading in headings for name in names_of(heading)}


FEWER_READ = Tightens(_reads_no_more)
