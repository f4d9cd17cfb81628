// Hello, invites, join (README.md 12), messages between members (13, 14) and reconciliation (14.1)

import {
  TIME_MAX, address, bytes, checkForm, checkSignature, decode, digest, encode, ethers, getBytes, hash, hexlify, inOrder, inside, instant, integer, keccak256, label, list, map,
  positive, refuse, sha256, signature, signerOf, slug, text, toUtf8Bytes, tuple, uint32, uint64, concat,
} from "./base.mjs";
import { actFor, delegation } from "./items.mjs";
import { readHeader } from "./rosters.mjs";

const NINETY_DAYS = 7776000000;
const greeting = map({
  0: ["network", hash], 1: ["version", positive], 2: ["kinds", inOrder(list(0, 256, uint32))], 3: ["item_bytes_max", uint64], 4: ["content_bytes_max", uint64],
  5: ["clock", instant],
});
export const readGreeting = (data) => greeting(decode(data));
const proof = map({
  0: ["credentials", list(1, 64, map({ 0: ["agent", address], 1: ["serial", positive], 2: ["until", integer(1, TIME_MAX)], 3: ["signature", signature] }))],
  1: ["delegations", list(0, 64, (v) => {
    const [agent, one] = tuple(address, delegation)(v);
    return one.principal !== agent ? [agent, one] : refuse(21, "a delegation to oneself");
  })],
});
export const readProof = (data) => proof(decode(data));
export function checkProof(data, network, peer, now) {
  const { credentials, delegations } = readProof(data);
  for (const { agent, serial, until, signature: signed } of credentials) {
    if (until > now + NINETY_DAYS) refuse(24);
    if (until <= now) refuse(120);
    checkSignature(digest(network, "Carry", { agent, peer, serial, until }), signed, agent);
  }
  for (const [agent, one] of delegations) {
    if (!credentials.some((c) => c.agent === agent)) refuse(21, "an agent without a credential");
    checkSignature(actFor(network, one, agent), one.signature, one.principal);
  }
  return { credentials, names: [...new Set([...credentials.map((c) => c.agent), ...delegations.map(([, d]) => d.principal)])].sort() };
}

const BASE32 = "abcdefghijklmnopqrstuvwxyz234567";
function fromWord(prefix, word, longest) {
  if (!word.startsWith(prefix) || word.length > longest) refuse(21);
  let bits = "";
  for (const c of word.slice(prefix.length)) bits += (BASE32.includes(c) ? BASE32.indexOf(c) : refuse(21, "base32")).toString(2).padStart(5, "0");
  const spare = bits.length % 8;
  if (spare >= 5 || bits.slice(bits.length - spare).includes("1")) refuse(21, "unused bits");
  return decode(Uint8Array.from(bits.slice(0, bits.length - spare).match(/.{8}/g) ?? [], (b) => parseInt(b, 2)));
}
export const readInvite = (word) => map({
  0: ["network", hash], 1: ["creator", address], 2: ["slug", slug], 3: ["addresses", list(1, 16, text(1, 256))], 4: ["head", hash], 5: ["token", bytes(0, 16)],
})(fromWord("p2pmem1", word, 32768));
export function readDelegation(word) {
  const found = map({ 0: ["network", hash], 1: ["agent", address], 2: ["delegation", delegation] })(fromWord("p2pmemact1", word, 4096)), { network, agent } = found;
  if (agent === found.delegation.principal) refuse(21);
  checkSignature(actFor(network, found.delegation, agent), found.delegation.signature, found.delegation.principal);
  return found;
}
export function readPrepared(word) {
  const found = map({
    0: ["network", hash], 1: ["graph", hash], 2: ["parent", hash], 3: ["change", text(1, 65536)], 4: ["approver", address], 5: ["signature", signature],
  })(fromWord("p2pmemchange1", word, 524288)), { network, graph, parent, change, approver } = found;
  checkSignature(digest(network, "Prepare", { graph, parent, change, approver }), found.signature, approver);
  return found;
}

