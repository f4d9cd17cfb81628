"""The same seed gives the same trace, in any process: what depends on a process shows in nothing that nodes do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORY = """
import random, sys, trio, trio.testing
from p2pmem_devnet.cluster import Cluster, hours, seconds

async def main(seed):
    async with Cluster(4, seed=seed, quorum=2) as cluster:
        cluster.slow(delay=seconds(0.02), jitter=seconds(0.03))
        cluster.lose(every=hours(0.5))
        chance = random.Random(seed)
        for n in range(8):
            node, victim = chance.sample(cluster.nodes, 2)
            asset = await node.share(f"ex:s{n} ex:p ex:o{n} .", ttl=hours(chance.choice([1, 2])))
            with cluster.partition([victim], [it for it in cluster.nodes if it is not victim]):
                await cluster.advance(seconds=chance.uniform(0, 90))
            await node.start_verify(asset)
            if chance.random() < 0.5:
                await cluster.crash(victim)
                await cluster.restart(victim)
        joined = await cluster.join()
        await joined.publish(text="ex:late ex:p ex:o .")
        await cluster.settled()
        await cluster.remove(cluster.nodes[3])
        await cluster.advance(hours=1.5)
        await cluster.settled()
        cluster.audit()
        print(cluster.trace.digest, cluster.trace.count)

trio.run(main, int(sys.argv[1]), clock=trio.testing.MockClock(autojump_threshold=0))
"""


def test_the_same_seed_gives_the_same_trace_in_two_processes() -> None:
    first, again, other = (_run(seed, hash_seed) for seed, hash_seed in ((1, "1"), (1, "2"), (2, "1")))
    assert first == again
    assert first != other
    assert int(first.split()[1]) > 80


def _run(seed: int, hash_seed: str) -> str:
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "protocol", "jobs", "devnet"))
    done = subprocess.run(
        [sys.executable, "-c", STORY, str(seed)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
