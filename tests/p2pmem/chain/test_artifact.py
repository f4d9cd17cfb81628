"""The bytecode that ships comes from the source that ships."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from p2pmem.chain.artifact import load_artifact

ROOT = Path(__file__).parents[3]
CONTRACT = ROOT / "p2pmem" / "chain" / "contract"


@pytest.mark.node
def test_the_artifact_is_what_the_compiler_makes_of_the_source(npm: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build_contract.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr


def test_the_artifact_names_the_source_it_was_made_of() -> None:
    artifact = load_artifact()
    assert artifact.source_sha256 == hashlib.sha256((CONTRACT / "Anchor.sol").read_bytes()).hexdigest()
    assert artifact.compiler.startswith("0.8.37+")


def test_the_contract_fits_into_a_block_and_its_interface_is_whole() -> None:
    artifact = load_artifact()
    assert 1_000 < len(artifact.bytecode) < 24_576
    functions = {each["name"] for each in artifact.abi if each["type"] == "function"}
    assert functions == {
        "anchor",
        "anchoredAt",
        "attest",
        "attestationOf",
        "domainSeparator",
        "networkId",
        "provesAnchored",
        "provesMember",
        "quorumOf",
        "registerQuorum",
    }


def test_the_npm_lock_pins_every_package_by_its_hash_and_names_no_registry() -> None:
    directory = ROOT / "devnet" / "p2pmem_devnet" / "npm"
    lock = json.loads((directory / "package-lock.json").read_text())
    wanted = json.loads((directory / "package.json").read_text())
    for version in (wanted["dependencies"] | wanted["devDependencies"]).values():
        assert version[0].isdigit(), "versions are exact"
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages
    for name, package in packages.items():
        assert package.get("integrity", "").startswith("sha512-"), name
        assert "resolved" not in package, name
