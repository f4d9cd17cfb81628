"""Make a checkout ready: a virtual environment from the lock files, the project in it, the devnet's npm packages.

Run by ``scripts/setup`` with a Python that fits. Uses the standard library only. Each part keeps a digest of what it
was made from, so that a second run only compares digests. The digest is written last: a part that was interrupted is
made again. Two runs in one checkout take turns.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
VENV_STAMP = VENV / "p2pmem-setup.json"
REQUIREMENTS = ROOT / "requirements"
BUILD_LOCK, LOCKS = REQUIREMENTS / "build.lock", (REQUIREMENTS / "run.lock", REQUIREMENTS / "dev.lock")
NPM = ROOT / "devnet" / "p2pmem_devnet" / "npm"
NPM_STAMP = NPM / "node_modules" / ".p2pmem-setup.json"
CACHE = ROOT / ".cache"
LOG = CACHE / "setup.log"
LOG_TAIL_LINES = 15
WAY = "1"  # counted up when an environment made by an earlier version of this script has to be made anew

# What libp2p needs and nobody built a wheel of. Pure Python: setuptools is enough.
SOURCE_ONLY = ("python-baseconv", "varint")
# What a package needs where it has to be compiled, besides a C compiler and Python's headers: (Debian, Fedora, brew).
LIBRARIES = {
    "cffi": ("libffi-dev", "libffi-devel", "libffi"),
    "fastecdsa": ("libgmp-dev", "gmp-devel", "gmp"),
    "cryptography": ("libssl-dev", "openssl-devel", "openssl@3"),
}
NEED_RUST = frozenset({"cryptography", "pyoxigraph", "pydantic-core", "blake3", "cbor2", "hypothesis", "ruff"})
# Settings for pip that are meant for another place than a fresh virtual environment.
FOREIGN_SETTINGS = (
    "PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT", "PIP_CONSTRAINT",
)  # fmt: skip


class SetupError(Exception):
    """Says what is missing and what to do about it."""


class Console:
    """One line a step, with its time; what the tools say goes to the log, or to the terminal with ``--verbose``."""

    def __init__(self, *, verbose: bool) -> None:
        self.verbose = verbose

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        live = sys.stderr.isatty() and not self.verbose
        if live:
            print(f"setup: {what} ...", end="", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            if live:
                print("\r\x1b[K", end="", file=sys.stderr)
        self.say(f"{what:<58} {time.monotonic() - started:5.1f} s")

    def say(self, line: str) -> None:
        print(f"setup: {line}", file=sys.stderr, flush=True)

    def run(self, *command: str | Path, cwd: Path = ROOT) -> None:
        """Run a tool to its end; on failure raise SetupError with the end of what it said."""
        environment = {key: value for key, value in os.environ.items() if key not in FOREIGN_SETTINGS}
        environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        arguments = [str(part) for part in command]
        with LOG.open("ab") as log:
            log.write(f"\n$ {' '.join(arguments)}\n".encode())
            log.flush()
            begins = log.tell()
            where = None if self.verbose else log
            code = subprocess.run(
                arguments, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=where, stderr=where, check=False
            ).returncode
        if code != 0:
            said = LOG.read_bytes()[begins:].decode(errors="replace").splitlines()
            tail = [line for line in said if not line.startswith("WARNING")][-LOG_TAIL_LINES:]
            raise SetupError(
                "\n  ".join([f"{' '.join(arguments)}\n  ended with code {code}:", *tail, f"All of it: {LOG}"])
            )


def digest(files: Iterable[Path], *more: str) -> str:
    state = hashlib.sha256(repr(more).encode())
    for file in files:
        state.update(hashlib.sha256(file.read_bytes()).digest() if file.exists() else b"absent")
    return state.hexdigest()


def read_stamp(stamp: Path) -> dict[str, str]:
    try:
        found = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_stamp(stamp: Path, parts: dict[str, str]) -> None:
    draft = stamp.with_suffix(".new")
    draft.write_text(json.dumps(parts))
    draft.replace(stamp)


def wanted_parts() -> dict[str, str]:
    """What the environment has to be made from. It holds absolute paths, so a moved checkout needs another one."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {
        "packages": digest([BUILD_LOCK, *LOCKS], WAY, python, str(ROOT)),
        "project": digest([ROOT / "pyproject.toml"], str(ROOT)),
    }


