"""Scenarios: read strictly, run over seeds, and every failure can be run again."""

from __future__ import annotations

import pytest
from p2pmem_devnet import scenarios
from p2pmem_devnet.cli import main
from p2pmem_devnet.scenarios import load, names, parse, run, run_once
from p2pmem_protocol.errors import MisuseError

QUICK = ("byzantine_verifier", "hostile_stranger", "owners_fork", "restart_everything")


@pytest.mark.parametrize("name", QUICK)
def test_a_scenario_ends_well(name: str) -> None:
    outcome = run_once(load(name), seed=1)
    assert not outcome.trouble, f"{outcome.trouble}; again: {outcome.again}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(names()) - {*QUICK, "day"}))
def test_a_long_scenario_ends_well(name: str) -> None:
    outcome = run_once(load(name), seed=1)
    assert not outcome.trouble, f"{outcome.trouble}; again: {outcome.again}"


def test_all_the_stories_are_there() -> None:
    assert len(names()) == 12
    assert [name for name in names() if load(name).long] == ["day"]
    assert all(load(name).about.endswith(".") for name in names())


def test_the_same_seed_runs_the_same_story_and_another_seed_another() -> None:
    story = load("owners_fork")
    first, again, other = run_once(story, 5), run_once(story, 5), run_once(story, 6)
    assert first == again
    assert first.trace != other.trace


def test_life_goes_on_while_things_break_and_ends_with_everybody_up_and_equal() -> None:
    text = (
        'about = "x."\ncluster = { nodes = 4, quorum = 1, verifiers = 2 }\nstep = ['
        '{ live = { shares = 20, verifications = 4, faults = 4, over = "1 hour", ttl = "30 minutes" } },'
        "{ settle = {} } ]"
    )
    story = parse("mine", text)
    outcome = run_once(story, 3)
    assert not outcome.trouble
    assert outcome.virtual_s >= 3_000
    assert outcome == run_once(story, 3)
    assert outcome.trace != run_once(story, 4).trace


def test_a_story_that_ends_badly_says_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        'about = "x."\ncluster = { nodes = 2 }\nstep = ['
        '{ share = { by = "ada", text = "ex:a ex:b ex:c .", as = "it" } }, { settle = {} },'
        '{ expect = { asset = "it", gone = true } } ]'
    )
    bad = parse("bad", text)
    monkeypatch.setattr(scenarios, "names", lambda: ("bad",))
    monkeypatch.setattr(scenarios, "load", lambda name: bad)
    said: list[str] = []
    (outcome,) = run("bad", seed=7, say=said.append)
    assert outcome.trouble.startswith("at step 3, expect: ScenarioError: ada still shows it")
    assert said[0].endswith("again: p2pmem-devnet run bad --seed 7")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('about = "x"\ncluster = {}\nstep = []', "1 to 1000 steps"),
        ('about = "x"\ncluster = {}\nstep = [ { dance = {} } ]', "'dance' is no word"),
        ('about = "x"\ncluster = {}\nstep = [ { wait = "1 hour", settle = {} } ]', "one word"),
        ('about = "x"\nsteps = 1', "nothing else"),
        ("about = ", "Invalid value"),
    ],
)
def test_a_file_that_is_no_scenario_says_where_it_is_wrong(text: str, says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        parse("mine", text)


def test_a_name_that_is_no_scenario_lists_those_that_are() -> None:
    with pytest.raises(MisuseError, match="partition_and_heal"):
        load("nothing")


def test_the_command_runs_a_story_and_its_exit_code_says_how_it_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", "owners_fork", "--seed", "4"]) == 0
    assert "owners_fork seed 4: well" in capsys.readouterr().out
    assert main(["run", "nosuch"]) == 2
    assert "there are: byzantine_verifier" in capsys.readouterr().err
    bad = parse("bad", 'about = "x."\ncluster = { nodes = 2 }\nstep = [ { expect = { asset = "it", gone = true } } ]')
    monkeypatch.setattr(scenarios, "names", lambda: ("bad",))
    monkeypatch.setattr(scenarios, "load", lambda name: bad)
    assert main(["run", "all"]) == 5
