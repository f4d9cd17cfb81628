// A second reader of the p2pmem protocol, written from README.md, p2pmem.cddl and the vectors alone. Where these did not suffice they were mended, and
// the reader after them. EIP-712, keccak256 and secp256k1 are other people's (ethers); of the package it knows nothing.
//
//     node main.mjs PATH/TO/vectors
//
// Prints a line a file: its name, how many cases, how many hold. Says which do not, and ends with status 1 then.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import * as base from "./base.mjs";
import * as content from "./content.mjs";
import * as items from "./items.mjs";
import * as rosters from "./rosters.mjs";
import { Memory, checkSealed, current, trust } from "./memory.mjs";
import { fromJson, readCertificate } from "./certificates.mjs";
import * as talk from "./talk.mjs";

const { getBytes, hexlify, keccak256, toUtf8Bytes } = base;
const directory = process.argv[2];
const load = (name) => JSON.parse(readFileSync(join(directory, name + ".json"), "utf8"));
let cases = 0, passed = 0, failures = [];

const plain = (v) => (typeof v === "bigint" ? Number(v) : Array.isArray(v) ? v.map(plain)
  : v !== null && typeof v === "object" ? Object.fromEntries(Object.keys(v).sort().map((key) => [key, plain(v[key])])) : v);
function same(found, expected, what = "") {
  const [a, b] = [found, expected].map((v) => JSON.stringify(plain(v)));
  if (a !== b) throw new Error(`${what}: ${a} is not ${b}`);
}
function holds(name, check) {
  cases++;
  try { check(); passed++; } catch (error) { failures.push(`${name}: ${error.stack.split("\n").slice(0, 3).join(" ")}`); }
}
function refused(name, check, code) {
  holds(name, () => {
    try { check(); } catch (error) {
      if (!(error instanceof base.Refused)) throw error;
      if (code !== undefined && error.code !== code) throw new Error(`refused with ${error.message}, not ${code}`);
      return;
    }
    throw new Error("it was not refused");
  });
}
const again = (bytes) => same(hexlify(base.encode(base.decode(getBytes(bytes)))), bytes, "encoded again");
const pick = (object, fields) => Object.fromEntries(Object.keys(fields).map((key) => [key, object[key]]));

// The set under a head, with what the headers from which it descends name
function memoryOf({ header: bytes, parts, earlier = [] }) {
  const header = rosters.checkHeader(getBytes(bytes)), named = [];
  const held = new Map(earlier.map((it) => rosters.checkHeader(getBytes(it))).map((it) => [it.id, it]));
  for (let it = header; it; it = held.get(it.fields.parent)) named.push(it.fields.quorum);
  return new Memory(header, rosters.readRoster(header, parts), named);
}