def wanted_npm(node: str | None) -> dict[str, str] | None:
    """What the npm packages have to be made from; None if there is nothing to do or nothing to do it with."""
    if node is None or shutil.which("npm") is None or not (NPM / "package-lock.json").exists():
        return None
    return {"npm": digest([NPM / "package.json", NPM / "package-lock.json"], os.path.realpath(node))}


def packages_without_wheel(table: str, tags: frozenset[str]) -> list[str]:
    """The locked packages that have compiled parts and no wheel for a Python that accepts these tags."""
    rows = (line.split() for line in table.splitlines() if line and not line.startswith("#"))
    return [name for name, *wheels in rows if tags.isdisjoint(wheels)]


def compiler_advice(names: list[str], *, has_compiler: bool, has_headers: bool, has_rust: bool) -> str | None:
    """What to install before these packages can be compiled, on three families of systems; None if all is here."""
    rust = sorted(NEED_RUST.intersection(names))
    if has_compiler and has_headers and (has_rust or not rust):
        return None
    minor = sys.version_info[1]
    extra = [LIBRARIES[name] for name in names if name in LIBRARIES]
    debian = ["build-essential", f"python3.{minor}-dev", *(each[0] for each in extra), *(["cargo"] if rust else [])]
    fedora = ["gcc", "gcc-c++", "make", "python3-devel", *(each[1] for each in extra), *(["cargo"] if rust else [])]
    brew = [*(each[2] for each in extra), *(["rust"] if rust else [])]
    lines = [
        f"no wheel exists for this platform of: {', '.join(names)}.",
        "Compiling needs tools that are not here. Install them first:",
        f"  Debian, Ubuntu   apt-get install {' '.join(debian)}",
        f"  Fedora           dnf install {' '.join(fedora)}",
        f"  macOS            xcode-select --install{'; brew install ' + ' '.join(brew) if brew else ''}",
    ]
    if rust:
        lines.append(f"  {', '.join(rust)}: wheels exist for newer systems (glibc 2.34; macOS on Apple silicon).")
    return "\n".join(lines)


