// Content (README.md 3): the canonical form, RDFC-1.0 within its budget, and the trees over it (4).

import { isIPv6 } from "node:net";
import { getBytes, hexlify, concat, keccak256, refuse, sha256, toUtf8Bytes, utf8 } from "./base.mjs";

const LINES_MAX = 200_000, BYTES_MAX = 16 * 2 ** 20, IRI_MAX = 8192, LITERAL_MAX = 2 ** 20;
const BUDGET = { calls: 20_000, permutations: 40_000, looked: 120_000, depth: 256 };
const XSD_STRING = "http://www.w3.org/2001/XMLSchema#string";
const LANG_STRING = /^http:\/\/www\.w3\.org\/1999\/02\/22-rdf-syntax-ns#(?:lang|dirLang)String$/;
const RESERVED = new Set(`trustLevel verificationStatus endorses endorsedAt endorsedBy verifiedBy verifiedAt approvals quorum verdict certificate state memoryLayer
  fromLayer toLayer assertionName assertionGraph assertionVersion sharedAt publishedAt finalizedAt expiresAt retracted retractedBy supersededBy shareOperationId
  workspaceOwner owner author authorAddress publisher contextGraph curator member assertionMerkleRoot merkleRoot leafCount seal signature authorAttestationR
  authorAttestationVS assertionFinalizedAt anchoredAt transactionHash batchId batchRoot kaUal kcUal`.split(/\s+/).map((name) => "http://dkg.io/ontology/" + name));
// RFC 5646 2.1, lower-case
const TAG = new RegExp("^(?:(?:[a-z]{2,3}(?:-[a-z]{3}){0,3}|[a-z]{4}|[a-z]{5,8})(?:-[a-z]{4})?(?:-(?:[a-z]{2}|[0-9]{3}))?" +
  "(?:-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*(?:-[0-9a-wy-z](?:-[a-z0-9]{2,8})+)*(?:-x(?:-[a-z0-9]{1,8})+)?|x(?:-[a-z0-9]{1,8})+|" +
  "en-gb-oed|i-(?:ami|bnn|default|enochian|hak|klingon|lux|mingo|navajo|pwn|tao|tay|tsu)|sgn-(?:be-fr|be-nl|ch-de)|" +
  "art-lojban|cel-gaulish|no-(?:bok|nyn)|zh-(?:guoyu|hakka|min|min-nan|xiang))$");

// RFC 3987 2.2, the production IRI
const UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" +
  Array.from({ length: 14 }, (_, i) => `\\u{${(i + 1).toString(16)}0000}-\\u{${(i + 1).toString(16)}fffd}`).join("").replace("\\u{e0000}", "\\u{e1000}");
const PCHAR = `(?:[A-Za-z0-9._~!$&'()*+,;=:@${UCS}-]|%[0-9A-Fa-f]{2})`, NO_COLON = PCHAR.replace(":@", "");
const PRIVATE = "[\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}]";
const RFC3987 = new RegExp(`^[A-Za-z][A-Za-z0-9+.-]*:(?://(?:(?:${NO_COLON}|:)*@)?(?:\\[([^\\]]*)\\]|${NO_COLON}*)(?::[0-9]*)?(?:/${PCHAR}*)*|` +
  `/(?:${PCHAR}+(?:/${PCHAR}*)*)?|${PCHAR}+(?:/${PCHAR}*)*|)(?:\\?(?:${PCHAR}|[/?]|${PRIVATE})*)?(?:#(?:${PCHAR}|[/?])*)?$`, "u");
