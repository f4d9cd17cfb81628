"""Imports py-libp2p without the warning of a package that it imports and we do not use.

py-libp2p 0.8.1 imports all its transports, and one of them the deprecated part of `websockets`. Whoever imports this
module first does not hear of it, even where warnings are errors.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=r"websockets\.legacy is deprecated", category=DeprecationWarning)
    import libp2p  # noqa: F401
