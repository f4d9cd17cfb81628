// Compiles the Solidity standard JSON on stdin with solcjs; standard JSON comes out. Nothing is read from disk or network.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const solc = createRequire(import.meta.url)("solc");
const input = readFileSync(0, "utf8");
const output = JSON.parse(solc.compile(input, { import: () => ({ error: "the contract imports nothing" }) }));
output.compiler = solc.version();
process.stdout.write(JSON.stringify(output));
