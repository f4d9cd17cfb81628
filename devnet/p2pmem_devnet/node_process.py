"""Run one node: what a fleet starts as a process of its own."""

from __future__ import annotations

import logging
import signal
import sys

import trio

from p2pmem.config import load
from p2pmem.home import Home
from p2pmem.node import run_node


async def main() -> None:
    home = Home.find(sys.argv[1])
    config = load(home.config_file)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            url = await nursery.start(run_node, home, config)
            print(url, flush=True)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break


logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
trio.run(main)
