// Items (README.md 6): envelopes and evidence, their form, ids and signatures. Credentials too.

import {
  TIME_MAX, ZERO, address, asset, bytes, checkSignature, decode, digest, encode, format, getBytes, hash, hexlify, inOrder, integer, keccak256,
  label, list, map, peer, positive, reason, refuse, signature, subgraph, toUtf8Bytes, uint32, uint64,
} from "./base.mjs";

export const KINDS = { 2: "share", 3: "publish", 4: "retract", 5: "endorse", 6: "propose", 7: "verdict", 8: "ack", 9: "anchor", 10: "revoke" };
export const ITEM_MAX = 66560;
export const METHODS = { 1: "auto", 2: "shacl", 3: "exec", 4: "manual" };

export const delegation = map({ 0: ["principal", address], 1: ["serial", positive], 2: ["label", label], 3: ["rights", integer(1, 15)], 4: ["signature", signature] });
export const seal = (v) => {
  const found = map({
    0: ["subgraph", subgraph], 1: ["name", asset], 2: ["version", positive], 3: ["root", hash], 4: ["leaves", integer(1, 200000)],
    5: ["previous", hash], 6: ["signature", signature],
  })(v);
  return (found.version === 1) === (found.previous === ZERO) ? found : refuse(21, "previous");
};
const content = (v) => {
  if (typeof v === "string") return v.length > 2 && v.length <= 2 + 2 * 61440 ? v : refuse(47);
  if (!Array.isArray(v) || v.length !== 2) refuse(Array.isArray(v) ? 20 : 21, "content");
  hash(v[0]), uint64(v[1]);
  return v[1] > 61440 && v[1] <= 16777216 ? v : refuse(47);
};
const subject = { 0: ["author", address], 1: ["name", asset], 2: ["version", positive], 3: ["root", hash], 4: ["seal", hash] };
const sealed = map({ 0: ["seal", seal], 1: ["content", content] });
const BODIES = {
  2: sealed,
  3: sealed,
  4: map({
    0: ["author", address], 1: ["name", asset], 2: ["version", positive], 3: ["mode", integer(1, 2)], 4: ["successor", positive, true],
    5: ["reason", reason], 6: ["shown", delegation, true],
  }),
  6: map({ ...subject, 5: ["quorum", hash] }),
  8: map({ 0: ["root", hash] }),
  9: map({
    0: ["batch_root", hash], 1: ["chain", uint64], 2: ["contract", address], 3: ["transaction", hash], 4: ["block", uint64],
    5: ["assets", list(1, 256, map({ ...subject, 5: ["proof", list(0, 32, hash)] }))], 6: ["count", positive],
  }),
  10: (v) => {
    const found = map({ 0: ["agent", address, true], 1: ["peer", peer, true], 2: ["serial", positive], 3: ["kept", inOrder(list(0, 1900, hash))] })(v);
    return "agent" in found !== "peer" in found ? found : refuse(20, "an agent or a peer");
  },
};
const EVIDENCE = {
  0: ["format", format], 1: ["network", hash], 2: ["graph", hash], 3: ["kind", uint32], 4: ["signer", address], 5: ["author", address], 6: ["name", asset],
  7: ["version", positive], 8: ["root", hash], 9: ["seal", hash], 10: ["decision", integer(1, 2)], 11: ["reason", reason], 12: ["signature", signature],
};
const ENVELOPE = {
  0: ["format", format], 1: ["network", hash], 2: ["graph", hash], 3: ["kind", uint32], 4: ["author", address], 5: ["delegation", delegation, true],
  6: ["roster", uint32], 7: ["issued_at", integer(0, TIME_MAX)], 8: ["expires_at", integer(0, TIME_MAX)], 9: ["body", bytes(1, 65536)], 10: ["signature", signature],
};

export function readItem(data) {
  const value = decode(data, ITEM_MAX);
  if (!(value instanceof Map) || !value.has(0) || !value.has(3)) refuse(20, "not an item");
  if (typeof value.get(0) !== "number") refuse(21, "format");
  if (value.get(0) !== 1) refuse(23);
  const kind = uint32(value.get(3));
  if (!(kind in KINDS)) refuse(100, `kind ${kind}`);
  const item = kind === 5 ? map(EVIDENCE)(value) : kind === 7 ? map({ ...EVIDENCE, 13: ["quorum", hash], 14: ["method", integer(1, 4)] })(value) : map(ENVELOPE)(value);
  item.kindName = KINDS[kind];
  if (kind === 5 || kind === 7) {
    const { graph, name, version, root, seal, author, decision, signer, quorum, method } = item;
    const common = { graph, asset: name, version, root, seal, author, decision, signer };
    item.id = kind === 5 ? digest(item.network, "Endorsement", { ...common, reason: item.reason })
      : digest(item.network, "Verdict", { ...common, quorum, method, reason: keccak256(toUtf8Bytes(item.reason)) });
    item.principal = signer;
    return item;
  }
  const { issued_at, expires_at, author } = item;
  const stays = [3, 4, 9, 10].includes(kind);
  if (issued_at < 1 || (stays ? expires_at !== 0 : expires_at <= issued_at)) refuse(24);
  if (item.delegation?.principal === author) refuse(21, "a delegation to oneself");
  item.bodyBytes = item.body;
  item.body = BODIES[kind](decode(getBytes(item.body)));
  if (item.body.shown && (item.body.shown.principal !== author || item.body.author === author)) refuse(21, "shown");
  item.principal = item.delegation?.principal ?? author;
  item.delegationDigest = item.delegation ? actFor(item.network, item.delegation, author) : ZERO;
  item.id = digest(item.network, "Envelope", {
    graph: item.graph, kind, author, delegation: item.delegationDigest, roster: item.roster, issuedAt: issued_at, expiresAt: expires_at, body: item.bodyBytes,
  });
  if (kind === 2 || kind === 3) item.sealDigest = sealDigest(item.network, item.graph, author, item.body.seal);
  item.size = data.length;
  return item;
}

export const actFor = (network, { principal, serial, label, rights }, agent) => digest(network, "ActFor", { principal, agent, serial, label, rights });
export const sealDigest = (network, graph, author, { subgraph, name, version, root, leaves, previous }) =>
  digest(network, "Seal", { graph, subgraph, asset: name, version, root, leaves, previous, author });

export function checkItemSignatures(item) {
  if (!item.bodyBytes) return checkSignature(item.id, item.signature, item.signer);
  checkSignature(item.id, item.signature, item.author);
  if (item.delegation) checkSignature(item.delegationDigest, item.delegation.signature, item.delegation.principal);
  if (item.sealDigest) checkSignature(item.sealDigest, item.body.seal.signature, item.author);
  if (item.body.shown) checkSignature(actFor(item.network, item.body.shown, item.body.author), item.body.shown.signature, item.author);
}

export { encode, hexlify };
