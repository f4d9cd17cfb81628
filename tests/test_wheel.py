"""What a user gets who installs the wheel or reads the source distribution."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="hatchling builds the wheel: it comes with requirements/build.lock")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = [ROOT / folder for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def names_outside_metadata(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def files_known_to_git(*arguments: str) -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing to compare with")
    command = ["git", "ls-files", "-z", "--cached", *arguments]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return {name for name in listing.split("\0") if name and (ROOT / name).is_file()}


def committed_files() -> set[str]:
    """The files of the four packages, by the names they should have in the wheel."""
    names = files_known_to_git("--others", "--exclude-standard", "--", *map(str, FOLDERS))
    paths = [ROOT / name for name in names]
    return {
        path.relative_to(folder.parent).as_posix()
        for path in paths
        for folder in FOLDERS
        if path.is_relative_to(folder)
    }


def test_the_wheel_holds_exactly_the_files_of_the_four_packages(wheel: zipfile.ZipFile) -> None:
    assert names_outside_metadata(wheel) == committed_files()


def test_the_wheel_holds_no_tests_and_no_installed_npm_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in names_outside_metadata(wheel)}
    assert tops == {folder.name for folder in FOLDERS}
    assert [name for name in wheel.namelist() if "node_modules" in name or "__pycache__" in name] == []


def test_every_package_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert {f"{folder.name}/py.typed" for folder in FOLDERS} <= set(wheel.namelist())


def test_no_data_file_of_a_package_is_hidden_from_the_wheel_by_an_ignore_rule(wheel: zipfile.ZipFile) -> None:
    """Contract, scenarios, pages: what is needed at run time and is not Python is easily lost to such a rule."""
    by_products = {"node_modules", "__pycache__"}
    on_disk = {
        path.relative_to(folder.parent).as_posix()
        for folder in FOLDERS
        for path in folder.rglob("*")
        if path.is_file() and by_products.isdisjoint(path.parts)
    }
    assert on_disk == names_outside_metadata(wheel)


def test_the_metadata_tells_the_truth_about_python_and_licence(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["Name"] == "p2pmem"
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())
    assert "# p2pmem" in metadata.get_payload()


def test_every_command_leads_to_a_function(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    targets = [target.split(":") for target in PROJECT["project"]["scripts"].values()]
    files = {f"{module.replace('.', '/')}.py": function for module, function in targets}
    if names.isdisjoint(files):
        pytest.skip("no command is written yet")
    for file, function in files.items():
        assert f"def {function}(" in wheel.read(file).decode()


def test_the_source_distribution_can_be_checked_by_its_reader(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = files_known_to_git("--", "tests", "protocol", "requirements", "README.md", "LICENSE", "CONTRIBUTING.md")
    assert wanted <= names
