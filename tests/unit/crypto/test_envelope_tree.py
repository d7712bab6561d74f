"""The tree under a dealing's signature: RFC 6962's, and a path is good for one leaf at one place alone."""

from __future__ import annotations

import pytest

from crypto import encoding, envelope_tree
from crypto.errors import Refusal, RemoteProtocolError

SIZES = (*range(1, 18), 63, 64, 65, 127, 128, 129, 199)


def envelopes(size: int) -> list[bytes]:
    return [encoding.encode("envelope", place) for place in range(size)]


def tree_of(size: int) -> list:
    return envelope_tree.levels([envelope_tree.leaf(each) for each in envelopes(size)])


def rfc_6962_root(leaves: list[bytes]) -> bytes:
    """Section 2.1, with our hashes: split at the largest power of two below the size."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return encoding.digest("envelope-node", rfc_6962_root(leaves[:split]), rfc_6962_root(leaves[split:]))


@pytest.mark.parametrize("size", SIZES)
def test_the_root_is_that_of_rfc_6962_and_every_path_leads_to_it(size):
    tree = tree_of(size)
    root = envelope_tree.root(tree)
    assert root == rfc_6962_root([envelope_tree.leaf(each) for each in envelopes(size)])
    for place, (envelope, path) in enumerate(zip(envelopes(size), envelope_tree.paths(tree), strict=True)):
        assert len(path) <= 32 * (size - 1).bit_length()
        assert envelope_tree.root_from(envelope, path, place=place, size=size) == root


def test_a_path_of_two_hundred_silos_has_at_most_256_bytes():
    assert max(map(len, envelope_tree.paths(tree_of(199)))) == 256


@pytest.mark.parametrize("size", [2, 3, 7, 8, 12])
def test_another_place_size_or_envelope_does_not_lead_to_the_root(size):
    tree, all_envelopes = tree_of(size), envelopes(size)
    root = envelope_tree.root(tree)
    for place, path in enumerate(envelope_tree.paths(tree)):
        assert leads(all_envelopes[place], path, place, size) == root
        for other in set(range(size)) - {place}:
            assert leads(all_envelopes[place], path, other, size) != root
            assert leads(all_envelopes[other], path, place, size) != root
        for other_size in {max(place + 1, size - 1), size + 1, 2 * size} - {size}:
            if len(path) == len(envelope_tree.paths(tree_of(other_size))[place]):
                continue  # the way to this leaf has the same shape: it says nothing of the size
            assert leads(all_envelopes[place], path, place, other_size) != root


def leads(envelope: bytes, path: bytes, place: int, size: int) -> bytes | None:
    try:
        return envelope_tree.root_from(envelope, path, place=place, size=size)
    except RemoteProtocolError:
        return None


@pytest.mark.parametrize("change", [-32, -1, 1, 32])
def test_a_path_of_another_length_is_refused(change):
    tree, envelope = tree_of(7), envelopes(7)[2]
    path = envelope_tree.paths(tree)[2]
    other = path[:change] if change < 0 else path + bytes(change)
    with pytest.raises(
        RemoteProtocolError, match=f"expected a path of 96 bytes, got {96 + change}"
    ) as caught:
        envelope_tree.root_from(envelope, other, place=2, size=7)
    assert caught.value.code is Refusal.ENVELOPE
    envelope_tree.root_from(envelope, path, place=2, size=7)


def test_a_node_is_no_leaf_of_a_smaller_tree():
    """Second preimages: the two children of a node, handed out as if they were one envelope."""
    tree = tree_of(4)
    node = encoding.encode("envelope-node", tree[0][0], tree[0][1])
    assert envelope_tree.leaf(node) == tree[1][0]
    root = envelope_tree.root(tree)
    assert envelope_tree.root_from(node, tree[1][1], place=0, size=2) == root  # the tree alone would take it
    assert leads(node, tree[1][1], 0, 4) is None  # but the receiver knows the size
    with pytest.raises(RemoteProtocolError, match="envelope: the bytes belong to another kind of message"):
        encoding.decode("envelope", node)
