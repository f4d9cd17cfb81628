"""Who waits for a thing is woken when it is named, and by nothing else."""

from __future__ import annotations

from p2pmem_jobs import Listener, Signal
from p2pmem_protocol.names import GraphId
from trio.testing import MockClock

from p2pmem.face import LimitsChange, MemberChange
from p2pmem.work.awaited import Awaited
from tests.p2pmem.trust.scene import scene

ONE, OTHER = GraphId(b"\x01" * 32), GraphId(b"\x02" * 32)


class Woken(Listener):
    def __init__(self, signal: Signal) -> None:
        super().__init__((signal,))
        self.times = 0

    def wake(self) -> None:
        self.times += 1
        super().wake()


def test_only_what_was_named_is_woken() -> None:
    awaited: Awaited[str] = Awaited()
    with (
        awaited.signal(ONE, "a") as a,
        awaited.signal(ONE, "b") as b,
        awaited.signal(OTHER, "a") as other,
        Woken(a) as for_a,
        Woken(b) as for_b,
        Woken(other) as for_other,
    ):
        awaited.notify(ONE, ["a", "c"])
        assert (for_a.times, for_b.times, for_other.times) == (1, 0, 0)
        awaited.notify_all(ONE)
        assert (for_a.times, for_b.times, for_other.times) == (2, 1, 0)
    assert not awaited.waits(ONE)
    assert not awaited.waits(OTHER)


def test_a_signal_stays_for_who_has_it_and_does_not_listen_yet() -> None:
    awaited: Awaited[str] = Awaited()
    with awaited.signal(ONE, "a") as late:
        with awaited.signal(ONE, "a") as early, Woken(early):
            pass
        with Woken(late) as listening:
            awaited.notify(ONE, ["a"])
            assert listening.times == 1


async def test_a_publish_waits_for_the_promises_that_its_graph_asks_for(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await it.change(MemberChange(limits=LimitsChange(acks_min=3)))
        await it.cluster.stop(it.dan)
        assets = [await it.ada.share(f"ex:a ex:is {number} .") for number in range(3)]
        jobs = [await it.ada.start_publish(asset) for asset in assets]
        await it.cluster.advance(seconds=5)
        for job in jobs:
            view = await it.ada.face.job(job.id, wait_ms=0)
            assert (view.state, view.waiting_for) == ("waiting", "2 members promised to keep it, needed: 3")
        await it.cluster.restart(it.dan)
        await it.cluster.settled()
        for job in jobs[:2]:
            assert (await it.ada.face.job(job.id, wait_ms=60_000)).state == "succeeded"