const FILES = {
  names(v) {
    for (const { name, id } of v.network) holds(name, () => same(base.networkId(name), id));
    for (const { name, secret, address } of v.agents) {
      holds(name, () => { same(base.ethers.computeAddress(secret).toLowerCase(), address); });
    }
    for (const { text, address } of v.address.read) holds(text, () => same(base.readAddress(text), address));
    for (const text of v.address.refused) refused(text, () => base.readAddress(text), 22);
    for (const [key, is] of [["slug", base.isSlug], ["asset", base.isAsset], ["subgraph", base.isSubgraph]]) {
      for (const text of v[key].read) holds(text, () => same(is(text), true));
      for (const text of v[key].refused) holds(text, () => same(is(text), false));
    }
    for (const g of v.graph) {
      holds(g.iri, () => {
        const cg = `${g.creator}/${g.slug}`, iri = "did:dkg:context-graph:" + cg, bob = v.agents.find((a) => a.name === "bob").address;
        same(g, { creator: g.creator, slug: g.slug, id: base.graphId(g.creator, g.slug), iri, meta: iri + "/_meta", draft: `${iri}/2026/q3/assertion/${bob}/report`,
          shared: `${iri}/_shared_memory/${bob}/report`, published: `${iri}/2026/q3/_verifiable_memory/${bob}/report`, lifecycle: `urn:dkg:assertion:${cg}:${bob}:report` });
      });
    }
  },
  cbor(v) {
    for (const { name, bytes } of v.accepted) holds(name, () => again(bytes));
    for (const { name, bytes, code } of v.refused) refused(name, () => base.decode(getBytes(bytes)), code);
  },
  structs(v) {
    holds("domain", () => same(base.ethers.TypedDataEncoder.hashDomain(base.domain(v.network)), v.domain_separator));
    for (const s of v.structs) {
      const struct = s.typed_data.primaryType;
      holds(struct, () => {
        same(base.STRUCTS[struct].written, s.type), same(keccak256(toUtf8Bytes(s.type)), s.type_hash), same(s.typed_data.message, s.values);
        same(s.typed_data.types[struct], base.STRUCTS[struct].fields), same(base.digest(v.network, struct, s.values), s.digest);
        base.checkSignature(s.digest, s.signature, s.signer);
      });
    }
    holds("accepted", () => base.checkSignature(v.signatures.digest, v.signatures.accepted, v.signatures.signer));
    for (const { name, signature, code } of v.signatures.refused) refused(name, () => base.checkSignature(v.signatures.digest, signature, v.signatures.signer), code);
  },
  contents(v) {
    const worked = (lines, { calls, permutations, looked_at: looked, depth: deepest }) => {
      const spent = { calls: 0, permutations: 0, looked: 0, deepest: 0 };
      content.checkContent(toUtf8Bytes(lines), spent), same(spent, { calls, permutations, looked, deepest });
    };
    for (const { name, canonical, work } of v.at_the_edge) holds(name, () => worked(canonical, work));
    for (const c of v.canonical) {
      holds(c.name, () => {
        worked(c.canonical, c.work);
        same(content.canonicalise(c.source).join(""), c.canonical), same(keccak256(toUtf8Bytes(c.canonical)), c.hash);
        const lines = content.checkContent(toUtf8Bytes(c.canonical)), tree = content.tree(lines.map(content.lineValue));
        same(lines.length, c.leaves), same(tree.root, c.root), same(c.proofs.map((p) => p.line), lines);
        for (const { line, value, leaf, proof } of c.proofs) {
          same(content.lineValue(line), value), same(content.leafOf(value), leaf), same(tree.proof(value), proof), same(content.proves(c.root, value, proof, c.leaves), true);
          same(content.proves(c.root, value, [...proof, value], c.leaves), false);
        }
      });
    }
    for (const { name, bytes, code } of v.refused) refused(name, () => content.checkContent(getBytes(bytes)), code);
    for (const b of v.batches) {
      holds(`a batch of ${b.values.length}`, () => {
        const tree = content.tree(b.values);
        same(b.values.map(content.leafOf), b.leaf_hashes), same(tree.root, b.root), same(b.values.map(tree.proof), b.proofs);
        b.values.forEach((value, i) => same(content.proves(b.root, value, b.proofs[i], b.values.length), true));
      });
    }
  },
  items(v) {
    for (const one of v.accepted) {
      holds(one.name, () => {
        again(one.bytes);
        const item = items.readItem(getBytes(one.bytes));
        items.checkItemSignatures(item);
        same([item.id, item.kindName, item.sealDigest], [one.id, one.kind, one.seal_digest]), same(pick(item, one.fields), one.fields);
        if (item.sealDigest) {
          checkSealed(item, Array.isArray(item.body.content) ? toUtf8Bytes(v.attachment.content) : getBytes(item.body.content));
        }
        for (const { seal, proof } of item.body?.assets ?? []) same(content.proves(item.body.batch_root, seal, proof, item.body.count), true, "anchored");
      });
    }
    for (const { name, bytes, code } of v.refused_by_form) refused(name, () => items.readItem(getBytes(bytes)), code);
    for (const { name, bytes, code } of v.refused_by_signature) refused(name, () => items.checkItemSignatures(items.readItem(getBytes(bytes))), code);
  },
  rosters(v) {
    const graph = base.graphId(v.rosters[0].fields.creator, v.rosters[0].fields.slug);
    for (const q of v.quorums) holds(`quorum ${q.serial}`, () => same(base.quorumId(graph, q), q.id));
    const held = new Map();
    for (const one of v.rosters) {
      holds(one.name, () => {
        again(one.header);
        const header = rosters.checkHeader(getBytes(one.header));
        rosters.checkFollows(header, held), held.set(header.id, header);
        same(header.id, one.id), same(header.fields, one.fields);
        const parts = rosters.readRoster(header, Object.keys(rosters.PARTS).map((name) => one.parts[name].bytes));
        for (const [name, part] of Object.entries(one.parts)) again(part.bytes), same(keccak256(part.bytes), part.hash), same(parts[name], part.fields);
      });
    }
    for (const { name, bytes, code } of v.refused_headers) refused(name, () => rosters.checkHeader(getBytes(bytes)), code);
    const limits = v.rosters[1].parts.limits.fields;
    for (const { name, part, bytes, code } of v.refused_parts) {
      refused(name, () => { const read = rosters.readPart(part, getBytes(bytes)); if (part === "members") rosters.checkTogether({ members: read, limits }); }, code);
    }
  },
  heads(v) {
    const headers = Object.fromEntries(Object.entries(v.headers).map(([name, bytes]) => [name, rosters.checkHeader(getBytes(bytes))]));
    for (const [name, id] of Object.entries(v.ids)) holds(name, () => same(headers[name].id, id));
    for (const c of v.cases) holds(c.name, () => same(rosters.findHead(c.held.map((name) => headers[name])), pick(c, { head: 0, forked: 0, branches: 0 })));
    const held = new Map(["one", "two", "left", "right"].map((name) => [headers[name].id, headers[name]]));
    for (const { name, header, code } of v.cannot_follow) refused(name, () => rosters.checkFollows(rosters.checkHeader(getBytes(header)), held), code);
  },
  trust(v) {
    for (const c of v.cases) {
      holds(c.name, () => {
        const evidence = c.evidence.map((bytes) => items.readItem(getBytes(bytes)));
        evidence.forEach(items.checkItemSignatures);
        for (const e of evidence) same([e.author, e.name, e.version, e.root, e.seal], v.subject);
        const graph = evidence[0]?.graph;
        same(trust(graph ?? base.ZERO, evidence, c.principals, c.quorum, c.kept_certificates), pick(c, { level: 0, m: 0, n: 0, approvals: 0, rejections: 0, endorsements: 0 }));
      });
    }
  },
  admission(v) {
    const memory = memoryOf(v);
    for (const { name, bytes, t, code } of v.steps) {
      if (code === null) holds(name, () => memory.admit(getBytes(bytes), t));
      else refused(name, () => memory.admit(getBytes(bytes), t), code);
    }
    for (const { t, items: expected } of v.reconciled) holds(`R(${t})`, () => same(memory.reconciled(t), expected));
  },
  sets(v) {
    for (const c of v.cases) {
      FILES.admission(c);
      const memory = memoryOf(c);
      for (const { bytes, t, code } of c.steps) if (code === null) memory.admit(getBytes(bytes), t);
      for (const { author, asset, t, versions, current: expected } of c.views) {
        holds(`${c.name}: ${asset}`, () => {
          const view = memory.view(author, asset, t);
          same(view, versions);
          for (const [floor, seals] of Object.entries(expected)) same(current(view, floor), seals, floor);
        });
      }
    }
  },
  certificates(v) {
    holds("CBOR", () => { again(v.accepted.bytes); same(readCertificate(getBytes(v.accepted.bytes)), v.accepted.says); });
    holds("JSON", () => same(hexlify(fromJson(v.accepted.json)), v.accepted.bytes));
    for (const { name, bytes, code } of v.refused) refused(name, () => readCertificate(getBytes(bytes)), code);
    for (const { name, json, code } of v.refused_json) refused(name, () => readCertificate(fromJson(json)), code);
  },
  conversation(v) {
    const { network } = v.greeting.fields;
    const isChain = (chain) => { if (chain) rosters.readRoster(rosters.checkChain(chain.headers), chain.parts); };
    holds("greeting", () => { again(v.greeting.bytes); same(talk.readGreeting(getBytes(v.greeting.bytes)), v.greeting.fields); });
    holds("proof", () => { again(v.proof.bytes); same(talk.checkProof(getBytes(v.proof.bytes), network, v.peer, v.now), { credentials: v.proof.credentials, names: v.proof.names }); });
    holds("invite", () => same(talk.readInvite(v.invite.text), v.invite.fields));
    holds("delegation", () => same(talk.readDelegation(v.delegation.text), v.delegation.fields));
    for (const word of v.delegations_refused) refused(word, () => talk.readDelegation(word));
    holds("prepared", () => same(talk.readPrepared(v.prepared.text), v.prepared.fields));
    for (const word of v.prepared_refused) refused(word, () => talk.readPrepared(word));
    for (const word of v.invites_refused) refused(word, () => talk.readInvite(word));
    holds("the key of the invite", () => same(talk.inviteKey(v.invite.fields.token), v.invite_key));
    for (const { name, bytes, entry_key } of v.asks) holds(name, () => {
      again(bytes);
      const ask = talk.readAsk(getBytes(bytes));
      talk.checkProof(getBytes(ask.proof), network, v.peer, v.now), isChain(ask.chain);
      same(talk.entryKey(ask, network, v.peer), entry_key);
    });
    for (const { name, bytes, code } of v.refused_asks) refused(name, () => talk.readAsk(getBytes(bytes)), code);
    for (const { name, bytes } of v.answers) holds(name, () => { again(bytes); isChain(talk.readAnswer(getBytes(bytes)).chain); });
    for (const { name, bytes, code } of v.refused_greetings) refused(name, () => talk.readGreeting(getBytes(bytes)), code);
    for (const { name, bytes, code } of v.refused_proofs) refused(name, () => talk.checkProof(getBytes(bytes), network, v.peer, v.now), code);
    for (const { name, bytes, code } of v.refused_answers) refused(name, () => talk.readAnswer(getBytes(bytes)), code);
  },
  frames(v) {
    for (const { graph, peer, hash } of v.member_hash) holds(`a list of ${peer}`, () => same(talk.memberHash(graph, peer), hash));
    holds("topic", () => same(talk.topic(v.topic.graph), v.topic.topic));
    for (const { name, bytes, code } of v.refused) refused(name, () => talk.readMessage(getBytes(bytes)), code);
    for (const bytes of v.skipped) holds(bytes, () => same(talk.readMessage(getBytes(bytes)).name, "Skipped"));
    for (const { message, fields, bytes } of v.messages) {
      holds(message, () => { again(bytes); same(talk.readMessage(getBytes(bytes)), { name: message, fields }); same(hexlify(talk.writeMessage(message, fields)), bytes); });
    }
  },
  reconciliation(v) {
    for (const [n, bytes] of v.varints) holds(`varint ${n}`, () => same(hexlify(talk.varint(n)), bytes));
    for (const { ids, fingerprint } of v.fingerprints) holds(`${ids.length} ids`, () => same(talk.fingerprint(ids), fingerprint));
    for (const r of v.rounds) {
      holds(r.name, () => {
        const live = (list) => list.filter(([order]) => r.agreed_ms === null || order > r.agreed_ms + 60_000);
        const sides = () => [new talk.Round(live(r.initiator), true, r.message_bytes), new talk.Round(live(r.responder), false, r.message_bytes)];
        const [opener, other] = sides(), said = [hexlify(opener.first())];
        for (; ;) {
          said.push(other.answer(said.at(-1)));
          const next = opener.answer(said.at(-1));
          if (next === "0x61") break;
          said.push(next);
        }
        for (const message of said) same((message.length - 2) / 2 <= r.message_bytes, true, "a long message");
        // Where a responder cuts an answer off is its own matter: then what he said is taken, and the opener's answers to it are compared
        const [reader] = sides(), isCut = r.message_bytes < 131072, heard = [hexlify(reader.first())];
        for (const answer of r.messages.filter((_, i) => i % 2 === 1)) heard.push(answer, reader.answer(answer));
        same(heard.pop(), "0x61", "the end"), same(heard, r.messages, "replayed"), same([[...reader.have].sort(), [...reader.need].sort()], [r.have, r.need]);
        if (!isCut) same(said, r.messages);
        same([...opener.have].sort(), r.have), same([...opener.need].sort(), r.need);
      });
    }
    for (const { message, answer } of v.versions) holds(message, () => same(new talk.Round([], false, 131072).answer(message), answer));
    for (const { name, message, answer } of v.bounds) holds(name, () => same(new talk.Round([], false, 131072).answer(message), answer));
    for (const [name, bytes] of Object.entries(v.refused)) refused(name, () => new talk.Round([], false, 131072).answer(bytes), 63);
  },
};

let isAllRight = true;
for (const [name, check] of Object.entries(FILES)) {
  cases = passed = 0, failures = [];
  try { check(load(name)); } catch (error) { cases++, failures.push(error.stack); }
  console.log(`${name} ${cases} ${passed}`);
  for (const failure of failures) console.error(`${name}: ${failure.slice(0, 900)}`);
  isAllRight &&= failures.length === 0;
}
process.exit(isAllRight ? 0 : 1);
