// The set of a graph (README.md 8 and 9) and trust (10), computed anew each time: as literally as the text has it

import { ZERO, getBytes, keccak256, quorumId, refuse } from "./base.mjs";
import { ROLE } from "./rosters.mjs";
import { checkItemSignatures, readItem } from "./items.mjs";
import { checkContent, contentRoot } from "./content.mjs";

const MINUTE = 60_000, DAY = 86_400_000, FOREVER = 2 ** 53 - 1;
const RIGHT = { share: 1, publish: 2, anchor: 2, retract: 4, propose: 8 };
const LEVELS = ["Rejected", "SelfAttested", "Endorsed", "PartiallyVerified", "ConsensusVerified"];
const isSealed = (item) => item.kindName === "share" || item.kindName === "publish";
const isEvidence = (item) => item.kindName === "endorse" || item.kindName === "verdict";
const isOf = (...kinds) => (item) => kinds.includes(item.kindName);
const end = (item) => item.expires_at || FOREVER;
const subject = ({ author, name, version, root, seal }) => [author, name, version, root, seal].join(" ");
const ofSeal = (item) => subject({ author: item.author, ...item.body.seal, seal: item.sealDigest });
const meaning = (item) => [item.kindName, item.signer, subject(item), item.decision, item.quorum, item.method].join(" ");
const inOrder = (items) => [...items].sort((a, b) => a.issued_at - b.issued_at || (a.id < b.id ? -1 : 1));
const lowest = (ids) => ids.reduce((a, b) => (a < b ? a : b));

// Whether a retract is about this share or publish: the author's and the owner's take back all, a principal's what was said for it
const covers = (retract, item) => retract.body.author === item.author && retract.body.name === item.body.seal.name &&
  (retract.body.shown === undefined || item.principal === retract.author);

export class Memory {
  // `named`: the quorums that the head and the headers before it name
  constructor(header, parts, named) {
    this.header = header, this.parts = parts, this.limits = parts.limits, this.known = new Map();
    this.named = new Set(named);
    this.roles = new Map(parts.members.map(([who, roles]) => [who, roles]));
    this.certified = new Set(parts.certificates.flatMap((c) => c[6]));
    this.listed = new Set([...parts.kept, ...this.certified]);
    this.quorum = { serial: parts.limits.quorum[0], m: parts.limits.quorum[1], verifiers: parts.limits.quorum[2] };
  }
  isListed(item) { return this.listed.has(item.id); }
  isMember(who) { return this.roles.has(who) || who === this.header.fields.owner; }

  // Why the head does not let an item be in the set, or 0
  problem(item) {
    const { kindName, principal } = item, roles = this.roles.get(principal) ?? 0, { owner, quorum } = this.header.fields;
    if (isEvidence(item)) {
      if (this.isListed(item)) return 0;
      if (kindName === "endorse") return roles & ROLE.endorser ? 0 : 103;
      return item.quorum !== quorum ? 110 : this.quorum.verifiers.includes(item.signer) ? 0 : 103;
    }
    const longest = { share: this.limits.ttl_max, propose: 30 * DAY, ack: 366 * DAY }[kindName];
    if (item.expires_at - item.issued_at > longest) return 106;
    if (kindName === "propose" && item.body.quorum !== quorum) return 110;
    if (this.isListed(item)) return 0;
    if (isSealed(item)) {
      const { content } = item.body;
      if ((Array.isArray(content) ? content[1] : (content.length - 2) / 2) > this.limits.quotas[3]) return 107;
    }
    if (item.delegation && !((RIGHT[kindName] ?? 0) & item.delegation.rights)) return 103;
    const isAllowed = isOf("ack", "revoke")(item) ? this.isMember(principal) : kindName !== "retract" ? (roles & ROLE.writer) > 0
      : item.body.author === item.author ? this.isMember(principal)
      : !item.delegation && (item.body.shown ? this.isMember(item.author) : item.author === owner);
    return isAllowed ? 0 : 103;
  }

