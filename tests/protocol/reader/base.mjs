// What everything else stands on: refusals, strict CBOR (README.md 2), fields, names (1) and signatures (5).
// Written from README.md, p2pmem.cddl and the vectors alone, without a look at the package.

import { createHash } from "node:crypto";
import { ethers } from "ethers";

export { ethers };
export const { keccak256, getBytes, hexlify, concat, toUtf8Bytes, AbiCoder } = ethers;
export const ZERO = "0x" + "00".repeat(32);
export const sha256 = (bytes) => hexlify(createHash("sha256").update(getBytes(bytes)).digest());
export const ascending = (list) => list.every((value, i) => i === 0 || list[i - 1] < value);
export const chars = (text) => [...text].length;

export class Refused extends Error {
  constructor(code, why) { super(`${code} ${why}`); this.code = code; }
}
export function refuse(code, why = "") { throw new Refused(code, why); }

export function utf8(bytes) {                       // undefined for what is not UTF-8
  try { return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes); } catch { return undefined; }
}

// CBOR

const DEPTH_MAX = 16, VALUES_MAX = 500_000;

export function decode(data, bytesMax = Infinity) {
  if (data.length > bytesMax) refuse(1, `${data.length} bytes`);
  let at = 0, values = 0;
  const room = (n) => { if (n > data.length - at) refuse(2, "the data ends early"); };
  const take = (n) => { room(n); at += n; return data.subarray(at - n, at); };
  function value(depth) {
    if (++values > VALUES_MAX) refuse(1, "too many values");
    const first = take(1)[0], major = first >> 5, info = first & 31;
    if (major === 6) refuse(first === 0xc2 || first === 0xc3 ? 10 : 6);
    if (info === 31) refuse(8);
    if (major === 7) {
      if (info >= 20 && info <= 22) return [false, true, null][info - 20];
      refuse(info >= 25 && info <= 27 ? 7 : 20, "a simple value");
    }
    if (info > 27) refuse(2, "a reserved length");
    let number = BigInt(info);
    if (info >= 24) {
      const size = 1 << (info - 24);
      number = BigInt(hexlify(take(size)));
      if (number < (size === 1 ? 24n : 1n << BigInt(4 * size))) refuse(3, "not the shortest form");
    }
    const small = number <= 0x1fffffffffffffn ? Number(number) : number;
    if (major === 0) return small;
    if (major === 1) return typeof small === "number" && small < 2 ** 52 ? -1 - small : -1n - number;
    if (major === 2 || major === 3) {
      const bytes = take(small);
      if (major === 2) return hexlify(bytes);
      return { text: utf8(bytes) ?? refuse(11) };
    }
    if (depth === DEPTH_MAX) refuse(9);
    room(major === 4 ? number : 2n * number);
    if (major === 4) return Array.from({ length: small }, () => value(depth + 1));
    const map = new Map();
    let before = null, kind = null;
    for (let i = 0; i < small; i++) {
      const start = at, key = value(depth + 1), encoded = hexlify(data.subarray(start, at));
      const type = key?.text !== undefined ? "text" : (typeof key === "number" || typeof key === "bigint") && key >= 0 ? "uint" : refuse(20, "a key");
      if (kind !== null && kind !== type) refuse(20, "keys of two types");
      if (encoded === before) refuse(4);
      if (before !== null && encoded < before) refuse(3, "keys out of order");
      before = encoded, kind = type;
      map.set(type === "text" ? "text:" + key.text : key, value(depth + 1));
    }
    return map;
  }
  const result = value(0);
  if (at < data.length) refuse(5);
  return result;
}

