"""Columns of a table as a job names them: numbers and categories, one by one or as a range `p0..p255`.

Silos look columns up by name and infer nothing, so that an input is the same measurement everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from chorale.runtime.validation_errors import MANY, ONE
from chorale.spec.fields import Finite, OneLine, Positive, SpecPart, in_words, one_or_many
from crypto.errors import ConfigError
from strategies.tasks.base import DeclaredTask
from strategies.tasks.multi_label import MultiLabel
from strategies.tasks.segmentation import Segmentation

MAX_CLASSES = 1_000_000
MAX_TABLE_INPUTS = 65_536  # values of one record of a table; ranges and categories expanded
RANGES = (1e-30, 1e30)  # of plausible that is standardized by: ordinary numbers also when tripled

Heading = Annotated[str, Field(min_length=1, max_length=200)]
Category = Annotated[str, Field(min_length=1, max_length=200)]

Rare = Annotated[
    Annotated[Literal["computed"], Tag(ONE)] | Annotated[tuple[Category, ...], Tag(MANY)],
    Discriminator(one_or_many),
]

_RANGE = re.compile(r"(?P<stem>.*?)(?P<first>[0-9]{1,7})\.\.(?P=stem)(?P<last>[0-9]{1,7})")


class ColumnSpec(SpecPart):
    """One column of a table, or a range of them that are treated alike.

    Numbers: x becomes (x - mean) / scale, a missing or implausible value becomes fill first; where mean and
    scale are computed, a missing one becomes the mean (`computed_columns`). Categories: one
    input each, 1 for that of the record, all 0 where it is missing; or, with encoding index, their place as a
    number.
    """

    name: Heading = Field(
        description="the column's heading, or a range such as p0..p255, which is 256 columns alike"
    )
    mean: Finite = Field(default=0.0, description="subtracted from every value")
    scale: Positive = Field(default=1.0, description="what is left is divided by it")
    fill: Finite = Field(default=0.0, description="replaces a missing value, in the column's own units")
    standardize: Literal["computed"] | None = Field(
        default=None,
        description="computed: mean and scale are those of all silos' training records, summed before the "
        "first round, and a missing value becomes the mean; needs plausible; null: those stated here",
    )
    edges: tuple[Finite, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="where trees may split the column, ascending, in its own units; null: at quantiles "
        "of a normal law of this mean and scale",
    )
    plausible: tuple[Finite, Finite] | None = Field(
        default=None,
        description="lowest and highest value that is believed, in the column's own units: one outside of "
        "them is missing; null: every number is believed",
    )
    unit: OneLine | None = Field(
        default=None,
        description="of mean, scale, fill and plausible, such as mmol/L: a silo whose settings state another "
        "one converts its numbers by its factor, or refuses the job; null: not said",
    )
    categories: tuple[Category, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1_000,
        description="texts of the column, each one category; null: it holds numbers",
    )
    rare: Rare | None = Field(
        default=None,
        description="one-hot categories that are read as missing, all inputs 0: computed, those that fewer "
        "than 10 of all silos' training records have, counted before the first round; or these; null: none",
    )
    encoding: Literal["one-hot", "index"] | None = Field(
        default=None,
        description="of categories: one-hot, an input for each of them; index, one input that is the "
        "place of the text in the list, from 0; null: one-hot",
    )

    @property
    def is_one_hot(self) -> bool:
        return self.categories is not None and self.encoding != "index"

    @property
    def rare_texts(self) -> tuple[str, ...]:
        """As stated, or as computed: none before."""
        return self.rare if isinstance(self.rare, tuple) else ()

    @property
    def width(self) -> int:
        """Inputs that one such column makes."""
        return len(self.categories) if self.categories is not None and self.is_one_hot else 1

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names_of(self.name)
        if self.plausible is not None and self.plausible[0] > self.plausible[1]:
            raise ValueError(f"plausible: expected the lowest value first, got {list(self.plausible)}")
        if self.categories is not None and (self.plausible, self.unit) != (None, None):
            raise ValueError("plausible and unit: not allowed with categories, which are no numbers")
        if self.edges is not None:
            if self.is_one_hot or self.standardize is not None:
                raise ValueError("edges: not allowed with one-hot categories or standardize: computed")
            if any(low >= high for low, high in pairwise(self.edges)):
                raise ValueError(f"edges: expected ascending numbers, got {list(self.edges)}")
        if self.standardize is not None:
            self._check_computed()
        if self.rare is not None and not self.is_one_hot:
            raise ValueError("rare: needs categories that are one-hot")
        if self.categories is None:
            if self.encoding is not None:
                raise ValueError("encoding: needs categories")
            return self
        if odd := [text for text in self.rare_texts if text not in self.categories]:
            raise ValueError(f"rare: expected computed or some of the categories, got {odd[0]!r}")
        if any(text != text.strip() for text in self.categories):
            raise ValueError("categories: expected texts without spaces at either end")
        if len(set(self.categories)) != len(self.categories):
            raise ValueError("categories: expected each text once")
        if self.is_one_hot and (self.mean, self.scale, self.fill) != (0.0, 1.0, 0.0):
            raise ValueError("mean, scale and fill: not allowed with one-hot categories")
        return self

    def _check_computed(self) -> None:
        if self.categories is not None:
            raise ValueError("standardize: not allowed with categories, which are no numbers")
        if (self.mean, self.scale, self.fill) != (0.0, 1.0, 0.0):
            raise ValueError("mean, scale and fill: not allowed with standardize: computed")
        low, high = self.plausible or (0.0, 0.0)
        if not RANGES[0] <= high - low <= RANGES[1]:
            raise ValueError(
                "plausible: standardize: computed needs the lowest and the highest value, by which silos "
                f"bound what a record adds to the sums, {RANGES[0]:g} to {RANGES[1]:g} apart"
            )


def names_of(heading: str) -> tuple[str, ...]:
    """The columns that a heading names: itself, or all of a range. Raises ValueError for one that is none."""
    found = _RANGE.fullmatch(heading)
    if found is None:
        return (heading,)
    stem, first, last = found["stem"], found["first"], found["last"]
    if int(first) > int(last) or int(last) - int(first) >= MAX_TABLE_INPUTS:
        raise ValueError(f"range {heading}: expected 1 to {MAX_TABLE_INPUTS} columns, the lowest first")
    if not first.startswith("0") or first == "0":
        return tuple(f"{stem}{number}" for number in range(int(first), int(last) + 1))
    if len(first) != len(last):
        raise ValueError(f"range {heading}: expected as many digits on both sides where zeros lead")
    return tuple(f"{stem}{number:0{len(first)}}" for number in range(int(first), int(last) + 1))


def expanded(columns: Iterable[ColumnSpec]) -> Iterator[ColumnSpec]:
    """The same columns, one for each name of a range."""
    for column in columns:
        for name in names_of(column.name):
            yield column if name == column.name else column.model_copy(update={"name": name})


def with_input_shape(values: dict[object, object]) -> dict[object, object]:
    """A job's fields, with the input that its columns make where it says no shape."""
    if values.get("input_shape") is not None or not values.get("columns"):
        return values
    inputs = 1  # of columns that are none: their own error says it
    with suppress(ValueError):
        columns = TypeAdapter(tuple[ColumnSpec, ...]).validate_python(values["columns"])
        inputs = sum(column.width * len(names_of(column.name)) for column in columns)
    return {**values, "input_shape": [inputs]}


