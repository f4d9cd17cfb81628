"""The projection: one position, one transaction, and what a crash leaves."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from p2pmem_jobs.blocking import Blocking
from p2pmem_protocol.errors import MisuseError

from p2pmem.store import opening
from p2pmem.store.opening import ProjectionUnusable, destroy_projection
from p2pmem.store.placement import MAX_CHANGES_PER_APPLY, MetaChange, Placement
from p2pmem.store.projection import OxigraphProjection, open_projection
from p2pmem.store.query import QueryRefused, QuerySyntax
from p2pmem.store.terms import Blank, Iri, Literal

XSD = "http://www.w3.org/2001/XMLSchema#"
SELF, ENDORSED = "urn:aggregate:self", "urn:aggregate:endorsed"
FACT = b'<urn:a> <urn:p> "x" .\n'
ROOT = Path(__file__).parents[3]


async def subjects(projection: OxigraphProjection, *graphs: str) -> set[str]:
    return {s.subject.value for s in await projection.lookup(None, None, None, graphs) if isinstance(s.subject, Iri)}


async def test_a_placed_asset_is_found_in_its_graph_and_in_its_aggregate(projection: OxigraphProjection) -> None:
    assert await projection.apply(1, [Placement("urn:g", SELF, FACT)])
    (found,) = await projection.lookup(Iri("urn:a"), None, None, ["urn:g"])
    assert found.object == Literal("x")
    assert await subjects(projection, SELF) == {"urn:a"}
    assert projection.position == 1


async def test_a_triple_stays_in_the_aggregate_until_its_last_asset_leaves(projection: OxigraphProjection) -> None:
    await projection.apply(1, [Placement(f"urn:g{i}", SELF, FACT) for i in range(3)])
    await projection.apply(2, drop=["urn:g0", "urn:g2"])
    assert await subjects(projection, SELF) == {"urn:a"}
    await projection.apply(3, drop=["urn:g1"])
    assert await subjects(projection, SELF) == set()
    assert projection.statistics().assets == 0


async def test_trust_that_rises_moves_the_asset_and_leaves_its_twin(projection: OxigraphProjection) -> None:
    await projection.apply(1, [Placement("urn:g1", SELF, FACT), Placement("urn:g2", SELF, FACT)])
    await projection.apply(2, [Placement("urn:g1", ENDORSED, FACT)])
    assert await subjects(projection, SELF) == {"urn:a"}
    assert await subjects(projection, ENDORSED) == {"urn:a"}
    await projection.apply(3, [Placement("urn:g2", ENDORSED, FACT)])
    assert await subjects(projection, SELF) == set()
    await projection.check()


async def test_two_spellings_of_one_number_are_one_triple_with_two_holders(projection: OxigraphProjection) -> None:
    one, padded = (f'<urn:a> <urn:n> "{text}"^^<{XSD}integer> .\n'.encode() for text in ("1", "01"))
    await projection.apply(1, [Placement("urn:g1", SELF, one), Placement("urn:g2", SELF, padded)])
    await projection.apply(2, drop=["urn:g1"])
    (found,) = await projection.lookup(None, None, Literal("01", XSD + "integer"), [SELF])
    assert found.object == Literal("1", XSD + "integer")
    await projection.apply(3, drop=["urn:g2"])
    assert await projection.lookup(None, None, None, [SELF]) == ()


async def test_blank_nodes_of_two_assets_never_meet(projection: OxigraphProjection) -> None:
    linked = b'<urn:a> <urn:p> _:c14n0 .\n_:c14n0 <urn:q> "here" .\n'
    await projection.apply(1, [Placement("urn:g1", SELF, linked), Placement("urn:g2", SELF, linked)])
    found = await projection.lookup(Iri("urn:a"), Iri("urn:p"), None, [SELF])
    nodes = {statement.object for statement in found}
    assert len(nodes) == 2
    assert all(isinstance(node, Blank) for node in nodes)
    await projection.apply(2, drop=["urn:g1"])
    assert len(await projection.lookup(None, None, None, [SELF])) == 2
    await projection.check()


async def test_a_position_told_twice_changes_nothing(projection: OxigraphProjection) -> None:
    await projection.apply(5, [Placement("urn:g", SELF, FACT)])
    assert not await projection.apply(5, drop=["urn:g"])
    assert not await projection.apply(4, drop=["urn:g"])
    assert await subjects(projection, "urn:g") == {"urn:a"}


async def test_a_dropped_graph_is_not_even_listed(projection: OxigraphProjection) -> None:
    await projection.apply(1, [Placement("urn:g", SELF, FACT)])
    await projection.apply(2, drop=["urn:g", "urn:never-was"])
    assert "<urn:g>" not in {str(graph) for graph in projection._store.named_graphs()}


async def test_meta_changes_are_made_in_order(projection: OxigraphProjection) -> None:
    state = "<urn:asset> <urn:state> "
    created, promoted = (f'{state}"{name}" .\n'.encode() for name in ("created", "promoted"))
    await projection.apply(1, meta=[MetaChange("urn:meta", add=created)])
    await projection.apply(
        2,
        meta=[
            MetaChange("urn:meta", add=b"<urn:event> <urn:at> <urn:asset> ."),
            MetaChange("urn:meta", add=promoted, reset_subjects=("urn:asset",)),
        ],
    )
    (found,) = await projection.lookup(Iri("urn:asset"), None, None, ["urn:meta"])
    assert found.object == Literal("promoted")
    assert await subjects(projection, "urn:meta") == {"urn:asset", "urn:event"}


@pytest.mark.parametrize(
    ("put", "drop", "meta"),
    [
        pytest.param([Placement("urn:g", SELF, FACT)] * 2, [], [], id="twice"),
        pytest.param([Placement("urn:g", SELF, FACT)], ["urn:g"], [], id="put and dropped"),
        pytest.param([Placement("urn:g", "urn:g", FACT)], [], [], id="its own aggregate"),
        pytest.param([Placement("urn:g", "urn:held", FACT)], [], [], id="an asset as aggregate"),
        pytest.param([Placement("no iri", SELF, FACT)], [], [], id="no IRI"),
        pytest.param([Placement("urn:g> } ; CLEAR ALL #", SELF, FACT)], [], [], id="an IRI that breaks out"),
        pytest.param([Placement("urn:p2pmem:store:state", SELF, FACT)], [], [], id="the store's own graph"),
        pytest.param([Placement("urn:g", SELF, b"")], [], [], id="empty"),
        pytest.param([Placement("urn:g", SELF, b"<urn:a> <urn:p> .\n")], [], [], id="no N-Quads"),
        pytest.param([Placement("urn:g", SELF, b"<urn:a> <urn:p> <urn:b> <urn:c> .\n")], [], [], id="a named graph"),
        pytest.param([Placement("urn:g", SELF, b"<urn:a> <urn:p> " + b"<<( " * 40)], [], [], id="nested too deep"),
        pytest.param([], [], [MetaChange("urn:meta", add=b'_:b <urn:p> "x" .')], id="a blank node in meta"),
        pytest.param([], [], [MetaChange("urn:held", clear=True)], id="an asset as meta"),
        pytest.param([Placement("urn:g", SELF, FACT)], [], [MetaChange("urn:g")], id="meta and asset"),
        pytest.param([], ["urn:x"] * (MAX_CHANGES_PER_APPLY + 1), [], id="too many"),
    ],
)
async def test_a_change_that_cannot_be_changes_nothing(
    projection: OxigraphProjection, put: list[Placement], drop: list[str], meta: list[MetaChange]
) -> None:
    await projection.apply(1, [Placement("urn:held", SELF, FACT)])
    with pytest.raises(MisuseError):
        await projection.apply(2, [Placement("urn:good", SELF, FACT), *put], drop, meta)
    assert projection.position == 1
    assert await projection.lookup(None, None, None, ["urn:good"]) == ()
    await projection.check()


async def test_content_that_looks_like_sparql_stays_content(projection: OxigraphProjection) -> None:
    hostile = b'<urn:a> <urn:p> "\\" } } ; CLEAR ALL ; INSERT DATA { <urn:x> <urn:x> \\"" .\n'
    await projection.apply(1, [Placement("urn:g", SELF, hostile), Placement("urn:h", SELF, FACT)])
    found = await projection.lookup(None, None, None, ["urn:g"])
    assert found[0].object == Literal('" } } ; CLEAR ALL ; INSERT DATA { <urn:x> <urn:x> "')
    assert await subjects(projection, "urn:h") == {"urn:a"}


async def test_the_nodes_own_query_binds_what_varies(projection: OxigraphProjection) -> None:
    await projection.apply(1, [Placement("urn:g", SELF, FACT + b'<urn:b> <urn:p> "y" .\n')])
    answer = await projection.query("SELECT ?s ?o { ?s <urn:p> ?o }", [SELF], bind={"s": Iri("urn:b")})
    assert answer.rows() == ((Iri("urn:b"), Literal("y")),)
    assert answer.position == 1
    with pytest.raises(QuerySyntax):
        await projection.query("CLEAR ALL", [SELF])
    with pytest.raises(QueryRefused):
        await projection.query("ASK {?s ?p ?o}", ["urn:p2pmem:store:state"])


async def test_whoever_waits_for_a_position_is_woken_when_it_is_reached(
    projection: OxigraphProjection, autojump_clock: trio.testing.MockClock
) -> None:
    reached: list[int] = []

    async def wait(position: int) -> None:
        await projection.reached(position)
        reached.append(position)

    async with trio.open_nursery() as nursery:
        for position in (1, 3):
            nursery.start_soon(wait, position)
        await trio.testing.wait_all_tasks_blocked()
        await projection.apply(2)
        await trio.testing.wait_all_tasks_blocked()
        assert reached == [1]
        await projection.apply(3)
    assert reached == [1, 3]


async def test_a_cancelled_apply_either_happened_or_did_not(projection: OxigraphProjection) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await projection.apply(1, [Placement("urn:g", SELF, FACT)])
    assert scope.cancelled_caught
    assert projection.position == 0
    assert await projection.apply(1, [Placement("urn:g", SELF, FACT)])
    await projection.check()


async def test_a_rebuild_is_known_as_unfinished_until_it_ends(inline: Blocking, tmp_path: Path) -> None:
    async with open_projection(tmp_path / "s", inline) as projection:
        await projection.apply(7, [Placement("urn:old", SELF, FACT)])
        with pytest.raises(MisuseError, match="clear it"):
            await projection.fill([Placement("urn:new", SELF, FACT)])
        await projection.clear()
        await projection.fill([Placement("urn:new", SELF, FACT)])
    async with open_projection(tmp_path / "s", inline) as projection:
        assert projection.position == 0
        await projection.clear()
        await projection.fill([Placement("urn:new", SELF, FACT)])
        await projection.apply(9)
    async with open_projection(tmp_path / "s", inline) as projection:
        assert projection.position == 9
        assert projection.statistics().assets == 1
        assert await subjects(projection, "urn:old", "urn:new") == {"urn:a"}


async def test_the_graph_of_an_asset_is_looked_at_as_if_it_were_stored(projection: OxigraphProjection) -> None:
    content = f'<urn:a> <urn:n> "01"^^<{XSD}integer> .\n<urn:a> <urn:p> _:c14n0 .\n_:c14n0 <urn:q> "x\\ny" .\n'.encode()
    await projection.apply(1, [Placement("urn:g", SELF, content)])
    own, shared = [await projection.lookup(None, None, None, [graph]) for graph in ("urn:g", SELF)]
    assert len(own) == 3
    assert {(it.subject, it.predicate, it.object) for it in own} == {
        (it.subject, it.predicate, it.object) for it in shared
    }
    for spelling in ("1", "01"):
        assert len(await projection.lookup(None, None, Literal(spelling, XSD + "integer"), ["urn:g"])) == 1
    assert await projection.lookup(Iri("urn:b"), None, None, ["urn:g"]) == ()


@pytest.mark.parametrize("ended_while_it_was_emptied", [False, True])
async def test_a_store_of_an_earlier_format_is_emptied_to_be_filled_again(
    inline: Blocking, tmp_path: Path, ended_while_it_was_emptied: bool
) -> None:
    async with open_projection(tmp_path / "s", inline) as projection:
        await projection.apply(7, [Placement("urn:g", SELF, FACT)])
        earlier, now = (opening.number_quad(opening._FORMAT, number) for number in (1, opening.FORMAT))
        projection._store.remove(now)
        if not ended_while_it_was_emptied:
            projection._store.add(earlier)
    async with open_projection(tmp_path / "s", inline) as projection:
        assert (projection.position, projection.statistics().assets) == (0, 0)
        assert await subjects(projection, "urn:g", SELF) == set()
        await projection.fill([Placement("urn:g", SELF, FACT)])
        await projection.apply(8)
    async with open_projection(tmp_path / "s", inline) as projection:
        assert projection.position == 8
        assert await subjects(projection, "urn:g", SELF) == {"urn:a"}


async def test_a_directory_in_use_or_damaged_is_refused_in_words(inline: Blocking, tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with open_projection(path, inline) as projection:
        await projection.apply(1, [Placement("urn:g", SELF, FACT)])
        with pytest.raises(ProjectionUnusable, match="open already"):
            async with open_projection(path, inline):
                pass
        assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(MisuseError, match="closed"):
        await projection.lookup(None, None, None, [SELF])
    (path / "CURRENT").write_bytes(b"nonsense\n")
    with pytest.raises(ProjectionUnusable, match=f"`rm -rf {tmp_path}"):
        async with open_projection(path, inline):
            pass
    destroy_projection(path)
    async with open_projection(path, inline) as projection:
        assert projection.position == 0


async def test_a_backup_is_the_store_at_one_instant(
    disk_projection: OxigraphProjection, inline: Blocking, tmp_path: Path
) -> None:
    await disk_projection.apply(1, [Placement("urn:g", SELF, FACT)])
    assert await disk_projection.backup(tmp_path / "copy") == 1
    await disk_projection.apply(2, drop=["urn:g"])
    async with open_projection(tmp_path / "copy", inline) as copy:
        assert copy.position == 1
        assert await subjects(copy, SELF) == {"urn:a"}
    with pytest.raises(MisuseError, match="new directory"):
        await disk_projection.backup(tmp_path / "copy")


async def test_a_store_in_memory_cannot_be_backed_up(projection: OxigraphProjection, tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="memory"):
        await projection.backup(tmp_path / "copy")


# A child applies position n, which puts asset n, moves asset n-1 and drops asset n-2, and says n when it is done.
CHILD = """
import sys, trio
from pathlib import Path
from p2pmem.store.placement import Placement
from p2pmem.store.projection import open_projection
from p2pmem_jobs.blocking import InlineBlocking
from tests_crash import changes