export function encode(value) {                     // a value as decode gives it
  const head = (major, number) => {
    number = BigInt(number);
    const size = number < 24n ? 0 : number < 256n ? 1 : number < 65536n ? 2 : number < 1n << 32n ? 4 : 8;
    if (size === 0) return getBytes(Uint8Array.of((major << 5) | Number(number)));
    return getBytes(concat([Uint8Array.of((major << 5) | (24 + Math.log2(size))), "0x" + number.toString(16).padStart(2 * size, "0")]));
  };
  if (value === null || typeof value === "boolean") return Uint8Array.of(value === null ? 0xf6 : value ? 0xf5 : 0xf4);
  if (typeof value === "number" || typeof value === "bigint") return value < 0 ? head(1, -1n - BigInt(value)) : head(0, value);
  if (typeof value === "string") return getBytes(concat([head(2, (value.length - 2) / 2), value]));
  if (value.text !== undefined) { const bytes = toUtf8Bytes(value.text); return getBytes(concat([head(3, bytes.length), bytes])); }
  if (Array.isArray(value)) return getBytes(concat([head(4, value.length), ...value.map(encode)]));
  const pairs = [...value].map(([key, one]) => [encode(typeof key === "string" ? { text: key.slice(5) } : key), encode(one)]);
  return getBytes(concat([head(5, value.size), ...pairs.flat()]));
}

// Fields. A check takes a decoded value and gives what the vectors show, or refuses.

const isNumber = (v) => typeof v === "number" || typeof v === "bigint";
export const integer = (low, high) => (v) => (isNumber(v) && v >= low && v <= high ? v : refuse(21, `not ${low}..${high}`));
export const bytes = (low, high = low) => (v) =>
  typeof v === "string" && v.length >= 2 + 2 * low && v.length <= 2 + 2 * high ? v : refuse(21, `not ${low}..${high} bytes`);
export const text = (low, high) => (v) =>
  v?.text !== undefined && chars(v.text) >= low && chars(v.text) <= high ? v.text : refuse(21, `not text of ${low}..${high}`);
export const named = (is) => (v) => (v?.text === undefined ? refuse(21, "not text") : is(v.text) ? v.text : refuse(22, v.text));
export const list = (low, high, check) => (v) => {
  if (!Array.isArray(v) || v.length < low || v.length > high) refuse(21, `not a list of ${low}..${high}`);
  return v.map(check);
};
export const inOrder = (check, key = (v) => v) => (v) => {
  const all = check(v);
  return ascending(all.map(key)) ? all : refuse(21, "out of order");
};
export const tuple = (...checks) => (v) => (Array.isArray(v) && v.length === checks.length ? checks.map((check, i) => check(v[i])) : refuse(20, "not that list"));
export const map = (fields) => (v) => {             // fields: number: [name, check, is optional]
  if (!(v instanceof Map)) refuse(20, "not a map");
  for (const key of v.keys()) if (!(key in fields)) refuse(20, `field ${key}`);
  const found = {};
  for (const [key, [name, check, optional]] of Object.entries(fields)) {
    if (v.has(Number(key))) found[name] = check(v.get(Number(key)));
    else if (!optional) refuse(20, `no ${name}`);
  }
  return found;
};
export const inside = (check, high) => (v) => { const held = bytes(0, high)(v); check(decode(getBytes(held))); return held; };
export const hash = bytes(32), address = bytes(20), signature = bytes(65);
export const TIME_MAX = 253402300799999;
export const uint32 = integer(0, 2 ** 32 - 1), uint64 = integer(0, 2n ** 64n - 1n), positive = integer(1, 2 ** 32 - 1);
export const instant = integer(0, TIME_MAX);
export const format = (v) => (v === 1 ? v : refuse(23, "format"));

// Names

export const isSlug = (s) => /^[a-z0-9][a-z0-9._-]{0,63}$/.test(s) && !s.includes("\n");
export const isAsset = (s) => /^[A-Za-z0-9][A-Za-z0-9._~-]{0,127}$/.test(s) && !s.includes("\n");
export const isSubgraph = (s) => s === "" || (s.length <= 128 && !s.includes("\n") &&
  s.split("/").every((part) => /^[a-z0-9][a-z0-9.-]*$/.test(part) && part !== "assertion" && !/^0x[0-9a-f]{40}$/.test(part)));
