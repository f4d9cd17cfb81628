"""pytest plugin: a cluster for tests of programs whose memory is shared.

    async def test_what_my_agents_need(cluster):
        ada, bo, *_ = cluster.nodes
        asset = await ada.share("ex:trial ex:lowers ex:ldl .")
        await cluster.settled()
        assert bo.sees(asset)

The fixture is a `Cluster` of five nodes in virtual time, audited when the test ends. `@pytest.mark.cluster(n=3,
quorum=2)` changes what it is made of (`audit=False` leaves the audit out), `--cluster-seed` its seed. Without that the
seed is made of the test's name, so a run can be made again; it is printed when the test fails.

pytest loads this wherever p2pmem is installed, so it brings in nothing heavy before the fixture is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from trio.abc import Clock, Instrument

    from p2pmem_devnet.cluster import Cluster

_SEED_KEY: Final = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("p2pmem")
    group.addoption("--cluster-seed", type=int, default=None, help="the seed of every `cluster` fixture")


def pytest_configure(config: pytest.Config) -> None:
    words = "cluster(n=5, seed=..., quorum=..., audit=True, ...): what the `cluster` fixture is made of"
    config.addinivalue_line("markers", words)


def seed_of(request: pytest.FixtureRequest) -> int:
    """The seed of a test: the one on the command line, or one that its name gives."""
    chosen = request.config.getoption("--cluster-seed")
    if chosen is not None:
        return int(chosen)
    return int.from_bytes(hashlib.sha256(request.node.nodeid.encode()).digest()[:4], "big")


def run_in_virtual_time(
    async_fn: Callable[..., Awaitable[Any]], *, clock: Clock | None = None, instruments: Sequence[Instrument] = ()
) -> Any:
    """`trio.run` under a clock that jumps ahead, unless the test brings a clock of its own."""
    import trio

    from p2pmem_devnet.virtual_time import virtual_clock

    return trio.run(async_fn, clock=clock or virtual_clock(), instruments=instruments)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that uses the fixture runs under trio in virtual time, whatever the project's own mode is."""
    if "cluster" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    outcome = yield
    seed = item.stash.get(_SEED_KEY, None)
    if seed is not None and call.when == "call" and call.excinfo is not None:
        report = outcome.get_result()
        report.sections.append(("cluster", f"seed {seed}; again with: pytest {item.nodeid!r} --cluster-seed {seed}"))


async def _cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """Nodes that share a context graph, in virtual time; `@pytest.mark.cluster(...)` says what they are."""
    from p2pmem_devnet.cluster import Cluster

    marker = request.node.get_closest_marker("cluster")
    settings: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    settings.setdefault("n", 5)
    settings.setdefault("seed", seed_of(request))
    audited = settings.pop("audit", True)
    request.node.stash[_SEED_KEY] = settings["seed"]
    async with Cluster(**settings) as made:
        yield made
        if audited:
            made.audit()


def _without_trio() -> None:
    pytest.fail("the fixture `cluster` needs pytest-trio: pip install 'p2pmem[testing]'")


try:
    from pytest_trio import trio_fixture
except ImportError:
    cluster = pytest.fixture(name="cluster")(_without_trio)
else:
    cluster = trio_fixture(_cluster)
