from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strategies.phases.training import unflatten

Shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5)


@given(shapes=Shapes)
def test_unflatten_undoes_joining_arrays_end_to_end(shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"layer.{index}": rng.normal(size=shape) for index, shape in enumerate(shapes)}
    names = tuple(reversed(arrays))
    joined = np.concatenate([arrays[name].ravel() for name in names])
    again = unflatten(joined, arrays, names)
    for name in names:
        np.testing.assert_array_equal(again[name], arrays[name])
