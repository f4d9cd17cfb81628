"""The `cluster` fixture comes from the package itself, as its users get it; here also where it is not installed."""

from __future__ import annotations

pytest_plugins = ["p2pmem_devnet.testing"]
