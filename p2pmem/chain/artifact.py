"""The compiled contract, as it ships in the package. `scripts/build_contract.py` makes it and checks it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Artifact:
    """The interface (in Solidity's JSON form) and the creation code, to which the network's id is appended."""

    abi: tuple[dict[str, Any], ...]
    bytecode: bytes
    compiler: str
    source_sha256: str


@cache
def load_artifact() -> Artifact:
    """Read the artifact; a few milliseconds, once per process."""
    text = files("p2pmem.chain").joinpath("contract", "Anchor.json").read_text("utf-8")
    held = json.loads(text)
    return Artifact(
        abi=tuple(held["abi"]),
        bytecode=bytes.fromhex(held["bytecode"].removeprefix("0x")),
        compiler=held["compiler"],
        source_sha256=held["source_sha256"],
    )