const chain = (v) => {
  const [headers, parts] = tuple(list(1, 10000, bytes(1, 1024)), tuple(...Array(4).fill(bytes(0, 8 * 2 ** 20))))(v);
  headers.forEach((header) => readHeader(getBytes(header)));
  return { headers, parts };
};
const entry = (v) => checkForm(signature(v));
export const readAsk = (data) => map({
  0: ["greeting", inside(greeting, 65536)], 1: ["proof", inside(proof, 65536)], 2: ["graph", hash], 3: ["entry", entry, true], 4: ["label", label], 5: ["chain", chain, true],
})(decode(data, 512 * 1024));
export const inviteKey = (token) => ethers.computeAddress(keccak256(concat([toUtf8Bytes("p2pmem invite"), token]))).toLowerCase();
export function entryKey(ask, network, peer) {
  if (!("entry" in ask)) return null;
  const { graph, proof, label, greeting } = ask;
  return signerOf(digest(network, "Enter", { graph, peer, proof, label, at: readGreeting(getBytes(greeting)).clock }), ask.entry);
}
export function readAnswer(data) {
  const answer = map({ 0: ["reply", integer(0, 3)], 1: ["chain", chain, true] })(decode(data, 32 * 2 ** 20));
  return "chain" in answer === [1, 3].includes(answer.reply) ? answer : refuse(20);
}

// Messages: number: [name, {key: [field, kind]}]. A field that is empty is not written.

const many = (n, max) => ({ none: [], read: (v) => chop(bytes(n, n * max)(v), n), write: (v) => concat(v) });
const chop = (hex, n) => (((hex.length - 2) / 2) % n === 0 ? (hex.slice(2).match(new RegExp(`.{${2 * n}}`, "g")) ?? []).map((s) => "0x" + s) : refuse(21));
const number = (low, high) => ({ none: 0, read: integer(low, high), write: (v) => v });
const held = (max, high) => ({ none: [], read: list(1, max, bytes(1, high)), write: (v) => v });
const flag = { none: false, read: (v) => (v === true ? v : refuse(21)), write: (v) => v };
const just = (read) => ({ read, write: (v) => v });
const id = just(hash), maybe = (check, none) => ({ none, read: check, write: (v) => v });
const nested = (fields, max) => ({ none: [], read: list(1, max, (v) => readFields(fields, v)), write: (v) => v.map((one) => writeFields(fields, one)) });
const BIG = 256 * 1024, ITEM = 66560;
const MESSAGES = {
  1: ["Frame", {
    1: ["seq", number(1, 2n ** 64n - 1n)], 2: ["ack", number(1, 2n ** 64n - 1n)], 3: ["envelopes", held(256, ITEM)], 4: ["announced", many(8, 2048)], 5: ["asked", many(8, 2048)],
    6: ["lists", nested({ 1: ["graph", id], 2: ["is_whole", flag], 3: ["added", many(8, 512)], 4: ["removed", many(8, 512)] }, 64)], 7: ["reconcile", many(32, 1024)],
  }],
  10: ["Heads", {
    1: ["clock_ms", just(instant)], 2: ["graphs", nested({ 1: ["graph", id], 2: ["head", maybe(hash, "0x")], 3: ["count", number(1, 2 ** 32 - 1)],
      4: ["fingerprint", just(bytes(16))], 5: ["is_partial", flag] }, 1024)],
  }],
  11: ["RoundOpen", { 1: ["graph", id], 2: ["head", id], 3: ["agreed_ms", just(instant)], 4: ["kinds", { none: [], read: list(1, 256, uint32), write: (v) => v }],
    5: ["message", just(bytes(1, 131072))] }],
  12: ["RoundMessage", { 1: ["message", just(bytes(1, 131072))] }],
  13: ["Fetch", { 1: ["graph", id], 2: ["ids", many(32, 1024)] }],
  14: ["Envelopes", { 1: ["envelopes", held(1024, ITEM)], 2: ["more", flag] }],
  15: ["FetchPart", { 1: ["graph", id], 2: ["content", id], 3: ["offset", number(1, 16777216)], 4: ["is_roster", flag] }],
  16: ["Part", { 1: ["length_bytes", just(integer(0, 16777216))], 2: ["offset", number(1, 16777216)], 3: ["data", maybe(bytes(1, 131072), "0x")] }],
  17: ["AskHeaders", { 1: ["graph", id], 2: ["known", many(32, 4096)] }],
  18: ["Headers", { 1: ["graph", id], 2: ["headers", held(256, 1024)], 3: ["more", flag] }],
  19: ["NotGiven", { 1: ["reason", just(uint32)] }],
  20: ["Peers", { 1: ["graph", id], 2: ["addresses", { none: [], read: list(1, 256, text(1, 256)), write: (v) => v.map((s) => ({ text: s })) }] }],
};
function readFields(fields, v) {
  const found = map(Object.fromEntries(Object.entries(fields).map(([key, [name, kind]]) => [key, [name, kind.read, "none" in kind]])))(v);
  for (const [name, kind] of Object.values(fields)) if (!(name in found)) found[name] = kind.none;
  return found;
}
const isNone = (kind, v) => "none" in kind && JSON.stringify(v) === JSON.stringify(kind.none);
const writeFields = (fields, v, first = []) => new Map([...first,
  ...Object.entries(fields).filter(([, [name, kind]]) => !isNone(kind, v[name])).map(([key, [name, kind]]) => [Number(key), kind.write(v[name])])]);
