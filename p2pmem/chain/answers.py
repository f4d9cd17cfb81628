"""What web3 makes of a server's answers, read strictly; and its exceptions, made ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from eth_utils.crypto import keccak
from p2pmem_protocol.errors import P2pmemError
from web3.exceptions import BlockNotFound, ContractLogicError, TransactionNotFound, Web3Exception, Web3RPCError

from p2pmem.chain.errors import ChainAnswerError, ChainRefusedError, ContractRefusedError, server_text
from p2pmem.chain.seam import HASH_BYTES

# What web3, and the readers below, raise on a result that cannot be read.
_UNREADABLE = (Web3Exception, ValueError, TypeError, KeyError, AttributeError, OverflowError)


@contextmanager
def asking(where: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Hold one question to web3 and the reading of its answer, no more: our own mistakes would look like the server's.
    Exceptions named in `passing` are for the caller."""
    try:
        yield
    except P2pmemError:
        raise
    except passing:
        raise
    except (BlockNotFound, TransactionNotFound) as error:
        raise ChainAnswerError(f"{where}: nothing, where every chain has something") from error
    except Web3RPCError as error:
        code, words = _rpc_error(error)
        raise ChainRefusedError(f"{where}: {server_text(words)}", code) from error
    except _UNREADABLE as error:
        raise ChainAnswerError(f"{where}: an answer that cannot be read ({type(error).__name__})") from error


def _rpc_error(error: Web3RPCError) -> tuple[int | None, str]:
    """Number and words of an error, whose shape the provider has checked."""
    held = error.rpc_response.get("error") if error.rpc_response is not None else None
    return (held["code"], held["message"]) if isinstance(held, dict) else (None, error.message)


def contract_refused(error: ContractLogicError, rules: Mapping[str, str]) -> ContractRefusedError:
    """A revert as an error that names the contract's rule."""
    data = error.data if isinstance(error.data, str) else ""
    rule = rules.get(data[:10].lower(), "")
    words = rule or server_text(error.message or "no reason given")
    return ContractRefusedError(f"the contract refuses: {words}; nothing was signed or sent", rule)


def rules_of(abi: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The contract's errors by their selector."""
    return {
        "0x" + keccak(text=f"{each['name']}({','.join(one['type'] for one in each['inputs'])})")[:4].hex(): each["name"]
        for each in abi
        if each["type"] == "error"
    }


def number(value: object) -> int:
    """A number of the chain; `ValueError` for anything else."""
    if type(value) is not int or not 0 <= value < 2**256:
        raise ValueError("no number")
    return value


def hash32(value: object) -> bytes:
    """A hash of the chain; `ValueError` for anything else."""
    if not isinstance(value, bytes) or len(value) != HASH_BYTES:
        raise ValueError("no hash")
    return bytes(value)
