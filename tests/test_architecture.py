"""The shape of the code, held by the code: arrows between packages, what may be imported where, sizes, left-overs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {
    Path(folder).name: ROOT / folder for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
}

# What each package may know of the others. Everything else would be an arrow upwards.
ARROWS = {
    "p2pmem_protocol": {"p2pmem_protocol"},
    "p2pmem_jobs": {"p2pmem_jobs"},
    "p2pmem": {"p2pmem", "p2pmem_protocol", "p2pmem_jobs"},
    "p2pmem_devnet": {"p2pmem_devnet", "p2pmem", "p2pmem_protocol", "p2pmem_jobs"},
}
# The protocol is bytes in, values out; time and randomness are its arguments. Anything that reaches for them is listed.
NOT_IN_PROTOCOL = frozenset(
    """
    trio anyio asyncio threading multiprocessing concurrent queue subprocess signal
    socket ssl select selectors socketserver http urllib
    os io pathlib shutil tempfile glob fcntl mmap sqlite3 logging
    time datetime random secrets uuid
    """.split()  # noqa: SIM905 - reads as a table
)
THIRD_PARTY_IN_JOBS = {"trio", "outcome", "apscheduler"}

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
# "package/file.py:function" -> why it is better whole
LONG_FUNCTIONS: dict[str, str] = {}
LONG_FILES: dict[str, str] = {}

HOME_PATHS = re.compile(r"(?<![\w.~-])/(?:root|home/\w+|Users/\w+)/")
# In pieces, so that neither this test nor anybody who searches the tree finds the line that forbids them.
LEFT_OVERS = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HACK)\b")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def sources(package: str) -> list[Path]:
    return sorted(path for path in PACKAGES[package].rglob("*.py") if "node_modules" not in path.parts)


def all_sources() -> list[Path]:
    return [path for package in PACKAGES for path in sources(package)] + sorted((ROOT / "scripts").glob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full module name of every import in a file, at any depth; relative ones resolved to their package."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            yield node.lineno, node.module
        elif isinstance(node, ast.ImportFrom):
            package = next(name for name, folder in PACKAGES.items() if path.is_relative_to(folder))
            yield node.lineno, package


def imported_roots(package: str) -> Iterator[tuple[str, str]]:
    for path in sources(package):
        for line, module in imports(path):
            yield f"{name_of(path)}:{line} imports {module}", module.split(".")[0]


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Every file of the repository that is text, as git knows them, new ones included."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files are ours is not known")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in sorted(listing.stdout.decode().split("\0")):
        path = ROOT / name
        if name and path.is_file() and path != Path(__file__).resolve():
            data = path.read_bytes()
            if b"\0" not in data:
                yield name, data.decode(errors="replace")


def direct_requirements(distribution: str) -> set[str]:
    wanted = (Requirement(line) for line in requires(distribution) or [])
    return {
        canonicalize_name(each.name) for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})
    }


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and length of every function, its documentation not counted."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                documentation = node.body[0]
                assert documentation.end_lineno is not None
                lines -= documentation.end_lineno - documentation.lineno + 1
            yield f"{name_of(path)}:{node.name}", lines


def swallows(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    broad = caught is None or (isinstance(caught, ast.Name) and caught.id in {"Exception", "BaseException"})
    silent = all(
        isinstance(step, ast.Pass | ast.Continue)
        or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant) and step.value.value is ...)
        for step in handler.body
    )
    return broad and silent


def test_the_four_packages_are_where_the_wheel_looks_for_them() -> None:
    assert set(PACKAGES) == set(ARROWS)
    for folder in PACKAGES.values():
        assert (folder / "__init__.py").is_file()


@pytest.mark.parametrize("package", ARROWS)
def test_arrows_between_packages_only_run_downwards(package: str) -> None:
    upward = [where for where, root in imported_roots(package) if root in ARROWS and root not in ARROWS[package]]
    assert upward == []


def test_the_protocol_does_no_io_and_knows_no_clock() -> None:
    reaching = [where for where, root in imported_roots("p2pmem_protocol") if root in NOT_IN_PROTOCOL]
    for path in sources("p2pmem_protocol"):
        for node in ast.walk(tree(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"open", "print", "input"}
            ):
                reaching.append(f"{name_of(path)}:{node.lineno} calls {node.func.id}")
    assert reaching == []


def test_jobs_need_only_trio_and_the_scheduler_has_one_file() -> None:
    outside = [
        (where, root)
        for where, root in imported_roots("p2pmem_jobs")
        if root not in sys.stdlib_module_names and root not in ARROWS
    ]
    assert [where for where, root in outside if root not in THIRD_PARTY_IN_JOBS] == []
    assert len({where.split(":")[0] for where, root in outside if root == "apscheduler"}) <= 1


OF_AN_EXTRA = {"pyshacl", "rdflib", "mcp", "mcp_types"}
"""What p2pmem[shacl] and p2pmem[mcp] bring: only the worker that validates and the server of tools import it."""


@pytest.mark.parametrize("package", ARROWS)
def test_every_import_is_declared_or_in_the_face_of_something_declared(package: str) -> None:
    # What tests of others use comes with an extra; only the package that gives it to them may ask for it.
    lines = [*PROJECT["project"]["dependencies"]]
    lines += PROJECT["project"]["optional-dependencies"]["testing"] if package == "p2pmem_devnet" else []
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    # values of web3 are HexBytes, addresses of libp2p are Multiaddr: what a dependency itself requires may be named
    allowed = declared.union(*(direct_requirements(name) for name in declared))
    providers = packages_distributions()
    unknown = []
    for where, root in imported_roots(package):
        if root in sys.stdlib_module_names or root in ARROWS or root in OF_AN_EXTRA:
            continue
        if not allowed.intersection(canonicalize_name(name) for name in providers.get(root, [])):
            unknown.append(where)
    assert unknown == []


def test_a_file_holds_one_idea() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in all_sources()}
    long = {name for name, lines in lengths.items() if lines > MAX_FILE_LINES}
    assert long == set(LONG_FILES)


def test_a_function_fits_on_a_page() -> None:
    long = {name for path in all_sources() for name, lines in functions(path) if lines > MAX_FUNCTION_LINES}
    assert long == set(LONG_FUNCTIONS)


def test_no_failure_is_swallowed() -> None:
    silent = [
        f"{name_of(path)}:{node.lineno}"
        for path in all_sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    ]
    assert silent == []


def test_nothing_is_left_for_later() -> None:
    assert [name for name, text in tracked_texts() if LEFT_OVERS.search(text) and not name.endswith(".lock")] == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    here = str(ROOT)
    assert len(ROOT.parts) > 1
    assert [name for name, text in tracked_texts() if here in text or HOME_PATHS.search(text)] == []


def test_locks_say_what_and_not_from_where() -> None:
    locks = [*(ROOT / "requirements").iterdir(), *PACKAGES["p2pmem_devnet"].glob("npm/package-lock.json")]
    assert len(locks) >= 5
    for lock in locks:
        text = lock.read_text()
        assert "index-url" not in text, lock
        assert '"resolved"' not in text, lock
        if lock.suffix != ".json":
            assert "://" not in text, lock
