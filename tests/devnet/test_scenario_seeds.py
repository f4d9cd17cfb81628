"""A hundred runs and more over all scenarios, each with a seed of its own, each to its audit, on all cores.

`P2PMEM_SEEDS=100` runs each scenario for a hundred seeds.
"""

from __future__ import annotations

import os

import pytest
from p2pmem_devnet.scenarios import load, names, run

FIRST = 100
"""Other tests run the first seeds."""
SEEDS = int(os.environ.get("P2PMEM_SEEDS", "10"))


@pytest.mark.slow
@pytest.mark.processes
def test_every_scenario_ends_well_whatever_the_seed() -> None:
    outcomes = run("all", seed=FIRST, count=SEEDS, processes=os.cpu_count() or 1)
    failed = [outcome.line for outcome in outcomes if outcome.trouble]
    assert not failed, "\n".join(failed)
    assert len(outcomes) == SEEDS * sum(not load(name).long for name in names())
    assert len({outcome.trace for outcome in outcomes}) == len(outcomes)


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_in_another_process_is_the_same_run() -> None:
    assert run("owners_fork", seed=5, count=2, processes=2) == run("owners_fork", seed=5, count=2)
