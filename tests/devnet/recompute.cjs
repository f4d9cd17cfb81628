// Recomputes a root from RDF, and checks a proof of membership, with code of others: rdf-canonize and OpenZeppelin.
const { canonize } = require("rdf-canonize");
const { StandardMerkleTree } = require("@openzeppelin/merkle-tree");
const { keccak256, toUtf8Bytes } = require("ethers");

const { quads, statement, proof } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const leaf = line => [keccak256(toUtf8Bytes(line))];

canonize(quads, { algorithm: "RDFC-1.0", inputFormat: "application/n-quads", maxWorkFactor: Infinity }).then(text => {
  const lines = text.split("\n").filter(line => line).map(line => line + "\n");
  const tree = StandardMerkleTree.of(lines.map(leaf), ["bytes32"]);
  const proven = StandardMerkleTree.verify(tree.root, ["bytes32"], leaf(statement), proof);
  process.stdout.write(JSON.stringify({ content: text, root: tree.root, leaves: lines.length, proven }));
});
