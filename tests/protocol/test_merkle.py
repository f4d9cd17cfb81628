"""The tree is OpenZeppelin's; a proof holds for its leaf, root and count and for nothing else."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest
from eth_abi.abi import encode
from hypothesis import given, strategies as st
from p2pmem_protocol import merkle
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.merkle import Proof, Tree

from tests.node_tools import NodeTools
from tests.suites import Suites


def lines_of(count: int) -> list[bytes]:
    return sorted(b'<http://example.org/%d> <http://example.org/p> "v" .\n' % n for n in range(count))


def refused(reason: Reason, root: bytes, count: int, line: bytes, proof: Proof) -> None:
    with pytest.raises(RefusedError) as caught:
        merkle.verify(root, count, line, proof)
    assert caught.value.reason is reason


@pytest.mark.parametrize("count", [*range(1, 34), 100, 1001])
def test_every_line_of_a_tree_of_any_size_has_a_proof(count: int) -> None:
    lines = lines_of(count)
    tree = Tree.of_lines(lines)
    assert tree.leaf_count == count
    for index, line in enumerate(lines):
        merkle.verify(tree.root, count, line, tree.prove(index))


def test_the_root_of_one_line_is_its_leaf() -> None:
    (line,) = lines_of(1)
    assert merkle.root([line]) == keccak256(keccak256(encode(["bytes32"], [keccak256(line)])))
    assert merkle.prove([line], 0) == Proof(merkle.root([line]), ())


def test_a_tree_without_leaves_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        merkle.root([])
    assert caught.value.reason is Reason.CONTENT_EMPTY
    with pytest.raises(RefusedError):
        Tree.of_values([])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([b"a\n", b"a\n"], id="the same line twice"),
        pytest.param([b"b\n", b"a\n"], id="unsorted"),
        pytest.param([b""], id="an empty line"),
        pytest.param([b"a"], id="no line feed"),
        pytest.param([b"a\nb\n"], id="two lines in one"),
        pytest.param([b"a\n", b"a\n\n"], id="a line feed too many"),
    ],
)
def test_lines_that_are_not_a_canonical_list_are_refused(lines: list[bytes]) -> None:
    with pytest.raises(RefusedError) as caught:
        merkle.root(lines)
    assert caught.value.reason is Reason.CONTENT_NOT_CANONICAL


def test_a_value_that_comes_twice_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        Tree.of_values([b"\1" * 32, b"\2" * 32, b"\1" * 32])
    assert caught.value.reason is Reason.CONTENT_NOT_CANONICAL


def test_a_value_that_is_no_hash_is_the_callers_mistake() -> None:
    with pytest.raises(MisuseError):
        Tree.of_values([b"short"])


@pytest.mark.parametrize("index", [-1, 5])
def test_there_is_no_proof_outside_of_the_tree(index: int) -> None:
    with pytest.raises(MisuseError):
        merkle.prove(lines_of(5), index)


def test_a_root_does_not_depend_on_the_order_of_values() -> None:
    values = [keccak256(line) for line in lines_of(50)]
    shuffled = random.Random(1).sample(values, k=50)
    assert Tree.of_values(values).root == Tree.of_values(shuffled).root == merkle.root(lines_of(50))


@given(count=st.integers(1, 40), data=st.data())
def test_a_changed_proof_does_not_hold(count: int, data: st.DataObject) -> None:
    lines = lines_of(count)
    tree = Tree.of_lines(lines)
    index = data.draw(st.integers(0, count - 1))
    proof = tree.prove(index)
    parts = [tree.root, keccak256(lines[index]), proof.leaf, *proof.hashes]
    which = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, 255))
    parts[which] = (int.from_bytes(parts[which]) ^ (1 << bit)).to_bytes(32)
    root, value, leaf, *hashes = parts
    with pytest.raises(RefusedError) as caught:
        merkle.verify_value(root, count, value, Proof(leaf, tuple(hashes)))
    assert caught.value.reason is Reason.CONTENT_ROOT_MISMATCH


def test_a_proof_for_another_count_is_refused_where_the_depth_differs() -> None:
    lines = lines_of(9)
    tree = Tree.of_lines(lines)
    for index, line in enumerate(lines):
        proof = tree.prove(index)
        for count in range(1, 70):
            if len(proof.hashes) in merkle.proof_lengths(count):
                merkle.verify(tree.root, count, line, proof)
            else:
                refused(Reason.CONTENT_ROOT_MISMATCH, tree.root, count, line, proof)


def test_a_longer_or_shorter_proof_is_refused_before_it_is_hashed() -> None:
    lines = lines_of(6)
    tree = Tree.of_lines(lines)
    proof = tree.prove(2)
    refused(
        Reason.CONTENT_ROOT_MISMATCH, tree.root, 6, lines[2], Proof(proof.leaf, proof.hashes + (b"\0" * 32,) * 1000)
    )
    refused(Reason.CONTENT_ROOT_MISMATCH, tree.root, 6, lines[2], Proof(proof.leaf, proof.hashes[:1]))


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_of_nothing_is_refused(count: int) -> None:
    lines = lines_of(1)
    refused(Reason.CONTENT_EMPTY, merkle.root(lines), count, lines[0], merkle.prove(lines, 0))


def test_a_count_beyond_what_a_seal_can_say_is_refused() -> None:
    lines = lines_of(1)
    refused(Reason.BAD_FIELD, merkle.root(lines), 2**32, lines[0], merkle.prove(lines, 0))


def test_an_inner_node_cannot_pass_for_a_leaf() -> None:
    """The second pre-image of a tree without a difference between leaves and nodes."""
    lines = lines_of(4)
    tree = Tree.of_lines(lines)
    one, other = sorted([tree.prove(0).leaf, *tree.prove(0).hashes[:1]])
    inner = keccak256(one + other)
    assert keccak256(b"".join(sorted([inner, tree.prove(0).hashes[1]]))) == tree.root
    up = (tree.prove(0).hashes[1],)
    with pytest.raises(RefusedError):
        merkle.verify_value(tree.root, 2, inner, Proof(inner, up))
    with pytest.raises(RefusedError):
        merkle.verify_value(tree.root, 2, inner, Proof(merkle.leaf_hash(inner), up))
    with pytest.raises(RefusedError):
        merkle.verify_value(tree.root, 2, one + other, Proof(inner, up))


@pytest.mark.parametrize("line", [b"", b"a", b"a\nb\n", b"a\n\n"])
def test_a_proof_is_of_one_line(line: bytes) -> None:
    refused(Reason.BAD_FIELD, b"\0" * 32, 1, line, Proof(merkle.leaf_hash(keccak256(line)), ()))


@pytest.mark.parametrize("wrong", [b"", b"\0" * 31, b"\0" * 33])
def test_hashes_of_a_wrong_length_are_refused(wrong: bytes) -> None:
    lines = lines_of(2)
    proof = merkle.prove(lines, 0)
    refused(Reason.BAD_FIELD, wrong, 2, lines[0], proof)
    refused(Reason.BAD_FIELD, merkle.root(lines), 2, lines[0], Proof(wrong, proof.hashes))
    refused(Reason.BAD_FIELD, merkle.root(lines), 2, lines[0], Proof(proof.leaf, (wrong,)))


@pytest.mark.parametrize("name", ["oz-standard-v1.sorted.json", "oz-simple-v1.sorted.json"])
def test_the_trees_that_openzeppelin_dumped_are_ours(shared_data: Path, suites: Suites, name: str) -> None:
    dump = json.loads((shared_data / "merkle" / name).read_text())
    if dump["format"] == "standard-v1":
        leaves = [keccak256(keccak256(encode(dump["leafEncoding"], entry["value"]))) for entry in dump["values"]]
    else:
        leaves = [bytes.fromhex(entry["value"][2:]) for entry in dump["values"]]
    tree = Tree(leaves)
    nodes = [bytes.fromhex(node[2:]) for node in dump["tree"]]
    assert tree.root == nodes[0]
    for index, entry in enumerate(suites("OpenZeppelin, leaves of dumped trees").each(dump["values"])):
        at, sisters = entry["treeIndex"], []
        while at:
            sisters.append(nodes[at + 1 if at % 2 else at - 1])
            at = (at - 1) // 2
        assert tree.prove(index) == Proof(leaves[index], tuple(sisters))


JAVASCRIPT = """
const { StandardMerkleTree } = require("@openzeppelin/merkle-tree");
require("stream/consumers").json(process.stdin).then(cases => {
  const out = cases.map(values => {
    const tree = StandardMerkleTree.of(values.map(v => [v]), ["bytes32"]);
    const multi = values.map((v, i) => tree.getProof(i));
    return { root: tree.root, proofs: multi, leaves: values.map(v => tree.leafHash([v])) };
  });
  process.stdout.write(JSON.stringify(out));
});
"""


@pytest.mark.node
def test_hundreds_of_random_trees_equal_those_of_the_npm_package(node_tools: NodeTools, suites: Suites) -> None:
    seed = 20
    print(f"seed {seed}")
    source = random.Random(seed)
    sizes = [*range(1, 41), *(source.randint(41, 80) for _ in range(160))]
    cases = [[source.randbytes(32) for _ in range(size)] for size in sizes]
    asked = json.dumps([["0x" + value.hex() for value in case] for case in cases])
    command = [node_tools.program, "-e", JAVASCRIPT]
    run = subprocess.run(command, input=asked, capture_output=True, text=True, cwd=node_tools.folder, check=True)
    trees = list(zip(cases, json.loads(run.stdout), strict=True))
    for values, theirs in suites("OpenZeppelin, random trees of the npm package").each(trees):
        tree = Tree.of_values(values)
        assert "0x" + tree.root.hex() == theirs["root"]
        for index in range(len(values)):
            proof = tree.prove(index)
            assert "0x" + proof.leaf.hex() == theirs["leaves"][index]
            assert ["0x" + sister.hex() for sister in proof.hashes] == theirs["proofs"][index]


@pytest.mark.parametrize(
    ("count", "lengths"),
    [(1, (0, 0)), (2, (1, 1)), (3, (1, 2)), (4, (2, 2)), (5, (2, 3)), (7, (2, 3)), (8, (3, 3)), (2**32 - 1, (31, 32))],
)
def test_a_proof_has_one_of_two_lengths(count: int, lengths: tuple[int, int]) -> None:
    assert merkle.proof_lengths(count) == lengths


def test_the_largest_tree_is_one_and_a_larger_one_is_not() -> None:
    proof = Proof(merkle.leaf_hash(bytes(32)), (bytes(32),) * 32)
    for count, reason in ((2**32 - 1, Reason.CONTENT_ROOT_MISMATCH), (2**32, Reason.BAD_FIELD)):
        with pytest.raises(RefusedError) as caught:
            merkle.verify_value(bytes(32), count, bytes(32), proof)
        assert caught.value.reason is reason


def test_a_line_feed_alone_is_a_line_and_nothing_is_none() -> None:
    assert Tree.of_lines([b"\n"]).leaf_count == 1
    with pytest.raises(RefusedError, match="line 1 is not above"):
        Tree.of_lines([b""])


def test_the_line_that_breaks_the_order_is_named() -> None:
    with pytest.raises(RefusedError, match="line 3 is not above"):
        Tree.of_lines([b"a\n", b"b\n", b"b\n"])
    with pytest.raises(RefusedError, match="line 2 is not one line"):
        Tree.of_lines([b"a\n", b"b"])
