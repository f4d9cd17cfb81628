"""Other people's code in JavaScript, as tests run it; the fixture `node_tools` finds it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeTools:
    """Node.js, and the folder of installed npm packages that scripts import from."""

    program: str
    modules: Path

    @property
    def folder(self) -> Path:
        """Where a script has to run, or to lie, to find the packages."""
        return self.modules.parent

    def lay_out(self, target: Path, *scripts: Path) -> Path:
        """Copies of `scripts` in `target`, with the packages beside them, as modules need it. Returns `target`."""
        (target / "node_modules").symlink_to(self.modules, target_is_directory=True)
        for script in scripts:
            shutil.copy(script, target / script.name)
        return target
