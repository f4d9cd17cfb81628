"""Every test that takes `order` runs once in each of two orders of arrival."""

from __future__ import annotations

import pytest
from p2pmem_devnet.testing import seed_of

from tests.p2pmem.trust.scene import Order


@pytest.fixture(params=["one order", "the other"])
def order(request: pytest.FixtureRequest) -> Order:
    """In which order the nodes of a scene hear things; `--cluster-seed` chooses the seed of its cluster."""
    return Order(seed_of(request), request.param == "the other")
