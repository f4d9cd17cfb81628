"""The optional chain: batch roots get a block, quorums and consensus a public record.

A node without a chain never imports web3: this package's surface is `seam` (what a caller sees) and light values.
Only who opens a real chain imports `p2pmem.chain.client`.

    seam          the interface, its facts, and what they mean
    errors        what can go wrong with a chain
    contract/     the contract and its artifact; `artifact` reads it
    nonces        which number the next transaction takes
    heads         following the newest block, noticing reorganisations
    posting       one request for httpx
    provider      JSON-RPC over httpx on trio, for web3
    transactions  signing, decoding, raising fees; no IO
    answers       reading what web3 made of a server's answers
    client        the real one, on web3
"""

from p2pmem.chain.errors import (
    ChainAnswerError,
    ChainRefusedError,
    ChainUnreachableError,
    ContractRefusedError,
    WrongChainError,
)
from p2pmem.chain.heads import HeadChange, HeadWatch
from p2pmem.chain.seam import (
    AnchorFact,
    Approval,
    AttestationFact,
    Chain,
    ChainSettings,
    Head,
    QuorumFact,
    QuorumPreimage,
    QuorumRegistration,
    SendOutcome,
    SignedTransaction,
    Subject,
    TransactionFact,
    TransactionState,
)

__all__ = [
    "AnchorFact",
    "Approval",
    "AttestationFact",
    "Chain",
    "ChainAnswerError",
    "ChainRefusedError",
    "ChainSettings",
    "ChainUnreachableError",
    "ContractRefusedError",
    "Head",
    "HeadChange",
    "HeadWatch",
    "QuorumFact",
    "QuorumPreimage",
    "QuorumRegistration",
    "SendOutcome",
    "SignedTransaction",
    "Subject",
    "TransactionFact",
    "TransactionState",
    "WrongChainError",
]