export function readMessage(data) {
  const value = decode(data, BIG);
  if (!(value instanceof Map) || !value.has(0)) refuse(20);
  const [name, fields] = MESSAGES[uint32(value.get(0))] ?? ["Skipped", null];
  if (fields === null) return { name, fields: value.get(0) };
  value.delete(0);
  return { name, fields: readFields(fields, value) };
}
export function writeMessage(name, values) {
  const [key, [, fields]] = Object.entries(MESSAGES).find(([, [one]]) => one === name);
  return encode(writeFields(fields, values, [[0, Number(key)]]));
}
export const topic = (graph) => "/p2pmem/open/2/" + keccak256(concat([toUtf8Bytes("p2pmem open graph"), graph])).slice(2);
export const memberHash = (graph, peer) => sha256(concat([toUtf8Bytes("p2pmem list"), graph, toUtf8Bytes(peer)])).slice(0, 18);

// Reconciliation. An item is [order, id]; a bound is [order, prefix as hexadecimal digits].

const INFINITY = [Infinity, ""];
const point = (prefix) => prefix.replace("0x", "").padEnd(64, "0");
const before = (a, b) => a[0] < b[0] || (a[0] === b[0] && point(a[1]) < point(b[1]));
export function varint(n) {
  const digits = [];
  for (let rest = BigInt(n); rest > 0n || digits.length === 0; rest >>= 7n) digits.unshift(Number(rest & 127n) | (digits.length ? 128 : 0));
  return Uint8Array.from(digits);
}
export function fingerprint(ids) {
  const little = (hex) => BigInt(hexlify(getBytes(hex).reverse()));
  const sum = ids.reduce((total, one) => total + little(one), 0n) % 2n ** 256n;
  const bytes = getBytes("0x" + sum.toString(16).padStart(64, "0")).reverse();
  return sha256(concat([bytes, varint(ids.length)])).slice(0, 34);
}

class Reader {
  constructor(data) { this.data = data, this.at = 0, this.order = 0; }
  get isAtEnd() { return this.at >= this.data.length; }
  take(n) { if (n > this.data.length - this.at) refuse(63, "cut short"); this.at += n; return this.data.subarray(this.at - n, this.at); }
  varint() {
    let n = 0n, first = true;
    for (; ;) {
      const digit = this.take(1)[0];
      if (first && digit === 128) refuse(63, "a leading zero");
      first = false, n = (n << 7n) | BigInt(digit & 127);
      if (n >= 2n ** 64n) refuse(63);
      if (digit < 128) return Number(n);
    }
  }
  bound() {
    const delta = this.varint(), length = this.varint();
    if (length > 32) refuse(63, "a long prefix");
    const prefix = hexlify(this.take(length)).slice(2);
    if (delta === 0) return INFINITY;
    this.order += delta - 1;
    return [this.order, prefix];
  }
  ids() {
    const count = this.varint();
    if (32 * count > this.data.length - this.at) refuse(63, "fewer ids");
    return Array.from({ length: count }, () => hexlify(this.take(32)));
  }
}

