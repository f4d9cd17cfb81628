// A small reader of the p2pmem protocol, written from protocol/README.md and the vectors alone. It uses other people's
// CBOR (cborg) and EIP-712 (ethers) and knows nothing of the package: if both read the vectors alike, the text is enough.
//
//     node reader.mjs PATH/TO/vectors
//
// Prints how many vectors of each file hold; ends with status 1 at the first that does not.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { decode as decodeCbor, encode as encodeCbor } from "cborg";
import { AbiCoder, TypedDataEncoder, getAddress, keccak256, recoverAddress } from "ethers";

class Refused extends Error {}

const refuse = (why) => { throw new Refused(why); };
const need = (condition, why) => condition || refuse(why);
const hex = (bytes) => "0x" + Buffer.from(bytes).toString("hex");
const raw = (text) => new Uint8Array(Buffer.from(text.slice(2), "hex"));
const utf8 = (text) => new TextEncoder().encode(text);
const hashOf = (bytes) => keccak256(bytes);
const join2 = (a, b) => "0x" + a.slice(2) + b.slice(2);
const ZERO = "0x" + "00".repeat(32);
const UINT32 = 2 ** 32 - 1;
const TIME_MAX = 253402300799999;
const characters = (text) => [...text].length;

// Section 2

const STRICT = { strict: true, useMaps: true, rejectDuplicateMapKeys: true, allowIndefinite: false, allowUndefined: false };

function read(bytes) {
  let value;
  try {
    value = decodeCbor(bytes, STRICT);
  } catch (error) {
    refuse(`CBOR: ${error.message}`);
  }
  plain(value, 16);
  need(hex(encodeCbor(value)) === hex(bytes), "not the one encoding");
  return value;
}

function plain(value, depth) {
  if (value === null || ["boolean", "string", "bigint"].includes(typeof value) || value instanceof Uint8Array) return;
  if (typeof value === "number") return need(Number.isInteger(value), "a float");
  need(depth > 0, "too deep");
  if (Array.isArray(value)) return value.forEach((item) => plain(item, depth - 1));
  need(value instanceof Map, "no type of ours");
  const keys = [...value.keys()];
  const texts = keys.filter((key) => typeof key === "string").length;
  const numbers = keys.filter((key) => (typeof key === "number" || typeof key === "bigint") && key >= 0).length;
  need(texts === keys.length || numbers === keys.length, "keys");
  value.forEach((item) => plain(item, depth - 1));
}

// Readers of one field each: value in, what JSON shows out.

const bytes = (least, most) => (it) => (it instanceof Uint8Array && it.length >= least && it.length <= most ? hex(it) : refuse("bytes"));
const hash = bytes(32, 32);
const address = bytes(20, 20);
const signature = bytes(65, 65);
const uint = (least, most) => (it) => (typeof it === "number" && it >= least && it <= most ? it : refuse("a number"));
const any64 = (it) => (typeof it === "bigint" ? Number(it) : uint(0, Number.MAX_SAFE_INTEGER)(it));
const textOf = (least, most) => (it) =>
  typeof it === "string" && characters(it) >= least && characters(it) <= most ? it : refuse("text");
const list = (least, most, item) => (it) =>
  Array.isArray(it) && it.length >= least && it.length <= most ? it.map(item) : refuse("a list");
const tuple = (...items) => (it) =>
  Array.isArray(it) && it.length === items.length ? it.map((value, at) => items[at](value)) : refuse("a tuple");
const ascending = (values, by = (it) => it) => {
  values.forEach((it, at) => at && need(by(values[at - 1]) < by(it), "order"));
  return values;
};
const ascendingList = (most, item) => (it) => ascending(list(0, most, item)(it));
const inside = (reader) => (it) => (it instanceof Uint8Array ? reader(it) : refuse("bytes"));

// A map with the fields that a table names: [key, name, reader, "?" where it may be missing].
const map = (...table) => (value) => {
  need(value instanceof Map, "a map");
  const shown = {};
  for (const [key, name, reader, optional] of table) {
    if (value.has(key)) shown[name] = reader(value.get(key));
    else need(optional, `no ${name}`);
  }
  const known = table.map(([key]) => key);
  need([...value.keys()].every((key) => known.includes(key)), "unknown fields");
  return shown;
};
const format = (it) => (it === 1 ? it : refuse("format"));

// Section 1

const SLUG = /^[a-z0-9][a-z0-9._-]{0,63}$/;
const ASSET = /^[A-Za-z0-9][A-Za-z0-9._~-]{0,127}$/;
const ADDRESS = /^0[xX][0-9a-fA-F]{40}$/;
const matching = (pattern) => (it) => (typeof it === "string" && pattern.test(it) && !it.endsWith("\n") ? it : refuse("a name"));
const slug = matching(SLUG);
const asset = matching(ASSET);