async def main():
    async with open_projection(Path(sys.argv[1]), InlineBlocking()) as projection:
        position = projection.position
        while True:
            position += 1
            put, drop = changes(position)
            await projection.apply(position, put, drop)
            sys.stdout.write(f"{position}\\n")
            sys.stdout.flush()

trio.run(main)
"""
CHANGES = """
from p2pmem.store.placement import Placement

def content(n):
    own = "".join(f'<urn:s{n}> <urn:p{k}> "value {n} {k}" .\\n' for k in range(20))
    return (own + f'<urn:common> <urn:p> "shared" .\\n_:c14n0 <urn:of> <urn:s{n}> .\\n').encode()

def changes(n):
    put = [Placement(f"urn:g{n}", "urn:agg0", content(n))]
    if n > 1:
        put.append(Placement(f"urn:g{n - 1}", "urn:agg1", content(n - 1)))
    return put, ([f"urn:g{n - 2}"] if n > 2 else [])
"""


@pytest.mark.processes
async def test_kill_at_any_moment_leaves_a_whole_transaction(inline: Blocking, tmp_path: Path) -> None:
    (tmp_path / "tests_crash.py").write_text(CHANGES)
    namespace: dict[str, object] = {}
    exec(CHANGES, namespace)
    content = namespace["content"]
    assert callable(content)
    chance = random.Random(20)
    acknowledged = 0
    path = tmp_path / "store"
    for _ in range(8):
        acknowledged = kill_after(path, tmp_path, acknowledged + chance.randrange(2, 40), chance.random() * 0.004)
        async with open_projection(path, inline) as projection:
            position = projection.position
            assert position >= acknowledged, "what was applied is there"
            await projection.check()
            assert projection.statistics().assets == 2
            assert f"urn:s{position}" in await subjects(projection, "urn:agg0")
            held = {
                f"urn:g{n}"
                for n in range(max(1, position - 5), position + 2)
                if await subjects(projection, f"urn:g{n}")
            }
            assert held == {f"urn:g{position}", f"urn:g{position - 1}"}
            assert len(await projection.lookup(None, None, None, [f"urn:g{position}"])) == 22
        acknowledged = position


def kill_after(path: Path, helper: Path, position: int, delay_s: float) -> int:
    """Run the child until it has said `position`, a moment longer, kill it; the last position that it said."""
    folders = [helper, ROOT, ROOT / "protocol", ROOT / "jobs"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    said = 0
    try:
        for line in child.stdout:
            said = int(line)
            if said >= position:
                break
        select.select([], [], [], delay_s)
    finally:
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
        child.stdout.close()
        child.wait()
    whole = [line for line in rest.split(b"\n")[:-1] if line]
    return int(whole[-1]) if whole else said
