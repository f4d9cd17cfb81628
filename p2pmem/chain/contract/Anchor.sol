// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// Where peers leave marks that outlive them: roots of batches of seals, and consensus under a graph's quorum.
///
/// Nobody owns this contract, it holds no money and cannot be changed. Whatever is claimed here is either signed by the
/// key that may say it, or is a bare time stamp that anybody may set. So no call needs a trusted sender, and whoever
/// copies a transaction from the pool and is mined first has only paid for its author.
///
/// Rules:
///  1. A batch root may be anchored by anybody, any number of times. The first block counts; a repeat never reverts.
///  2. A graph's id holds its creator: graph = keccak256(abi.encode(creator, slugHash)). Only the creator's signature
///     registers a quorum, and only a higher serial replaces one. The same registration again changes nothing.
///  3. quorum = keccak256(abi.encode(graph, serial, m, verifiers)), verifiers strictly ascending, 1 <= m <= their number.
///     The contract keeps the id; whoever attests brings what it was made of.
///  4. An attestation needs m approvals of distinct verifiers of the latest quorum, in strictly ascending order of
///     signer. The author of a version never approves it. A repeat changes nothing and does not revert.
///  5. Signatures are EIP-712 under one domain: name "p2pmem", version "1", salt = the network's id. No chain id and no
///     contract address: a statement is about a graph and a root, and is true on every chain or on none.
///  6. A signature has v 27 or 28 and an s in the lower half (EIP-2), so that there is one form of it.
///
/// What the contract cannot know: principals named beside an author, rejections, and what was retracted. It says "m
/// verifiers of this quorum approved what this seal covers", never "this is still the current version".
contract Anchor {
    // One approval, as its verifier signed it. Method: 1 auto, 2 shacl, 3 exec, 4 manual.
    struct Approval {
        address signer;
        uint8 method;
        bytes32 reason; // keccak256 of the text's UTF-8 bytes
        uint8 v;
        bytes32 r;
        bytes32 s;
    }

    // What is approved. The text of the asset's name is hashed, as EIP-712 hashes strings, and never comes here.
    struct Subject {
        bytes32 graph;
        bytes32 assetHash; // keccak256 of the name's UTF-8 bytes
        uint32 version;
        bytes32 root;
        bytes32 seal; // the digest of the author's seal: what a batch has for a leaf
        address author;
    }

    struct Quorum {
        bytes32 id;
        uint32 serial;
    }

    // One slot. In a graph a serial names one quorum for ever, so its id need not be kept again.
    struct Attestation {
        uint64 blockNumber;
        uint32 serial;
        uint16 m;
        uint16 verifiers;
        uint16 approvals;
    }

    event Anchored(bytes32 indexed root, address indexed sender, uint32 count);
    event QuorumRegistered(bytes32 indexed graph, bytes32 indexed quorum, uint32 serial, uint16 m, address[] verifiers);
    event Attested(
        bytes32 indexed graph,
        bytes32 indexed quorum,
        bytes32 indexed root,
        bytes32 seal,
        bytes32 assetHash,
        uint32 version,
        address author,
        uint256 approvals
    );

    error BadQuorum(); // m, the order of verifiers, or the serial 0
    error NotSignedByCreator();
    error StaleSerial(uint32 held);
    error NotTheLatestQuorum(bytes32 latest);
    error TooFewApprovals(uint256 given, uint256 needed);
    error SignersNotAscending(uint256 index);
    error NotAVerifier(uint256 index);
    error AuthorCannotApprove(uint256 index);
    error BadMethod(uint256 index);
    error BadSignature(uint256 index);

    bytes32 private constant DOMAIN_TYPEHASH = keccak256("EIP712Domain(string name,string version,bytes32 salt)");
    bytes32 private constant REGISTER_QUORUM_TYPEHASH =
        keccak256("RegisterQuorum(bytes32 graph,bytes32 quorum,uint32 serial)");
    bytes32 private constant VERDICT_TYPEHASH = keccak256(
        "Verdict(bytes32 graph,bytes32 quorum,string asset,uint32 version,bytes32 root,bytes32 seal,address author,uint8 decision,uint8 method,bytes32 reason,address signer)"
    );
    uint8 private constant APPROVE = 1;
    uint8 private constant METHOD_MAX = 4;
    // Half of the order of secp256k1, rounded down.
    uint256 private constant S_MAX = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0;

    bytes32 public immutable networkId;
    bytes32 public immutable domainSeparator;

    /// The block in which a batch root was first anchored; 0 if never.
    mapping(bytes32 root => uint256 blockNumber) public anchoredAt;
    /// The latest registered quorum of a graph; serial 0 if none.
    mapping(bytes32 graph => Quorum) public quorumOf;
    mapping(bytes32 key => Attestation) private attestations;

    constructor(bytes32 network) {
        networkId = network;
        domainSeparator = keccak256(abi.encode(DOMAIN_TYPEHASH, keccak256("p2pmem"), keccak256("1"), network));
    }

    /// Marks that a batch of `count` seals with this Merkle root existed. The count is the sender's claim.
    function anchor(bytes32 batchRoot, uint32 count) external {
        if (anchoredAt[batchRoot] == 0) anchoredAt[batchRoot] = block.number;
        emit Anchored(batchRoot, msg.sender, count);
    }

    /// Registers the quorum of the graph that `creator` founded under a slug with this hash.
    function registerQuorum(
        address creator,
        bytes32 slugHash,
        uint32 serial,
        uint16 m,
        address[] calldata verifiers,
        uint8 v,
        bytes32 r,
        bytes32 s
    ) external {
        bytes32 graph = keccak256(abi.encode(creator, slugHash));
        bytes32 id = keccak256(abi.encode(graph, serial, m, verifiers));
        Quorum storage held = quorumOf[graph];
        if (serial <= held.serial) {
            if (held.id == id) return;
            revert StaleSerial(held.serial);
        }
        if (m == 0 || m > verifiers.length || verifiers.length > type(uint16).max) revert BadQuorum();
        address previous = address(0);
        for (uint256 i = 0; i < verifiers.length; ++i) {
            if (verifiers[i] <= previous) revert BadQuorum();
            previous = verifiers[i];
        }
        bytes32 structHash = keccak256(abi.encode(REGISTER_QUORUM_TYPEHASH, graph, id, serial));
        if (!signedBy(creator, structHash, v, r, s)) revert NotSignedByCreator();
        held.id = id;
        held.serial = serial;
        emit QuorumRegistered(graph, id, serial, m, verifiers);
    }

    /// Records that `m` or more verifiers of the graph's latest quorum approved this version.
    function attest(
        Subject calldata subject,
        uint32 serial,
        uint16 m,
        address[] calldata verifiers,
        Approval[] calldata approvals
    ) external {
        bytes32 quorum = keccak256(abi.encode(subject.graph, serial, m, verifiers));
        bytes32 latest = quorumOf[subject.graph].id;
        if (quorum != latest) revert NotTheLatestQuorum(latest);
        if (approvals.length < m) revert TooFewApprovals(approvals.length, m);
        // Both lists ascend, so one walk over the verifiers finds every signer, or that one is none of them.
        uint256 next = 0;
        address previous = address(0);
        for (uint256 i = 0; i < approvals.length; ++i) {
            address signer = approvals[i].signer;
            if (signer <= previous) revert SignersNotAscending(i);
            previous = signer;
            if (signer == subject.author) revert AuthorCannotApprove(i);
            while (next < verifiers.length && verifiers[next] < signer) ++next;
            if (next == verifiers.length || verifiers[next] != signer) revert NotAVerifier(i);
            checkApproval(subject, quorum, approvals[i], i);
        }
        Attestation storage held = attestations[keyOf(subject)];
        if (held.serial != serial) {
            held.blockNumber = uint64(block.number);
            held.serial = serial;
            held.m = m;
            held.verifiers = uint16(verifiers.length);
            held.approvals = uint16(approvals.length);
        }
        emit Attested(
            subject.graph,
            quorum,
            subject.root,
            subject.seal,
            subject.assetHash,
            subject.version,
            subject.author,
            approvals.length
        );
    }

    /// The attestation of a version; block number 0 if there is none. Its serial names the quorum it was made under.
    function attestationOf(Subject calldata subject) external view returns (Attestation memory) {
        return attestations[keyOf(subject)];
    }

    /// Whether a seal was in a batch that is anchored. `proof` is from OpenZeppelin's StandardMerkleTree over ["bytes32"].
    function provesAnchored(bytes32 batchRoot, bytes32 sealDigest, bytes32[] calldata proof) external view returns (bool) {
        return anchoredAt[batchRoot] != 0 && provesMember(batchRoot, sealDigest, proof);
    }

    /// Whether a value is in the tree with this root: sorted pairs, leaf = keccak256(keccak256(abi.encode(value))).
    /// The same form serves batches (values: seal digests) and contents (values: hashes of canonical lines).
    function provesMember(bytes32 root, bytes32 value, bytes32[] calldata proof) public pure returns (bool) {
        bytes32 node = keccak256(bytes.concat(keccak256(abi.encode(value))));
        for (uint256 i = 0; i < proof.length; ++i) {
            bytes32 other = proof[i];
            node = node < other ? keccak256(bytes.concat(node, other)) : keccak256(bytes.concat(other, node));
        }
        return node == root;
    }

    function checkApproval(Subject calldata subject, bytes32 quorum, Approval calldata approval, uint256 index) private view {
        if (approval.method == 0 || approval.method > METHOD_MAX) revert BadMethod(index);
        bytes32 structHash = keccak256(
            abi.encode(
                VERDICT_TYPEHASH,
                subject.graph,
                quorum,
                subject.assetHash,
                subject.version,
                subject.root,
                subject.seal,
                subject.author,
                APPROVE,
                approval.method,
                approval.reason,
                approval.signer
            )
        );
        if (!signedBy(approval.signer, structHash, approval.v, approval.r, approval.s)) revert BadSignature(index);
    }

    function signedBy(address signer, bytes32 structHash, uint8 v, bytes32 r, bytes32 s) private view returns (bool) {
        if (signer == address(0) || uint256(s) > S_MAX || (v != 27 && v != 28)) return false;
        bytes32 digest = keccak256(abi.encodePacked(hex"1901", domainSeparator, structHash));
        return ecrecover(digest, v, r, s) == signer;
    }

    function keyOf(Subject calldata subject) private pure returns (bytes32) {
        return keccak256(
            abi.encode(
                subject.graph, subject.assetHash, subject.version, subject.root, subject.seal, subject.author
            )
        );
    }
}