function subgraph(it) {
  need(typeof it === "string" && it.length <= 128, "a sub-graph");
  if (it === "") return it;
  for (const part of it.split("/")) {
    need(/^[a-z0-9][a-z0-9.-]*$/.test(part) && part !== "assertion" && !ADDRESS.test(part), "a part of a sub-graph");
  }
  return it;
}

function readAddress(text) {
  const plainText = text.replace(/^did:dkg:agent:/, "");
  need(ADDRESS.test(plainText), "an address");
  const digits = plainText.slice(2);
  const lower = "0x" + digits.toLowerCase();
  const isMixed = digits !== digits.toLowerCase() && digits !== digits.toUpperCase();
  need(!isMixed || getAddress(lower) === "0x" + digits, "checksum");
  return lower;
}

const graphId = (creator, name) =>
  hashOf(AbiCoder.defaultAbiCoder().encode(["address", "bytes32"], [creator, hashOf(utf8(name))]));

// Section 4

const leafOf = (value) => hashOf(hashOf(value));
const parentOf = (a, b) => hashOf(a < b ? join2(a, b) : join2(b, a));

function rootOf(values) {
  const leaves = values.map(leafOf).sort();
  const count = leaves.length;
  const nodes = [...Array(count - 1).fill(null), ...leaves.reverse()];
  for (let at = count - 2; at >= 0; at--) nodes[at] = parentOf(nodes[2 * at + 1], nodes[2 * at + 2]);
  return nodes[0];
}

function proves(root, count, value, proof) {
  const lengths = [Math.floor(Math.log2(count)), Math.floor(Math.log2(2 * count - 1))];
  return lengths.includes(proof.length) && proof.reduce(parentOf, leafOf(value)) === root;
}

// Section 5

const STRUCTS = Object.fromEntries(
  [
    "Seal(bytes32 graph,string subgraph,string asset,uint32 version,bytes32 root,uint32 leaves,bytes32 previous,address author)",
    "Envelope(bytes32 graph,uint8 kind,address author,bytes32 delegation,uint32 roster,uint64 issuedAt,uint64 expiresAt,bytes body)",
    "Endorsement(bytes32 graph,string asset,uint32 version,bytes32 root,address author,uint8 decision,string reason,address signer)",
    "Verdict(bytes32 graph,bytes32 quorum,string asset,uint32 version,bytes32 root,address author,uint8 decision,uint8 method,bytes32 reason,address signer)",
    "Roster(bytes32 graph,uint32 version,uint32 term,bytes32 parent,uint32 parentTerm,address owner,bytes32 quorum,uint32 quorumSerial,bytes32 members,bytes32 limits,bytes32 kept,bytes32 certificates,address signer)",
    "RegisterQuorum(bytes32 graph,bytes32 quorum,uint32 serial)",
    "ActFor(address principal,address agent,uint32 serial,string label,uint8 rights)",
    "Carry(address agent,string peer,uint32 serial,uint64 until)",
  ].map((type) => {
    const [, name, inner] = /^(\w+)\((.*)\)$/.exec(type);
    return [name, inner.split(",").map((field) => ({ type: field.split(" ")[0], name: field.split(" ")[1] }))];
  }),
);

const digestOf = (network, name, values) =>
  TypedDataEncoder.hash({ name: "p2pmem", version: "1", salt: network }, { [name]: STRUCTS[name] }, values);

const ORDER = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n;

function checkSigned(signer, digest, signed) {
  need(signed.length === 2 + 130, "65 bytes");
  const r = signed.slice(0, 66), s = "0x" + signed.slice(66, 130), v = parseInt(signed.slice(130), 16);
  need(v === 27 || v === 28, "v");
  need(BigInt(r) > 0n && BigInt(r) < ORDER && BigInt(s) > 0n && BigInt(s) <= ORDER / 2n, "r or s");
  let found;
  try {
    found = recoverAddress(digest, { r, s, v }).toLowerCase();
  } catch {
    refuse("no key");
  }
  need(found === signer, "another signer");
}

// Section 6

