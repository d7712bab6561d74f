"""A revealed sum on disk, decoded a quantity at a time.

Source: docs/protocol.md 4, 5.6 and 7.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.plausible import check_plausible
from crypto.fixed_point.ring import Words
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

    def __contains__(self, name: object) -> bool:  # without decoding it
        return name in self._quantities

    def __iter__(self) -> Iterator[str]:
        return iter(self._quantities)

    def __len__(self) -> int:
        return len(self._quantities)


class StoredParts(Mapping[str, NDArray[Any]]):
    """A revealed sum of which the tagged part lies in one file and the rest in another."""

    def __init__(self, *, layout: Layout, tagged: Path, untagged: Path) -> None:
        parts = ((layout.tagged, tagged), (layout.untagged, untagged))
        self._parts = [StoredSum(path, layout=part) for part, path in parts if part is not None]
        self._names = [quantity.name for quantity in layout.quantities]

    def check_plausible(self, survivors: int) -> None:
        """Raises ImplausibleSum unless so many honest silos can have given each part."""
        for part in self._parts:
            part.check_plausible(survivors)

    def __getitem__(self, name: str) -> NDArray[Any]:
        for part in self._parts:
            if name in part:
                return part[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