export class Round {
  constructor(items, isInitiator, limit) {
    this.items = [...items].sort((a, b) => (before(a, b) ? -1 : 1)), this.isInitiator = isInitiator, this.limit = limit;
    this.have = new Set(), this.need = new Set();
  }
  ids(low, high) { return this.items.slice(low, high).map((item) => item[1]); }
  isTooLong(n) { return n > this.limit - 200; }
  first() { this.order = 0; return getBytes(concat(["0x61", this.split(0, this.items.length, INFINITY)])); }
  bound([order, prefix]) {
    const out = [varint(order === Infinity ? 0 : 1 + order - this.order), varint(prefix.length / 2), "0x" + prefix];
    if (order !== Infinity) this.order = order;
    return concat(out);
  }
  boundBetween(a, b) {                                // the shortest that is above a and not above b
    if (a[0] !== b[0]) return [b[0], ""];
    let n = 2;
    while (a[1].slice(2, 2 + n) === b[1].slice(2, 2 + n)) n += 2;
    return [b[0], b[1].slice(2, 2 + n)];
  }
  list(bound, ids) { return concat([this.bound(bound), "0x02", varint(ids.length), ...ids]); }
  split(low, high, upper) {
    const n = high - low;
    if (n < 32) return this.list(upper, this.ids(low, high));
    const out = [];
    for (let i = 0, at = low; i < 16; i++) {
      const next = at + Math.floor(n / 16) + (i < n % 16 ? 1 : 0);
      out.push(this.bound(next === high ? upper : this.boundBetween(this.items[next - 1], this.items[next])), "0x01", fingerprint(this.ids(at, next)));
      at = next;
    }
    return concat(out);
  }
  answer(message) {
    const reader = new Reader(getBytes(message));
    const version = reader.isAtEnd ? 0 : reader.take(1)[0];
    if (!this.isInitiator && version !== 0x61 && version >> 4 === 6) return "0x61";
    if (version !== 0x61) refuse(63, "version");
    let out = "0x61", last = [0, ""], low = 0, skipped = false, isFull = false;
    const size = (hex) => (hex.length - 2) / 2;
    this.order = 0;
    while (!reader.isAtEnd) {
      if (last[0] === Infinity) refuse(63, "behind infinity");
      const bound = reader.bound(), mode = reader.varint();
      if (before(bound, last)) refuse(63, "a bound falls");
      let high = low, piece = "0x";
      while (high < this.items.length && before(this.items[high], bound)) high++;
      const skip = () => { if (skipped) piece = concat([this.bound(last), "0x00"]); skipped = false; };
      if (mode === 0) skipped = true;
      else if (mode === 1) {
        const theirs = hexlify(reader.take(16));
        if (isFull || theirs === fingerprint(this.ids(low, high))) skipped = true;
        else skip(), piece = concat([piece, this.split(low, high, bound)]);
      } else if (mode === 2) {
        const theirs = new Set(reader.ids()), mine = this.ids(low, high);
        if (this.isInitiator) {
          skipped = true;
          for (const one of mine) if (!theirs.delete(one)) this.have.add(one);
          for (const one of theirs) this.need.add(one);
        } else if (!isFull) {
          skip();
          let end = bound, given = 0;
          for (; given < mine.length; given++) {
            if (this.isTooLong(size(out) + 32 * given)) { high = low + given; end = [this.items[high][0], this.items[high][1].slice(2)]; break; }
          }
          piece = concat([piece, this.list(end, mine.slice(0, given))]);
          out = concat([out, piece]), piece = "0x";
        }
      } else refuse(63, "mode");
      if (!isFull && this.isTooLong(size(out) + size(piece))) {
        out = concat([out, this.bound(INFINITY), "0x01", fingerprint(this.ids(high))]);
        isFull = true;
      } else if (!isFull) out = concat([out, piece]);
      low = high, last = bound;
    }
    return out;
  }
}
