// What this reader says of any bytes: for each [name of a form, bytes] of a file the code of the refusal, 0 for what is read.
//
//     node judge.mjs PATH/TO/vectors PATH/TO/cases

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Refused, decode, getBytes } from "./base.mjs";
import { fromJson, readCertificate } from "./certificates.mjs";
import { checkContent } from "./content.mjs";
import { readItem } from "./items.mjs";
import { checkTogether, readHeader, readPart } from "./rosters.mjs";
import * as talk from "./talk.mjs";

const [directory, cases] = process.argv.slice(2);
const { parts } = JSON.parse(readFileSync(join(directory, "rosters.json"), "utf8")).rosters[1];
const part = (name) => (data) => {
  const { members, limits } = { members: parts.members.fields, limits: parts.limits.fields, [name]: readPart(name, data) };
  checkTogether({ members, limits });
};
const held = Array.from({ length: 500 }, (_, n) => [n, "0x" + n.toString(16).padStart(64, "0")]);
const READERS = {
  cbor: (data) => decode(data, 66560), content: checkContent, item: readItem, header: readHeader, members: part("members"), limits: part("limits"), kept: part("kept"),
  certificates: part("certificates"), greeting: talk.readGreeting, proof: talk.readProof, ask: talk.readAsk, answer: talk.readAnswer, message: talk.readMessage,
  "certificate-json": (data) => readCertificate(fromJson(Buffer.from(data).toString("utf8"))), round: (data) => new talk.Round(held, false, 131072).answer(data),
};
const codes = JSON.parse(readFileSync(cases, "utf8")).map(([name, bytes]) => {
  try {
    READERS[name](getBytes(bytes));
    return 0;
  } catch (error) {
    if (error instanceof Refused) return error.code;
    throw error;
  }
});
console.log(JSON.stringify(codes));
