"""Imports of py-libp2p what is asked for, and not all of it. Imported before all else of py-libp2p.

The packages of py-libp2p 0.8.1 import their whole content when anything in them is imported: QUIC, WebSockets, DNS
discovery, certificates from the web, metrics. That is a second of start, 25 MB of memory in every node, and code that
nothing here uses. So these packages are *deferred*: their modules can be imported, and their own `__init__` runs when
somebody asks for a name that it would define. One transport imports the deprecated part of `websockets`; whoever asks
for it so does not hear of that, even where warnings are errors.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast

DEFERRED: Final = ("libp2p", "libp2p.transport", "libp2p.network", "libp2p.security")


class _Deferred(ModuleType):
    """A package whose `__init__` has not run yet."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if name.startswith("__") or spec is None or spec.loader is None:
            raise AttributeError(name)
        self.__class__ = cast("Any", ModuleType)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"websockets\.legacy is deprecated", category=DeprecationWarning)
            spec.loader.exec_module(self)
        return getattr(self, name)


def _defer(name: str) -> None:
    if name in sys.modules:
        return
    spec: ModuleSpec | None = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Deferred
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


for _name in DEFERRED:
    _defer(_name)
