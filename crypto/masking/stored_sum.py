"""A revealed sum on disk: decoded a quantity at a time, and the part of it that silos fetch.

Source: docs/protocol.md 4, 5.6 and 7.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.errors import LocalProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.plausible import check_plausible
from crypto.fixed_point.ring import Words
from crypto.masking import masks
from crypto.masking.masks import vectors_from_stream


class StoredSum(Mapping[str, NDArray[Any]]):
    """A revealed sum on disk, each quantity decoded when it is asked for, in its own units and shape.

    Nothing of it is kept: to ask twice gives a second copy, and a large one is gone when it is used.
    Raises RemoteProtocolError unless the file has exactly the layout's length.
    """

    def __init__(self, path: Path, *, layout: Layout) -> None:
        self._layout = layout
        self._quantities = {quantity.name: quantity for quantity in layout.quantities}
        self._vectors = vectors_from_stream(layout, np.memmap(path, np.uint8, "r").data)

    def check_plausible(self, survivors: int) -> None:
        """Raises ImplausibleSum unless so many honest silos can have given this sum."""
        native = {
            ring_bits: words.astype(ring.WORD_TYPES[ring_bits], copy=False)
            for ring_bits, words in self._vectors.items()
        }
        check_plausible(native, layout=self._layout, survivors=survivors)

    def __getitem__(self, name: str) -> NDArray[Any]:
        quantity = self._quantities[name]
        return ring.decode_quantity(self._words(quantity), quantity=quantity, members=self._layout.members)

    def pieces(self, name: str) -> Callable[[slice], NDArray[Any]]:
        """Any piece of a quantity, flat, decoded when it is asked for and alone; of one that is projected no
        piece is to be had without the others, so the whole is decoded once and kept with what is returned.
        """
        quantity = self._quantities[name]
        if quantity.projection is not None:
            whole_N: NDArray[Any] = self[name].reshape(-1)
            return lambda place: whole_N[place]
        words_N, members = self._words(quantity), self._layout.members
        return lambda place: ring.decode_piece(words_N[place], quantity=quantity, members=members)

    def _words(self, quantity: Quantity) -> Words:
        words_N = self._vectors[quantity.ring_bits][self._layout.slices(quantity.ring_bits)[quantity.name]]
        return words_N.astype(ring.WORD_TYPES[quantity.ring_bits], copy=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._quantities)

    def __len__(self) -> int:
        return len(self._quantities)


def tagged_stream(path: Path, *, layout: Layout) -> Iterator[memoryview]:
    """The stream of `layout.tagged` out of that of the whole layout, in parts and without a copy.

    The words of the tagged quantities in ascending word size and declared order; what stands behind the
    quantities of a vector, such as its tags, stays there. Raises LocalProtocolError where nothing is tagged,
    RemoteProtocolError unless the file has exactly the layout's length.
    """
    if layout.tagged is None:
        raise LocalProtocolError("sum: no quantity of this layout is tagged")
    return masks.tagged_stream(layout, vectors_from_stream(layout, np.memmap(path, np.uint8, "r").data))
