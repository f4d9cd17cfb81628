"""Frames are batched, few are under way, nothing queued is unbounded, and who acknowledges nothing is found out."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol import frames
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.frames import ListChange
from p2pmem_protocol.limits import ITEM_BYTES_MAX
from p2pmem_protocol.outbox import Outbox, OutboxLimits, Outgoing

LIMITS = OutboxLimits()


def id_of(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(24)


def short_of(number: int) -> bytes:
    return number.to_bytes(8, "big")


def taken(outbox: Outbox, now_ms: int) -> Outgoing:
    outgoing = outbox.take(now_ms)
    assert outgoing is not None
    return outgoing


def test_an_envelope_that_comes_alone_goes_at_once() -> None:
    outbox = Outbox()
    outbox.push(id_of(1), 100, 1_000)
    assert outbox.due_ms() == 1_000
    assert taken(outbox, 1_000).envelopes == (id_of(1),)
    assert outbox.due_ms() == inf


def test_envelopes_wait_for_company_when_a_frame_has_just_gone() -> None:
    outbox = Outbox()
    outbox.push(id_of(1), 100, 1_000)
    taken(outbox, 1_000)
    outbox.push(id_of(2), 100, 1_010)
    outbox.push(id_of(3), 100, 1_020)
    assert outbox.due_ms() == 1_030
    assert outbox.take(1_029) is None
    assert taken(outbox, 1_030).envelopes == (id_of(2), id_of(3))
    outbox.push(id_of(4), 100, 1_100)
    assert outbox.due_ms() == 1_100, "some tens a second are not busy"


def test_announcements_wait_a_tenth_of_a_second_and_ride_on_whatever_goes_before() -> None:
    outbox = Outbox()
    outbox.announce(short_of(7), 1_000)
    assert outbox.due_ms() == 1_100
    outbox.ask(short_of(8), 1_020)
    outgoing = taken(outbox, 1_025)
    assert (outgoing.announced, outgoing.asked) == ((short_of(7),), (short_of(8),))
    assert outbox.due_ms() == inf


def test_a_full_frame_goes_at_once() -> None:
    outbox = Outbox()
    for number in range(frames.FRAME_ENVELOPES_MAX):
        outbox.push(id_of(number), 10, 1_000)
    assert len(taken(outbox, 1_000).envelopes) == frames.FRAME_ENVELOPES_MAX


def test_no_more_than_eight_frames_are_under_way() -> None:
    outbox = Outbox()
    now = 0
    for number in range(20):
        outbox.push(id_of(number), 10, now)
        now += 100
        outbox.take(now)
    assert outbox.statistics().unacked_frames == LIMITS.frames_unacked
    assert outbox.due_ms() == inf, "only an acknowledgement helps now"
    outbox.acked(3)
    assert outbox.statistics().unacked_frames == 5
    assert len(taken(outbox, now).envelopes) == 12


@given(st.lists(st.integers(1, ITEM_BYTES_MAX), min_size=1, max_size=200))
def test_no_more_than_the_window_of_bytes_is_under_way_and_all_gets_through(sizes: list[int]) -> None:
    outbox = Outbox(OutboxLimits(queued_bytes=2**30))
    for number, size in enumerate(sizes):
        assert outbox.push(id_of(number), size, 0)
    now, seq, through = 0, 0, 0
    while through < len(sizes):
        now += 1_000
        sent_before = seq
        while (outgoing := outbox.take(now)) is not None:
            seq = outgoing.seq
            through += len(outgoing.envelopes)
            assert sum(sizes[int.from_bytes(it[:8], "big")] for it in outgoing.envelopes) < frames.MESSAGE_BYTES_MAX
        assert seq > sent_before, "it moves on"
        assert outbox.statistics().unacked_bytes <= LIMITS.bytes_unacked
        outbox.acked(seq)
        assert outbox.statistics().unacked_bytes == 0


def test_what_finds_no_room_is_said_to_have_found_none() -> None:
    outbox = Outbox(OutboxLimits(queued_bytes=1_000, queued_envelopes=3, queued_ids=2, queued_asks=1))
    assert outbox.push(id_of(1), 900, 0)
    assert not outbox.push(id_of(2), 200, 0)
    assert outbox.push(id_of(1), 900, 0), "what is queued already needs no room"
    assert outbox.push(id_of(3), 1, 0)
    assert outbox.push(id_of(4), 1, 0)
    assert not outbox.push(id_of(5), 1, 0)
    assert outbox.announce(short_of(6), 0)
    assert outbox.announce(short_of(7), 0)
    assert not outbox.announce(short_of(8), 0)
    assert outbox.ask(short_of(6), 0)
    assert not outbox.ask(short_of(7), 0)
    assert outbox.statistics().overflows == 4
    outbox.flag(b"g" * 32, 0)
    assert taken(outbox, 500).reconcile == (b"g" * 32,)


def test_half_a_queue_of_envelopes_is_pressure() -> None:
    outbox = Outbox(OutboxLimits(queued_bytes=1_000))
    outbox.push(id_of(1), 500, 0)
    assert not outbox.is_pressed
    outbox.push(id_of(2), 1, 0)
    assert outbox.is_pressed


def test_what_the_member_has_by_now_is_not_sent() -> None:
    outbox = Outbox()
    outbox.push(id_of(1), 10, 0)
    outbox.announce(short_of(2), 0)
    outbox.ask(short_of(3), 0)
    outbox.tell_list(ListChange(bytes(32), added=(bytes(8),)), 0)
    outbox.drop_lists(bytes(32))
    outbox.withdraw(id_of(1))
    outbox.withdraw(short_of(2))
    outbox.withdraw_ask(short_of(3))
    assert outbox.take(1_000) is None
    assert outbox.due_ms() == inf
    assert outbox.statistics().queued_bytes == 0


def test_a_member_that_gets_an_envelope_whole_is_not_told_of_it() -> None:
    outbox = Outbox()
    outbox.announce(short_of(1), 0)
    outbox.push(id_of(1), 10, 0)
    assert taken(outbox, 1_000).announced == ()


def test_acknowledgements_are_due_when_nothing_waits_or_at_every_fourth_frame() -> None:
    outbox = Outbox()
    for seq in (1, 2, 3):
        outbox.received(seq, is_last=False)
    assert outbox.due_ms() == inf
    outbox.received(4, is_last=False)
    assert outbox.take(0) == Outgoing(ack=4)
    outbox.received(5, is_last=True)
    assert outbox.take(0) == Outgoing(seq=0, ack=5), "a frame of nothing but an acknowledgement has no number"
    assert outbox.take(10_000) is None
    assert outbox.overdue_ms() == inf, "and is not waited for"


def test_acknowledgements_ride_on_frames_and_go_even_when_the_window_is_shut() -> None:
    outbox = Outbox(OutboxLimits(frames_unacked=1))
    outbox.received(1, is_last=False)
    outbox.push(id_of(1), 10, 0)
    assert taken(outbox, 5).ack == 1
    outbox.push(id_of(2), 10, 10)
    outbox.received(2, is_last=True)
    assert outbox.take(1_000) == Outgoing(ack=2)


def test_who_acknowledges_nothing_for_ten_seconds_is_overdue() -> None:
    outbox = Outbox()
    outbox.push(id_of(1), 10, 0)
    taken(outbox, 1_000)
    outbox.push(id_of(2), 10, 5_000)
    taken(outbox, 5_100)
    assert outbox.overdue_ms() == 11_000
    outbox.acked(1)
    assert outbox.overdue_ms() == 15_100
    outbox.acked(2)
    outbox.acked(1)
    assert outbox.overdue_ms() == inf


def test_miscounted_frames_and_acknowledgements_are_refused() -> None:
    outbox = Outbox()
    with pytest.raises(RefusedError):
        outbox.acked(1)
    for seq in (0, 2):
        with pytest.raises(RefusedError):
            outbox.received(seq, is_last=True)


def test_the_fullest_frame_can_be_encoded() -> None:
    outbox = Outbox(OutboxLimits(queued_bytes=2**20))
    whole = tuple(short_of(it) for it in range(frames.LIST_MEMBERS_MAX))
    for number in range(frames.FRAME_LISTS_MAX * 2):
        outbox.tell_list(ListChange(number.to_bytes(32, "big"), True, whole), 0)
    for number in range(frames.GRAPHS_MAX):
        outbox.flag(number.to_bytes(32, "big"), 0)
    for number in range(frames.FRAME_IDS_MAX * 2):
        outbox.announce(short_of(number), 0)
        outbox.ask(short_of(number), 0)
    outbox.push(id_of(10**6), ITEM_BYTES_MAX, 0)
    first = taken(outbox, 1_000)
    bodies = [bytes([1]) * ITEM_BYTES_MAX for _ in first.envelopes]
    assert len(bodies) == 1
    assert frames.decode(frames.encode(first.frame(bodies))) == first.frame(bodies)


def test_a_flag_waits_as_long_as_an_announcement_and_goes_once() -> None:
    outbox = Outbox()
    outbox.flag(b"g" * 32, 1_000)
    outbox.flag(b"h" * 32, 1_050)
    assert outbox.due_ms() == 1_100
    assert taken(outbox, 1_100).reconcile == (b"g" * 32, b"h" * 32)
    outbox.push(id_of(1), 10, 2_000)
    assert taken(outbox, 3_000).reconcile == ()


def test_what_fills_a_frame_or_the_queue_exactly_is_full() -> None:
    outbox = Outbox()
    outbox.push(id_of(1), LIMITS.frame_bytes - 1, 0)
    assert outbox.due_ms() == 0
    outbox.push(id_of(2), 1, 0)
    assert outbox.due_ms() == -inf
    outbox = Outbox()
    for number in range(frames.FRAME_IDS_MAX):
        assert outbox.due_ms() == (100 if number else inf)
        outbox.announce(short_of(number), 0)
    assert outbox.due_ms() == -inf
    small = Outbox(OutboxLimits(queued_bytes=1_000))
    assert small.push(id_of(1), 600, 0)
    assert small.push(id_of(2), 400, 0)
    assert not small.push(id_of(3), 1, 0)


def test_with_half_the_window_under_way_everything_waits_longer() -> None:
    outbox = Outbox()
    for number in range(8):
        assert outbox.due_ms() == inf
        outbox.announce(short_of(number), 1_000 * number)
        assert outbox.due_ms() == 1_000 * number + (LIMITS.ids_wait_busy_ms if number >= 4 else LIMITS.ids_wait_ms)
        taken(outbox, 1_000 * number + 500)


def test_an_envelope_that_comes_a_busy_gap_after_a_frame_does_not_wait_for_more() -> None:
    for gap_ms, wait_ms in ((LIMITS.busy_gap_ms - 1, 20), (LIMITS.busy_gap_ms, 0)):
        outbox = Outbox()
        outbox.push(id_of(1), 100, 1_000)
        taken(outbox, 2_000)
        outbox.push(id_of(2), 100, 2_000 + gap_ms)
        assert outbox.due_ms() == 2_000 + gap_ms + wait_ms


def test_a_frame_is_counted_with_all_that_it_holds() -> None:
    outbox = Outbox()
    outbox.tell_list(ListChange(b"g" * 32, False, (short_of(1), short_of(2)), (short_of(3),)), 0)
    outbox.flag(b"g" * 32, 0)
    outbox.flag(b"h" * 32, 0)
    outbox.announce(short_of(4), 0)
    outbox.ask(short_of(5), 0)
    outbox.ask(short_of(6), 0)
    outbox.push(id_of(7), 1_000, 0)
    taken(outbox, 1_000)
    assert outbox.statistics().unacked_bytes == 64 + (48 + 3 * 8) + 2 * 34 + 3 * 8 + 1_000 + 6


def test_what_finds_no_room_in_a_frame_goes_with_the_next_at_once() -> None:
    envelopes, announced, asked, lists = Outbox(), Outbox(), Outbox(), Outbox()
    for number in range(frames.FRAME_ENVELOPES_MAX + 1):
        envelopes.push(id_of(number), 1, 1_000)
    for number in range(frames.FRAME_IDS_MAX + 1):
        announced.announce(short_of(number), 1_000)
        asked.ask(short_of(number), 1_000)
    for number in range(frames.FRAME_LISTS_MAX + 1):
        lists.tell_list(ListChange(number.to_bytes(32, "big"), True, ()), 1_000)
    for outbox in (envelopes, announced, asked, lists):
        taken(outbox, 1_100)
        assert outbox.due_ms() <= 1_100
        taken(outbox, 1_100)
        assert outbox.due_ms() == inf


def test_half_a_queue_in_number_is_pressure_too() -> None:
    outbox = Outbox(OutboxLimits(queued_envelopes=4))
    for number, pressed in enumerate((False, False, True, True)):
        outbox.push(id_of(number), 1, 0)
        assert outbox.is_pressed is pressed


def waiting(window: int, *, ids: int) -> float:
    """When something is due while 70 bytes are under way: an envelope of 100, and `ids` announced and asked each."""
    outbox = Outbox(OutboxLimits(bytes_unacked=window))
    outbox.push(id_of(0), 0, 0)
    taken(outbox, 100)
    assert outbox.statistics().unacked_bytes == 70
    for number in range(ids):
        outbox.announce(short_of(number), 1_000)
        outbox.ask(short_of(number), 1_000)
    outbox.push(id_of(10**6), 100, 1_000)
    return outbox.due_ms()


def test_the_next_frame_goes_when_it_just_fits_the_window() -> None:
    for ids, counted in ((0, 0), (2, 4), (2 * frames.FRAME_IDS_MAX, 2 * frames.FRAME_IDS_MAX)):
        fits = 70 + 64 + 8 * counted + 100
        assert waiting(fits, ids=ids) < inf
        assert waiting(fits - 1, ids=ids) == inf


def test_a_frame_takes_envelopes_up_to_its_size_and_to_what_is_left_of_the_window() -> None:
    for frame_bytes, window, sent in ((276, 10_000, 2), (275, 10_000, 1), (10_000, 346, 2), (10_000, 345, 1)):
        outbox = Outbox(OutboxLimits(frame_bytes=frame_bytes, bytes_unacked=window))
        outbox.push(id_of(0), 0, 0)
        taken(outbox, 50)
        for number in (1, 2):
            outbox.push(id_of(number), 100, 100)
        assert len(taken(outbox, 1_000).envelopes) == sent


def test_changes_of_lists_wait_a_second_for_each_other_and_go_with_whatever_goes() -> None:
    """A network that comes back brings each member twenty others, and each of these is told to all."""
    outbox = Outbox()
    for number in range(3):
        outbox.tell_list(ListChange(b"g" * 32, added=(short_of(number),)), 300 * number)
    assert outbox.due_ms() == LIMITS.lists_wait_ms
    assert outbox.take(LIMITS.lists_wait_ms - 1) is None
    assert len(taken(outbox, LIMITS.lists_wait_ms).lists) == 3
    assert outbox.due_ms() == inf
    outbox.tell_list(ListChange(b"g" * 32, removed=(short_of(1),)), 5_000)
    outbox.announce(short_of(7), 5_000)
    assert len(taken(outbox, 5_000 + LIMITS.ids_wait_ms).lists) == 1
    outbox.tell_list(ListChange(b"g" * 32, is_whole=True), 9_000)
    assert outbox.due_ms() == 9_000 + LIMITS.ids_wait_ms, "who has just come is told at once with whom we are connected"


def test_a_frame_holds_so_many_envelopes_and_changes_of_lists_and_no_more() -> None:
    outbox = Outbox()
    for number in range(frames.FRAME_ENVELOPES_MAX + 1):
        outbox.push(id_of(number), 1, 0)
    for number in range(frames.FRAME_LISTS_MAX + 1):
        outbox.tell_list(ListChange(number.to_bytes(32, "big"), True, ()), 0)
    first = taken(outbox, 1_000)
    assert (len(first.envelopes), len(first.lists)) == (frames.FRAME_ENVELOPES_MAX, frames.FRAME_LISTS_MAX)
    long = Outbox()
    members = tuple(short_of(number) for number in range(122))
    for number in range(33):
        long.tell_list(ListChange(number.to_bytes(32, "big"), True, members), 0)
    assert len(taken(long, 1_000).lists) == 32, "32 KiB of lists, 1 KiB each"


def test_frames_that_came_are_counted_anew_after_an_acknowledgement() -> None:
    outbox = Outbox()
    for seq in range(1, 13):
        outbox.received(seq, is_last=False)
        outgoing = outbox.take(0)
        assert outgoing == (Outgoing(ack=seq) if seq % 4 == 0 else None)


def test_what_was_queued_first_goes_first_and_the_rest_is_counted() -> None:
    outbox = Outbox(OutboxLimits(frame_bytes=400))
    count = frames.FRAME_IDS_MAX + 2
    for number in range(count):
        outbox.announce(short_of(number), 0)
        outbox.ask(short_of(number), 0)
    first = taken(outbox, 1_000)
    assert first.announced == first.asked == tuple(short_of(number) for number in range(count - 2))
    second = taken(outbox, 1_000)
    assert second.announced == second.asked == (short_of(count - 2), short_of(count - 1))
    for number, size in enumerate((100, 150, 200, 250)):
        outbox.push(id_of(number), size, 2_000)
    assert outbox.statistics().queued_bytes == 700
    assert taken(outbox, 3_000).envelopes == (id_of(0), id_of(1))
    assert outbox.statistics().queued_bytes == 450
