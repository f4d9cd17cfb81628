"""Imports of py-libp2p only what this project uses: its Noise, its keys, its GossipSub.

py-libp2p 0.8.1 imports all of itself, every transport and its servers, from `libp2p/__init__.py` and once more through
a type alias: two seconds of CPU and some forty megabytes before a node does anything. So its outermost packages stand
here as packages that run their `__init__` only when something in them is asked for, and the one class of a transport
that an alias names is a name until then. Whoever imports this module first gets that.

Then, too, one package that it imports warns of its own deprecated part, which we do not use; that is not shown.
"""

from __future__ import annotations

import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

_PACKAGES: Final = ("libp2p", "libp2p.transport", "libp2p.transport.quic")
_NAMES_ONLY: Final = "libp2p.transport.quic.stream"


class _Waiting(ModuleType):
    """A package whose `__init__` has not run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        if isinstance(sys.modules.get(_NAMES_ONLY), _NameOnly):
            del sys.modules[_NAMES_ONLY]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"websockets\.legacy is deprecated", category=DeprecationWarning)
            spec.loader.exec_module(self)
        return getattr(self, name)


class _NameOnly(ModuleType):
    """Stands in for a module of which one name is needed, for an annotation."""

    QUICStream = type("QUICStream", (), {})


def _find(name: str) -> ModuleSpec:
    parent = sys.modules.get(name.rpartition(".")[0])
    spec = PathFinder.find_spec(name, None if parent is None else list(parent.__path__))
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return spec


def _stand_in() -> None:
    for name in _PACKAGES:
        spec = _find(name)
        package = _Waiting(name)
        package.__spec__ = spec
        package.__path__ = list(spec.submodule_search_locations or ())
        package.__file__ = spec.origin
        package.__package__ = name
        sys.modules[name] = package
    sys.modules[_NAMES_ONLY] = _NameOnly(_NAMES_ONLY)


if "libp2p" not in sys.modules:
    _stand_in()
