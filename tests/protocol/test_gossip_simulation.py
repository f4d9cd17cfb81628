"""The figures that the rules of gossip promise, with whole groups of members on a simulated network."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.protocol.gossip_simulation import (
    DETECTION_MS,
    GRAPH,
    Simulation,
    Totals,
    behind_nat,
    mesh,
    messages,
    names,
    random_graph,
)


def settled_group(seed: int, count: int, degree: int = 24) -> tuple[Simulation, list[str]]:
    simulation = Simulation(seed)
    group = names(count)
    simulation.add(group)
    random_graph(simulation, group, degree)
    simulation.run(1_000)
    simulation.totals = Totals()
    return simulation, group


@pytest.mark.parametrize(
    ("count", "degree"),
    [(2, 24), (5, 24), (12, 24), (25, 24), (100, 12), pytest.param(300, 24, marks=pytest.mark.slow)],
)
def test_all_are_reached_and_hardly_a_body_is_sent_twice(count: int, degree: int) -> None:
    simulation, group = settled_group(1, count, degree)
    messages(simulation, 8, group)
    simulation.run(3_000)
    outcome = simulation.outcome()
    assert outcome.covered == 1.0
    assert outcome.duplicates_per_delivery < 0.1
    assert outcome.last_ms < 1_000


def test_where_all_are_connected_an_envelope_costs_one_frame_and_one_acknowledgement() -> None:
    simulation, group = settled_group(2, 25)
    messages(simulation, 10, group)
    simulation.run(3_000)
    assert simulation.outcome().frames_per_delivery == 2.0
    assert simulation.totals.control_bytes == 0


@settings(max_examples=30)
@given(st.integers(2, 16), st.sets(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=40), st.integers(0, 999))
def test_every_member_that_a_path_leads_to_is_reached(count: int, edges: set[tuple[int, int]], seed: int) -> None:
    simulation = Simulation(seed)
    group = names(count)
    simulation.add(group)
    for one, other in sorted(edges):
        simulation.connect(group[one % count], group[other % count])
    simulation.run(1_000)
    item_id = simulation.publish(group[0])
    simulation.run(20_000)
    reached, border = {group[0]}, [group[0]]
    while border:
        for other in simulation.neighbours(border.pop()):
            if other not in reached:
                reached.add(other)
                border.append(other)
    assert {name for name in group if item_id in simulation.members[name].held} == reached
    assert simulation.totals.duplicates <= 0.1 * len(reached)


@pytest.mark.parametrize("seed", range(5))
def test_an_author_killed_in_mid_send_is_made_up_for_within_a_second_of_its_detection(seed: int) -> None:
    simulation = Simulation(seed)
    group = names(12)
    simulation.add(group)
    mesh(simulation, group)
    simulation.run(1_000)
    simulation.members["n0"].frames_left = 5
    item_id = simulation.publish("n0")
    simulation.run(200)
    assert not simulation.members["n0"].is_alive
    assert sum(item_id in it.held for it in simulation.members.values()) < 12, "half of them lack it"
    simulation.run(DETECTION_MS + 1_000 - 200)
    assert simulation.outcome().covered == 1.0


def test_a_receiver_that_stops_leaves_the_others_as_they_were_and_catches_up() -> None:
    def run(stopped: bool) -> tuple[Simulation, list[str]]:
        simulation, group = settled_group(5, 5)
        if stopped:
            simulation.stop("n4")
        messages(simulation, 400, ["n0"], gap_ms=10)
        simulation.run(1_000)
        return simulation, group

    plain, group = run(stopped=False)
    stopped, _ = run(stopped=True)
    assert stopped.outcome(group[1:4]).p95_ms == plain.outcome(group[1:4]).p95_ms
    assert stopped.outcome(group[1:4]).covered == 1.0
    author = stopped.members["n0"].gossip
    towards = author.outbox_statistics("n4")
    assert towards is not None
    assert towards.unacked_frames == 8, "no more is under way to it than the window allows"
    assert not author.is_pressed(GRAPH), "and it does not hold up the author"
    stopped.go_on("n4")
    stopped.run(5_000)
    assert stopped.outcome(["n4"]).covered == 1.0


def test_a_receiver_that_stays_stopped_is_closed_after_ten_seconds() -> None:
    simulation, _ = settled_group(6, 3)
    simulation.stop("n2")
    messages(simulation, 20, ["n0"], gap_ms=10)
    simulation.run(9_000)
    assert "n2" in simulation.neighbours("n0")
    simulation.run(2_000)
    assert "n2" not in simulation.neighbours("n0")


def test_liars_who_list_everybody_harm_only_themselves() -> None:
    simulation = Simulation(4)
    group = names(60)
    simulation.add(group)
    for name in group[:10]:
        simulation.members[name].lies = True
    random_graph(simulation, group, 12)
    simulation.run(1_000)
    messages(simulation, 10, group)
    simulation.run(5_000)
    assert simulation.outcome(group[10:]).covered == 1.0
    assert simulation.outcome(group[:10]).covered < 1.0, "they are told of what their lists say they hear anyway"


def test_two_halves_and_one_bridge() -> None:
    simulation = Simulation(6)
    left, right = names(15, "a"), names(15, "b")
    simulation.add([*left, *right, "bridge"])
    mesh(simulation, left)
    mesh(simulation, right)
    simulation.connect("bridge", left[0])
    simulation.connect("bridge", right[0])
    simulation.run(1_000)
    messages(simulation, 10, left + right)
    simulation.run(3_000)
    assert simulation.outcome().covered == 1.0
    assert simulation.totals.duplicates == 0


def test_members_behind_nat_hear_each_other_through_public_ones() -> None:
    simulation = Simulation(7)
    public, hidden = names(3, "p"), names(40, "h")
    simulation.add(public + hidden)
    behind_nat(simulation, public, hidden, 2)
    simulation.run(1_000)
    messages(simulation, 10, hidden)
    simulation.run(3_000)
    outcome = simulation.outcome()
    assert outcome.covered == 1.0
    assert outcome.duplicates_per_delivery < 0.1


def test_a_leaf_whose_list_names_only_the_hub_gets_the_envelope_whole() -> None:
    simulation = Simulation(8)
    leaves = names(20, "leaf")
    simulation.add(["hub", *leaves])
    behind_nat(simulation, ["hub"], leaves, 1)
    simulation.run(1_000)
    simulation.totals = Totals()
    messages(simulation, 5, leaves)
    simulation.run(2_000)
    assert simulation.outcome().covered == 1.0
    assert simulation.totals.control_bytes == 0, "nothing was announced, nothing asked for"


def test_connections_that_break_under_traffic_lose_nothing() -> None:
    simulation, group = settled_group(3, 25)
    simulation.frame_loss = 0.01
    messages(simulation, 15, group)
    simulation.frame_loss = 0.0
    simulation.run(5_000)
    assert simulation.outcome().covered == 1.0


def test_links_that_died_unnoticed_are_closed_and_made_up_for() -> None:
    simulation, group = settled_group(9, 25)
    pairs = [frozenset((one, other)) for one in group for other in simulation.neighbours(one) if one < other]
    simulation.dead_links = set(simulation.random.sample(pairs, 15))
    messages(simulation, 15, group)
    simulation.run(1_000)
    assert simulation.outcome().covered < 1.0
    simulation.run(12_000)
    assert simulation.outcome().covered == 1.0, "ten seconds without an acknowledgement end a giver's promise"


def test_members_who_come_and_go_cost_nobody_an_envelope() -> None:
    simulation, group = settled_group(8, 60, 12)
    simulation.add(names(6, "new"))
    for number in range(16):
        simulation.after(
            number * 200,
            lambda: simulation.publish(
                simulation.random.choice([it for it in group if simulation.members[it].is_alive])
            ),
        )
    for number in range(4):
        simulation.after(300 + number * 700, lambda number=number: simulation.kill(group[7 * number + 1]))
        for dialled in range(5):
            at = 10 * number + 5 * dialled + 5
            simulation.after(
                400 + number * 300, lambda number=number, at=at: simulation.connect(f"new{number}", group[at])
            )
    simulation.run(10_000)
    joined = [it for it in simulation.members if simulation.members[it].is_alive and it not in ("new4", "new5")]
    outcome = simulation.outcome(joined)
    assert outcome.covered == 1.0
    assert outcome.duplicates_per_delivery < 0.1


def test_what_only_one_member_holds_spreads_from_one_comparison() -> None:
    simulation, group = settled_group(10, 40, 8)
    item_id = b"\x55" * 32
    simulation.members["n0"].held[item_id] = 0
    simulation.reconcile("n0", simulation.neighbours("n0")[0])
    simulation.run(5_000)
    assert all(item_id in simulation.members[name].held for name in group)


troubles = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "kill", "die in mid-send", "cut", "stop", "go on", "lose"]),
        st.integers(0, 9),
        st.integers(0, 9),
        st.sampled_from([0, 3, 40, 300, 1_500]),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(troubles, st.integers(3, 10), st.integers(2, 9), st.integers(0, 99))
def test_whatever_goes_wrong_those_still_connected_end_with_one_set(
    history: list[tuple[str, int, int, int]], count: int, degree: int, seed: int
) -> None:
    simulation, group = settled_group(seed, count, degree)
    alive = list(group)
    for what, one, other, pause in history:
        name = alive[one % len(alive)]
        neighbours = simulation.neighbours(name)
        if what == "publish":
            simulation.publish(name)
        elif what == "kill" and len(alive) > 2:
            simulation.kill(name)
        elif what == "die in mid-send" and len(alive) > 2:
            simulation.members[name].frames_left = other % 3
            simulation.publish(name)
        elif what == "cut" and neighbours:
            simulation.cut(name, neighbours[other % len(neighbours)])
        elif what == "stop":
            simulation.stop(name)
        elif what == "go on":
            simulation.go_on(name)
        elif what == "lose":
            simulation.frame_loss = 0.2
            simulation.run(200)
            simulation.frame_loss = 0.0
        simulation.run(pause)
        alive = [it for it in group if simulation.members[it].is_alive]
    for name in group:
        simulation.go_on(name)
    # No periodic comparison: rounds on a new connection, questions and promises must do.
    simulation.run(30_000)
    for name in (it for it in group if simulation.members[it].is_alive):
        for other in simulation.neighbours(name):
            assert simulation.members[name].held.keys() == simulation.members[other].held.keys()
