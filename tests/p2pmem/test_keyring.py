"""Keys at rest: their files, and what opening them costs."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from p2pmem_protocol.errors import MisuseError

from p2pmem.home import Home
from p2pmem.keyring import Keyring, create_agent

AGENTS = 8


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path, tmp_path)
    made.create()
    return made


def test_key_files_and_their_password_are_readable_by_their_owner_alone(home: Home) -> None:
    key = create_agent(home)
    files = [home.password_file, *home.agents_dir.iterdir()]
    assert len(files) == 2
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert key.secret not in file.read_bytes()
        assert key.secret.hex().encode() not in file.read_bytes()
    assert key.secret.hex() not in repr(key)
    assert Keyring.load(home).default.address == key.address


def test_keys_come_back_in_the_order_in_which_they_were_made(home: Home) -> None:
    made = [create_agent(home).address for _ in range(3)]
    assert list(Keyring.load(home).addresses) == made


@pytest.mark.parametrize("which", ["password", "key"])
def test_a_file_that_others_can_read_is_refused_with_what_to_do(home: Home, which: str) -> None:
    create_agent(home)
    file = home.password_file if which == "password" else next(home.agents_dir.iterdir())
    os.chmod(file, 0o640)
    with pytest.raises(MisuseError, match="chmod 600"):
        Keyring.load(home)


def test_a_wrong_password_is_refused_by_the_name_of_the_file(home: Home) -> None:
    create_agent(home)
    home.password_file.write_bytes(b"another password")
    with pytest.raises(MisuseError, match=r"agents/000-.*\.json"):
        Keyring.load(home)


def test_opening_many_keys_takes_little_memory(home: Home) -> None:
    """The default cost of key files takes 256 MiB a key; ours 4 MiB, one key after the other."""
    for _ in range(AGENTS):
        create_agent(home)
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from p2pmem.home import Home\n"
        "from p2pmem.keyring import Keyring\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "ring = Keyring.load(Home(Path(sys.argv[1]), Path(sys.argv[1])))\n"
        "print(len(ring.keys), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(root / name) for name in (".", "protocol", "jobs"))
    done = subprocess.run(
        [sys.executable, "-c", script, str(home.data_dir)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    keys, grown_kib = map(int, done.stdout.split())
    assert keys == AGENTS
    assert grown_kib < 64 * 1024