const delegation = map(
  [0, "principal", address], [1, "serial", uint(1, UINT32)], [2, "label", textOf(0, 64)], [3, "rights", uint(1, 15)],
  [4, "signature", signature],
);
const seal = map(
  [0, "subgraph", subgraph], [1, "name", asset], [2, "version", uint(1, UINT32)], [3, "root", hash],
  [4, "leaves", uint(1, 200000)], [5, "previous", hash], [6, "signature", signature],
);
const subject = [[0, "author", address], [1, "name", asset], [2, "version", uint(1, UINT32)], [3, "root", hash]];
const content = (it) => (it instanceof Uint8Array ? bytes(1, 61440)(it) : tuple(hash, uint(61441, 2 ** 24))(it));
const sealed = map([0, "seal", seal], [1, "content", content]);
const revoke = map(
  [0, "agent", address, "?"], [1, "peer", textOf(1, 128), "?"], [2, "serial", uint(1, UINT32)], [3, "kept", ascendingList(1900, hash)],
);
const BODIES = {
  2: sealed,
  3: sealed,
  4: map(
    [0, "author", address], [1, "name", asset], [2, "version", uint(1, UINT32)], [3, "mode", uint(1, 2)],
    [4, "successor", uint(1, UINT32), "?"], [5, "reason", textOf(0, 1000)], [6, "shown", delegation, "?"],
  ),
  6: map(...subject, [4, "quorum", hash]),
  8: map([0, "root", hash]),
  9: map(
    [0, "batch_root", hash], [1, "chain", any64], [2, "contract", address], [3, "transaction", hash], [4, "block", any64],
    [5, "assets", list(1, 256, map(...subject, [4, "proof", list(0, 32, hash)]))], [6, "count", uint(1, UINT32)],
  ),
  10: revoke,
};
const STAYS = [3, 4, 9, 10];
const head3 = [[0, "format", format], [1, "network", hash], [2, "graph", hash]];
const envelope = map(
  ...head3, [3, "kind", uint(0, UINT32)], [4, "author", address], [5, "delegation", delegation, "?"], [6, "roster", uint(0, UINT32)],
  [7, "issued_at", uint(1, TIME_MAX)], [8, "expires_at", uint(0, TIME_MAX)],
  [9, "body", inside((it) => (need(it.length >= 1 && it.length <= 65536, "a body"), it))], [10, "signature", signature],
);
const evidenceFields = [
  ...head3, [3, "kind", uint(5, 7)], [4, "signer", address], [5, "author", address], [6, "name", asset],
  [7, "version", uint(1, UINT32)], [8, "root", hash], [9, "decision", uint(1, 2)], [10, "reason", textOf(0, 1000)],
  [11, "signature", signature],
];
const endorsement = map(...evidenceFields);
const verdict = map(...evidenceFields, [12, "quorum", hash], [13, "method", uint(1, 4)]);

function readItem(data) {
  need(data.length <= 66560, "size");
  const value = read(data);
  need(value instanceof Map, "a map");
  if (value.get(3) === 5) return endorsement(value);
  if (value.get(3) === 7) return verdict(value);
  need(value.get(0) !== 1 || value.get(3) in BODIES || value.get(3) === 5, "kind");
  const it = envelope(value);
  it.encodedBody = hex(it.body);
  it.body = BODIES[it.kind](read(it.body));
  if (STAYS.includes(it.kind)) need(it.expires_at === 0, "it stays");
  else need(it.expires_at > it.issued_at, "it ends");
  if (it.delegation) need(it.delegation.principal !== it.author, "to oneself");
  if (it.body.seal) need((it.body.seal.version === 1) === (it.body.seal.previous === ZERO), "previous");
  if (it.kind === 10) need((it.body.agent === undefined) !== (it.body.peer === undefined), "one of two");
  if (it.body.shown) need(it.body.shown.principal === it.author && it.body.shown.principal !== it.body.author, "shown");
  return it;
}

const actFor = (network, agent, it) =>
  digestOf(network, "ActFor", { principal: it.principal, agent, serial: it.serial, label: it.label, rights: it.rights });
const sealDigest = (network, graph, author, it) =>
  digestOf(network, "Seal", {
    graph, subgraph: it.subgraph, asset: it.name, version: it.version, root: it.root, leaves: it.leaves, previous: it.previous, author,
  });

function idOf(it) {
  const about = { graph: it.graph, asset: it.name, version: it.version, root: it.root, author: it.author, decision: it.decision, signer: it.signer };
  if (it.kind === 5) return digestOf(it.network, "Endorsement", { ...about, reason: it.reason });
  if (it.kind === 7) {
    return digestOf(it.network, "Verdict", { ...about, quorum: it.quorum, method: it.method, reason: hashOf(utf8(it.reason)) });
  }
  return digestOf(it.network, "Envelope", {
    graph: it.graph, kind: it.kind, author: it.author, roster: it.roster, issuedAt: it.issued_at, expiresAt: it.expires_at,
    delegation: it.delegation ? actFor(it.network, it.author, it.delegation) : ZERO, body: it.encodedBody,
  });
}

function checkItem(it) {
  checkSigned(it.signer ?? it.author, idOf(it), it.signature);
  if (it.delegation) checkSigned(it.delegation.principal, actFor(it.network, it.author, it.delegation), it.delegation.signature);
  if (it.body?.seal) checkSigned(it.author, sealDigest(it.network, it.graph, it.author, it.body.seal), it.body.seal.signature);
  if (it.body?.shown) checkSigned(it.body.shown.principal, actFor(it.network, it.body.author, it.body.shown), it.body.shown.signature);
}

// Section 7

const header = map(
  [0, "format", format], [1, "network", hash], [2, "creator", address], [3, "slug", slug], [4, "version", uint(1, UINT32)],
  [5, "term", uint(1, UINT32)], [6, "parent", hash], [7, "parent_term", uint(0, UINT32)], [8, "owner", address], [9, "quorum", hash],
  [10, "quorum_serial", uint(0, UINT32)], [11, "members", hash], [12, "limits", hash], [13, "kept", hash], [14, "certificates", hash],
  [15, "signer", address], [16, "signature", signature],
);

