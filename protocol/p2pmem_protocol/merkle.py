"""The Merkle tree under a seal: OpenZeppelin's standard tree, so that proofs verify in Solidity.

The tree has the shape of OpenZeppelin's `StandardMerkleTree` ("standard-v1") over leaves of the one type `bytes32`:

* A **line** is one canonical N-Quads line in UTF-8, its final line feed included. Its **value** is keccak256(line).
  A tree may also stand over other 32-byte values, such as the seal digests of a batch; these are values already.
* The **leaf hash** is keccak256(keccak256(abi.encode(value))), and abi.encode of a bytes32 is its own 32 bytes. An
  inner node is the hash of 64 bytes, a leaf the hash of 32, so neither can pass for the other.
* An **inner node** is keccak256(low || high), its two children in ascending order. A proof is therefore a set of
  sisters from the leaf to the root, without left or right.
* The leaf hashes, sorted ascending, lie from the end of an array of 2n - 1 nodes forward; the children of node i are
  2i + 1 and 2i + 2; node 0 is the root. A tree of one leaf is that leaf.

What follows from the shape, and what does not:

* Leaves are sorted, so a root is a function of the *set* of values. The tree proves membership; it says nothing about
  position or absence.
* A root alone does not fix the number of leaves: a root is also a valid tree of one leaf. The seal signs the leaf
  count beside the root, and `verify` takes it: a leaf of a tree of n leaves lies floor(log2(n)) or floor(log2(2n - 1))
  deep, and a proof of any other length is refused.
* No tree has no leaves; none has the same leaf twice.

Source: OpenZeppelin merkle-tree 1.0 (standard tree) and openzeppelin-contracts `MerkleProof.verify`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.hashing import keccak256

HASH_BYTES: Final = 32
# 2^32 - 1 leaves is what a seal can count.
MAX_LEAVES: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Proof:
    """That one leaf belongs to a tree.

    `leaf` is the leaf hash, `hashes` the sisters from the leaf upwards, 32 bytes each. For Solidity, `hashes` is the
    `bytes32[] proof` of OpenZeppelin's `MerkleProof.verify(proof, root, leaf)`.
    """

    leaf: bytes
    hashes: tuple[bytes, ...]


def line_value(line: bytes) -> bytes:
    """The value that stands for one canonical line, its line feed included."""
    return keccak256(line)


def leaf_hash(value: bytes) -> bytes:
    """The hash of a leaf whose value is these 32 bytes."""
    if len(value) != HASH_BYTES:
        raise MisuseError(f"a leaf value has {HASH_BYTES} bytes, this one has {len(value)}: hash it first")
    return keccak256(keccak256(value))


def _parent(one: bytes, other: bytes) -> bytes:
    return keccak256(one + other if one < other else other + one)


class Tree:
    """A whole tree in memory, for many proofs. Needs some 200 bytes a leaf; 10,000 leaves take tens of milliseconds."""

    __slots__ = ("_leaf_positions", "_nodes")

    def __init__(self, leaves: Sequence[bytes]) -> None:
        """Build the tree over distinct leaf hashes, in any order. `of_lines` and `of_values` make them.

        Raises RefusedError: CONTENT_EMPTY without a leaf, CONTENT_NOT_CANONICAL where one comes twice.
        """
        if not leaves:
            raise RefusedError(Reason.CONTENT_EMPTY, "a tree has at least one leaf")
        count = len(leaves)
        ascending = sorted(leaves)
        if any(one == other for one, other in pairwise(ascending)):
            raise RefusedError(Reason.CONTENT_NOT_CANONICAL, "a leaf comes twice: a tree stands over distinct leaves")
        # Position 2n - 2 holds the smallest leaf, position n - 1 the greatest.
        nodes = [b""] * (count - 1) + ascending[::-1]
        for at in range(count - 2, -1, -1):
            nodes[at] = _parent(nodes[2 * at + 1], nodes[2 * at + 2])
        where = {leaf: 2 * count - 2 - rank for rank, leaf in enumerate(ascending)}
        self._nodes = nodes
        self._leaf_positions = [where[leaf] for leaf in leaves]

    @classmethod
    def of_lines(cls, lines: Sequence[bytes]) -> Tree:
        """The tree over canonical lines. They come in ascending order; that is how the same line twice is seen.

        Raises RefusedError: CONTENT_EMPTY without a line, CONTENT_NOT_CANONICAL where they do not ascend strictly or
        one is not exactly one line.
        """
        _check_lines(lines)
        return cls([keccak256(keccak256(keccak256(line))) for line in lines])

    @classmethod
    def of_values(cls, values: Iterable[bytes]) -> Tree:
        """The tree over distinct 32-byte values in any order; raises as the constructor does."""
        return cls([leaf_hash(value) for value in values])

    @property
    def root(self) -> bytes:
        return self._nodes[0]

    @property
    def leaf_count(self) -> int:
        return len(self._leaf_positions)

    def prove(self, index: int) -> Proof:
        """The proof of the leaf that was given at this index. MisuseError outside of the tree."""
        if not 0 <= index < self.leaf_count:
            raise MisuseError(f"no leaf {index} in a tree of {self.leaf_count} leaves: the first is 0")
        at = self._leaf_positions[index]
        leaf = self._nodes[at]
        sisters = []
        while at > 0:
            # An odd position is a left child: its sister is the next one. An even one is a right child.
            sisters.append(self._nodes[at + 1 if at % 2 else at - 1])
            at = (at - 1) // 2
        assert len(sisters) in proof_lengths(self.leaf_count)
        return Proof(leaf, tuple(sisters))


def _is_one_line(line: bytes) -> bool:
    return len(line) > 0 and line.find(b"\n") == len(line) - 1


def _check_lines(lines: Sequence[bytes]) -> None:
    before = b""
    for number, line in enumerate(lines, 1):
        if line <= before:
            raise RefusedError(
                Reason.CONTENT_NOT_CANONICAL, f"line {number} is not above the one before it: sort, and keep each once"
            )
        if not _is_one_line(line):
            raise RefusedError(Reason.CONTENT_NOT_CANONICAL, f"line {number} is not one line that ends in a line feed")
        before = line


def root(lines: Sequence[bytes]) -> bytes:
    """The root over canonical lines in ascending order, each with its line feed.

    Raises RefusedError as `Tree.of_lines` does.
    """
    return Tree.of_lines(lines).root


def prove(lines: Sequence[bytes], index: int) -> Proof:
    """The proof of one line. Builds the whole tree: for many proofs of one content, keep a `Tree`."""
    return Tree.of_lines(lines).prove(index)


def proof_lengths(leaf_count: int) -> tuple[int, int]:
    """The two lengths, equal or one apart, that a proof in a tree of so many leaves can have."""
    assert leaf_count >= 1
    return leaf_count.bit_length() - 1, (2 * leaf_count - 1).bit_length() - 1


def verify(root: bytes, leaf_count: int, line: bytes, proof: Proof) -> None:
    """Return if the line is a leaf of the tree with this root and this (signed) count; raise RefusedError otherwise.

    CONTENT_EMPTY for a count of zero, BAD_FIELD for something of a wrong length, CONTENT_ROOT_MISMATCH for a proof
    that does not hold. The work is bounded by the count: at most 33 hashes.
    """
    if not _is_one_line(line):
        raise RefusedError(Reason.BAD_FIELD, "a proof is of exactly one line that ends in a line feed")
    verify_value(root, leaf_count, line_value(line), proof)


def verify_value(root: bytes, leaf_count: int, value: bytes, proof: Proof) -> None:
    """As `verify`, for a tree over 32-byte values that are no lines."""
    if leaf_count < 1:
        raise RefusedError(Reason.CONTENT_EMPTY, "a tree has at least one leaf")
    if leaf_count > MAX_LEAVES:
        raise RefusedError(Reason.BAD_FIELD, f"a tree has at most {MAX_LEAVES} leaves")
    if len(root) != HASH_BYTES or len(value) != HASH_BYTES or len(proof.leaf) != HASH_BYTES:
        raise RefusedError(Reason.BAD_FIELD, f"root, value and leaf have {HASH_BYTES} bytes each")
    if len(proof.hashes) not in proof_lengths(leaf_count):
        shortest, longest = proof_lengths(leaf_count)
        raise RefusedError(
            Reason.CONTENT_ROOT_MISMATCH,
            f"a proof in a tree of {leaf_count} leaves has {shortest} to {longest} hashes, not {len(proof.hashes)}",
        )
    if any(len(sister) != HASH_BYTES for sister in proof.hashes):
        raise RefusedError(Reason.BAD_FIELD, f"each hash of a proof has {HASH_BYTES} bytes")
    node = leaf_hash(value)
    if node != proof.leaf:
        raise RefusedError(Reason.CONTENT_ROOT_MISMATCH, "the proof is of another leaf")
    for sister in proof.hashes:
        node = _parent(node, sister)
    if node != root:
        raise RefusedError(Reason.CONTENT_ROOT_MISMATCH, "the proof does not lead to this root")
