"""A chain for a test, people with keys, and statements signed by eth-account, which is not our code."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_account.signers.local import LocalAccount
from eth_utils.crypto import keccak
from p2pmem_devnet.anvil import CHAIN_ID, NPM_DIRECTORY, Anvil, AnvilMissingError, find_anvil, start_anvil

from p2pmem.chain import Approval, ChainSettings, QuorumPreimage, QuorumRegistration, Subject
from p2pmem.chain.client import EvmChain, open_chain

NETWORK = bytes.fromhex("a7" * 32)
SLUG = "soil-findings"
REASON = keccak(text="the numbers match the source")

DOMAIN = (("name", "string"), ("version", "string"), ("salt", "bytes32"))
VERDICT = (
    *(("graph", "bytes32"), ("quorum", "bytes32"), ("asset", "string"), ("version", "uint32"), ("root", "bytes32")),
    *(("seal", "bytes32"), ("author", "address")),
    *(("decision", "uint8"), ("method", "uint8"), ("reason", "bytes32"), ("signer", "address")),
)
REGISTER_QUORUM = (("graph", "bytes32"), ("quorum", "bytes32"), ("serial", "uint32"))


def address_of(account: LocalAccount) -> bytes:
    return bytes.fromhex(account.address[2:])


def keys(count: int, seed: str = "verifier") -> list[LocalAccount]:
    """Accounts in ascending order of address, the same in every run."""
    accounts = [Account.from_key(keccak(text=f"{seed} {number}")) for number in range(count)]
    return sorted(accounts, key=address_of)


def sign_typed(
    account: LocalAccount, name: str, shape: Sequence[tuple[str, str]], message: dict[str, Any], salt: bytes = NETWORK
) -> bytes:
    typed = {
        "types": {
            "EIP712Domain": [{"name": each, "type": kind} for each, kind in DOMAIN],
            name: [{"name": each, "type": kind} for each, kind in shape],
        },
        "primaryType": name,
        "domain": {"name": "p2pmem", "version": "1", "salt": salt},
        "message": message,
    }
    return bytes(account.sign_message(encode_typed_data(full_message=typed)).signature)


@dataclass(frozen=True)
class Graph:
    """A context graph with a creator, an author and verifiers, able to sign what the contract reads."""

    creator: LocalAccount
    verifiers: list[LocalAccount]
    author: LocalAccount = field(default_factory=lambda: keys(1, "author")[0])
    slug: str = SLUG

    @property
    def id(self) -> bytes:
        return bytes(keccak(encode(["address", "bytes32"], [self.creator.address, keccak(text=self.slug)])))

    def quorum(self, m: int, serial: int = 1) -> QuorumPreimage:
        return QuorumPreimage(serial, m, tuple(address_of(each) for each in self.verifiers))

    def quorum_id(self, quorum: QuorumPreimage) -> bytes:
        kinds = ["bytes32", "uint32", "uint16", "address[]"]
        return bytes(keccak(encode(kinds, [self.id, quorum.serial, quorum.m, list(quorum.verifiers)])))

    def registration(self, quorum: QuorumPreimage, *, by: LocalAccount | None = None) -> QuorumRegistration:
        message = {"graph": self.id, "quorum": self.quorum_id(quorum), "serial": quorum.serial}
        signature = sign_typed(by or self.creator, "RegisterQuorum", REGISTER_QUORUM, message)
        return QuorumRegistration(address_of(self.creator), bytes(keccak(text=self.slug)), quorum, signature)

    def subject(self, **changes: Any) -> Subject:
        made = Subject(self.id, "soil/ph-2024", 3, keccak(text="content"), keccak(text="seal"), address_of(self.author))
        return replace(made, **changes)

    def approval(
        self,
        signer: LocalAccount,
        quorum: QuorumPreimage,
        subject: Subject,
        *,
        decision: int = 1,
        salt: bytes = NETWORK,
    ) -> Approval:
        message = {
            "graph": subject.graph,
            "quorum": self.quorum_id(quorum),
            "asset": subject.asset,
            "version": subject.version,
            "root": subject.root,
            "seal": subject.seal,
            "author": "0x" + subject.author.hex(),
            "decision": decision,
            "method": 3,
            "reason": REASON,
            "signer": signer.address,
        }
        return Approval(address_of(signer), 3, REASON, sign_typed(signer, "Verdict", VERDICT, message, salt))


def needs(tool: str, error: Exception) -> None:
    """Skip for want of a tool; in continuous integration that is a failure."""
    words = f"{tool} is missing: {error}"
    if os.environ.get("CI"):
        pytest.fail(words)
    pytest.skip(words)


@pytest.fixture(scope="session")
def anvil_binary() -> Path:
    try:
        return find_anvil()
    except AnvilMissingError as error:
        needs("anvil", error)
        raise


@pytest.fixture
async def anvil(anvil_binary: Path, tmp_path: Path) -> AsyncIterator[Anvil]:
    async with start_anvil(tmp_path) as running:
        yield running


@dataclass
class OnChain:
    """A chain with our contract, and clients of it that each pay for themselves."""

    anvil: Anvil
    contract: bytes
    stack: AsyncExitStack

    def settings(self, **changes: Any) -> ChainSettings:
        made = ChainSettings(
            url=self.anvil.url, chain_id=CHAIN_ID, contract=self.contract, network=NETWORK, poll_seconds=0.01
        )
        return replace(made, **changes)

    async def client(self, **changes: Any) -> EvmChain:
        signer = await self.anvil.new_account()
        return await self.stack.enter_async_context(open_chain(self.settings(**changes), signer))


@pytest.fixture
async def on_chain(anvil: Anvil) -> AsyncIterator[OnChain]:
    contract = await anvil.deploy_anchor(NETWORK)
    async with AsyncExitStack() as stack:
        yield OnChain(anvil, contract, stack)


@pytest.fixture
async def chain(on_chain: OnChain) -> EvmChain:
    return await on_chain.client()


@pytest.fixture(scope="session")
def graph() -> Graph:
    return Graph(creator=keys(1, "creator")[0], verifiers=keys(5))


@pytest.fixture(scope="session")
def stranger() -> LocalAccount:
    return keys(1, "stranger")[0]


@pytest.fixture(scope="session")
def npm() -> Path:
    if shutil.which("node") is None:
        needs("Node.js", FileNotFoundError("node"))
    if not (NPM_DIRECTORY / "node_modules" / "solc").is_dir():
        needs("an npm package", FileNotFoundError(f"run `npm ci --ignore-scripts` in {NPM_DIRECTORY}"))
    return NPM_DIRECTORY