function isIri(iri) {
  const m = RFC3987.exec(iri);
  return m !== null && (m[1] === undefined || /^[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+$/.test(m[1]) || (!m[1].includes("%") && isIPv6(m[1])));
}

const IRI = "<([A-Za-z][A-Za-z0-9+.-]*:[^\\u0000-\\u0020<>\"{}|^`\\\\]*)>";
const BLANK = "_:([A-Za-z0-9_][A-Za-z0-9_.-]*)";
const LINE = new RegExp(`^(?:${IRI}|${BLANK}) ${IRI} (?:${IRI}|${BLANK}|"((?:[^"\\\\\\n\\r]|\\\\.)*)"(?:@([A-Za-z0-9-]+)|\\^\\^${IRI})?) \\.$`, "u");
const SHORT = { "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\" };
const LONG = Object.fromEntries(Object.entries(SHORT).map(([one, two]) => [two[1], one]));
const escape = (s) => s.replace(/["\\\u0000-\u001f\u007f\ufffe\uffff]/g, (c) =>
  SHORT[c] ?? "\\u" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0"));
const unescape = (s) => s.replace(/\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))/gu, (_, u, U, c) =>
  u || U ? String.fromCodePoint(parseInt(u ?? U, 16)) : LONG[c] ?? refuse(40, "an escape"));

// One line: its terms as they are written canonically, blank nodes by their label
function readLine(line) {
  if (/^<<|^\S+ \S+ <</.test(line)) refuse(41);
  const m = LINE.exec(line) ?? refuse(40, "a line");
  const [, subjectIri, subjectBlank, predicate, objectIri, objectBlank, quoted, tag, type] = m;
  for (const iri of [subjectIri, predicate, objectIri, type]) if (iri !== undefined) {
    if (toUtf8Bytes(iri).length > IRI_MAX) refuse(1, "a long IRI");
    if (!isIri(iri)) refuse(40, "an IRI");
  }
  if (RESERVED.has(predicate)) refuse(43);
  if (type !== undefined && LANG_STRING.test(type)) refuse(40, "a datatype");
  let object = objectIri !== undefined ? `<${objectIri}>` : "_:" + objectBlank;
  if (quoted !== undefined) {
    const said = unescape(quoted), held = escape(said);
    if (said.includes("\0")) refuse(40, "NUL");
    if (toUtf8Bytes(held).length > LITERAL_MAX) refuse(1, "a long literal");
    if (tag !== undefined && !TAG.test(tag.toLowerCase())) refuse(40, "a language tag");
    object = `"${held}"` + (tag !== undefined ? "@" + tag.toLowerCase() : type !== undefined && type !== XSD_STRING ? `^^<${type}>` : "");
  }
  return { s: subjectIri !== undefined ? `<${subjectIri}>` : "_:" + subjectBlank, p: `<${predicate}>`, o: object };
}
const written = (quad) => `${quad.s} ${quad.p} ${quad.o} .\n`;
const byCodePoint = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
const isBlank = (term) => term.startsWith("_:");

class Issuer {
  constructor(prefix, issued = new Map()) { this.prefix = prefix; this.issued = issued; }
  copy() { return new Issuer(this.prefix, new Map(this.issued)); }
  issue(blank) {
    if (!this.issued.has(blank)) this.issued.set(blank, `_:${this.prefix}${this.issued.size}`);
    return this.issued.get(blank);
  }
}
function* permutations(list) {                      // in lexicographic order of positions
  if (list.length < 2) { yield list; return; }
  for (let i = 0; i < list.length; i++)
    for (const rest of permutations([...list.slice(0, i), ...list.slice(i + 1)])) yield [list[i], ...rest];
}

export function rdfc(quads, spent = { calls: 0, permutations: 0, looked: 0, deepest: 0 }) {
  quads = [...quads].sort((a, b) => byCodePoint(a.s, b.s) || byCodePoint(a.p, b.p) || byCodePoint(a.o, b.o));
  const of = new Map();
  for (const quad of quads) for (const term of new Set([quad.s, quad.o])) if (isBlank(term)) of.set(term, [...(of.get(term) ?? []), quad]);
  const hex = (s) => sha256(toUtf8Bytes(s)).slice(2);
  const canonical = new Issuer("c14n"), first = new Map(), groups = new Map();
  for (const [blank, its] of of) {
    const mask = (term) => (isBlank(term) ? (term === blank ? "_:a" : "_:z") : term);
    const hash = hex(its.map((q) => written({ s: mask(q.s), p: q.p, o: mask(q.o) })).sort(byCodePoint).join(""));
    first.set(blank, hash);
    groups.set(hash, [...(groups.get(hash) ?? []), blank]);
  }
  const sorted = [...groups].sort(([a], [b]) => (a < b ? -1 : 1));
  for (const [, blanks] of sorted) if (blanks.length === 1) canonical.issue(blanks[0]);

  const spend = (what) => { if (++spent[what] > BUDGET[what]) refuse(42, what); };
  function nDegree(blank, issuer, depth) {
    spend("calls");
    spent.deepest = Math.max(spent.deepest, depth);
    if (depth > BUDGET.depth) refuse(42, "depth");
    const related = new Map();
    for (const quad of of.get(blank)) for (const [position, term] of [["s", quad.s], ["o", quad.o]]) {
      if (!isBlank(term) || term === blank) continue;
      const hash = hex(position + quad.p + (canonical.issued.get(term) ?? issuer.issued.get(term) ?? first.get(term)));
      related.set(hash, [...(related.get(hash) ?? []), term]);
      spend("looked");
    }
    let data = "";
    for (const [hash, blanks] of [...related].sort(([a], [b]) => (a < b ? -1 : 1))) {
      data += hash;
      let chosen = "", chosenIssuer = null;
      next: for (const order of permutations(blanks)) {
        spend("permutations");
        let copy = issuer.copy(), path = "";
        const deeper = [];
        const worse = () => chosen !== "" && path.length >= chosen.length && path > chosen;
        for (const other of order) {
          spend("looked");
          if (canonical.issued.has(other)) path += canonical.issued.get(other);
          else {
            if (!copy.issued.has(other)) deeper.push(other);
            path += copy.issue(other);
          }
          if (worse()) continue next;
        }
        for (const other of deeper) {
          const result = nDegree(other, copy, depth + 1);
          path += copy.issue(other) + `<${result.hash}>`;
          copy = result.issuer;
          if (worse()) continue next;
        }
        if (chosen === "" || path < chosen) chosen = path, chosenIssuer = copy;
      }
      data += chosen;
      issuer = chosenIssuer;
    }
    return { hash: hex(data), issuer };
  }
  for (const [, blanks] of sorted) {
    if (blanks.length === 1) continue;
    const results = [];
    for (const blank of blanks) {
      if (canonical.issued.has(blank)) continue;
      const issuer = new Issuer("b");
      issuer.issue(blank);
      results.push(nDegree(blank, issuer, 1));
    }
    results.sort((a, b) => (a.hash < b.hash ? -1 : a.hash > b.hash ? 1 : 0));
    for (const { issuer } of results) for (const blank of issuer.issued.keys()) canonical.issue(blank);
  }
  const named = (term) => (isBlank(term) ? canonical.issued.get(term) : term);
  return [...new Set(quads.map((q) => written({ s: named(q.s), p: q.p, o: named(q.o) })))].sort(byCodePoint);
}

// Any N-Quads of one graph to the canonical lines
export function canonicalise(source, spent) {
  const quads = new Map(source.split("\n").filter((line) => line.trim() !== "").map((line) => { const q = readLine(line); return [written(q), q]; }));
  return rdfc([...quads.values()], spent);
}

// The lines of what claims to be canonical content, or a refusal
export function checkContent(data, spent) {
  if (data.length === 0) refuse(46);
  if (data.length > BYTES_MAX) refuse(1);
  const whole = utf8(data) ?? refuse(40, "not UTF-8");
  if (!whole.endsWith("\n")) refuse(40, "no last line feed");
  const lines = whole.slice(0, -1).split("\n").map((line) => line + "\n");
  if (lines.length > LINES_MAX) refuse(1);
  const quads = lines.map((line) => readLine(line.slice(0, -1)));
  if (lines.some((line, i) => written(quads[i]) !== line || (i > 0 && byCodePoint(lines[i - 1], line) >= 0))) refuse(40);
  if (quads.some((q) => isBlank(q.s) || isBlank(q.o)) && rdfc(quads, spent).join("") !== whole) refuse(40, "labels");
  return lines;
}

// Trees

export const lineValue = (line) => keccak256(toUtf8Bytes(line));
export const leafOf = (value) => keccak256(keccak256(value));
const inner = (a, b) => keccak256(concat(a < b ? [a, b] : [b, a]));
export function tree(values) {
  const leaves = values.map(leafOf).sort(), n = leaves.length, nodes = new Array(2 * n - 1);
  if (n === 0 || new Set(leaves).size < n) refuse(44, "no leaf, or one twice");
  leaves.forEach((leaf, i) => { nodes[2 * n - 2 - i] = leaf; });
  for (let i = n - 2; i >= 0; i--) nodes[i] = inner(nodes[2 * i + 1], nodes[2 * i + 2]);
  const proof = (value) => {
    const hashes = [];
    for (let i = nodes.lastIndexOf(leafOf(value)); i > 0; i = (i - 1) >> 1) hashes.push(nodes[i % 2 === 1 ? i + 1 : i - 1]);
    return hashes;
  };
  return { root: nodes[0], proof };
}
export function proves(root, value, proof, n) {
  if (proof.length !== Math.floor(Math.log2(n)) && proof.length !== Math.floor(Math.log2(2 * n - 1))) return false;
  return proof.reduce(inner, leafOf(value)) === root;
}
export const contentRoot = (lines) => tree(lines.map(lineValue)).root;
export const bytesOf = (text) => hexlify(toUtf8Bytes(text));
export { getBytes };