  // The steps of 9.1: rights; revokes, then retracts, within their quota; erasure; quotas; evidence
  decide(t, items = [...this.known.values()]) {
    const live = items.filter((item) => end(item) > t || isEvidence(item)), rightful = live.filter((item) => this.problem(item) === 0);
    const room = new Map(), cutsMax = this.limits.quotas[4];
    const first = (cuts) => inOrder(cuts).filter((cut) => {
      if (this.isListed(cut)) return true;
      const used = room.get(cut.principal) ?? 0;
      if (used < cutsMax) room.set(cut.principal, used + 1);
      return used < cutsMax;
    });
    const revokes = first(rightful.filter(isOf("revoke")));
    const retracts = first(rightful.filter((item) => isOf("retract")(item) && !isRevoked(item, revokes)));
    const isErased = (item) => isSealed(item) &&
      retracts.some((r) => r.body.mode === 2 && r.body.version === item.body.seal.version && covers(r, item));
    const rest = rightful.filter((item) => !isEvidence(item) && !isOf("revoke", "retract")(item) && !isErased(item) && !isRevoked(item, revokes));
    const used = new Map(), [bytesMax, liveMax, durableMax] = this.limits.quotas;
    const counted = inOrder(rest).filter((item) => {
      if (this.isListed(item)) return true;
      const [bytes, lives, durables] = used.get(item.principal) ?? [0, 0, 0], { content } = item.body;
      const next = [bytes + item.size + (Array.isArray(content) ? content[1] : 0), lives + (item.expires_at ? 1 : 0), durables + (item.expires_at ? 0 : 1)];
      const fits = next[0] <= bytesMax && next[1] <= liveMax && next[2] <= durableMax;
      if (fits) used.set(item.principal, next);
      return fits;
    });
    const subjects = new Set(counted.filter(isSealed).map(ofSeal)), evidence = rightful.filter(isEvidence);
    const chosen = evidence.filter((item) => {
      const rivals = evidence.filter((other) => meaning(other) === meaning(item)).map((other) => other.id), kept = rivals.filter((id) => this.certified.has(id));
      return kept.length > 0 ? kept.includes(item.id) : lowest(rivals) === item.id;
    });
    return { set: [...revokes, ...retracts, ...counted, ...chosen.filter((item) => subjects.has(subject(item)))], revokes, subjects, isErased, chosen };
  }

  // Section 8
  admit(data, t) {
    const item = readItem(data);
    if (item.network !== this.header.fields.network) refuse(62);
    if (item.graph !== this.header.graph) refuse(101);
    if (this.known.has(item.id)) refuse(108);
    if (item.issued_at > t + 5 * MINUTE) refuse(105);
    if (!isEvidence(item) && end(item) <= t) refuse(104);
    const problem = this.problem(item);
    if (problem) refuse(problem);
    const before = this.decide(t);
    if (isRevoked(item, before.revokes)) refuse(111);
    if (isEvidence(item) && !before.subjects.has(subject(item))) refuse(109);
    if (before.isErased(item)) refuse(112);
    if (!this.decide(t, [...this.known.values(), item]).set.includes(item)) refuse(isEvidence(item) ? 114 : 107);
    checkItemSignatures(item);
    if (typeof item.body?.content === "string") checkSealed(item, getBytes(item.body.content));
    this.known.set(item.id, item);
    return item;
  }

  // 9.4
  reconciled(t) {
    const { set } = this.decide(t + MINUTE), ends = new Map();
    for (const item of set.filter(isSealed)) ends.set(ofSeal(item), Math.max(ends.get(ofSeal(item)) ?? 0, end(item)));
    return set.map((item) => [isEvidence(item) ? ends.get(subject(item)) : end(item), item.id]).sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : 1));
  }

  // 9.3: the versions of an asset, the highest first
  view(author, name, t) {
    const { set } = this.decide(t), sealed = set.filter((item) => isSealed(item) && item.author === author && item.body.seal.name === name);
    const retracts = set.filter((item) => item.kindName === "retract" && item.body.author === author && item.body.name === name);
    const places = new Map();
    for (const item of sealed) {
      const { version, root } = item.body.seal, seal = item.sealDigest;
      const place = places.get(ofSeal(item)) ?? { version, root, seal, ends: null, published: false };
      if (item.expires_at) place.ends = Math.max(place.ends ?? 0, item.expires_at);
      else place.published = true;
      places.set(ofSeal(item), place);
    }
    const all = [...places.values()].sort((a, b) => b.version - a.version || (a.seal < b.seal ? -1 : 1));
    for (const place of all) {
      const later = all.filter((other) => other.version < place.version && other.ends !== null && other.ends > (place.ends ?? Infinity));
      place.shared_until = later.length > 0 ? null : place.ends;
      place.counts = place.published || place.shared_until !== null;
    }
    return all.map((place) => {
      const { version, root, seal, published, shared_until } = place, of = sealed.filter((item) => item.body.seal.version === version);
      const hides = ({ body, author: by }) => {
        const isOwners = by !== body.author && body.shown === undefined;
        return version === body.version || (version < body.version && !isOwners && body.successor !== version);
      };
      const hiding = retracts.filter((r) => hides(r) && of.some((item) => covers(r, item)))
        .sort((a, b) => b.body.version - a.body.version || (a.id < b.id ? -1 : 1));
      const key = subject({ author, name, version, root, seal });
      const certificates = this.parts.certificates.filter((c) => key === c.slice(0, 5).join(" "))
        .map((c) => ({ quorum: { serial: c[5][0], m: c[5][1], verifiers: c[5][2] }, verdicts: c[6] }))
        .filter((c) => this.named.has(quorumId(this.header.graph, c.quorum)));
      const evidence = set.filter((item) => isEvidence(item) && subject(item) === key);
      const barred = [...new Set([author, ...of.map((item) => item.principal)])];
      const { level } = trust(this.header.graph, evidence, barred, this.quorum.m ? this.quorum : null, certificates);
      return { version, root, seal, published, shared_until, hidden_by: hiding[0]?.id ?? null, level,
        conflict: place.counts && all.filter((other) => other.version === version && other.counts).length > 1,
        visible: hiding.length === 0 && (shared_until !== null || published) };
    });
  }
}

