"""Checks a certificate with eth-account and cbor2, and nothing of p2pmem: python check_certificate.py FILE.cbor"""

import sys
from pathlib import Path

import cbor2
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak

FIELDS = {
    "Seal": "bytes32 graph,string subgraph,string asset,uint32 version,bytes32 root,uint32 leaves,"
    "bytes32 previous,address author",
    "Verdict": "bytes32 graph,bytes32 quorum,string asset,uint32 version,bytes32 root,bytes32 seal,"
    "address author,uint8 decision,uint8 method,bytes32 reason,address signer",
    "Roster": "bytes32 graph,uint32 version,uint32 term,bytes32 parent,uint32 parentTerm,address owner,bytes32 quorum,"
    "uint32 quorumSerial,bytes32 members,bytes32 limits,bytes32 kept,bytes32 certificates,address signer",
}
# Of s and -s, which recover to the same key, the lower counts: half the order of secp256k1.
LOW_S_MAX = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0


def signed_digest(network: bytes, kind: str, values: list[object], signer: bytes, signature: bytes) -> bytes:
    """What was signed, as EIP-712 hashes it; an assertion fails if it was not this signer."""
    is_plain = signature[64] in (27, 28) and int.from_bytes(signature[32:64]) <= LOW_S_MAX
    assert is_plain, f"one form of a signature: {kind}"
    types = [dict(zip(("type", "name"), field.split(), strict=True)) for field in FIELDS[kind].split(",")]
    message = dict(zip((field["name"] for field in types), values, strict=True))
    typed = encode_typed_data({"name": "p2pmem", "version": "1", "salt": network}, {kind: types}, message)
    assert bytes.fromhex(Account.recover_message(typed, signature=signature)[2:]) == signer, f"signature of a {kind}"
    return keccak(b"\x19" + b"".join(typed))


def check(data: bytes) -> str:
    """What a certificate says; an assertion fails if that does not follow from its signatures."""
    form, network, creator, slug, author, seal, (serial, m, verifiers), verdicts, headers = cbor2.loads(data).values()
    assert form == 1, "a certificate of the form that is known here"
    graph = keccak(encode(["address", "bytes32"], [creator, keccak(text=slug)]))
    quorum = keccak(encode(["bytes32", "uint32", "uint16", "address[]"], [graph, serial, m, verifiers]))

    *sealed, signature = seal.values()
    _, name, version, root, _, _ = sealed
    seal_digest = signed_digest(network, "Seal", [graph, *sealed, author], author, signature)
    approved = set()
    for verdict in map(cbor2.loads, verdicts):
        _, on, of, _, signer, by, *subject, decision, reason, signature, under, method = verdict.values()
        assert [on, of, by, *subject] == [network, graph, author, name, version, root, seal_digest], "about this seal"
        assert (under, decision) == (quorum, 1), "an approval, under this quorum"
        values = [graph, under, *subject, by, decision, method, keccak(text=reason), signer]
        signed_digest(network, "Verdict", values, signer, signature)
        approved.add(signer)
    assert approved <= set(verifiers) - {author}, "approved by verifiers, and not by the author"
    assert len(approved) == m > 0, "by as many as are needed"
    before, names = None, []
    for header in map(cbor2.loads, headers):
        _, on, root_key, label, *values, signer, signature = header.values()
        number, term, parent, parent_term, owner, *names = values[:7]
        assert (on, root_key, label) == (network, creator, slug), "a header of this graph"
        begins = before is None and signer == creator and term > parent_term
        follows = before == (parent, number - 1, parent_term, signer) and (term, owner) == (parent_term, signer)
        assert begins or follows, "the root key begins a term, and within it the owner goes on"
        before = signed_digest(network, "Roster", [graph, *values, signer], signer, signature), number, term, owner
    assert names == [quorum, serial], "the last header names the quorum"
    return f"{m} of {len(set(verifiers) - {author})} verified 0x{author.hex()}/{name}@{version}, root 0x{root.hex()}"


if __name__ == "__main__":
    print(check(Path(sys.argv[1]).read_bytes()))