function readHeader(data) {
  need(data.length <= 1024, "size");
  const it = header(read(data));
  it.graph = graphId(it.creator, it.slug);
  it.id = digestOf(it.network, "Roster", {
    graph: it.graph, version: it.version, term: it.term, parent: it.parent, parentTerm: it.parent_term, owner: it.owner, quorum: it.quorum,
    quorumSerial: it.quorum_serial, members: it.members, limits: it.limits, kept: it.kept, certificates: it.certificates, signer: it.signer,
  });
  it.isRootAct = it.term > it.parent_term;
  return it;
}

function checkHeader(it) {
  need(!it.isRootAct || it.signer === it.creator, "a root act of another");
  need(it.term >= it.parent_term, "term");
  need((it.parent === ZERO) === (it.parent_term === 0) && (it.parent !== ZERO || it.version === 1), "the first");
  checkSigned(it.signer, it.id, it.signature);
}

function follows(parent, child) {
  return (
    !child.isRootAct && child.parent === parent.id && child.term === parent.term && child.version === parent.version + 1 &&
    child.signer === parent.owner && child.owner === parent.owner &&
    (child.quorum === parent.quorum ? child.quorum_serial === parent.quorum_serial : child.quorum_serial === parent.quorum_serial + 1)
  );
}

const quorum = (it) => {
  const [serial, m, verifiers] = tuple(uint(0, UINT32), uint(0, 64), ascendingList(64, address))(it);
  need((m === 0 && verifiers.length === 0) || (m >= 1 && m <= verifiers.length), "M");
  return { serial, m, verifiers };
};
const quorumId = (graph, it) =>
  it.m === 0
    ? ZERO
    : hashOf(AbiCoder.defaultAbiCoder().encode(["bytes32", "uint32", "uint16", "address[]"], [graph, it.serial, it.m, it.verifiers]));
const keptCertificate = (it) => {
  const [author, name, version, root, under, verdicts] =
    tuple(address, asset, uint(1, UINT32), hash, quorum, ascendingList(64, hash))(it);
  need(under.m > 0 && verdicts.length === under.m, "M verdicts");
  return { author, name, version, root, quorum: under, verdicts };
};
const PARTS = {
  members: (it) => ascending(list(0, 1000, tuple(address, uint(1, 31), textOf(0, 64), uint(0, TIME_MAX)))(it), (member) => member[0]),
  limits: (it) => {
    const shown = map(
      [0, "access", uint(1, 2)], [1, "quorum", quorum], [2, "ttl_default", uint(1, 2592000000)], [3, "ttl_max", uint(1, 2592000000)],
      [4, "acks_min", uint(0, 1000)], [5, "chain", any64], [6, "contract", address],
      [7, "quotas", tuple(any64, any64, any64, uint(0, 2 ** 24), any64)],
    )(it);
    need(shown.ttl_default <= shown.ttl_max, "ttl");
    return shown;
  },
  kept: ascendingList(100000, hash),
  certificates: list(0, 10000, keptCertificate),
};

function readParts(parts) {
  const shown = Object.fromEntries(Object.keys(PARTS).map((part) => [part, PARTS[part](read(parts[part]))]));
  const listed = shown.members.filter(([, roles]) => roles & 8).map(([who]) => who);
  need(shown.limits.quorum.verifiers.every((who) => listed.includes(who)), "a verifier who is not listed");
  return shown;
}

function headOf(headers) {
  const held = new Map();
  let more = headers.filter((it) => it.isRootAct);
  while (more.length) {
    more.forEach((it) => held.set(it.id, it));
    more = headers.filter((it) => !held.has(it.id) && held.has(it.parent) && follows(held.get(it.parent), it));
  }
  const all = [...held.values()];
  const childrenOf = (id) => all.filter((it) => !it.isRootAct && it.parent === id).map((it) => it.id).sort().slice(0, 2);
  const term = Math.max(...all.map((it) => (it.isRootAct ? it.term : 0)));
  const acts = all.filter((it) => it.isRootAct && it.term === term).map((it) => it.id).sort().slice(0, 8);
  if (!acts.length) return { head: null, forked: false, branches: [] };
  if (acts.length > 1) {
    const lines = acts.map((act) => {
      const line = [];
      for (let it = held.get(act); it && it.parent !== ZERO; it = held.get(it.parent)) line.push(it.parent);
      return line;
    });
    const nearest = lines[0].find((id) => lines.every((line) => line.includes(id)));
    return { head: held.has(nearest) ? nearest : null, forked: true, branches: acts };
  }
  let head = acts[0];
  while (childrenOf(head).length === 1) head = childrenOf(head)[0];
  return { head, forked: childrenOf(head).length > 1, branches: childrenOf(head) };
}

