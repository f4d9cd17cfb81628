"""The `cluster` fixture comes from the package itself, as its users get it."""

from __future__ import annotations

pytest_plugins = ["p2pmem_devnet.testing"]
