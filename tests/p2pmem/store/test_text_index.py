"""The text index beside a plain list of what it was told."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings
from p2pmem_jobs.blocking import Blocking, InlineBlocking
from p2pmem_protocol.errors import MisuseError

from p2pmem.recall import words
from p2pmem.recall.passages import MAX_PASSAGES, Passage
from p2pmem.recall.text_index import (
    TextEntry,
    TextFilter,
    TextIndex,
    TextIndexUnusable,
    TextMark,
    open_text_index,
)

NOW = TextFilter(("cg",), now_ms=1_000)


def entry(graph: str, *texts: str, **changes: object) -> TextEntry:
    passages = tuple(Passage(f"urn:s{number}", text) for number, text in enumerate(texts))
    plain = TextEntry(graph, "cg", f"asset of {graph}", 1, b"r" * 32, "0xada", "shared", 1, 0, passages)
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture(params=["memory", "file"])
async def index(request: pytest.FixtureRequest, inline: Blocking, tmp_path: Path) -> AsyncIterator[TextIndex]:
    path = None if request.param == "memory" else tmp_path / "text.sqlite"
    async with open_text_index(path, inline) as opened:
        yield opened


async def graphs(index: TextIndex, question: str, filter_: TextFilter = NOW, limit: int = 10) -> list[str]:
    return [hit.graph_iri for hit in await index.search(question, limit, filter_)]


async def test_a_hit_says_whose_passage_it_is(index: TextIndex) -> None:
    await index.apply(1, [entry("urn:g1", "Statins lower cholesterol", level=3), entry("urn:g2", "Tea is warm")])
    (hit,) = await index.search("what lowers the CHOLESTEROL?", 5, NOW)
    assert (hit.graph_iri, hit.asset, hit.seal, hit.subject) == ("urn:g1", "asset of urn:g1", b"r" * 32, "urn:s0")
    assert (hit.level, hit.author, hit.text) == (3, "0xada", "Statins lower cholesterol")
    assert hit.score > 0


async def test_words_are_found_by_their_stems_and_the_better_passage_comes_first(index: TextIndex) -> None:
    await index.apply(1, [entry("urn:g1", "He ran; running shoes, runs"), entry("urn:g2", "She runs a shop for tea")])
    await index.apply(2, [entry(f"urn:other{i}", f"Nothing of the kind {i}") for i in range(20)])
    assert await graphs(index, "running") == ["urn:g1", "urn:g2"]


async def test_what_expires_is_not_found_from_its_instant_on_though_it_was_not_dropped(index: TextIndex) -> None:
    await index.apply(1, [entry("urn:g", "tea", expires_at_ms=1_000)])
    assert await graphs(index, "tea", replace(NOW, now_ms=999)) == ["urn:g"]
    assert await graphs(index, "tea", replace(NOW, now_ms=1_000)) == []
    await index.apply(2, marks=[TextMark("urn:g", level=2, expires_at_ms=2_000)])
    (hit,) = await index.search("tea", 5, NOW)
    assert (hit.level, hit.expires_at_ms) == (2, 2_000)


async def test_what_was_dropped_or_replaced_is_not_found(index: TextIndex) -> None:
    await index.apply(1, [entry("urn:g1", "tea", "more tea"), entry("urn:g2", "tea too")])
    await index.apply(2, [entry("urn:g2", "coffee")], ["urn:g1", "urn:never-was"])
    assert await graphs(index, "tea") == []
    assert await graphs(index, "coffee") == ["urn:g2"]
    assert (await index.statistics()).passages == 1


async def test_a_context_graph_that_is_not_asked_for_is_not_searched(index: TextIndex) -> None:
    await index.apply(1, [entry("urn:g1", "tea"), entry("urn:g2", "tea", context_graph="secret")])
    assert await graphs(index, "tea") == ["urn:g1"]
    assert await graphs(index, "tea", replace(NOW, context_graphs=())) == []
    assert await graphs(index, "tea", replace(NOW, context_graphs=("secret", "cg"))) == ["urn:g1", "urn:g2"]


async def test_filters_by_layer_level_and_author(index: TextIndex) -> None:
    await index.apply(
        1,
        [
            entry("urn:g1", "tea", level=1),
            entry("urn:g2", "tea", level=3, layer="published"),
            entry("urn:g3", "tea", author="0xbob"),
        ],
    )
    assert await graphs(index, "tea", replace(NOW, least_level=2)) == ["urn:g2"]
    assert await graphs(index, "tea", replace(NOW, layers=("shared",))) == ["urn:g1", "urn:g3"]
    assert await graphs(index, "tea", replace(NOW, authors=("0xbob",))) == ["urn:g3"]
    assert await graphs(index, "tea", replace(NOW, layers=())) == []


async def test_an_author_who_writes_much_does_not_fill_the_answer(index: TextIndex) -> None:
    flood = [entry(f"urn:flood{i}", "tea tea tea", author="0xmallory") for i in range(100)]
    await index.apply(1, [*flood, entry("urn:g", "a long text that also mentions tea among many other words")])
    assert "urn:g" not in await graphs(index, "tea")
    capped = await graphs(index, "tea", replace(NOW, per_author=3))
    assert len(capped) == 4
    assert "urn:g" in capped


@pytest.mark.parametrize(
    "question",
    [
        '"',
        "tea OR",
        "NOT tea",
        "tea*",
        "text:tea",
        "^tea",
        "tea AND (",
        "NEAR(tea, 3)",
        "tea' OR 1=1 --",
        "{tea}: x",
        "\0tea",
    ],
)
async def test_no_question_is_syntax(index: TextIndex, question: str) -> None:
    await index.apply(1, [entry("urn:g", "tea")])
    assert await graphs(index, question) in ([], ["urn:g"])
    assert (await graphs(index, question) == []) == ("tea" not in question)


@given(question=st.text(max_size=60))
@settings(max_examples=200)
def test_any_text_may_be_asked(question: str) -> None:
    async def ask() -> None:
        async with open_text_index(None, InlineBlocking()) as index:
            await index.apply(1, [entry("urn:g", question)])
            await index.search(question, 5, NOW)
            await index.apply(2, drop=["urn:g"])
            assert await index.search(question, 5, NOW) == ()

    trio.run(ask)


texts = st.lists(
    st.sampled_from(["tea", "coffee", "milk", "running", "Runs", "hasSideEffect", "東京", "café"]),
    min_size=1,
    max_size=4,
)
changes = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcd"), st.tuples(texts, st.integers(0, 3)), max_size=3),
        st.sets(st.sampled_from("abcd"), max_size=2),
        st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=2),
    ),
    max_size=8,
)


@given(changes)
def test_any_history_leaves_what_a_rebuild_would(
    history: list[tuple[dict[str, tuple[list[str], int]], set[str], dict[str, int]]],
) -> None:
    async def scores(index: TextIndex) -> list[list[tuple[str, int, float]]]:
        found = []
        for question in ("tea", "run", "side effect", "東京", "cafe milk", "coffee"):
            hits = await index.search(question, 50, NOW)
            found.append(sorted((hit.graph_iri, hit.level, round(hit.score, 9)) for hit in hits))
        return found

    async def live() -> None:
        told: dict[str, TextEntry] = {}
        async with open_text_index(None, InlineBlocking()) as index, open_text_index(None, InlineBlocking()) as rebuilt:
            for position, (put, drop, marks) in enumerate(history, 1):
                entries = [entry(graph, " ".join(words), level=level) for graph, (words, level) in put.items()]
                await index.apply(
                    position, entries, sorted(drop), [TextMark(graph, level, 0) for graph, level in marks.items()]
                )
                for graph in drop:
                    told.pop(graph, None)
                told |= {new.graph_iri: new for new in entries}
                told |= {graph: replace(told[graph], level=level) for graph, level in marks.items() if graph in told}
            await rebuilt.fill(list(told.values()))
            assert await scores(index) == await scores(rebuilt)
            assert (await index.statistics()).passages == len(told)

    trio.run(live)


async def test_a_position_told_twice_changes_nothing(index: TextIndex) -> None:
    assert await index.apply(3, [entry("urn:g", "tea")])
    assert not await index.apply(3, drop=["urn:g"])
    assert not await index.apply(2, drop=["urn:g"])
    assert await graphs(index, "tea") == ["urn:g"]


async def test_a_change_that_fails_changes_nothing(index: TextIndex) -> None:
    await index.apply(1, [entry("urn:g1", "tea")])
    many = entry("urn:g2", *["x"] * (MAX_PASSAGES + 1))
    with pytest.raises(MisuseError, match="passages"):
        await index.apply(2, [entry("urn:g3", "milk"), many], ["urn:g1"])
    assert await graphs(index, "tea milk") == ["urn:g1"]
    assert index.position == 1


async def test_the_index_survives_its_process_and_is_private(inline: Blocking, tmp_path: Path) -> None:
    path = tmp_path / "text.sqlite"
    async with open_text_index(path, inline) as index:
        await index.apply(4, [entry("urn:g", "tea")])
    async with open_text_index(path, inline) as index:
        assert index.position == 4
        assert await graphs(index, "tea") == ["urn:g"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_rebuild_stays_at_position_zero_until_it_ends(index: TextIndex) -> None:
    await index.apply(4, [entry("urn:old", "tea")])
    with pytest.raises(MisuseError, match="clear it"):
        await index.fill([entry("urn:new", "tea")])
    await index.clear()
    await index.fill([entry("urn:new", "tea")])
    assert index.position == 0
    await index.apply(4)
    assert await graphs(index, "tea") == ["urn:new"]


async def test_an_index_of_another_format_empties_itself(inline: Blocking, tmp_path: Path) -> None:
    path = tmp_path / "text.sqlite"
    async with open_text_index(path, inline) as index:
        await index.apply(4, [entry("urn:g", "tea")])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("UPDATE state SET value = 99 WHERE name = 'format'")
    other.close()
    async with open_text_index(path, inline) as index:
        assert index.position == 0
        assert await graphs(index, "tea") == []


async def test_a_damaged_file_is_refused_in_words(inline: Blocking, tmp_path: Path) -> None:
    path = tmp_path / "text.sqlite"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(TextIndexUnusable, match=r"`rm -rf .*text.sqlite .*text.sqlite-wal .*text.sqlite-shm`"):
        async with open_text_index(path, inline):
            pass


def read_all(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_after_compact_a_dropped_word_is_in_no_file(inline: Blocking, tmp_path: Path) -> None:
    path = tmp_path / "text.sqlite"
    async with open_text_index(path, inline) as index:
        await index.apply(1, [entry("urn:g1", "xyzzysecret plain"), entry("urn:g2", "tea")])
        await index.apply(2, drop=["urn:g1"])
        await index.compact()
        held = await inline.run(read_all, tmp_path)
        assert b"xyzzysecret" not in held
        assert b"tea" in held
        assert await graphs(index, "tea") == ["urn:g2"]


async def test_a_word_that_is_everywhere_does_not_bring_everything(index: TextIndex) -> None:
    everywhere = [entry(f"urn:g{number}", f"note says n{number}") for number in range(1_100)]
    await index.apply(1, everywhere)
    assert await graphs(index, "says n77") == ["urn:g77"]
    assert len(await graphs(index, "says note")) == 10
    assert len(await graphs(index, "says")) == 10


async def test_a_limit_out_of_bounds_is_refused(index: TextIndex) -> None:
    for limit in (0, 1_001):
        with pytest.raises(MisuseError, match="limit"):
            await index.search("tea", limit, NOW)


@given(st.text(max_size=60) | st.from_regex(r"([A-Za-z_]{1,9}[0-9]{0,2}[ .-]?){1,6}", fullmatch=True))
def test_the_short_way_to_words_gives_the_same_as_the_long_one(text: str) -> None:
    assert words.index_text(text) == " ".join(words._index_words(text))
