"""Each command: documented, heard by the node as it was meant, and answered as HTTP answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from p2pmem_protocol.join import Invite
from p2pmem_protocol.names import GraphName, NetworkId

from p2pmem.api.codec import decode, encode
from p2pmem.api.problems import EXIT_MEANINGS, Exit
from p2pmem.cli.command import GROUPS, HELP_COLUMNS, Command
from p2pmem.cli.main import COMMANDS
from p2pmem.face import (
    AgentView,
    BackupView,
    ChangePreview,
    ClockView,
    CompactView,
    DiffView,
    DraftView,
    Explanation,
    GraphView,
    HistoryView,
    JobStory,
    JobView,
    Layer,
    LimitsChange,
    MemberChange,
    NewGraph,
    NewMember,
    NodeStatus,
    PreparedView,
    QueryAnswer,
    RecallAnswer,
    RestoreView,
    ReviewDetail,
    SignRequest,
    SignView,
    VersionView,
)
from p2pmem.face_peers import DelegationView, PeerDetail
from tests.p2pmem.api.memory_trust import WORD
from tests.p2pmem.api.memory_values import AGENT, NOW_MS, OTHER

from .conftest import GRAPH, Node, run_here
from .processes import ENVIRONMENT, P2PMEM

INVITE = str(Invite(NetworkId(bytes(32)), GraphName.parse(GRAPH), ("/ip4/127.0.0.1/tcp/1",), bytes(32), b""))
PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
PROMISED = """
init run config_show join draft drafts discard seal share publish endorse verify retract recall query versions
show content status changes graph_create graph_list graph_show graph_members graph_invite graph_requests
graph_approve graph_refuse graph_leave graph_follow review_list review_approve review_reject job_list job_show job_watch
job_cancel job_retry job_resolve graph_owner graph_mend graph_sign graph_roster review_show history diff agent_list
agent_add agent_token sign_prepare sign_submit peer_list peer_show peer_ban peer_unban acting_allow acting_accept
acting_list revoke clock_confirm compact backup restore_confirm mcp trust_attest trust_explain trust_export trust_check
proof_export proof_check
""".split()  # noqa: SIM905 - reads as a list
HEAVY = {
    "trio",
    "httpx",
    "starlette",
    "hypercorn",
    "pyoxigraph",
    "libp2p",
    "web3",
    "eth_account",
    "coincurve",
    "sqlite3",
    "mcp",
}


def test_the_commands_are_those_that_were_promised() -> None:
    assert sorted(command.words for command in COMMANDS) == sorted(name.replace("_", " ") for name in PROMISED)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_every_command_has_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    said = run_here(capsys, *command.words.split(), "--help")
    assert said.code == 0
    assert command.help[0].islower()
    assert not command.help.endswith(".")
    assert command.help.split()[0] in said.out
    assert "--json" in said.out
    assert "--home" in said.out
    assert max(map(len, said.out.splitlines())) <= HELP_COLUMNS
    # every argument says what it is
    from p2pmem.cli.main import make_parser

    parser: Any = make_parser(COMMANDS)
    for word in command.words.split():
        (subparsers,) = [
            action for action in parser._actions if hasattr(action, "choices") and action.dest == "==SUPPRESS=="
        ]
        parser = subparsers.choices[word]
    assert [action.dest for action in parser._actions if not action.help] == []


def test_help_lists_every_command_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    said = run_here(capsys, "--help")
    for word in {command.words.split()[0] for command in COMMANDS} | set(GROUPS):
        assert re.search(rf"^    {word}(?= |$)", said.out, re.MULTILINE)
    for code in Exit:
        assert EXIT_MEANINGS[code] in said.out


def test_help_loads_nothing_heavy() -> None:
    script = "import sys\nfrom p2pmem.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit: pass\n"
    script += "print('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "usage: p2pmem" in done.stdout
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert loaded & HEAVY == set()
    assert "p2pmem" in loaded


def test_the_module_is_the_command() -> None:
    done = subprocess.run([*P2PMEM, "--version"], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("p2pmem 0.")


def arguments(name: str, /, **more: object) -> tuple[str, dict[str, object]]:
    return name, more


# words of a command, the call that the node hears, and the type that `--json` answers with
HEARD: list[tuple[list[str], tuple[str, dict[str, object]], Any]] = [
    (["status"], arguments("status"), NodeStatus),
    (["clock", "confirm"], arguments("confirm_clock"), ClockView),
    (["compact"], arguments("compact"), CompactView),
    (["backup", "/elsewhere/copy"], arguments("back_up", to="/elsewhere/copy"), BackupView),
    (["restore", "confirm", "--graph", GRAPH], arguments("confirm_restore", graph=GRAPH), RestoreView),
    (["restore", "confirm", "--all"], arguments("confirm_restore", graph=None), RestoreView),
    (
        ["graph", "create", "more", "--member", f"{OTHER}=writer,verifier=Bob", "--m", "1", "--open", "--ttl", "2h",
         "--ttl-max", "7d", "--acks", "1", "--chain"],
        arguments(
            "found",
            new=NewGraph("more", (NewMember(OTHER, ("writer", "verifier"), "Bob"),), 1, "open", 7_200_000,
                         604_800_000, 1, True),
        ),
        GraphView,
    ),
    (["graph", "show", "--graph", GRAPH], arguments("graph", graph=GRAPH), GraphView),
    (
        ["graph", "members", "--set", f"{OTHER}=reader", "--remove", AGENT, "--m", "2"],
        arguments("change_members", graph=GRAPH, change=MemberChange((NewMember(OTHER, ("reader",)),), (AGENT,), m=2)),
        GraphView,
    ),
    (["peer", "list"], arguments("peers"), None),
    (["peer", "ban", PEER], arguments("ban_peer", peer=PEER, for_ms=None), PeerDetail),
    (["peer", "ban", PEER, "--for", "2h"], arguments("ban_peer", peer=PEER, for_ms=7_200_000), PeerDetail),
    (
        ["acting", "allow", OTHER, "--label", "helper", "--rights", "share,publish"],
        arguments("delegate", agent=OTHER, label="helper", rights=("share", "publish")),
        DelegationView,
    ),
    (["acting", "list"], arguments("delegations"), None),
    (
        ["graph", "invite", "--roles", "reader,writer", "--uses", "3", "--life", "1h30m", "--ask"],
        arguments("invite", graph=GRAPH, roles=("reader", "writer"), uses=3, life_ms=5_400_000, ask=True),
        None,
    ),
    (["graph", "requests"], arguments("join_requests", graph=GRAPH), None),
    (["graph", "approve", "r1"], arguments("decide_join", request="r1", approve=True), None),
    (["graph", "refuse", "r1"], arguments("decide_join", request="r1", approve=False), None),
    (["graph", "follow", GRAPH, "--at", "/ip4/1"], arguments("follow", graph=GRAPH, addresses=("/ip4/1",)), GraphView),
    (["join", INVITE, "--label", "Bob"], arguments("join", invite=INVITE, label="Bob"), GraphView),
    (["drafts"], arguments("drafts", graph=None), None),
    (["seal", "x"], arguments("seal", graph=GRAPH, name="x"), DraftView),
    (["share", "x", "--ttl", "30s"], arguments("share", graph=GRAPH, name="x", ttl_ms=30_000), JobView),
    (["publish", "x"], arguments("publish", graph=GRAPH, reference="x"), JobView),
    (
        ["endorse", "x@1", "--reason", "good", "--withdraw"],
        arguments("endorse", graph=GRAPH, reference="x@1", reason="good", withdraw=True),
        JobView,
    ),
    (["verify", "x"], arguments("verify", graph=GRAPH, reference="x", deadline_ms=None), JobView),
    (
        ["verify", "x", "--deadline", "1d"],
        arguments("verify", graph=GRAPH, reference="x", deadline_ms=NOW_MS + 86_400_000),
        JobView,
    ),
    (
        ["retract", "x@1", "--reason", "wrong", "--successor", "2", "--erase"],
        arguments("retract", graph=GRAPH, reference="x@1", reason="wrong", successor=2, erase=True),
        VersionView,
    ),
    (["review", "list"], arguments("reviews", graph=None), None),
    (["review", "list", "--graph", "findings"], arguments("reviews", graph=GRAPH), None),
    (
        ["review", "approve", "v1", "--reason", "y"],
        arguments("decide_review", review="v1", approve=True, reason="y"),
        JobView,
    ),
    (["review", "reject", "v1"], arguments("decide_review", review="v1", approve=False, reason=""), JobView),
    (
        ["recall", "what?", "--min-trust", "Endorsed", "--min-m", "2", "--limit", "3"],
        arguments("recall", question="what?", graph=None, min_trust="Endorsed", min_m=2, limit=3),
        RecallAnswer,
    ),
    (
        ["query", "ASK {}", "--layer", "published", "--min-trust", "Endorsed", "--at-least", "4"],
        arguments("query", sparql="ASK {}", graph=GRAPH, layer=Layer.PUBLISHED, min_trust="Endorsed", at_least=4),
        QueryAnswer,
    ),
    (
        ["versions", "--layer", "shared", "--min-trust", "Endorsed"],
        arguments("versions", graph=GRAPH, layer=Layer.SHARED, min_trust="Endorsed"),
        None,
    ),
    (["show", "x"], arguments("version", graph=GRAPH, reference="x"), VersionView),
    (["content", "x"], arguments("content", graph=GRAPH, reference="x"), None),
    (["trust", "explain", "x"], arguments("explain", graph=GRAPH, reference="x"), Explanation),
    (["trust", "attest", "x"], arguments("attest", graph=GRAPH, reference="x"), JobView),
    (["history", "x"], arguments("history", graph=GRAPH, reference="x"), HistoryView),
    (["diff", "x", "--other", "3:0x12ab"], arguments("diff", graph=GRAPH, reference="x", other="3:0x12ab"), DiffView),
    (["review", "show", "v1"], arguments("review", review="v1"), ReviewDetail),
    (
        ["graph", "members", "--remove", OTHER, "--leaked", "--ttl", "1h", "--live-items", "9", "--no-chain", "--drop",
         "x@1", "--dry-run"],
        arguments(
            "preview_members", graph=GRAPH,
            change=MemberChange(remove=(OTHER,), leaked=True, drop=("x@1",),
                                limits=LimitsChange(ttl_default_ms=3_600_000, live_items=9, chain=False)),
        ),
        ChangePreview,
    ),
    (
        ["graph", "owner", OTHER, "--remove", AGENT, "--leaked", "--dry-run"],
        arguments(
            "preview_members", graph=GRAPH, change=MemberChange(remove=(AGENT,), leaked=True, owner=OTHER)
        ),
        ChangePreview,
    ),
    (
        ["graph", "mend", "--m", "1"],
        arguments("change_members", graph=GRAPH, change=MemberChange(m=1, mend=True)),
        GraphView,
    ),
    (
        ["graph", "members", "--m", "1", "--prepare"],
        arguments("prepare_members", graph=GRAPH, change=MemberChange(m=1)),
        PreparedView,
    ),
    (["graph", "sign", WORD, "--dry-run"], arguments("prepared_members", word=WORD), PreparedView),
    (["graph", "sign", WORD], arguments("sign_members", word=WORD), GraphView),
    (["agent", "list"], arguments("agents"), None),
    (["agent", "token", AGENT], arguments("agents"), None),
    (["agent", "add", OTHER, "--label", "wanda"], arguments("add_agent", address=OTHER, label="wanda"), AgentView),
    (
        ["sign", "prepare", "endorse", OTHER, "--fields", '{"reference": "x@1", "reason": "good"}'],
        arguments("sign_prepare", request=SignRequest("endorse", OTHER, GRAPH, reference="x@1", reason="good")),
        SignView,
    ),
    (["job", "list", "--state", "succeeded", "--limit", "1"],
     arguments("jobs", state="succeeded", limit=1, before=None, kind=None), None),
    (["job", "show", "job-1"], arguments("job_story", job="job-1"), JobStory),
    (["job", "watch", "job-1"], arguments("job", job="job-1", wait_ms=0), JobView),
    (["job", "retry", "job-1"], arguments("retry_job", job="job-1"), JobView),
    (
        ["job", "resolve", "job-1", "--as", "succeeded"],
        arguments("resolve_job", job="job-1", outcome="succeeded"),
        JobView,
    ),
    (["changes", "--since", "0", "--limit", "1"], arguments("changes", since=0), None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "call", "answer"), HEARD, ids=lambda it: " ".join(it) if isinstance(it, list) else ""
)
async def test_the_node_hears_what_was_meant_and_its_answer_is_shown(
    node: Node, words: list[str], call: tuple[str, dict[str, object]], answer: Any
) -> None:
    await node.shared()
    as_json = await node(*words, "--json")
    assert (as_json.code, as_json.err) == (0, "")
    assert call in node.face.calls
    if answer is not None:
        value = decode(answer, as_json.json)
        assert encode(value) == as_json.json
    if words[1:2] not in (["approve"], ["refuse"], ["leave"], ["create"], ["follow"]) and words[0] != "join":
        as_text = await node(*words)
        assert as_text.code == 0
        assert as_text.out.strip()
        assert "\x1b" not in as_text.out


def test_every_command_that_talks_to_a_node_is_tried_here() -> None:
    tried = {" ".join(words[: len(command.words.split())]) for command in COMMANDS for words, _, _ in HEARD}
    missing = {command.words for command in COMMANDS if not command.offline} - tried
    # these have tests of their own
    assert missing == {
        "peer show",
        "peer unban",
        "acting accept",
        "revoke",
        "draft",
        "discard",
        "graph leave",
        "graph list",
        "job cancel",
        "trust export",
        "proof export",
        "graph roster",
        "sign submit",
    }


async def test_status_says_the_name_of_the_network_and_how_its_id_begins(node: Node) -> None:
    assert "network    main (0x5a5a5a5a...)" in (await node("status")).out


async def test_status_counts_what_was_refused_by_reason(node: Node) -> None:
    assert "refused    network handshake 3, peer bad-signature 1" in (await node("status")).out


async def test_a_peer_is_banned_shown_and_let_in_again(node: Node) -> None:
    assert "no peer is connected or banned" in (await node("peer", "list")).out
    assert "for good" in (await node("peer", "ban", PEER)).out
    assert "for good: by hand" in (await node("peer", "show", PEER)).out
    assert (await node("peer", "unban", PEER)).code == 0
    assert (await node("peer", "show", PEER)).code == Exit.NOT_FOUND


async def test_an_agent_is_allowed_accepted_and_shut_out(node: Node) -> None:
    await node.founded()
    said = await node("acting", "allow", OTHER)
    assert said.out.startswith("p2pmemact1")
    assert "from now on: share" in (await node("acting", "accept", said.out.strip())).out
    assert OTHER in (await node("acting", "list")).out
    assert GRAPH in (await node("revoke", OTHER, "--forget")).out
    assert ("revoke", {"subject": OTHER, "keep": False}) in node.face.calls


async def test_a_list_of_graphs_is_that_of_http(node: Node) -> None:
    assert "no context graph yet" in (await node("graph", "list")).out
    await node.founded()
    said = await node("graph", "list", "--json")
    assert decode(GraphView, said.json["graphs"][0]).graph == GRAPH


async def test_a_graph_that_one_joined_is_left_by_its_name(node: Node) -> None:
    await node.founded()
    assert (await node("join", INVITE)).code == 0
    assert (await node("graph", "leave", "--graph", "joined")).code == 0
    assert [it.graph for it in await node.face.graphs()] == [GRAPH]
    refused = await node("graph", "leave", "--graph", "findings")
    assert (refused.code, "owner" in refused.err) == (Exit.MISUSE, True)


@pytest.mark.parametrize("words", ["show", "members", "mend --m 1", "invite", "requests", "roster", "leave"])
@pytest.mark.parametrize("named", ["joined", GRAPH.replace("findings", "joined")])
async def test_a_graph_is_named_with_an_option_or_without(
    node: Node, words: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await node.founded()
    for name in (["--graph", named], [named]):
        await node("join", INVITE)
        node.face.calls.clear()
        command, *options = words.split()
        said = await node("graph", command, *options, *name, "--json")
        assert said.code == 0, said.err
        _, arguments = node.face.calls[-1]
        assert arguments["graph"] == GRAPH.replace("findings", "joined")
        (tmp_path / "joined.roster").unlink(missing_ok=True)


async def test_a_draft_comes_from_a_file_whose_extension_says_its_format(node: Node, tmp_path: Path) -> None:
    await node.founded()
    for name, media_type in (("a.ttl", "text/turtle"), ("a.rdf", "application/rdf+xml"), ("a.what", None)):
        (tmp_path / name).write_bytes(b"<x:s> <x:p> <x:o> .\n")
        said = await node("draft", "x", str(tmp_path / name), "--base", "x:", "--subgraph", "a", "--replace", "--json")
        assert decode(DraftView, said.json).subgraph == "a"
        name_of_call, call = node.face.calls[-2]
        assert name_of_call == "draft"
        assert call["format"] == media_type
        assert (call["base"], call["replace"], call["data"]) == ("x:", True, b"<x:s> <x:p> <x:o> .\n")


@pytest.mark.parametrize(
    "words",
    [
        ["x", "--graph", "findings", "FILE"],
        ["x", "--json", "FILE"],
        ["x", "--replace", "FILE", "--format", "turtle"],
        ["--graph", GRAPH, "x", "FILE", "--json"],
        ["--", "x", "FILE"],
    ],
    ids=" ".join,
)
async def test_options_stand_where_one_likes_between_the_name_of_a_draft_and_its_file(
    node: Node, tmp_path: Path, words: list[str]
) -> None:
    await node.founded()
    (tmp_path / "ok.ttl").write_bytes(b"<x:s> <x:p> <x:o> .\n")
    command = ["draft", *(str(tmp_path / "ok.ttl") if word == "FILE" else word for word in words)]
    said = await trio.to_thread.run_sync(run_here, node.capsys, "--home", str(node.home.data_dir), *command)
    assert said.code == 0, said.err
    assert [it.reference for it in await node.face.drafts(None)] == [f"{AGENT}/x"]


async def test_a_draft_is_discarded_once(node: Node) -> None:
    await node.shared()
    assert (await node("discard", "x")).out == "discarded the draft x\n"
    assert await node.face.drafts(None) == ()


async def test_what_to_know_of_a_file_is_said_beside_the_draft_and_the_file_is_named(
    node: Node, tmp_path: Path
) -> None:
    await node.founded()
    file = tmp_path / "ok.trig"
    file.write_bytes(b"<x:g> { <x:s> <x:p> <x:o> }\n")
    said = await node("draft", "x", str(file), "--merge-graphs")
    assert (said.code, said.err) == (0, f"warning: {file}: \N{REPLACEMENT CHARACTER}[1mlook at it\n")
    _, call = next(it for it in node.face.calls if it[0] == "draft")
    assert (call["merge_graphs"], call["file"]) == (True, str(file))
    as_json = await node("draft", "x", str(file), "--merge-graphs", "--json")
    assert as_json.err == ""
    assert len(as_json.json["warnings"]) == 1


async def test_a_file_may_have_a_name_that_is_no_text(node: Node, tmp_path: Path) -> None:
    await node.founded()
    file = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.ttl")
    Path(file).write_bytes(b"<x:s> <x:p> <x:o> .\n")  # noqa: ASYNC240 - the fixture's node has nothing to do meanwhile
    assert (await node("draft", "x", file)).code == 0
    _, call = next(it for it in node.face.calls if it[0] == "draft")
    assert call["file"] == f"{tmp_path}/?.ttl"


async def test_a_draft_is_shown_by_its_name_until_there_is_a_version_of_it(node: Node, tmp_path: Path) -> None:
    await node.founded()
    (tmp_path / "f.nt").write_text("<x:s> <x:p> <x:o> .\n")
    await node("draft", "x", str(tmp_path / "f.nt"))
    for name in ("x", f"{AGENT}/x"):
        said = await node("show", name)
        assert (said.code, said.out.splitlines()[0]) == (0, f"draft {AGENT}/x")
        assert decode(DraftView, (await node("show", name, "--json")).json).reference == f"{AGENT}/x"
    assert (await node("show", "x@1")).code == Exit.NOT_FOUND
    await node("share", "x")
    assert decode(VersionView, (await node("show", "x", "--json")).json).reference == f"{AGENT}/x@1"


async def test_a_query_may_stand_before_or_after_its_options(node: Node) -> None:
    await node.founded()
    for words in (["ASK {}", "--graph", GRAPH], ["--graph", GRAPH, "ASK {}"]):
        assert (await node("query", *words)).out == "yes\n"


async def test_the_bytes_of_a_version_come_out_as_they_are(node: Node, tmp_path: Path) -> None:
    await node.shared()
    assert (await node("content", "x")).out == "<x:s> <x:p> <x:o> .\n"
    file = tmp_path / "out.nq"
    assert (await node("content", "x", "--output", str(file))).code == 0
    assert file.read_bytes() == b"<x:s> <x:p> <x:o> .\n"
    again = await node("content", "x", "--output", str(file))
    assert again.code == Exit.MISUSE
    assert "not overwritten" in again.err


async def test_a_certificate_is_written_to_a_new_file(node: Node, tmp_path: Path) -> None:
    await node.shared()
    file = tmp_path / "x.certificate"
    said = await node("trust", "export", "x", "--output", str(file), "--json")
    assert said.json["statement"]["m"] == 3
    assert file.read_bytes() == b"\xa0"
    assert (await node("trust", "export", "x", "--output", str(file))).code == Exit.MISUSE


async def test_a_statement_is_prepared_into_a_file_and_its_signature_handed_in(node: Node, tmp_path: Path) -> None:
    await node.shared()
    fields, typed_data = tmp_path / "fields.json", tmp_path / "typed-data.json"
    fields.write_text('{"name": "x", "ttl_ms": 5000}')
    words = ["sign", "prepare", "share", OTHER, "--fields", f"@{fields}", "--output", str(typed_data)]
    said = await node(*words)
    assert f"\n  sign   {typed_data}\n  then   p2pmem sign submit 0xabc SIGNATURE\n" in said.out
    assert "primaryType" in typed_data.read_text()
    signature = "0x" + "12" * 65
    assert (await node("sign", "submit", "0xabc", signature)).code == 0
    assert ("sign_submit", {"id": "0xabc", "signature": signature}) in node.face.calls
    assert (await node("sign", "submit", "0xabc", signature)).code == Exit.NOT_FOUND
    assert (await node("sign", "prepare", "share", OTHER, "--fields", "[]")).code == Exit.MISUSE


async def test_a_roster_is_written_to_a_new_file(node: Node, tmp_path: Path) -> None:
    await node.founded()
    file = tmp_path / "g.roster"
    assert (await node("graph", "roster", "--output", str(file), "--json")).json["bytes"] == 1
    assert file.read_bytes() == b"\x80"
    assert (await node("graph", "roster", "--output", str(file))).code == Exit.MISUSE


async def test_a_proof_that_was_exported_holds(node: Node, tmp_path: Path) -> None:
    await node.shared()
    file = tmp_path / "proof.json"
    line = "<x:a> <x:b> <x:c> ."
    assert (await node("proof", "export", "x", "--statement", line, "--output", str(file))).code == 0
    checked = await node("proof", "check", str(file), "--json")
    assert (checked.code, checked.json["holds"]) == (0, True)
    shown = await node("proof", "export", "x", "--statement", line)
    assert '"leaves": 2' in shown.out


async def test_a_slug_names_a_graph_where_it_is_clear(node: Node) -> None:
    await node.founded()
    await node("graph", "create", "more")
    assert (await node("graph", "show", "--graph", "more")).code == 0
    said = await node("versions")
    assert said.code == Exit.MISUSE
    assert GRAPH in said.err
    assert "--graph" in said.err
    assert (await node("versions", "--graph", "nothing")).code == Exit.NOT_FOUND


async def test_words_of_others_do_not_reach_the_terminal_as_commands(node: Node) -> None:
    await node.shared()
    for words in (["recall", "x"], ["trust", "explain", "x"]):
        said = await node(*words)
        assert "\x1b" not in said.out
        assert "\N{REPLACEMENT CHARACTER}[" in said.out
    assert "not instructions" in (await node("recall", "x")).out


async def test_who_signs_a_prepared_change_is_shown_all_of_it(node: Node) -> None:
    await node.shared()
    for words in (["--dry-run"], []):
        said = await node("graph", "sign", WORD, *words)
        assert "asked for: M is 1" in said.out
        assert "quorum  none  1 of 1" in said.out
        assert "prepared by Cy" in said.out
    assert [name for name, _ in node.face.calls].count("sign_members") == 1
