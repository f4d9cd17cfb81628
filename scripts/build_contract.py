#!/usr/bin/env python3
"""Compiles the contract and writes its artifact, so that anybody can see that the bytecode comes from the source.

    scripts/build_contract.py           writes p2pmem/chain/contract/Anchor.json
    scripts/build_contract.py --check   writes nothing; exits 1 if the artifact is not what the compiler makes

Needs Node.js and `npm ci --ignore-scripts` in devnet/p2pmem_devnet/npm. Uses only the standard library otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = ROOT / "p2pmem" / "chain" / "contract"
NPM = ROOT / "devnet" / "p2pmem_devnet" / "npm"
SOURCE_NAME = "Anchor.sol"

# Everything that decides the bytecode. No metadata hash is appended: two builds of one source are equal bytes.
SETTINGS: dict[str, Any] = {
    "optimizer": {"enabled": True, "runs": 200},
    "evmVersion": "cancun",
    "viaIR": True,
    "metadata": {"appendCBOR": False, "bytecodeHash": "none"},
}


class BuildError(Exception):
    """The contract could not be compiled; the text says what to do."""


def build() -> str:
    """The text of the artifact, as it must stand in the repository."""
    node = shutil.which("node")
    if node is None:
        raise BuildError("Node.js was not found: install version 20 or newer")
    if not (NPM / "node_modules" / "solc").is_dir():
        raise BuildError(f"solc is not installed: run `npm ci --ignore-scripts` in {NPM.relative_to(ROOT)}")
    source = (CONTRACT / SOURCE_NAME).read_bytes()
    standard_input = {
        "language": "Solidity",
        "sources": {SOURCE_NAME: {"content": source.decode()}},
        "settings": SETTINGS | {"outputSelection": {SOURCE_NAME: {"Anchor": ["abi", "evm.bytecode.object"]}}},
    }
    ran = subprocess.run(
        [node, str(NPM / "compile.mjs")], input=json.dumps(standard_input).encode(), capture_output=True, timeout=120
    )
    if ran.returncode != 0:
        raise BuildError(f"the compiler ended with {ran.returncode}: {ran.stderr.decode(errors='replace')[-2000:]}")
    output = json.loads(ran.stdout)
    complaints = [found["formattedMessage"] for found in output.get("errors", [])]
    if complaints:
        raise BuildError("the compiler is not content:\n" + "\n".join(complaints))
    contract = output["contracts"][SOURCE_NAME]["Anchor"]
    artifact = {
        "contract": "Anchor",
        "compiler": output["compiler"],
        "settings": SETTINGS,
        "source": SOURCE_NAME,
        "source_sha256": hashlib.sha256(source).hexdigest(),
        "abi": contract["abi"],
        "bytecode": "0x" + contract["evm"]["bytecode"]["object"],
    }
    return json.dumps(artifact, indent=2, sort_keys=True) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the contract and write its artifact.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    target = CONTRACT / "Anchor.json"
    try:
        text = build()
    except BuildError as error:
        print(f"build_contract: {error}", file=sys.stderr)
        return 2
    if not check:
        target.write_text(text)
        print(
            f"wrote {target.relative_to(ROOT)}: {(len(json.loads(text)['bytecode']) - 2) // 2} bytes of creation code"
        )
        return 0
    if not target.is_file() or target.read_text() != text:
        print(
            f"{target.relative_to(ROOT)} is not what the compiler makes: run scripts/build_contract.py", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
