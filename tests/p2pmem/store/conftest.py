"""Stores for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest
import trio

from p2pmem.store.projection import OxigraphProjection, open_projection

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Inline:
    """Runs blocking calls at once."""

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint()
        return fn(*args)


@pytest.fixture
def inline() -> Inline:
    return Inline()


@pytest.fixture
async def projection(inline: Inline) -> AsyncIterator[OxigraphProjection]:
    async with open_projection(None, inline) as opened:
        yield opened


@pytest.fixture
async def disk_projection(inline: Inline, tmp_path: Path) -> AsyncIterator[OxigraphProjection]:
    async with open_projection(tmp_path / "store", inline) as opened:
        yield opened
