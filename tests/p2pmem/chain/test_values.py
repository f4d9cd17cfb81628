"""Values refuse what cannot be, and the package costs nothing to who has no chain."""

from __future__ import annotations

import subprocess
import sys

import pytest
from p2pmem_protocol.errors import MisuseError

from p2pmem.chain import ChainSettings, QuorumPreimage, Subject

A, B, C = (bytes([first]) * 20 for first in (1, 2, 3))


@pytest.mark.parametrize(
    ("serial", "m", "verifiers"),
    [(0, 1, (A,)), (1, 0, (A,)), (1, 2, (A,)), (1, 1, (B, A)), (1, 1, (A, A)), (1, 1, (b"short",)), (2**32, 1, (A,))],
)
def test_a_quorum_that_cannot_be_is_refused(serial: int, m: int, verifiers: tuple[bytes, ...]) -> None:
    with pytest.raises(MisuseError):
        QuorumPreimage(serial, m, verifiers)


def test_a_quorum_of_all_is_a_quorum() -> None:
    assert QuorumPreimage(1, 3, (A, B, C)).m == 3


def test_a_subject_with_a_short_root_is_refused() -> None:
    with pytest.raises(MisuseError, match="root has 31 bytes"):
        Subject(bytes(32), "name", 1, bytes(31), bytes(32), A)
    with pytest.raises(MisuseError, match="seal has 31 bytes"):
        Subject(bytes(32), "name", 1, bytes(32), bytes(31), A)


def test_settings_with_no_confirmation_are_refused() -> None:
    with pytest.raises(MisuseError, match="confirmations"):
        ChainSettings("http://127.0.0.1:1", 1, A, bytes(32), confirmations=0)


def test_a_node_without_a_chain_imports_neither_web3_nor_an_http_client() -> None:
    script = (
        "import sys, p2pmem.chain\n"
        "print([name for name in ('web3', 'eth_account', 'eth_abi', 'httpx') if name in sys.modules])"
    )
    environment_path = [entry for entry in sys.path if entry]
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {environment_path!r}\n{script}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout.strip() == "[]"
