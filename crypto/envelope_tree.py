"""The hash tree over the envelopes of one dealing: the dealer signs its root, a receiver gets a path to it.

The tree of RFC 6962. Neighbors are hashed together level by level, and the last of an odd number rises as it
is: that is a split at the largest power of two below the size, all the way down. A leaf is H(`envelope`), the
SHA-256 of an envelope as it travels; a node has a purpose of its own, so neither passes for the other.
The receiver knows place and size, and from them how long a path is. Source: docs/protocol.md 5.3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from crypto import encoding
from crypto.errors import Refusal, RemoteProtocolError

HASH_BYTES = 32


def leaf(envelope: bytes) -> bytes:
    """Security: a reader of the envelope refuses bytes of another purpose."""
    return hashlib.sha256(envelope).digest()


def levels(leaves: Sequence[bytes]) -> list[Sequence[bytes]]:
    """The tree, from its leaves, of which there is at least one, to its root."""
    made = [leaves]
    while len(leaves) > 1:
        pairs = zip(leaves[::2], leaves[1::2], strict=False)
        leaves = [_node(*pair) for pair in pairs] + list(leaves[len(leaves) & ~1 :])
        made.append(leaves)
    return made


def root(tree: Sequence[Sequence[bytes]]) -> bytes:
    return tree[-1][0]


def paths(tree: Sequence[Sequence[bytes]]) -> list[bytes]:
    """For each leaf the hashes beside its way up to the root, joined; none where a node rises as it is."""
    above = [b""]
    for level in reversed(tree[:-1]):
        above = [
            (level[place ^ 1] if place ^ 1 < len(level) else b"") + above[place >> 1]
            for place in range(len(level))
        ]
    return above


def root_from(envelope: bytes, path: bytes, *, place: int, size: int) -> bytes:
    """The root to which the path leads from the envelope at that place among so many.

    Raises RemoteProtocolError(code=ENVELOPE) for a path of another length than place and size give.
    """
    node, end = leaf(envelope), 0
    while size > 1:
        if place ^ 1 < size:
            sibling = path[end : end + HASH_BYTES]
            node = _node(sibling, node) if place & 1 else _node(node, sibling)
            end += HASH_BYTES
        place, size = place >> 1, (size + 1) >> 1
    if len(path) != end:
        message = f"envelope: expected a path of {end} bytes, got {len(path)}"
        raise RemoteProtocolError(message, code=Refusal.ENVELOPE)
    return node


def _node(left: bytes, right: bytes) -> bytes:
    return encoding.digest("envelope-node", left, right)