// Section 10

function trustOf(graph, evidence, principals, headQuorum, certificates) {
  const verdicts = evidence.filter((it) => it.kind === 7);
  const under = (rules, ids) => {
    const name = quorumId(graph, rules);
    const counting = verdicts.filter(
      (it) => it.quorum === name && rules.verifiers.includes(it.signer) && !principals.includes(it.signer) && (!ids || ids.includes(it.id)),
    );
    const approved = [...new Set(counting.filter((it) => it.decision === 1).map((it) => it.signer))];
    const rejected = [...new Set(counting.filter((it) => it.decision === 2).map((it) => it.signer))].filter((it) => !approved.includes(it));
    const n = rules.verifiers.filter((it) => !principals.includes(it)).length;
    return { counting, approved, rejected, n, m: rules.m };
  };
  const withdrawn = evidence.filter((it) => it.kind === 5 && it.decision === 2).map((it) => it.signer);
  const endorsed = evidence.some((it) => it.kind === 5 && it.decision === 1 && !withdrawn.includes(it.signer) && !principals.includes(it.signer));
  const judged = headQuorum ? under(headQuorum) : { approved: [], rejected: [], n: 0, m: 0 };
  if (judged.m && judged.approved.length >= judged.m) return ["ConsensusVerified", judged.m, judged.n];
  for (const kept of certificates) {
    const by = under(kept.quorum, kept.verdicts);
    const complete = by.approved.length === kept.quorum.m && by.counting.length === kept.verdicts.length;
    if (complete) return ["ConsensusVerified", by.m, by.n];
  }
  if (judged.rejected.length && judged.rejected.length > judged.n - judged.m) return ["Rejected", judged.m, judged.n];
  if (judged.approved.length) return ["PartiallyVerified", judged.m, judged.n];
  return [endorsed ? "Endorsed" : "SelfAttested", judged.m, judged.n];
}

// Section 11

const certificate = map(
  [0, "format", format], [1, "network", hash], [2, "creator", address], [3, "slug", slug], [4, "author", address], [5, "seal", seal],
  [6, "quorum", quorum], [7, "verdicts", list(1, 64, inside(readItem))], [8, "headers", list(1, 10000, inside(readHeader))],
);

function checkCertificate(data) {
  const it = certificate(read(data));
  const graph = graphId(it.creator, it.slug);
  const digest = sealDigest(it.network, graph, it.author, it.seal);
  checkSigned(it.author, digest, it.seal.signature);
  need(it.quorum.m > 0, "no quorum");
  need(it.headers[0].isRootAct, "no root act");
  it.headers.forEach((each, at) => {
    need(each.network === it.network && each.creator === it.creator && each.slug === it.slug, "another graph");
    need(at === 0 || follows(it.headers[at - 1], each), "no child");
    checkHeader(each);
  });
  const last = it.headers.at(-1);
  const name = quorumId(graph, it.quorum);
  need(last.quorum === name && last.quorum_serial === it.quorum.serial, "another quorum");
  need(it.verdicts.length === it.quorum.m, "M verdicts");
  ascending(it.verdicts, (each) => each.signer);
  for (const each of it.verdicts) {
    need(each.kind === 7 && each.decision === 1 && each.network === it.network && each.graph === graph, "an approval");
    need(each.author === it.author && ["name", "version", "root"].every((field) => each[field] === it.seal[field]), "of this version");
    need(each.quorum === name && it.quorum.verifiers.includes(each.signer) && each.signer !== it.author, "under this quorum");
    checkItem(each);
  }
  const n = it.quorum.verifiers.filter((who) => who !== it.author).length;
  return { digest, n, asOf: last.id, approvals: it.verdicts.map((each) => [each.signer, ["auto", "shacl", "exec", "manual"][each.method - 1]]) };
}

// Section 12

const greeting = map(
  [0, "network", hash], [1, "version", uint(1, UINT32)], [2, "kinds", ascendingList(256, uint(0, UINT32))], [3, "item_bytes_max", any64],
  [4, "content_bytes_max", any64], [5, "clock", uint(0, TIME_MAX)],
);
const credential = map([0, "agent", address], [1, "serial", uint(1, UINT32)], [2, "until", uint(1, TIME_MAX)], [3, "signature", signature]);
const proof = map([0, "credentials", list(1, 64, credential)], [1, "delegations", list(0, 64, tuple(address, delegation))]);
const invite = map(
  [0, "network", hash], [1, "creator", address], [2, "slug", slug], [3, "addresses", list(1, 16, textOf(1, 256))], [4, "head", hash],
  [5, "token", bytes(0, 16)],
);
const chain = tuple(list(1, 10000, inside(readHeader)), tuple(...Array(4).fill(inside((it) => it))));
const ask = map(
  [0, "greeting", inside((it) => greeting(read(it)))], [1, "proof", inside((it) => proof(read(it)))], [2, "graph", hash],
  [3, "token", bytes(0, 16)], [4, "label", textOf(0, 64)], [5, "chain", chain, "?"],
);
const readAnswer = (value) => {
  const it = map([0, "reply", uint(0, 3)], [1, "chain", chain, "?"])(value);
  need([1, 3].includes(it.reply) === (it.chain !== undefined), "a roster with listed and open only");
  return it;
};