export const slug = named(isSlug), asset = named(isAsset), subgraph = named(isSubgraph);
export const label = text(0, 64), reason = text(0, 1000), peer = text(1, 128);

export function readAddress(written) {
  const s = written.startsWith("did:dkg:agent:") ? written.slice(14) : written;
  if (!/^0x[0-9a-fA-F]{40}$/.test(s) || s.length !== 42) refuse(22, "an address");
  const digits = s.slice(2);
  if (digits !== digits.toLowerCase() && digits !== digits.toUpperCase() && ethers.getAddress(s.toLowerCase()) !== s) refuse(22, "checksum");
  return s.toLowerCase();
}
const abi = AbiCoder.defaultAbiCoder();
export const networkId = (name) => keccak256(toUtf8Bytes(name));
export const graphId = (creator, slugText) => keccak256(abi.encode(["address", "bytes32"], [creator, keccak256(toUtf8Bytes(slugText))]));
export const quorumId = (graph, q) => (q.m === 0 ? ZERO
  : keccak256(abi.encode(["bytes32", "uint32", "uint16", "address[]"], [graph, q.serial, q.m, q.verifiers])));

// Signatures

const TYPES = `Seal(bytes32 graph,string subgraph,string asset,uint32 version,bytes32 root,uint32 leaves,bytes32 previous,address author)
Envelope(bytes32 graph,uint8 kind,address author,bytes32 delegation,uint32 roster,uint64 issuedAt,uint64 expiresAt,bytes body)
Endorsement(bytes32 graph,string asset,uint32 version,bytes32 root,bytes32 seal,address author,uint8 decision,string reason,address signer)
Verdict(bytes32 graph,bytes32 quorum,string asset,uint32 version,bytes32 root,bytes32 seal,address author,uint8 decision,uint8 method,bytes32 reason,address signer)
Roster(bytes32 graph,uint32 version,uint32 term,bytes32 parent,uint32 parentTerm,address owner,bytes32 quorum,uint32 quorumSerial,bytes32 members,bytes32 limits,bytes32 kept,bytes32 certificates,address signer)
RegisterQuorum(bytes32 graph,bytes32 quorum,uint32 serial)
ActFor(address principal,address agent,uint32 serial,string label,uint8 rights)
Carry(address agent,string peer,uint32 serial,uint64 until)
Prepare(bytes32 graph,bytes32 parent,string change,address approver)
Enter(bytes32 graph,string peer,bytes proof,string label,uint64 at)`.split("\n");
export const STRUCTS = Object.fromEntries(TYPES.map((written) => {
  const [, name, fields] = /^(\w+)\((.*)\)$/.exec(written);
  return [name, { written, fields: fields.split(",").map((field) => ({ type: field.split(" ")[0], name: field.split(" ")[1] })) }];
}));
export const domain = (network) => ({ name: "p2pmem", version: "1", salt: network });
export const digest = (network, struct, values) =>
  ethers.TypedDataEncoder.hash(domain(network), { [struct]: STRUCTS[struct].fields }, values);

const ORDER = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n;
export function checkForm(written) {
  if (written.length !== 132) refuse(30, "length");
  const r = BigInt(written.slice(0, 66)), s = BigInt("0x" + written.slice(66, 130)), v = parseInt(written.slice(130), 16);
  if (r === 0n || r >= ORDER || s === 0n || s > ORDER / 2n || (v !== 27 && v !== 28)) refuse(30, "form");
  return written;
}
export function signerOf(signed, written) {
  checkForm(written);
  try { return ethers.recoverAddress(signed, written).toLowerCase(); } catch { refuse(30, "no point"); }
}
export function checkSignature(signed, written, signer) {
  const found = signerOf(signed, written);
  if (found !== signer) refuse(31, `${found} is not ${signer}`);
}
