"""Checks a certificate's signatures with nothing of p2pmem: eth-account (and what it brings) and cbor2.

    python check_certificate.py CERTIFICATE.cbor

Prints what the certificate says, or ends with an assertion.
"""

import sys

import cbor2
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak

FIELDS = {
    "Seal": "bytes32 graph,string subgraph,string asset,uint32 version,bytes32 root,uint32 leaves,bytes32 previous,"
    "address author",
    "Verdict": "bytes32 graph,bytes32 quorum,string asset,uint32 version,bytes32 root,bytes32 seal,address author,"
    "uint8 decision,uint8 method,bytes32 reason,address signer",
    "Roster": "bytes32 graph,uint32 version,uint32 term,bytes32 parent,uint32 parentTerm,address owner,bytes32 quorum,"
    "uint32 quorumSerial,bytes32 members,bytes32 limits,bytes32 kept,bytes32 certificates,address signer",
}


def check(data: bytes) -> str:
    _, network, creator, slug, author, seal, (serial, m, verifiers), verdicts, headers = cbor2.loads(data).values()
    graph = keccak(encode(["address", "bytes32"], [creator, keccak(text=slug)]))
    quorum = keccak(encode(["bytes32", "uint32", "uint16", "address[]"], [graph, serial, m, verifiers]))

    def signed(kind: str, values: list[object], signature: bytes) -> tuple[bytes, bytes]:
        """Who signed these values, and the digest that was signed."""
        fields = [dict(zip(("type", "name"), field.split(), strict=True)) for field in FIELDS[kind].split(",")]
        message = dict(zip((field["name"] for field in fields), values, strict=True))
        typed = encode_typed_data({"name": "p2pmem", "version": "1", "salt": network}, {kind: fields}, message)
        digest = keccak(b"\x19" + typed.version + typed.header + typed.body)
        return bytes.fromhex(Account.recover_message(typed, signature=signature)[2:]), digest

    subgraph, name, version, root, leaves, previous, signature = seal.values()
    sealer, sealed = signed("Seal", [graph, subgraph, name, version, root, leaves, previous, author], signature)
    assert sealer == author
    approved = set()
    for verdict in map(cbor2.loads, verdicts):
        _, *where, _, signer, of, asset, number, what, by, decision, reason, signature, under, method = verdict.values()
        assert (where, of, asset, number, what, by) == ([network, graph], author, name, version, root, sealed)
        values = [graph, under, asset, number, what, by, of, decision, method, keccak(text=reason), signer]
        assert signed("Verdict", values, signature)[0] == signer
        assert (decision, under) == (1, quorum), "an approval under this quorum"
        assert signer in verifiers
        assert signer != author
        approved.add(signer)
    assert len(approved) == m
    before = None
    for header in map(cbor2.loads, headers):
        _, on, root_key, label, *values, signer, signature = header.values()
        _, term, parent, parent_term, owner, *_ = values
        assert (on, root_key, label) == (network, creator, slug)
        if before is None:
            assert (signer, term > parent_term) == (creator, True), "the root key begins a term"
        else:
            assert (parent, parent_term, signer) == before, "each header follows from the one before"
            assert (term, owner) == (parent_term, signer), "within the term, and the owner stays"
        found, digest = signed("Roster", [graph, *values, signer], signature)
        assert found == signer
        before = digest, term, owner
    assert values[5] == quorum, "the last header names the quorum"
    return f"{m} of {len(set(verifiers) - {author})} verified 0x{author.hex()}/{name}@{version}, root 0x{root.hex()}"


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        print(check(file.read()))
