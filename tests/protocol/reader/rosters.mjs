// Rosters and heads (README.md 7)

import {
  ZERO, address, asset, checkSignature, decode, digest, format, getBytes, graphId, hash, inOrder, instant, integer, keccak256, label, list, map,
  positive, quorumId, refuse, signature, slug, tuple, uint32, uint64,
} from "./base.mjs";

export const ROLE = { reader: 1, writer: 2, endorser: 4, verifier: 8, approver: 16 };
const PART_MAX = 8 * 2 ** 20, HEADER_MAX = 1024, THIRTY_DAYS = 2592000000;

export function readHeader(data) {
  const value = decode(data, HEADER_MAX);
  if (value instanceof Map && typeof value.get(0) === "number" && value.get(0) !== 1) refuse(23);
  const h = map({
    0: ["format", format], 1: ["network", hash], 2: ["creator", address], 3: ["slug", slug], 4: ["version", positive], 5: ["term", positive],
    6: ["parent", hash], 7: ["parent_term", uint32], 8: ["owner", address], 9: ["quorum", hash], 10: ["quorum_serial", uint32], 11: ["members", hash],
    12: ["limits", hash], 13: ["kept", hash], 14: ["certificates", hash], 15: ["signer", address], 16: ["signature", signature],
  })(value);
  const graph = graphId(h.creator, h.slug);
  const isRootAct = h.term > h.parent_term;
  const id = digest(h.network, "Roster", {
    graph, version: h.version, term: h.term, parent: h.parent, parentTerm: h.parent_term, owner: h.owner, quorum: h.quorum, quorumSerial: h.quorum_serial,
    members: h.members, limits: h.limits, kept: h.kept, certificates: h.certificates, signer: h.signer,
  });
  return { fields: h, id, graph, isRootAct };
}

export function checkHeader(data) {
  const header = readHeader(data), h = header.fields;
  if ((h.parent === ZERO) !== (h.parent_term === 0) || h.term < h.parent_term || (h.parent === ZERO && h.version !== 1)) refuse(21, "parent");
  if (header.isRootAct && h.signer !== h.creator) refuse(31, "a root act");
  checkSignature(header.id, header.fields.signature, header.fields.signer);
  return header;
}

// Whether a header may follow those that are held
export function checkFollows(header, held) {
  if (header.isRootAct) return;
  const parent = (held.get(header.fields.parent) ?? refuse(115)).fields, h = header.fields;
  if (h.signer !== parent.owner || h.owner !== parent.owner) refuse(31, "the parent's owner");
  if (h.term !== parent.term || h.version !== parent.version + 1) refuse(21, "term or version");
  const same = h.quorum === parent.quorum;
  if (h.quorum_serial !== parent.quorum_serial + (same ? 0 : 1)) refuse(21, "serial");
}

export function findHead(headers) {                 // of one graph
  const held = new Map(headers.map((h) => [h.id, h]));
  const acts = headers.filter((h) => h.isRootAct);
  if (acts.length === 0) return { head: null, forked: false, branches: [] };
  const term = Math.max(...acts.map((h) => h.fields.term));
  const highest = acts.filter((h) => h.fields.term === term);
  if (highest.length === 1) {
    for (let at = highest[0]; ;) {
      const children = headers.filter((h) => !h.isRootAct && h.fields.parent === at.id);
      if (children.length !== 1) return { head: at.id, forked: children.length > 1, branches: children.map((h) => h.id).sort().slice(0, 2) };
      at = children[0];
    }
  }
  const lines = highest.map((h) => {
    const line = [];
    for (let at = held.get(h.fields.parent); at; at = held.get(at.fields.parent)) line.push(at.id);
    return line;
  });
  return { head: lines[0].find((id) => lines.every((line) => line.includes(id))) ?? null, forked: true, branches: highest.map((h) => h.id).sort().slice(0, 8) };
}

// Parts

const readQuorum = (v) => {
  const [serial, m, verifiers] = tuple(uint32, integer(0, 64), inOrder(list(0, 64, address)))(v);
  if (m === 0 ? verifiers.length > 0 : m > verifiers.length) refuse(21, "M");
  return { serial, m, verifiers };
};
export { readQuorum };
const plain = (q) => [q.serial, q.m, q.verifiers];
export const PARTS = {
  members: inOrder(list(0, 1000, tuple(address, integer(1, 31), label, instant)), (m) => m[0]),
  limits: (v) => {
    const ttl = integer(1, THIRTY_DAYS);
    const l = map({
      0: ["access", integer(1, 2)], 1: ["quorum", (q) => plain(readQuorum(q))], 2: ["ttl_default", ttl], 3: ["ttl_max", ttl], 4: ["acks_min", integer(0, 1000)],
      5: ["chain", uint64], 6: ["contract", address], 7: ["quotas", tuple(uint64, uint64, uint64, integer(0, 16777216), uint64)],
    })(v);
    return l.ttl_default <= l.ttl_max ? l : refuse(21, "ttl");
  },
  kept: inOrder(list(0, 100000, hash)),
  certificates: list(0, 10000, (v) => {
    const c = tuple(address, asset, positive, hash, hash, (q) => plain(readQuorum(q)), inOrder(list(1, 64, hash)))(v);
    return c[5][1] > 0 && c[6].length === c[5][1] ? c : refuse(21, "not M verdicts");
  }),
};
export function readPart(name, data) {
  const value = decode(data, PART_MAX);
  return name === "limits" || Array.isArray(value) ? PARTS[name](value) : refuse(20, "a part that is no list");
}
export function checkTogether({ members, limits }) {
  const roles = new Map(members.map((m) => [m[0], m[1]]));
  for (const verifier of limits.quorum[2]) if (!((roles.get(verifier) ?? 0) & ROLE.verifier)) refuse(21, "a verifier who is not listed");
}
export function readRoster(header, partBytes) {     // the four parts of a header, in its order
  const parts = {};
  Object.keys(PARTS).forEach((name, i) => {
    if (keccak256(partBytes[i]) !== header.fields[name]) refuse(45, name);
    parts[name] = readPart(name, getBytes(partBytes[i]));
  });
  checkTogether(parts);
  const [serial, m, verifiers] = parts.limits.quorum;
  if (serial !== header.fields.quorum_serial || quorumId(header.graph, { serial, m, verifiers }) !== header.fields.quorum) refuse(21, "quorum");
  return parts;
}

// A chain: from a root act, each header the child of the one before. Gives the last.
export function checkChain(headers) {
  const held = new Map();
  let last = null;
  for (const one of headers) {
    const header = checkHeader(getBytes(one));
    if (last === null ? !header.isRootAct : header.fields.parent !== last.id || header.isRootAct) refuse(21, "a link");
    checkFollows(header, held);
    held.set((last = header).id, header);
  }
  return last;
}
