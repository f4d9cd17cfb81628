// Certificates (README.md 11), both forms

import { address, bytes, checkSignature, decode, encode, format, getBytes, graphId, hash, hexlify, list, map, quorumId, refuse, slug } from "./base.mjs";
import { METHODS, checkItemSignatures, readItem, seal, sealDigest } from "./items.mjs";
import { checkChain, readHeader, readQuorum } from "./rosters.mjs";

const BYTES_MAX = 8 * 2 ** 20, HELD_MAX = 66560;

export function readCertificate(data) {
  const value = decode(data, BYTES_MAX);
  if (value instanceof Map && typeof value.get(0) === "number" && value.get(0) !== 1) refuse(23);
  const c = map({
    0: ["format", format], 1: ["network", hash], 2: ["creator", address], 3: ["slug", slug], 4: ["author", address], 5: ["seal", seal], 6: ["quorum", readQuorum],
    7: ["verdicts", list(1, 64, bytes(0, HELD_MAX))], 8: ["rosters", list(1, 10000, bytes(0, 1024))],
  })(value);
  const graph = graphId(c.creator, c.slug), signed = sealDigest(c.network, graph, c.author, c.seal), quorum = quorumId(graph, c.quorum);
  checkSignature(signed, c.seal.signature, c.author);

  for (const one of c.rosters) {
    const header = readHeader(getBytes(one));
    if (header.fields.network !== c.network || header.graph !== graph) refuse(21, "a header of another graph");
  }
  const last = checkChain(c.rosters);
  if (c.quorum.m === 0 || last.fields.quorum !== quorum || last.fields.quorum_serial !== c.quorum.serial) refuse(110);

  if (c.verdicts.length !== c.quorum.m) refuse(20, "not M verdicts");
  const verdicts = c.verdicts.map((one) => readItem(getBytes(one)));
  verdicts.forEach((v, i) => {
    const about = v.kindName === "verdict" && v.network === c.network && v.graph === graph && v.author === c.author && v.name === c.seal.name &&
      v.version === c.seal.version && v.root === c.seal.root && v.seal === signed && v.decision === 1;
    if (!about) refuse(21, "a verdict");
    if (v.quorum !== quorum || !c.quorum.verifiers.includes(v.signer) || v.signer === c.author) refuse(110);
    if (i > 0 && verdicts[i - 1].signer >= v.signer) refuse(21, "order");
    checkItemSignatures(v);
  });
  return {
    subject: [c.author, c.seal.name, c.seal.version, c.seal.root, signed], m: c.quorum.m,
    n: c.quorum.verifiers.filter((who) => who !== c.author).length, as_of: last.id, approvals: verdicts.map((v) => [v.signer, METHODS[v.method]]),
  };
}

// The JSON form to the bytes of the other one: exactly these names, in any order, none twice; integers without a point

function parseJson(source) {
  let at = 0;
  const space = () => { while (" \t\n\r".includes(source[at] ?? "x")) at++; };
  const next = (c) => { space(); if (source[at] !== c) refuse(20, `no ${c}`); at++; };
  const is = (c) => { space(); return source[at] === c && ++at > 0; };
  const token = (pattern) => { pattern.lastIndex = at; const m = pattern.exec(source) ?? refuse(20, "not JSON"); at += m[0].length; return JSON.parse(m[0]); };
  function value(depth) {
    if (depth > 16) refuse(20, "deep");
    space();
    if (is("{")) {
      const found = {};
      if (is("}")) return found;
      do {
        space();
        const name = token(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y);
        if (Object.hasOwn(found, name)) refuse(4);
        next(":");
        found[name] = value(depth + 1);
      } while (is(","));
      next("}");
      return found;
    }
    if (is("[")) {
      const found = [];
      if (is("]")) return found;
      do found.push(value(depth + 1)); while (is(","));
      next("]");
      return found;
    }
    if (source[at] === '"') return token(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y);
    const number = token(/-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null/y);
    return typeof number === "number" && !/^[0-9]+$/.test(/[^\s,\]}:[{]+$/.exec(source.slice(Math.max(0, at - 400), at))?.[0]) ? null : number;
  }
  const found = value(0);
  space();
  return at === source.length ? found : refuse(20, "something follows");
}

const names = (v, ...expected) => {
  if (v === null || typeof v !== "object" || Array.isArray(v) || Object.keys(v).sort().join() !== expected.sort().join()) refuse(20, "names");
  return v;
};
const text = (s) => (typeof s !== "string" ? refuse(21) : s.isWellFormed?.() ?? true ? { text: s } : refuse(11));
const low = (n) => (s) => (typeof s === "string" && s.length === 2 + 2 * n && /^0x[0-9a-f]*$/.test(s) ? s : refuse(21, "hexadecimal digits"));
const hash32 = low(32), agent = low(20), signed = low(65);
const int = (n) => (Number.isInteger(n) && n >= 0 && n < 2 ** 32 ? n : refuse(21, "not a number"));
const each = (v, read) => (Array.isArray(v) ? v.map(read) : refuse(21, "not a list"));
const all = (...values) => encode(new Map(values.map((v, i) => [i, v])));
export function fromJson(written) {
  const c = names(parseJson(written), "format", "network", "graph", "seal", "quorum", "verdicts", "rosters");
  if (text(c.format).text !== "p2pmem certificate 1") refuse(23);
  const [, creator, slugText] = /^(0x[0-9a-f]{40})\/([a-z0-9][a-z0-9._-]{0,63})$/.exec(text(c.graph).text) ?? refuse(21, "a graph"), graph = graphId(creator, slugText);
  const s = names(c.seal, "subgraph", "asset", "version", "root", "leaves", "previous", "author", "signature");
  const q = names(c.quorum, "serial", "m", "verifiers"), network = hash32(c.network), author = agent(s.author);
  const { leaves, previous, subgraph, version, root } = s;
  const signedSeal = sealDigest(network, graph, author, { subgraph: text(subgraph).text, name: text(s.asset).text, version: int(version), root: hash32(root), leaves: int(leaves), previous: hash32(previous) });
  const verdicts = each(c.verdicts, (v) => {
    names(v, "quorum", "decision", "method", "reason", "signer", "signature");
    return hexlify(all(1, network, graph, 7, agent(v.signer), author, text(s.asset), int(s.version), hash32(s.root), signedSeal, int(v.decision), text(v.reason),
      signed(v.signature), hash32(v.quorum), int(v.method)));
  });
  const rosters = each(c.rosters, (h) => {
    names(h, "version", "term", "parent", "parentTerm", "owner", "quorum", "quorumSerial", "members", "limits", "kept", "certificates", "signer", "signature");
    return hexlify(all(1, network, creator, text(slugText), int(h.version), int(h.term), hash32(h.parent), int(h.parentTerm), agent(h.owner), hash32(h.quorum),
      int(h.quorumSerial), hash32(h.members), hash32(h.limits), hash32(h.kept), hash32(h.certificates), agent(h.signer), signed(h.signature)));
  });
  const sealed = [text(s.subgraph), text(s.asset), int(s.version), hash32(s.root), int(s.leaves), hash32(s.previous), signed(s.signature)];
  return all(1, network, creator, text(slugText), author, new Map(sealed.map((v, i) => [i, v])), [int(q.serial), int(q.m), each(q.verifiers, agent)], verdicts, rosters);
}