// What is current at a floor, of the versions of a view
export function current(versions, floor) {
  const reaching = versions.filter((v) => v.visible && LEVELS.indexOf(v.level) >= LEVELS.indexOf(floor));
  return reaching.filter((v) => v.version === reaching[0].version).map((v) => [v.version, v.seal]);
}

function isRevoked(item, revokes) {
  if (!item.delegation) return false;
  const about = revokes.filter((r) => r.author === item.principal && r.body.agent === item.author)
    .sort((a, b) => b.body.serial - a.body.serial || (a.id < b.id ? -1 : 1));
  return about.length > 0 && item.delegation.serial <= about[0].body.serial && !about[0].body.kept.includes(item.id);
}

export function checkSealed(item, content) {
  const { seal, content: held } = item.body;
  if (Array.isArray(held) && (keccak256(content) !== held[0] || content.length !== held[1])) refuse(45);
  const lines = checkContent(content);
  if (lines.length !== seal.leaves || contentRoot(lines) !== seal.root) refuse(44);
}

// Trust of one (author, asset, version, root, seal): its evidence, the barred, the head's quorum, the certificates that the head lists

export function trust(graph, evidence, barred, quorum, certificates) {
  const ids = (items) => items.map((item) => item.id).sort();
  const verdicts = evidence.filter((item) => item.kindName === "verdict");
  const judge = (q) => {
    const id = q ? quorumId(graph, q) : ZERO, able = (q?.verifiers ?? []).filter((who) => !barred.includes(who));
    const best = able.map((who) => verdicts.filter((v) => v.signer === who && v.quorum === id)
      .sort((a, b) => a.decision - b.decision || b.method - a.method || (a.id < b.id ? -1 : 1))[0]).filter(Boolean);
    return { m: q?.m ?? 0, n: able.length, approvals: best.filter((v) => v.decision === 1), rejections: best.filter((v) => v.decision === 2) };
  };
  let shown = judge(quorum), complete = shown.m > 0 && shown.approvals.length >= shown.m;
  // Of what is complete the greatest M: at a tie the head's, then the lowest quorum id, then the first of the list
  const idOf = (c) => quorumId(graph, c.quorum);
  const [kept] = certificates.filter((c) => {
    const counting = verdicts.filter((v) => c.verdicts.includes(v.id) && v.quorum === idOf(c) && v.decision === 1 &&
      c.quorum.verifiers.includes(v.signer) && !barred.includes(v.signer));
    return new Set(counting.map((v) => v.signer)).size === c.quorum.m && c.verdicts.length === c.quorum.m;
  }).sort((a, b) => b.quorum.m - a.quorum.m || (idOf(a) < idOf(b) ? -1 : idOf(a) > idOf(b) ? 1 : 0));
  if (kept && (!complete || kept.quorum.m > shown.m)) {
    const under = judge(kept.quorum), signers = verdicts.filter((v) => kept.verdicts.includes(v.id)).map((v) => v.signer);
    const more = shown.rejections.filter((r) => !under.rejections.some((other) => other.signer === r.signer));
    shown = { ...under, approvals: under.approvals.filter((a) => signers.includes(a.signer)), rejections: [...under.rejections, ...more] };
    complete = true;
  }
  const endorsers = evidence.filter((item) => item.kindName === "endorse"), withdrawn = endorsers.filter((item) => item.decision === 2).map((item) => item.signer);
  const endorsements = endorsers.filter((item) => item.decision === 1 && !withdrawn.includes(item.signer) && !barred.includes(item.signer));
  const { m, n, approvals, rejections } = shown;
  const level = complete ? "ConsensusVerified" : rejections.length > 0 && rejections.length > n - m ? "Rejected"
    : approvals.length > 0 ? "PartiallyVerified" : endorsements.length > 0 ? "Endorsed" : "SelfAttested";
  return { level, m, n, approvals: ids(approvals), rejections: ids(rejections), endorsements: ids(endorsements) };
}
