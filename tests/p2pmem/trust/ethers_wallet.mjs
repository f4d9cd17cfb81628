// A wallet of ethers: typed data, one JSON object a line, in; signatures, one a line, out.
//     node ethers_wallet.mjs NPM-DIRECTORY SECRET < typed-data
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [, , directory, secret] = process.argv;
const { Wallet } = createRequire(`${directory}/`)("ethers");
const wallet = new Wallet(secret);

for await (const line of createInterface({ input: process.stdin })) {
  const { domain, types, message } = JSON.parse(line);
  delete types.EIP712Domain; // ethers derives it from the domain
  console.log(await wallet.signTypedData(domain, types, message));
}
