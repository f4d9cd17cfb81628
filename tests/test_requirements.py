"""What is installed is what was locked, and a missing compiler is told before anything is fetched."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN, DEV, BUILD = ((REQUIREMENTS / f"{name}.lock").read_text() for name in ("run", "dev", "build"))
LINUX = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)] + ["manylinux2014_x86_64", "linux_x86_64"]


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("p2pmem_setup_script", ROOT / "scripts" / "_setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def pins(lock: str) -> dict[str, str]:
    return {
        canonicalize_name(name): version for name, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE)
    }


def tags(minor: int, platforms: list[str]) -> frozenset[str]:
    version = (3, minor)
    own = cpython_tags(version, platforms=platforms)
    return frozenset(map(str, [*own, *compatible_tags(version, f"cp3{minor}", platforms)]))


def unmet(lines: list[str], locked: dict[str, str]) -> list[str]:
    wanted = [Requirement(line) for line in lines]
    return [str(each) for each in wanted if not each.specifier.contains(locked.get(canonicalize_name(each.name), "0"))]


def test_the_lock_meets_what_the_project_asks_for() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert unmet(PROJECT["project"]["dependencies"], pins(RUN)) == []
    own = [line for name in ("testing", "dev") for line in extras[name] if not line.startswith("p2pmem[")]
    assert unmet(own, pins(RUN) | pins(BUILD) | pins(DEV)) == []
    build_input = [line.split("#")[0].strip() for line in (REQUIREMENTS / "build.in").read_text().splitlines()]
    assert set(PROJECT["build-system"]["requires"]) <= set(build_input)
    assert unmet([line for line in build_input if line], pins(BUILD)) == []


def test_one_package_has_one_version_in_all_locks() -> None:
    for first, second in ((RUN, BUILD), (RUN, DEV), (BUILD, DEV)):
        shared = pins(first).keys() & pins(second).keys()
        assert [name for name in shared if pins(first)[name] != pins(second)[name]] == []


def test_the_lock_has_the_override_that_spares_a_compiler() -> None:
    assert PROJECT["tool"]["uv"]["override-dependencies"] == [f"fastecdsa=={pins(RUN)['fastecdsa']}"]


def test_nothing_here_reaches_the_calls_that_the_override_lost() -> None:
    """The override renamed what libp2p's SECIO calls. SECIO is in the default list of libp2p: no host may take that."""
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    trees = {path: ast.parse(path.read_bytes()) for folder in packages for path in (ROOT / folder).rglob("*.py")}
    assert trees
    reaching = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if any(
                part in {"secio", "fastecdsa", "ecc", "key_exchange"} for name in modules for part in name.split(".")
            ):
                reaching.append(f"{path.name}:{node.lineno} imports one of {modules}")
            if not isinstance(node, ast.Call):
                continue
            makes_host = ast.unparse(node.func).split(".")[-1] in {"new_host", "new_swarm"}
            if makes_host and "sec_opt" not in {keyword.arg for keyword in node.keywords}:
                reaching.append(f"{path.name}:{node.lineno} takes the default list of handshakes")
    assert reaching == []


@pytest.mark.filterwarnings("ignore:websockets.legacy is deprecated:DeprecationWarning")  # libp2p imports it
def test_no_identity_that_libp2p_reads_needs_the_overridden_package() -> None:
    from libp2p.crypto.keys import KeyType
    from libp2p.crypto.serialization import key_type_to_private_key_deserializer, key_type_to_public_key_deserializer

    assert KeyType.ECC_P256.value not in {*key_type_to_public_key_deserializer, *key_type_to_private_key_deserializer}


@pytest.mark.parametrize("lock", [RUN, DEV, BUILD], ids=["run", "dev", "build"])
def test_every_locked_package_has_hashes(lock: str) -> None:
    blocks = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins(lock))
    assert [block.split("\n")[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_what_runs_here_is_what_was_locked() -> None:
    from importlib.metadata import PackageNotFoundError, version

    different = {}
    for line in re.findall(r"^[a-z0-9].*==.*?(?= \\$)", RUN, re.MULTILINE):
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate(dict(default_environment())):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            found = "absent"
        if not requirement.specifier.contains(found):
            different[str(requirement)] = found
    assert different == {}


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_linux_needs_no_compiler(setup: ModuleType, minor: int) -> None:
    table = (REQUIREMENTS / "wheels.txt").read_text()
    assert setup.packages_without_wheel(table, tags(minor, LINUX)) == []


def test_a_platform_without_a_wheel_is_found_before_anything_is_fetched(setup: ModuleType) -> None:
    table = (REQUIREMENTS / "wheels.txt").read_text()
    assert "fastecdsa" in setup.packages_without_wheel(table, tags(15, LINUX))
    assert "cryptography" in setup.packages_without_wheel(table, tags(13, ["linux_riscv64"]))


def test_missing_tools_are_named_with_the_packages_that_bring_them(setup: ModuleType) -> None:
    ask = setup.compiler_advice
    assert ask(["fastecdsa"], has_compiler=True, has_headers=True, has_rust=False) is None
    advice = ask(["fastecdsa"], has_compiler=False, has_headers=True, has_rust=False)
    assert f"apt-get install build-essential python3.{sys.version_info[1]}-dev libgmp-dev" in advice
    assert "dnf install gcc gcc-c++ make python3-devel gmp-devel" in advice
    assert "cargo" not in advice
    assert "cargo" in ask(["cryptography"], has_compiler=True, has_headers=True, has_rust=False)
