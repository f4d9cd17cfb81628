"""What every test here shares: deterministic Hypothesis, and where data of others lies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests.node_tools import NodeTools
from tests.suites import Suites, folders, table

settings.register_profile(
    "p2pmem", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile(os.environ.get("P2PMEM_HYPOTHESIS", "p2pmem"))


SUITES = pytest.StashKey[Suites]()

ID_BYTES_MAX = 16
"""Longer bytes do not name a test: compressed data holds the second it was made in, and two processes that run one
suite have to collect the same names."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """``data`` for long bytes (pytest numbers them), and pytest's own name for whatever else there is."""
    return argname if isinstance(val, bytes) and len(val) > ID_BYTES_MAX else None


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SUITES] = Suites()


@pytest.fixture(scope="session")
def suites(pytestconfig: pytest.Config) -> Suites:
    """Where a test that goes through cases of others, or through our vectors, counts them for the summary."""
    return pytestconfig.stash[SUITES]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where tests run in several processes, each tells the first one what it counted."""
    if hasattr(session.config, "workeroutput"):
        counted = session.config.stash[SUITES].named
        session.config.workeroutput["suites"] = [(name, it.cases, it.passed) for name, it in counted.items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for name, cases, passed in getattr(node, "workeroutput", {}).get("suites", ()):
        node.config.stash[SUITES](name).count(cases, passed)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = [
        (report.nodeid, outcome == "passed")
        for outcome in ("passed", "failed", "error")
        for report in terminalreporter.stats.get(outcome, ())
    ]
    terminalreporter.section("suites")
    for line in table(folders(reports), config.stash[SUITES]):
        terminalreporter.line(line)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real inputs and other people's test suites; not part of this repository."""
    root = Path(__file__).parents[1]
    data = (root / os.environ.get("P2PMEM_SHARED", "../shared")).resolve() / "data"
    if not data.is_dir():
        pytest.skip(f"no {data}: set P2PMEM_SHARED to the folder that holds other people's test suites")
    return data


def needs(text: str) -> NoReturn:
    """A tool is missing: that fails where all tools must be, and skips with the reason elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


@pytest.fixture(scope="session")
def node_tools() -> NodeTools:
    """Other people's code in JavaScript, from one folder: that of the devnet, or what P2PMEM_NODE_MODULES names."""
    npm = Path(__file__).parents[1] / "devnet" / "p2pmem_devnet" / "npm"
    modules = Path(os.environ.get("P2PMEM_NODE_MODULES") or npm / "node_modules").resolve()
    program = shutil.which("node")
    if program is None:
        needs("Node.js is not on the PATH")
    if not modules.is_dir():
        needs(f"no {modules}: run `npm ci --ignore-scripts` in {npm}, or set P2PMEM_NODE_MODULES")
    return NodeTools(program, modules)
