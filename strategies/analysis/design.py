"""Columns of a model's design: an intercept but of a Cox model, then a term after the other.

Of a product of columns each combination has one: a number counts as its z, and of the parts of a column with
categories each but the first by 0 or 1. How many there are follows from the declared parts; those of parts
that were merged away have no coefficient.

P = columns of the design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from strategies.analysis.partition import Family, Tables

NUMBER = 0  # in place of a part
Factor = tuple[int, int]  # place of a column, and NUMBER or its published part, from 1 on
Product = tuple[Factor, ...]  # () of the intercept


def design_of(tables: Tables) -> tuple[Product, ...]:
    """(P,), of a job with a model."""
    assert tables.model is not None
    found: list[Product] = [] if tables.model.family is Family.COX else [()]
    for term in tables.model.terms:
        levels = [
            [NUMBER] if tables.partitions[place].is_ordered else range(1, tables.partitions[place].size)
            for place in term
        ]
        found += [tuple(zip(term, each, strict=True)) for each in product(*levels)]
    return tuple(found)


def has_coefficient(design: Sequence[Product], parts_of: Mapping[int, Sequence[int]]) -> NDArray[np.bool_]:
    """Whether all its parts are published. parts_of: by place, the published part of each declared one.
    Shapes: -> (P,)."""
    return np.array(
        [all(part == NUMBER or part <= max(parts_of[place]) for place, part in each) for each in design]
    )
