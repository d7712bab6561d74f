"""Columns of a model's design: an intercept but of a Cox model, then a term after the other.

Of a product of columns each combination has one: a number counts as its z, and of the parts of a column with
categories each but the first by 0 or 1. How many there are follows from the declared parts; those of parts
that were merged away have no coefficient.

P = columns of the design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from strategies.analysis.partition import Family, Tables
from strategies.base import FloatArray

NUMBER = 0  # in place of a part
Factor = tuple[int, int]  # place of a column, and NUMBER or its published part, from 1 on
Product = tuple[Factor, ...]  # () of the intercept


def design_of(tables: Tables, *, first: int = 1) -> tuple[Product, ...]:
    """(P,), of a job with a model. first: 0 for columns of all parts, also of the first."""
    assert tables.model is not None
    found: list[Product] = [] if tables.model.family is Family.COX else [()]
    for term in tables.model.terms:
        levels = [
            [NUMBER] if tables.partitions[place].is_ordered else range(first, tables.partitions[place].size)
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


def in_units(tables: Tables) -> FloatArray:
    """From coefficients of z to those of the columns' units, but for the outcome's. Shapes: -> (P, P).

    z = (x - middle) / half, so a product of z is a sum of products of x, each of which is a term, too.
    """
    design = design_of(tables)
    place_of = {frozenset(factors): place for place, factors in enumerate(design)}
    units_PP = np.zeros((len(design), len(design)))
    for place, factors in enumerate(design):
        numbers = [factor for factor in factors if factor[1] == NUMBER]
        for count in range(len(numbers) + 1):
            for left_out in combinations(numbers, count):
                share = 1.0
                for column, _ in numbers:
                    edges = tables.partitions[column].edges
                    half = (edges[-1] - edges[0]) / 2.0
                    share *= (-(edges[0] + half) if (column, NUMBER) in left_out else 1.0) / half
                # a Cox model has no intercept that it would go into
                if (into := place_of.get(frozenset(factors).difference(left_out))) is not None:
                    units_PP[into, place] += share
    return units_PP