def check_columns(
    columns: Iterable[ColumnSpec], labels: Iterable[str], *, input_shape: tuple[int, ...]
) -> None:
    """Raises ValueError for a table whose columns make another input than the job's, or no label."""
    inputs, columns_of_label = check_table(columns, labels)
    if input_shape != (inputs,):
        raise ValueError(
            f"input_shape: expected [{inputs}], the number of inputs that the columns make, "
            f"got {list(input_shape)}"
        )
    if not columns_of_label:
        raise ValueError("label_column: a value is required with columns")


def check_table(columns: Iterable[ColumnSpec], labels: Iterable[str]) -> tuple[int, int]:
    """How many inputs the columns make, and how many columns a label. Raises ValueError where a name
    repeats or they are too many."""
    inputs, names = 0, set[str]()
    for column in columns:
        own = names_of(column.name)
        inputs += column.width * len(own)
        _add(names, own, f"columns: expected at most {MAX_TABLE_INPUTS} inputs of a record", size=inputs)
    columns_of_label = 0
    for label in labels:
        own = names_of(label)
        columns_of_label += len(own)
        too_many = f"label_column: expected at most {MAX_TABLE_INPUTS} columns"
        _add(names, own, too_many, size=columns_of_label)
    return inputs, columns_of_label


def _add(names: set[str], own: tuple[str, ...], too_many: str, *, size: int) -> None:
    if size > MAX_TABLE_INPUTS:
        raise ValueError(too_many)
    for name in own:
        if name in names:
            raise ValueError(f"columns: {name} is named twice in columns and label_column")
        names.add(name)


def _no_name_twice(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ValueError(f"expected each name once, got {twice[0]!r} twice")
    return names


def _plain_name(name: str) -> str:
    """Security: it is shown to people, and steers no terminal."""
    if name != name.strip() or not name.isprintable():
        raise ValueError
    return name


ClassName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200),
    AfterValidator(_plain_name),
    in_words("a name of 1 to 200 printable characters without spaces at either end"),
]
ClassNames = Annotated[
    tuple[ClassName, ...], Field(min_length=1, max_length=MAX_CLASSES), AfterValidator(_no_name_twice)
]
Classes = Annotated[  # as the job has them: how many, or the name of each
    Annotated[int, Field(ge=0, le=MAX_CLASSES), Tag(ONE)] | Annotated[ClassNames, Tag(MANY)],
    Discriminator(one_or_many),
]


def check_class_names(names: tuple[str, ...], task: DeclaredTask) -> None:
    """Raises ConfigError for names where a label is made of no classes."""
    if names and not (task.has_classes or isinstance(task, MultiLabel | Segmentation)):
        raise ConfigError(
            f"classes: expected a number for task {task.word}; names are for labels that are classes"
        )


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


LabelColumns = Annotated[
    tuple[Heading, ...],
    Field(min_length=1, max_length=1_000),
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": 200},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1_000},
            ]
        }
    ),
]


def check_vocabulary(
    vocabulary: int | None, input_type: str, task: DeclaredTask, *, is_private: bool
) -> None:
    """Raises ConfigError for inputs that are not the task's, for a vocabulary that stands twice (`classes` of
    a task of tokens) or is of other inputs, and for a private job without one: a value that the model has no
    row for would refuse a phase, which tells of one record."""
    has_tokens = task.has_tokens
    if has_tokens and input_type != "int64":
        raise ConfigError(
            f"input_type: expected int64 for task {task.word}, whose inputs are tokens, got {input_type}"
        )
    if vocabulary is not None and input_type != "int64":
        raise ConfigError(f"vocabulary: not allowed with input_type {input_type}, only with int64")
    if vocabulary is not None and has_tokens:
        raise ConfigError("vocabulary: expected none in a task of tokens, where it is classes")
    if is_private and input_type == "int64" and not has_tokens and vocabulary is None:
        raise ConfigError(
            "vocabulary: a value is required in a private job with input_type int64: silos leave out records "
            "with other values"
        )