def names_to_compile(console: Console) -> list[str]:
    """Packages that must be compiled here. Raises SetupError, before anything is downloaded, if that cannot work."""
    # pip is what will choose the wheels, so its own list of tags is the one that counts
    script = "from pip._vendor.packaging.tags import sys_tags; print(*sys_tags())"
    listing = subprocess.run([VENV_PYTHON, "-I", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    names = packages_without_wheel((REQUIREMENTS / "wheels.txt").read_text(), frozenset(listing.stdout.split()))
    if names:
        advice = compiler_advice(
            names,
            has_compiler=any(shutil.which(name) for name in ("cc", "gcc", "clang")),
            has_headers=(Path(sysconfig.get_path("include")) / "Python.h").exists(),
            has_rust=shutil.which("cargo") is not None,
        )
        if advice is not None:
            raise SetupError(advice)
        console.say(f"no wheel for this platform, compiling: {', '.join(names)}")
    return names


def make_environment(console: Console) -> None:
    base = Path(getattr(sys, "_base_executable", sys.executable))
    if importlib.util.find_spec("ensurepip") is None:
        minor = sys.version_info[1]
        raise SetupError(f"{base} has no ensurepip. Install it: apt-get install python3.{minor}-venv")
    with console.step(f"virtual environment, Python {sys.version_info[0]}.{sys.version_info[1]}"):
        console.run(base, "-I", "-m", "venv", "--clear", VENV)


def install_packages(console: Console) -> None:
    """From the lock files: no version is chosen here, and nothing gets in whose hash they do not have."""
    compiled = names_to_compile(console)
    pip = (VENV_PYTHON, "-I", "-m", "pip", "install", "--no-deps", "--progress-bar", "off", "--no-compile")
    lines = [line for lock in (BUILD_LOCK, *LOCKS) for line in lock.read_text().splitlines()]
    count = len({line.split("==")[0] for line in lines if "==" in line and "sys_platform == 'win32'" not in line})
    with console.step(f"{count} packages"):
        console.run(*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", BUILD_LOCK)
        # A build in isolation fetches tools that no hash covers: only where packages need other tools than ours.
        only_wheels = ("--only-binary", ":all:", "--no-binary", ",".join(SOURCE_ONLY), "--no-build-isolation")
        how = () if compiled else only_wheels
        locks = [part for lock in LOCKS for part in ("--requirement", lock)]
        console.run(*pip, *how, "--use-pep517", "--require-hashes", *locks)
        drop_old_stubs()
        console.run(VENV_PYTHON, "-I", "-m", "compileall", "-q", "-j", "0", VENV / "lib")


def drop_old_stubs() -> None:
    """trio brings its own types. trio-typing, which libp2p needs, brings older stubs that would hide them from mypy."""
    for stubs in (VENV / "lib").glob("python3.*/site-packages/trio-stubs"):
        shutil.rmtree(stubs)


def install_project(console: Console) -> None:
    with console.step("p2pmem itself, editable"):
        console.run(
            VENV_PYTHON, "-I", "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--progress-bar", "off",
            "--editable", ROOT,
        )  # fmt: skip


def install_npm(console: Console) -> None:
    with console.step("npm packages: development chain, foreign checkers"):
        npm = shutil.which("npm")
        assert npm is not None
        console.run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=NPM)


def set_up_npm(console: Console, wanted: dict[str, str] | None, *, strict: bool) -> None:
    if wanted is not None:
        if read_stamp(NPM_STAMP) == wanted:
            return
        try:
            install_npm(console)
            write_stamp(NPM_STAMP, wanted)
        except SetupError as error:
            if strict:
                raise
            console.say(f"{error}\nsetup: going on without: scripts/devnet runs with --no-chain")
    elif (NPM / "package-lock.json").exists():
        missing = "Node.js and npm are not here, so there is no development chain: scripts/devnet runs with --no-chain"
        if strict:
            raise SetupError(missing)
        console.say(missing)


def set_up(console: Console, *, strict: bool, if_needed: bool) -> None:
    parts, npm = wanted_parts(), wanted_npm(shutil.which("node"))
    done = read_stamp(VENV_STAMP) == parts and VENV_PYTHON.exists()
    if if_needed and done and (npm is None or read_stamp(NPM_STAMP) == npm) and not (strict and npm is None):
        return
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.say("another setup runs in this checkout; waiting for it")
            fcntl.flock(turn, fcntl.LOCK_EX)
        LOG.write_bytes(b"")
        found = read_stamp(VENV_STAMP) if VENV_PYTHON.exists() else {}
        if found.get("packages") != parts["packages"]:
            make_environment(console)
            install_packages(console)
            found = {"packages": parts["packages"]}
            write_stamp(VENV_STAMP, found)
        if found != parts:
            install_project(console)
            write_stamp(VENV_STAMP, parts)
        set_up_npm(console, npm, strict=strict)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/setup", description="Make this checkout ready to use.")
    parser.add_argument("--verbose", action="store_true", help="show what the tools say")
    parser.add_argument("--strict", action="store_true", help="fail where the chain's tools cannot be installed")
    parser.add_argument("--if-needed", action="store_true", help="say nothing where nothing is to be done")
    options = parser.parse_args()
    console = Console(verbose=options.verbose)
    started = time.monotonic()
    try:
        set_up(console, strict=options.strict, if_needed=options.if_needed)
    except SetupError as error:
        console.say(str(error))
        return 1
    except KeyboardInterrupt:
        console.say("interrupted; the next run begins again where this one was")
        return 130
    if not options.if_needed:
        console.say(f"ready: {VENV} ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
