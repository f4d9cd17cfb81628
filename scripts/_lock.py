"""Resolve the project's dependencies once for every platform, and write them down with hashes.

Four files come out, all of one resolution:

* ``requirements/run.lock``: what a node needs;
* ``requirements/dev.lock``: what tests and checks need on top of it;
* ``requirements/build.lock``: what builds the project;
* ``requirements/wheels.txt``: for each package with compiled parts, the wheels that exist. By it ``scripts/setup``
  tells before the first download whether a compiler will be needed.

No file names a package index: the reader's own settings decide where packages come from.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
RUN, DEV, BUILD = (REQUIREMENTS / f"{name}.lock" for name in ("run", "dev", "build"))
BUILD_INPUT = "requirements/build.in"
HEADER = "# Made by scripts/lock; do not edit. {what}\n"
PLATFORMS = re.compile(r"^(any|manylinux|musllinux|macosx)")
PYTHONS = re.compile(r"^(py3|cp3\d+-abi3|cp311|cp312|cp313)\b")


def compile_lock(inputs: list[str], output: Path, *options: str) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        sys.exit("lock: uv was not found. Install it (pip install uv) or set UV to its path.")
    base = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--no-header"]
    subprocess.run([*base, *options, "--output-file", str(output), *inputs], cwd=ROOT, check=True)


def locked_names(lock: Path) -> list[str]:
    return re.findall(r"^([a-z0-9][a-z0-9._-]*)==", lock.read_text(), re.MULTILINE)


def tags_of(wheel: str) -> Iterable[str]:
    """The tags of a wheel's file name, of those that could matter to us."""
    python, abi, platforms = wheel.removesuffix(".whl").rsplit("-", 3)[1:]
    for one_python in python.split("."):
        for platform in platforms.split("."):
            if PYTHONS.match(f"{one_python}-{abi}") and PLATFORMS.match(platform):
                yield f"{one_python}-{abi}-{platform}"


def wheel_table(pylock: Path) -> tuple[list[str], list[str]]:
    """Lines for wheels.txt, and the names of packages that come as source only."""
    lines, source_only = [], []
    for package in tomllib.loads(pylock.read_text())["packages"]:
        if package.get("marker") == "sys_platform == 'win32'":
            continue
        wheels = [wheel.get("name") or wheel["url"].rsplit("/", 1)[-1] for wheel in package.get("wheels", [])]
        tags = sorted({tag for wheel in wheels for tag in tags_of(wheel)})
        if not wheels:
            source_only.append(package["name"])
        elif not any(tag.endswith("-any") for tag in tags):
            lines.append(" ".join([package["name"], *tags]))
    return lines, source_only


def main(options: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        everything = Path(scratch) / "all.lock"
        known = [lock.read_text() for lock in (RUN, DEV, BUILD) if lock.exists()]
        everything.write_text("".join(known))  # what an output file already says is preferred
        inputs = ["pyproject.toml", BUILD_INPUT]
        compile_lock(inputs, everything, "--generate-hashes", "--extra", "dev", *options)

        def part(target: Path, what: str, sources: list[str], *more: str) -> None:
            draft = Path(scratch) / target.name
            shutil.copyfile(everything, draft)
            compile_lock(sources, draft, "--generate-hashes", *more)
            target.write_text(HEADER.format(what=what) + draft.read_text())

        part(RUN, "What a node needs.", ["pyproject.toml"])
        part(BUILD, "What builds the project.", [BUILD_INPUT])
        present = [f"--no-emit-package={name}" for name in {*locked_names(RUN), *locked_names(BUILD)}]
        part(DEV, "What tests and checks add to the other two.", inputs, "--extra", "dev", *sorted(present))

        pins = Path(scratch) / "pylock.toml"
        compile_lock(inputs, pins, "--format", "pylock.toml", "--extra", "dev", "--constraints", str(everything))
        lines, source_only = wheel_table(pins)
        title = HEADER.format(what="Packages with compiled parts, and the wheels that exist of the locked version.")
        (REQUIREMENTS / "wheels.txt").write_text(title + "\n".join(lines) + "\n")
    print(f"lock: {len(locked_names(RUN))} to run, {len(locked_names(DEV))} more to test")
    print(f"lock: without any wheel: {', '.join(source_only) or 'none'} (scripts/_setup.py must name the same)")


if __name__ == "__main__":
    main(sys.argv[1:])
