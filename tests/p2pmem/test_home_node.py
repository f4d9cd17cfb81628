"""A node inside a trio program of one's own, over libp2p, from a home directory."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import trio
from p2pmem_devnet.fleet import make_home
from p2pmem_protocol.errors import MisuseError, OutsideError

from p2pmem.face import NewGraph
from p2pmem.home import Home
from p2pmem.home_node import open_home

TURTLE = b'<urn:tea> <urn:says> "tea is warm" .'


@pytest.mark.slow
async def test_a_program_has_two_nodes_of_its_own_and_they_share(tmp_path: Path) -> None:
    homes = [Home.find(str(tmp_path / name)) for name in ("ada", "bo")]
    for home in homes:
        make_home(home, home.data_dir.name, "embedded")
    async with open_home(homes[0]) as ada, open_home(homes[1]) as bo:
        graph = (await ada.face.found(NewGraph("lab"))).graph
        await bo.face.join(await ada.face.invite(graph, roles=("writer",), uses=1, life_ms=60_000), label="bo")
        await ada.face.draft(
            graph, "note", b"<urn:a> <urn:b> <urn:c> .", format="turtle", base=None, subgraph="", replace=False
        )
        await ada.face.job((await ada.face.share(graph, "note", ttl_ms=None)).id, wait_ms=30_000)
        await bo.ledger.until(lambda: len(bo.ledger.named(graph).set) == 1)
    async with open_home(homes[1]) as bo:
        assert len(bo.ledger.named(graph).set) == 1, "it comes back with what it held"


async def test_a_directory_that_is_no_home_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="p2pmem init"):
        async with open_home(Home.find(str(tmp_path / "nothing"))):
            pass


def command_in(message: str) -> list[str]:
    """The command that a message names first."""
    return shlex.split(message.split("`")[1])


@pytest.mark.slow
async def test_what_the_ledger_can_make_anew_names_the_command_that_does_it(tmp_path: Path) -> None:
    home = Home.find(str(tmp_path / "my node"))
    make_home(home, "ada", "embedded")
    async with open_home(home) as ada:
        graph = (await ada.face.found(NewGraph("lab"))).graph
        await ada.face.draft(graph, "note", TURTLE, format="turtle", base=None, subgraph="", replace=False)
        await ada.face.share(graph, "note", ttl_ms=None)
    for damaged in (home.text_file, home.store_dir / "CURRENT"):
        damaged.write_bytes(b"nonsense " * 1_000)
        with pytest.raises(OutsideError, match="it makes that anew from the ledger") as refused:
            async with open_home(home):
                pass
        await trio.run_process(command_in(str(refused.value)))
        async with open_home(home) as ada:
            answer = await ada.face.recall("tea", graph=None, min_trust=None, min_m=0, limit=10)
            asked = await ada.face.query(
                "ASK { ?tea ?says ?what }", graph=graph, layer=None, min_trust=None, at_least=0
            )
        assert (len(answer.hits), asked.boolean) == (1, True)


@pytest.mark.slow
async def test_a_ledger_that_is_gone_is_noticed_and_not_begun_anew_unasked(tmp_path: Path) -> None:
    home = Home.find(str(tmp_path / "my node"))
    make_home(home, "ada", "embedded")
    async with open_home(home) as ada:
        agent = (await ada.face.status()).agents
        await ada.face.found(NewGraph("lab"))
    saved = home.ledger_file.rename(tmp_path / "saved")
    with pytest.raises(MisuseError, match=r"no ledger\.sqlite .* Restore it from your backup") as refused:
        async with open_home(home):
            pass
    assert not home.ledger_file.exists()
    saved.rename(home.ledger_file)
    async with open_home(home) as ada:
        assert len(await ada.face.graphs()) == 1, "what was put back is all there"
    home.ledger_file.unlink()
    await trio.run_process(command_in(str(refused.value)))
    async with open_home(home) as ada:
        assert await ada.face.graphs() == ()
        assert (await ada.face.status()).agents == agent, "its keys are the same"


@pytest.mark.parametrize("left", ["ledger.sqlite-wal", "store", "text.sqlite"])
def test_anything_that_is_made_after_a_ledger_tells_that_there_was_one(tmp_path: Path, left: str) -> None:
    home = Home(tmp_path, tmp_path)
    home.need_ledger()
    home.lock_file.touch()
    home.port_file.touch()
    home.need_ledger()
    (tmp_path / left).mkdir()
    with pytest.raises(MisuseError, match=f"`rm -r {tmp_path / left}`"):
        home.need_ledger()
    home.ledger_file.touch()
    home.need_ledger()


@pytest.mark.parametrize("seed", [b"", b"garbage", bytes(33)])
async def test_a_peer_key_that_is_none_is_refused_by_the_name_of_its_file(tmp_path: Path, seed: bytes) -> None:
    home = Home.find(str(tmp_path))
    make_home(home, "ada", "embedded")
    home.peer_key_file.write_bytes(seed)
    with pytest.raises(MisuseError, match=rf"{home.peer_key_file} holds no key: it has {len(seed)} bytes"):
        async with open_home(home):
            pass
