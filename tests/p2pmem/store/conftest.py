"""Stores for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from p2pmem_jobs.blocking import Blocking, InlineBlocking

from p2pmem.store.projection import OxigraphProjection, open_projection


@pytest.fixture
def inline() -> Blocking:
    return InlineBlocking()


@pytest.fixture
async def projection(inline: Blocking) -> AsyncIterator[OxigraphProjection]:
    async with open_projection(None, inline) as opened:
        yield opened


@pytest.fixture
async def disk_projection(inline: Blocking, tmp_path: Path) -> AsyncIterator[OxigraphProjection]:
    async with open_projection(tmp_path / "store", inline) as opened:
        yield opened