function checkProof(network, peer, now, data) {
  const it = proof(read(data));
  for (const each of it.credentials) {
    need(now < each.until && each.until - now <= 7776000000, "until");
    checkSigned(each.agent, digestOf(network, "Carry", { agent: each.agent, peer, serial: each.serial, until: each.until }), each.signature);
  }
  for (const [agent, each] of it.delegations) {
    need(it.credentials.some((carried) => carried.agent === agent), "an agent without a credential");
    checkSigned(each.principal, actFor(network, agent, each), each.signature);
  }
  return [...new Set([...it.credentials.map((each) => each.agent), ...it.delegations.map(([, each]) => each.principal)])].sort();
}

function readInvite(text) {
  need(text.startsWith("p2pmem1"), "no invite");
  let bits = "";
  for (const digit of text.slice(7)) {
    const value = "abcdefghijklmnopqrstuvwxyz234567".indexOf(digit);
    need(value >= 0, "base32");
    bits += value.toString(2).padStart(5, "0");
  }
  const unused = bits.slice(bits.length - (bits.length % 8));
  need(unused.length < 5 && !unused.includes("1"), "unused bits");
  return invite(read(Uint8Array.from(bits.match(/.{8}/g) ?? [], (octet) => parseInt(octet, 2))));
}

// Sections 13 and 14

const empty = (reader) => (it) => {
  const shown = reader(it);
  need(shown !== 0 && shown !== "0x" && shown !== false && !(Array.isArray(shown) && !shown.length), "empty, and written");
  return shown;
};
const flag = (it) => (it === true ? it : refuse("a flag"));
const ids = (size, most) => (it) => {
  need(it instanceof Uint8Array && it.length % size === 0 && it.length <= size * most, "ids");
  return Array.from({ length: it.length / size }, (_, at) => hex(it.slice(at * size, (at + 1) * size)));
};
const items = (most) => list(0, most, bytes(1, 66560));
const listChange = map([1, "graph", hash], [2, "is_whole", flag, "?"], [3, "added", empty(ids(8, 512)), "?"], [4, "removed", empty(ids(8, 512)), "?"]);
const graphState = map(
  [1, "graph", hash], [2, "head", hash, "?"], [3, "count", empty(uint(0, UINT32)), "?"], [4, "fingerprint", bytes(16, 16)], [5, "is_partial", flag, "?"],
);
const round = bytes(1, 131072);
const number = [0, "number", uint(0, UINT32)];
const MESSAGES = {
  1: ["Frame", map(
    number, [1, "seq", empty(any64), "?"], [2, "ack", empty(any64), "?"], [3, "envelopes", empty(items(256)), "?"],
    [4, "announced", empty(ids(8, 2048)), "?"], [5, "asked", empty(ids(8, 2048)), "?"], [6, "lists", empty(list(0, 64, listChange)), "?"],
    [7, "reconcile", empty(ids(32, 1024)), "?"],
  )],
  10: ["Heads", map(number, [1, "clock_ms", uint(0, TIME_MAX)], [2, "graphs", empty(list(0, 1024, graphState)), "?"])],
  11: ["RoundOpen", map(
    number, [1, "graph", hash], [2, "head", hash], [3, "agreed_ms", uint(0, TIME_MAX)], [4, "kinds", empty(list(0, 256, uint(0, UINT32))), "?"],
    [5, "message", round],
  )],
  12: ["RoundMessage", map(number, [1, "message", round])],
  13: ["Fetch", map(number, [1, "graph", hash], [2, "ids", empty(ids(32, 1024)), "?"])],
  14: ["Envelopes", map(number, [1, "envelopes", empty(items(1024)), "?"], [2, "more", flag, "?"])],
  15: ["FetchPart", map(number, [1, "graph", hash], [2, "content", hash], [3, "offset", empty(uint(0, 2 ** 24)), "?"], [4, "is_roster", flag, "?"])],
  16: ["Part", map(
    number, [1, "length_bytes", uint(0, 2 ** 24)], [2, "offset", empty(uint(0, 2 ** 24)), "?"], [3, "data", empty(bytes(0, 131072)), "?"],
  )],
  17: ["AskHeaders", map(number, [1, "graph", hash], [2, "known", empty(ids(32, 4096)), "?"])],
  18: ["Headers", map(number, [1, "graph", hash], [2, "headers", empty(list(0, 256, bytes(1, 2048))), "?"], [3, "more", flag, "?"])],
  19: ["NotGiven", map(number, [1, "reason", uint(0, UINT32)])],
  20: ["Peers", map(number, [1, "graph", hash], [2, "addresses", empty(list(0, 256, textOf(1, 256))), "?"])],
};

