"""Places of those who ask, and how often they may, each at its limit and one past it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import trio
from trio.testing import MockClock

from p2pmem.net.allowance import Allowance
from p2pmem.net.limits import AskLimits
from p2pmem.net.room import Origin
from p2pmem.net.seam import PeerId
from p2pmem.services.ask_allowance import AskAllowances
from p2pmem.services.join_places import Caller, Place, Places


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def caller(peer: str, where: str = "") -> Caller:
    return Caller(PeerId(peer), Origin(where or peer, where or peer))


class Hall:
    """Places, and those who hold them until the test is over."""

    def __init__(self, places: Places) -> None:
        self._places, self._stack = places, ExitStack()

    def take(self, peer: str, where: str = "") -> Place:
        return self._stack.enter_context(self._places.take(caller(peer, where)))

    def close(self) -> None:
        self._stack.close()


@contextmanager
def hall(*, most: float, per_peer_most: int) -> Iterator[Hall]:
    made = Hall(Places(most=most, per_peer_most=per_peer_most))
    try:
        yield made
    finally:
        made.close()


def lost(*places: Place) -> list[bool]:
    return [it.scope.cancel_called for it in places]


async def test_one_peer_pushes_out_itself_before_all_places_are_taken() -> None:
    with hall(most=9, per_peer_most=2) as places:
        honest = places.take("bo")
        first, second = places.take("mallory"), places.take("mallory")
        assert lost(honest, first, second) == [False, False, False]
        places.take("mallory")
        assert lost(honest, first, second) == [False, True, False]


async def test_many_peers_of_one_address_push_out_each_other() -> None:
    with hall(most=4, per_peer_most=4) as places:
        honest = places.take("bo", "192.0.2.1")
        crowd = [places.take(f"mallory{number}", "192.0.2.66") for number in range(3)]
        assert lost(honest, *crowd) == [False] * 4
        for number in range(400):
            crowd.append(places.take(f"another{number}", "192.0.2.66"))
        assert lost(honest, *crowd) == [False] + [True] * 400 + [False] * 3


async def test_at_an_address_of_many_the_peer_with_most_places_loses_one() -> None:
    with hall(most=4, per_peer_most=3) as places:
        bo = places.take("bo", "192.0.2.66")
        mallory = [places.take("mallory", "192.0.2.66") for _ in range(3)]
        places.take("cy")
        assert lost(bo, *mallory) == [False, True, False, False]


async def test_of_addresses_with_as_many_places_the_oldest_goes() -> None:
    with hall(most=2, per_peer_most=2) as places:
        first, second = places.take("bo"), places.take("cy")
        third = places.take("dan")
        assert lost(first, second, third) == [True, False, False]


@pytest.mark.parametrize(("after_s", "counts"), [(0.0, True), (1.99, True), (2.0, False)])
async def test_a_place_counts_until_its_time_however_soon_its_holder_is_done(
    clock: MockClock, after_s: float, counts: bool
) -> None:
    del clock
    places = Places(most=2, per_peer_most=2)
    with places.take(caller("bo", "192.0.2.1")) as place:
        place.heard(2.0)
    await trio.sleep(after_s)
    with places.take(caller("mallory", "192.0.2.66")) as first, places.take(caller("eve", "192.0.2.66")) as second:
        assert lost(first, second) == [counts, False]


async def test_a_place_of_somebody_who_said_nothing_is_free_when_he_goes() -> None:
    places = Places(most=2, per_peer_most=2)
    with places.take(caller("bo", "192.0.2.1")):
        pass
    with places.take(caller("mallory", "192.0.2.66")) as first, places.take(caller("eve", "192.0.2.66")) as second:
        assert lost(first, second) == [False, False]


async def test_who_is_kept_loses_his_place_and_does_not_feel_it() -> None:
    with hall(most=1, per_peer_most=1) as places:
        first = places.take("bo")
        first.kept = True
        second = places.take("cy")
        assert lost(first, second) == [False, False]
        third = places.take("dan")
        assert lost(first, second, third) == [False, True, False], "it counts no more"
        first.release()
        assert lost(first) == [True], "felt as soon as it is not kept any more"


async def test_a_peer_all_of_whose_places_are_kept_gets_no_more() -> None:
    with hall(most=9, per_peer_most=1) as places:
        first = places.take("bo")
        first.kept = True
        assert lost(first, places.take("bo"), places.take("cy")) == [False, True, False]


def test_an_allowance_is_used_up_and_grows_back_within_a_minute() -> None:
    allowance = Allowance(60)
    assert [allowance.take(0.0) for _ in range(61)] == [True] * 60 + [False]
    assert [allowance.take(1.0) for _ in range(2)] == [True, False]
    assert [allowance.take(1_000.0) for _ in range(61)] == [True] * 60 + [False]


def test_an_allowance_is_each_ones_own_and_of_more_than_it_knows_the_silent_are_forgotten() -> None:
    allowance = Allowance(1, accounts_max=2)
    assert [allowance.take(0.0, key) for key in ("bo", "cy", "bo", "dan", "bo", "cy")] == [
        *(True, True, False),
        *(True, False, True),
    ]


LIMITS = AskLimits(per_peer_per_minute=2, per_address_per_minute=3, passed_on_per_minute=4, relayed_per_minute=5)


def test_a_peer_and_an_address_may_ask_so_often_and_no_more() -> None:
    allowances = AskAllowances(LIMITS)
    assert [allowances.may_ask("bo", "here", 0.0) for _ in range(3)] == [True, True, False]
    assert [allowances.may_ask("cy", "here", 0.0) for _ in range(2)] == [True, False]
    assert allowances.may_ask("dan", "elsewhere", 0.0)


def test_so_many_asks_are_passed_on_and_no_more() -> None:
    allowances = AskAllowances(LIMITS)
    assert [allowances.may_pass_on(0.0) for _ in range(5)] == [True] * 4 + [False]


def test_an_owner_hears_so_many_from_one_member_about_one_asker_and_in_all() -> None:
    allowances = AskAllowances(LIMITS)
    assert [allowances.may_relay("bo", f"asker{number}", 0.0) for number in range(5)] == [True] * 4 + [False]
    assert [allowances.may_relay("cy", f"other{number}", 0.0) for number in range(2)] == [True, False], "in all"
    allowances = AskAllowances(LIMITS)
    assert [allowances.may_relay("bo", "asker", 0.0) for _ in range(3)] == [True, True, False]
    assert allowances.may_relay("cy", "asker", 0.0), "what bo says of an asker keeps nobody else from saying it"
