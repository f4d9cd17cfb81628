"""The chain as it is: web3 for the encoding, our provider for the wire, and no belief in what a server says.

Importing this module imports web3 (most of a second), so only who opens a chain does.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import trio
from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from hexbytes import HexBytes
from p2pmem_protocol.errors import MisuseError
from web3 import AsyncWeb3
from web3.exceptions import (
    BlockNotFound,
    ContractLogicError,
    TransactionNotFound,
)
from web3.types import BlockIdentifier, FilterParams, TxParams

from p2pmem.chain import transactions
from p2pmem.chain.answers import asking, contract_refused, hash32, number, rules_of
from p2pmem.chain.artifact import load_artifact
from p2pmem.chain.errors import (
    ChainRefusedError,
    ContractRefusedError,
    WrongChainError,
    shown_url,
)
from p2pmem.chain.nonces import Nonces
from p2pmem.chain.provider import HttpxProvider
from p2pmem.chain.seam import (
    ADDRESS_BYTES,
    HASH_BYTES,
    SIGNATURE_BYTES,
    UINT32_MAX,
    AnchorFact,
    Approval,
    AttestationFact,
    Chain,
    ChainSettings,
    ChainStatistics,
    F,
    Head,
    QuorumFact,
    QuorumPreimage,
    QuorumRegistration,
    SendOutcome,
    SignedTransaction,
    Subject,
    TransactionFact,
    TransactionState,
    expect_bytes,
    expect_range,
)
from p2pmem.chain.transactions import Fees, TransactionSigner

log = logging.getLogger(__name__)

GAS_MAX = 15_000_000
PROOF_LENGTH_MAX = 64
ANCHORED = bytes(keccak(text="Anchored(bytes32,address,uint32)"))


@asynccontextmanager
async def open_chain(settings: ChainSettings, signer: TransactionSigner) -> AsyncIterator[EvmChain]:
    """Open a chain, and close the connection with the block. Nothing is asked yet: one that is down can be opened."""
    provider = HttpxProvider(
        settings.url,
        request_seconds_max=settings.request_seconds_max,
        response_bytes_max=settings.response_bytes_max,
    )
    async with provider:
        yield EvmChain(settings, signer, provider)


async def deploy(
    url: str, *, chain_id: int, network: bytes, signer: TransactionSigner, poll_seconds: float = 0.05
) -> bytes:
    """Put the contract of this network on a chain and return its address, once it is in a block. For devnets and for
    who founds a network. Cancelled, the transaction may still be mined; deploying again makes another contract."""
    draft = ChainSettings(url=url, chain_id=chain_id, contract=bytes(ADDRESS_BYTES), network=network, confirmations=1)
    async with open_chain(draft, signer) as chain:
        await chain.expect_chain_id()
        transaction = await chain.prepare(load_artifact().bytecode + network, to=None)
        await chain.send(transaction)
        fact = await chain.wait_confirmed(transaction, poll_seconds=poll_seconds)
        if fact.state is not TransactionState.MINED or not fact.succeeded:
            raise ChainRefusedError(f"the contract was not created: {fact.state.value}; is there enough gas and money?")
        return await chain.created_by(transaction)


class EvmChain:
    """The `Chain` of p2pmem.chain.seam on an EVM chain with EIP-1559 fees. One sender; one object per sender."""

    def __init__(self, settings: ChainSettings, signer: TransactionSigner, provider: HttpxProvider) -> None:
        self.settings = settings
        self._signer = signer
        self._provider = provider
        self._web3: AsyncWeb3[HttpxProvider] = AsyncWeb3(provider, middleware=[])
        artifact = load_artifact()
        self._contract = self._web3.eth.contract(
            address=to_checksum_address(settings.contract), abi=cast(Any, list(artifact.abi))
        )
        self._rules = rules_of(artifact.abi)
        self._nonces = Nonces()
        self._nonce_lock = trio.Lock()
        self._checked = False
        self._prepared = 0
        self._sent = 0

    @property
    def sender(self) -> bytes:
        return bytes.fromhex(self._signer.address.removeprefix("0x"))

    def statistics(self) -> ChainStatistics:
        return ChainStatistics(
            requests=self._provider.requests,
            failures=self._provider.failures,
            prepared=self._prepared,
            sent=self._sent,
            reserved_nonces=len(self._nonces),
        )

    # Who is there

    async def expect_chain_id(self) -> None:
        """`WrongChainError` if the server is on another chain."""
        with self._asking("eth_chainId"):
            found = number(await self._web3.eth.chain_id)
        if found != self.settings.chain_id:
            raise WrongChainError(
                f"{shown_url(self.settings.url)} is chain {found} and the settings say "
                f"{self.settings.chain_id}: correct one of the two"
            )

    async def check(self) -> None:
        if self._checked:
            return
        await self.expect_chain_id()
        where = f"0x{self.settings.contract.hex()} on chain {self.settings.chain_id}"
        absent = f"there is no contract of ours at {where}: deploy it, or correct its address"
        with self._asking("eth_getCode"):
            code = await self._web3.eth.get_code(to_checksum_address(self.settings.contract))
        if not code:
            raise WrongChainError(absent)
        try:
            network = await self._call("networkId")
        except ContractRefusedError as error:
            raise WrongChainError(absent) from error
        if network != self.settings.network:
            raise WrongChainError(f"the contract at {where} is of another network: correct its address, or the network")
        self._checked = True

    # Following the chain

    async def head(self) -> Head:
        with self._asking("eth_getBlockByNumber"):
            block = await self._web3.eth.get_block("latest")
            return Head(number(block["number"]), hash32(block["hash"]))

    async def block_hash(self, block_number: int) -> bytes | None:
        with self._asking("eth_getBlockByNumber"):
            try:
                block = await self._web3.eth.get_block(block_number)
            except BlockNotFound:
                return None
            if number(block["number"]) != block_number:
                raise ValueError("another block than asked for")
            return hash32(block["hash"])

    # Preparing

    async def prepare_anchor(self, batch_root: bytes, count: int) -> SignedTransaction:
        expect_bytes(batch_root, HASH_BYTES, "the root of a batch")
        expect_range(count, 1, UINT32_MAX, "the number of seals in a batch")
        return await self._prepare_call("anchor", batch_root, count)

    async def prepare_register_quorum(self, registration: QuorumRegistration) -> SignedTransaction:
        v, r, s = _split(registration.signature)
        quorum = registration.quorum
        return await self._prepare_call(
            "registerQuorum",
            to_checksum_address(registration.creator),
            registration.slug_hash,
            quorum.serial,
            quorum.m,
            [to_checksum_address(verifier) for verifier in quorum.verifiers],
            v,
            r,
            s,
        )

    async def prepare_attest(
        self, subject: Subject, quorum: QuorumPreimage, approvals: Sequence[Approval]
    ) -> SignedTransaction:
        ordered = sorted(approvals, key=lambda approval: approval.signer)
        return await self._prepare_call(
            "attest",
            _subject_arguments(subject),
            quorum.serial,
            quorum.m,
            [to_checksum_address(verifier) for verifier in quorum.verifiers],
            [(to_checksum_address(each.signer), each.method, each.reason, *_split(each.signature)) for each in ordered],
        )

    async def _prepare_call(self, function: str, *arguments: Any) -> SignedTransaction:
        await self.check()
        data = bytes(HexBytes(self._contract.encode_abi(function, args=list(arguments))))
        return await self.prepare(data, to=self.settings.contract)

    async def prepare(self, data: bytes, *, to: bytes | None) -> SignedTransaction:
        """Sign a call of any contract, or with `to` None a creation. Cancelled, nothing is reserved."""
        gas = await self._estimate(data, to)
        fees = await self._fees()
        # Under the lock counts do not overtake each other, which `Nonces` relies on.
        async with self._nonce_lock:
            nonce = self._nonces.take(await self._count(self.sender, "pending"))
        try:
            transaction = transactions.sign(
                self._signer, chain_id=self.settings.chain_id, nonce=nonce, to=to, data=data, gas=gas, fees=fees
            )
        except BaseException:
            self._nonces.release(nonce)
            raise
        self._prepared += 1
        return transaction

    async def raise_fee(self, transaction: SignedTransaction) -> SignedTransaction:
        await trio.lowlevel.checkpoint()
        raised = transactions.with_higher_bid(transaction, self._signer, self.settings.fee_per_gas_max_wei)
        self._nonces.adopt(raised.nonce)
        return raised

    def release(self, transaction: SignedTransaction) -> None:
        self._nonces.release(transaction.nonce)

    async def _estimate(self, data: bytes, to: bytes | None) -> int:
        fields: TxParams = {"from": self._checksummed_sender(), "data": HexBytes(data)}
        if to is not None:
            fields["to"] = to_checksum_address(to)
        try:
            with self._asking("eth_estimateGas", passing=(ContractLogicError,)):
                used = number(await self._web3.eth.estimate_gas(fields))
        except ContractLogicError as error:
            raise contract_refused(error, self._rules) from error
        # More, since the state may be another when it is mined: a first write costs 22,100 more than a repeat.
        gas = used + used // 4 + 25_000
        if gas > GAS_MAX:
            raise MisuseError(f"the call would use {used} gas, and at most {GAS_MAX} is signed for: make it smaller")
        return gas

    async def _fees(self) -> Fees:
        with self._asking("fees"):
            block = await self._web3.eth.get_block("latest")
            base_wei = number(block.get("baseFeePerGas"))
            priority_wei = number(await self._web3.eth.max_priority_fee)
        return Fees.for_base(base_wei, priority_wei, self.settings.fee_per_gas_max_wei)

    # Sending and looking up

    async def send(self, transaction: SignedTransaction) -> SendOutcome:
        if transaction.sender != self.sender:
            raise MisuseError(
                f"the transaction is of 0x{transaction.sender.hex()}, and this node sends for 0x{self.sender.hex()}"
            )
        self._nonces.adopt(transaction.nonce)
        try:
            with self._asking("eth_sendRawTransaction"):
                if hash32(await self._web3.eth.send_raw_transaction(transaction.raw)) != transaction.hash:
                    raise ValueError("the hash of another transaction")
        except ChainRefusedError:
            # Each server has its own words for "already known", so the chain is asked instead of the words.
            if await self._is_known(transaction):
                return SendOutcome.ALREADY_KNOWN
            if await self._count(transaction.sender, "latest") > transaction.nonce:
                return SendOutcome.NONCE_PASSED
            raise
        self._sent += 1
        log.info("chain.transaction.sent", extra={"hash": transaction.hash.hex(), "nonce": transaction.nonce})
        return SendOutcome.ACCEPTED

    async def look_up(self, *attempts: SignedTransaction, confirmations: int | None = None) -> TransactionFact:
        _expect_one_effect(attempts)
        settled = confirmations or self.settings.confirmations
        for attempt in attempts:
            fact = await self._mined(attempt)
            if fact is not None:
                return fact
        for attempt in attempts:
            if await self._is_known(attempt):
                return TransactionFact(TransactionState.PENDING, hash=attempt.hash)
        if await self._nonce_passed_for_good(attempts[0], settled):
            # It may have been mined between the questions above and this one.
            for attempt in attempts:
                fact = await self._mined(attempt)
                if fact is not None:
                    return fact
            return TransactionFact(TransactionState.REPLACED)
        return TransactionFact(TransactionState.UNKNOWN)

    async def wait_confirmed(
        self, *attempts: SignedTransaction, confirmations: int | None = None, poll_seconds: float | None = None
    ) -> TransactionFact:
        wanted = confirmations or self.settings.confirmations
        pause_seconds = poll_seconds or self.settings.poll_seconds
        mined_in: Head | None = None
        while True:
            fact = await self.look_up(*attempts, confirmations=wanted)
            if mined_in is not None and fact.block != mined_in:
                log.warning(
                    "chain.transaction.reorganised",
                    extra={"hash": attempts[0].hash.hex(), "was_in": mined_in.number, "state": fact.state.value},
                )
            mined_in = fact.block
            if fact.state is TransactionState.REPLACED or fact.confirmations >= wanted:
                return fact
            if fact.state is TransactionState.UNKNOWN:
                await self.send(attempts[-1])
            await trio.sleep(pause_seconds)

    async def _mined(self, attempt: SignedTransaction) -> TransactionFact | None:
        """The receipt, if the block it names is on the chain now."""
        with self._asking("eth_getTransactionReceipt"):
            try:
                receipt = await self._web3.eth.get_transaction_receipt(HexBytes(attempt.hash))
            except TransactionNotFound:
                return None
            if hash32(receipt["transactionHash"]) != attempt.hash:
                raise ValueError("the receipt of another transaction")
            block = Head(number(receipt["blockNumber"]), hash32(receipt["blockHash"]))
            succeeded = number(receipt["status"]) == 1
        if await self.block_hash(block.number) != block.hash:
            return None
        head = await self.head()
        return TransactionFact(
            TransactionState.MINED,
            hash=attempt.hash,
            block=block,
            confirmations=max(1, head.number - block.number + 1),
            succeeded=succeeded,
        )

    async def _is_known(self, attempt: SignedTransaction) -> bool:
        with self._asking("eth_getTransactionByHash"):
            try:
                found = await self._web3.eth.get_transaction(HexBytes(attempt.hash))
            except TransactionNotFound:
                return False
            if hash32(found["hash"]) != attempt.hash:
                raise ValueError("another transaction")
            return True

    async def _nonce_passed_for_good(self, attempt: SignedTransaction, settled: int) -> bool:
        if await self._count(attempt.sender, "latest") <= attempt.nonce:
            return False
        if settled == 1:
            return True
        head = await self.head()
        try:
            return await self._count(attempt.sender, max(0, head.number - settled + 1)) > attempt.nonce
        except ChainRefusedError:
            # The state of that block is not kept (a development chain after a restart). Later blocks will tell.
            log.debug("chain.state.not_kept", extra={"head": head.number, "settled": settled})
            return False

    async def _count(self, sender: bytes, block: BlockIdentifier) -> int:
        with self._asking("eth_getTransactionCount"):
            return number(await self._web3.eth.get_transaction_count(to_checksum_address(sender), block))

    async def created_by(self, transaction: SignedTransaction) -> bytes:
        """The address of the contract that a mined transaction created."""
        with self._asking("eth_getTransactionReceipt"):
            receipt = await self._web3.eth.get_transaction_receipt(HexBytes(transaction.hash))
            address = bytes(HexBytes(str(receipt["contractAddress"])))
            if len(address) != ADDRESS_BYTES:
                raise ValueError("no address of a contract")
            return address

    # What the contract holds

    async def settled(self, ask: Callable[[], Awaitable[F | None]]) -> F | None:
        pause_seconds = self.settings.poll_seconds
        # Not what is sent later: somebody who sends with the same key all the time would be waited for without end.
        sent = await self._count(self.sender, "pending")
        while await self._count(self.sender, "latest") < sent:
            await trio.sleep(pause_seconds)
            sent = min(sent, await self._count(self.sender, "pending"))
        while True:
            fact = await ask()
            if fact is None or fact.confirmations >= self.settings.confirmations:
                return fact
            await trio.sleep(pause_seconds)

    async def anchored(self, batch_root: bytes) -> AnchorFact | None:
        expect_bytes(batch_root, HASH_BYTES, "the root of a batch")
        await self.check()
        head = await self.head()
        block_number = number(await self._call("anchoredAt", batch_root))
        if block_number == 0:
            return None
        return AnchorFact(batch_root, block_number, max(1, head.number - block_number + 1))

    async def anchoring_transaction(self, fact: AnchorFact) -> bytes | None:
        wanted: FilterParams = {
            "fromBlock": fact.block_number,
            "toBlock": fact.block_number,
            "address": to_checksum_address(self.settings.contract),
            "topics": [HexBytes(ANCHORED), HexBytes(fact.root)],
        }
        try:
            with self._asking("eth_getLogs"):
                found = await self._web3.eth.get_logs(wanted)
                return hash32(found[0]["transactionHash"]) if found else None
        except ChainRefusedError:  # not every server keeps the logs of old blocks
            return None

    async def proves_anchored(self, batch_root: bytes, seal_digest: bytes, proof: Sequence[bytes]) -> bool:
        if len(proof) > PROOF_LENGTH_MAX:
            raise MisuseError(f"a proof of {len(proof)} hashes; a tree has at most {PROOF_LENGTH_MAX} levels")
        for each in (batch_root, seal_digest, *proof):
            expect_bytes(each, HASH_BYTES, "a hash of a proof")
        await self.check()
        return bool(await self._call("provesAnchored", batch_root, seal_digest, list(proof)))

    async def quorum_of(self, graph: bytes) -> QuorumFact | None:
        expect_bytes(graph, HASH_BYTES, "the graph's id")
        await self.check()
        quorum, serial = await self._call("quorumOf", graph)
        return QuorumFact(bytes(quorum), int(serial)) if serial else None

    async def attestation_of(self, subject: Subject) -> AttestationFact | None:
        await self.check()
        head = await self.head()
        held = await self._call("attestationOf", _subject_arguments(subject))
        block_number, serial, m, verifiers, approvals = (number(each) for each in held)
        if block_number == 0:
            return None
        return AttestationFact(
            serial=serial,
            m=m,
            verifiers=verifiers,
            approvals=approvals,
            block_number=block_number,
            confirmations=max(1, head.number - block_number + 1),
        )

    async def _call(self, function: str, *arguments: Any) -> Any:
        try:
            with self._asking(f"eth_call {function}", passing=(ContractLogicError,)):
                return await self._contract.get_function_by_name(function)(*arguments).call()
        except ContractLogicError as error:
            raise contract_refused(error, self._rules) from error

    # Borders

    def _asking(self, what: str, passing: tuple[type[Exception], ...] = ()) -> AbstractContextManager[None]:
        return asking(f"{what} at {shown_url(self.settings.url)}", passing)

    def _checksummed_sender(self) -> ChecksumAddress:
        return to_checksum_address(self.sender)


def _split(signature: bytes) -> tuple[int, bytes, bytes]:
    """A signature r || s || v as the contract takes it. Its form is for the contract to judge."""
    assert len(signature) == SIGNATURE_BYTES
    return signature[64], signature[:32], signature[32:64]


def _subject_arguments(subject: Subject) -> tuple[bytes, bytes, int, bytes, bytes, ChecksumAddress]:
    asset_hash = bytes(keccak(text=subject.asset))
    author = to_checksum_address(subject.author)
    return subject.graph, asset_hash, subject.version, subject.root, subject.seal, author


def _expect_one_effect(attempts: Sequence[SignedTransaction]) -> None:
    if not attempts or len({(attempt.sender, attempt.nonce) for attempt in attempts}) != 1:
        raise MisuseError("look up the transactions of one sender and one nonce, and at least one")


if TYPE_CHECKING:
    _conforms: type[Chain] = EvmChain