function varint(value) {
  const digits = [Number(value % 128n)];
  for (let rest = value / 128n; rest; rest /= 128n) digits.unshift(Number(rest % 128n) | 128);
  return Uint8Array.from(digits);
}

function fingerprint(all) {
  let sum = 0n;
  for (const id of all) sum += BigInt(hex(raw(id).reverse()));
  const little = raw("0x" + (sum % 2n ** 256n).toString(16).padStart(64, "0")).reverse();
  return hex(createHash("sha256").update(little).update(varint(BigInt(all.length))).digest().subarray(0, 16));
}

// The vectors

const folder = process.argv[2];
const load = (name) => JSON.parse(readFileSync(join(folder, `${name}.json`), "utf8"));
const counts = {};
let current;

function holds(what, check) {
  try {
    check();
  } catch (error) {
    console.error(`${current}: ${what}: ${error.stack}`);
    process.exit(1);
  }
  counts[current] = (counts[current] ?? 0) + 1;
}

const refuses = (vectors, reader) =>
  vectors.forEach((it) => holds(`refused: ${it.name ?? it}`, () => assert.throws(() => reader(it), Refused)));

const subset = (shown, vector) => Object.entries(shown).forEach(([field, value]) => assert.deepEqual(value, vector[field], field));

const SUITES = {
  names(it) {
    it.network.forEach((each) => holds(each.name, () => assert.equal(hashOf(utf8(slug(each.name))), each.id)));
    it.address.read.forEach((each) => holds(each.text, () => assert.equal(readAddress(each.text), each.address)));
    refuses(it.address.refused, readAddress);
    for (const [kind, reader] of Object.entries({ slug, asset, subgraph })) {
      it[kind].read.forEach((each) => holds(each, () => reader(each)));
      refuses(it[kind].refused, reader);
    }
    it.graph.forEach((each) => holds(each.slug, () => {
      assert.equal(graphId(each.creator, each.slug), each.id);
      assert.equal(each.iri, `did:dkg:context-graph:${each.creator}/${each.slug}`);
      assert.equal(each.meta, `${each.iri}/_meta`);
    }));
  },
  cbor(it) {
    it.accepted.forEach((each) => holds(each.name, () => read(raw(each.bytes))));
    refuses(it.refused, (each) => read(raw(each.bytes)));
  },
  structs(it) {
    it.structs.forEach((each) => holds(each.type, () => {
      const name = each.type.split("(")[0];
      assert.equal(TypedDataEncoder.from({ [name]: STRUCTS[name] }).encodeType(name), each.type);
      assert.equal(digestOf(it.network, name, each.values), each.digest);
      const { EIP712Domain, ...types } = each.typed_data.types;
      assert.equal(EIP712Domain.length, 3);
      assert.equal(TypedDataEncoder.hash(each.typed_data.domain, types, each.typed_data.message), each.digest);
      checkSigned(each.signer, each.digest, each.signature);
    }));
    const { digest, signer, accepted, refused } = it.signatures;
    holds("a signature", () => checkSigned(signer, digest, accepted));
    refuses(refused, (each) => checkSigned(signer, digest, each.signature));
  },
  contents(it) {
    it.canonical.forEach((each) => holds(each.name, () => {
      const lines = each.canonical.split("\n").slice(0, -1).map((line) => utf8(line + "\n"));
      assert.equal(hashOf(utf8(each.canonical)), each.hash);
      assert.equal(lines.length, each.leaves);
      assert.equal(rootOf(lines.map(hashOf)), each.root);
      each.proofs.forEach((one, at) => assert(proves(each.root, each.leaves, hashOf(lines[at]), one.proof)));
    }));
    it.batches.forEach((each) => holds("a batch", () => {
      assert.equal(rootOf(each.values), each.root);
      each.proofs.forEach((one, at) => assert(proves(each.root, each.values.length, each.values[at], one)));
    }));
  },
  items(it) {
    it.accepted.forEach((each) => holds(each.name, () => {
      const found = readItem(raw(each.bytes));
      checkItem(found);
      assert.equal(idOf(found), each.id);
      const { encodedBody, ...shown } = found;
      assert.deepEqual(shown, each.fields);
      if (each.seal_digest) assert.equal(sealDigest(found.network, found.graph, found.author, found.body.seal), each.seal_digest);
    }));
    refuses(it.refused_by_form, (each) => readItem(raw(each.bytes)));
    it.refused_by_signature.forEach((each) => holds(`right in form: ${each.name}`, () => readItem(raw(each.bytes))));
    refuses(it.refused_by_signature, (each) => checkItem(readItem(raw(each.bytes))));
  },
  rosters(it) {
    const graph = readHeader(raw(it.rosters[0].header)).graph;
    it.quorums.forEach((each) => holds(`quorum ${each.serial}`, () => assert.equal(quorumId(graph, each), each.id)));
    it.rosters.forEach((each) => holds(each.name, () => {
      const found = readHeader(raw(each.header));
      checkHeader(found);
      assert.equal(found.id, each.id);
      const { graph: _, id, isRootAct, ...shown } = found;
      assert.deepEqual(shown, each.fields);
      for (const part of Object.keys(PARTS)) assert.equal(hashOf(raw(each.parts[part].bytes)), found[part]);
      const parts = readParts(Object.fromEntries(Object.keys(PARTS).map((part) => [part, raw(each.parts[part].bytes)])));
      assert.deepEqual(parts.members, each.parts.members.fields);
      assert.equal(quorumId(found.graph, parts.limits.quorum), found.quorum);
    }));
    refuses(it.refused_headers, (each) => checkHeader(readHeader(raw(each.bytes))));
    const second = it.rosters[1].parts;
    refuses(it.refused_parts, (each) =>
      readParts(Object.fromEntries(Object.keys(PARTS).map((part) => [part, raw(part === each.part ? each.bytes : second[part].bytes)]))));
  },
  heads(it) {
    const all = Object.fromEntries(Object.entries(it.headers).map(([name, data]) => [name, readHeader(raw(data))]));
    Object.entries(all).forEach(([name, each]) => holds(name, () => (checkHeader(each), assert.equal(each.id, it.ids[name]))));
    it.cases.forEach((each) => holds(each.name, () => {
      const { head, forked, branches } = each;
      assert.deepEqual(headOf(each.held.map((name) => all[name])), { head, forked, branches });
    }));
    it.cannot_follow.forEach((each) => holds(each.name, () => assert(!follows(all.one, readHeader(raw(each.header))))));
  },
  trust(it) {
    const graph = load("names").graph[0].id;
    it.cases.forEach((each) => holds(each.name, () => {
      const evidence = each.evidence.map((data) => readItem(raw(data)));
      evidence.forEach((one) => (checkItem(one), (one.id = idOf(one))));
      const principals = [...each.principals, it.subject[0]];
      const found = trustOf(graph, evidence, principals, each.quorum, each.kept_certificates);
      assert.deepEqual(found, [each.level, each.m, each.n]);
    }));
  },
  certificates(it) {
    holds("the certificate", () => {
      const { says, json } = it.accepted;
      const found = checkCertificate(raw(it.accepted.bytes));
      assert.deepEqual([found.digest, found.n, found.asOf, found.approvals], [says.seal_digest, says.n, says.as_of, says.approvals]);
      assert.equal(JSON.parse(json).seal.root, says.subject[3]);
    });
    refuses(it.refused, (each) => checkCertificate(raw(each.bytes)));
  },
  conversation(it) {
    const network = it.greeting.fields.network;
    holds("greeting", () => assert.deepEqual(greeting(read(raw(it.greeting.bytes))), it.greeting.fields));
    holds("proof", () => assert.deepEqual(checkProof(network, it.peer, it.now, raw(it.proof.bytes)), it.proof.names));
    holds("invite", () => assert.deepEqual(readInvite(it.invite.text), it.invite.fields));
    it.asks.forEach((each) => holds(each.name, () => ask(read(raw(each.bytes)))));
    it.answers.forEach((each) => holds(each.name, () => readAnswer(read(raw(each.bytes)))));
    refuses(it.invites_refused, readInvite);
    refuses(it.refused_greetings, (each) => greeting(read(raw(each.bytes))));
    refuses(it.refused_proofs, (each) => checkProof(network, it.peer, it.now, raw(each.bytes)));
    refuses(it.refused_answers, (each) => readAnswer(read(raw(each.bytes))));
  },
  frames(it) {
    it.member_hash.forEach((each) => holds(each.peer, () => {
      const found = createHash("sha256").update("p2pmem list").update(raw(each.graph)).update(each.peer).digest();
      assert.equal(hex(found.subarray(0, 8)), each.hash);
    }));
    it.messages.forEach((each) => holds(each.message, () => {
      const value = read(raw(each.bytes));
      const [name, reader] = MESSAGES[value.get(0)];
      const { number: _, ...shown } = reader(value);
      assert.equal(name, each.message);
      const scalars = Object.fromEntries(Object.entries(shown).filter(([field]) => !["lists", "graphs"].includes(field)));
      subset(scalars, each.fields);
      for (const nested of ["lists", "graphs"]) (shown[nested] ?? []).forEach((one, at) => subset(one, each.fields[nested][at]));
    }));
  },
  reconciliation(it) {
    it.varints.forEach(([value, encoded]) => holds(`varint ${value}`, () => assert.equal(hex(varint(BigInt(value))), encoded)));
    it.fingerprints.forEach((each) => holds("fingerprint", () => assert.equal(fingerprint(each.ids), each.fingerprint)));
  },
};

for (const [name, suite] of Object.entries(SUITES)) {
  current = name;
  suite(load(name));
}
console.log(JSON.stringify(counts));
