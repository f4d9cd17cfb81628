"""What every test here shares: deterministic Hypothesis, and where data of others lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "p2pmem", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile(os.environ.get("P2PMEM_HYPOTHESIS", "p2pmem"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real inputs and other people's test suites; not part of this repository."""
    root = Path(__file__).parents[1]
    data = (root / os.environ.get("P2PMEM_SHARED", "../shared")).resolve() / "data"
    if not data.is_dir():
        pytest.skip(f"no {data}: set P2PMEM_SHARED to the folder that holds other people's test suites")
    return data
