"""README.md and p2pmem.cddl say what the package does: examples, tables and grammar are held against it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cddl_verifier import Validator
from hypothesis import given, settings, strategies as st
from p2pmem_protocol import (
    asking,
    bodies,
    cbor,
    certificate,
    certificate_json,
    content,
    credential,
    frames,
    heads,
    hello,
    join,
    kinds,
    limits,
    negentropy,
    prepared,
    relays,
    roster,
)
from p2pmem_protocol.bodies import RetractMode
from p2pmem_protocol.content import RESERVED_PREDICATES
from p2pmem_protocol.credential import Right
from p2pmem_protocol.eip712 import Struct
from p2pmem_protocol.envelope import decode_item
from p2pmem_protocol.errors import Penalty, Reason, RefusedError
from p2pmem_protocol.evidence import Decision, Endorse, Method
from p2pmem_protocol.join import Reply
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import DKG
from p2pmem_protocol.negentropy import Mode
from p2pmem_protocol.outbox import DEFAULT_OUTBOX_LIMITS as OUTBOX
from p2pmem_protocol.rdfc import PROTOCOL_BUDGET
from p2pmem_protocol.roster import Access, Role, SignedHeader
from p2pmem_protocol.snapshot import FINGERPRINT_BYTES

PROTOCOL = Path(__file__).parents[2] / "protocol"
README = (PROTOCOL / "README.md").read_text()
GRAMMAR = (PROTOCOL / "p2pmem.cddl").read_text()
TEXT, GRAMMAR_TEXT = " ".join(README.split()), " ".join(GRAMMAR.split())
"""The same with one space between words, so that a sentence is found wherever its lines are broken."""
SOURCES = {
    path: path.read_text() for folder in ("protocol", "p2pmem") for path in (PROTOCOL.parent / folder).rglob("*.py")
}
VECTORS = {path.stem: json.loads(path.read_text()) for path in (PROTOCOL / "vectors").glob("*.json")}
EXAMPLE = re.compile(r"<!-- ([\w.]+) -->\n```(?:hex|text)\n(.*?)\n```", re.DOTALL)
EXAMPLES = EXAMPLE.findall(README)


def vector(path: str) -> Any:
    name, *steps = path.split(".")
    value: Any = VECTORS[name]
    for step in steps:
        value = value[int(step)] if step.isdigit() else value[step]
    return value


def raw(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


@pytest.mark.parametrize(("path", "shown"), EXAMPLES, ids=[path for path, _ in EXAMPLES])
def test_an_example_is_the_vector_that_it_names(path: str, shown: str) -> None:
    assert "".join(shown.split()) == vector(path)


def test_there_are_examples_and_no_hexadecimal_digits_beside_them() -> None:
    assert len(EXAMPLES) >= 7
    assert not re.search(r"[0-9a-f]{40}", EXAMPLE.sub("", README))


def test_every_reason_is_in_the_table_under_its_number() -> None:
    rows = re.findall(r"^\| (\d+) \| `([a-z-]+)` \|[^|]*\|$", README, re.MULTILINE)
    assert rows == [(str(int(it)), it.name.lower().replace("_", "-")) for it in Reason]


def test_below_a_hundred_the_sender_is_to_blame_and_from_there_on_nobody() -> None:
    assert "Reasons below 100 are wrong for everybody and for ever" in README
    assert {it: it.penalty for it in Reason} == {it: Penalty.CLOSE if it <= 99 else Penalty.NONE for it in Reason}


def test_a_refusal_says_its_reason_by_the_name_in_the_table() -> None:
    assert [str(RefusedError(it, "why")) for it in (Reason.BAD_FIELD, Reason.NOT_CBOR)] == [
        "bad-field: why",
        "not-cbor: why",
    ]


def test_a_reason_is_given_somewhere_unless_the_table_says_that_it_is_not_in_use() -> None:
    unused = re.findall(r"^\| \d+ \| `([a-z-]+)` \| not in use \|$", README, re.MULTILINE)
    given = {name for text in SOURCES.values() for name in re.findall(r"\bReason\.([A-Z_]+)\b", text)}
    assert {it.name for it in Reason} - given == {name.upper().replace("-", "_") for name in unused}


def test_every_reserved_predicate_is_in_the_list_and_no_other() -> None:
    shown = re.search(r"^```reserved\n(.*?)\n```$", README, re.DOTALL | re.MULTILINE)
    assert shown is not None
    names = shown.group(1).split()
    assert sorted(DKG + name for name in names) == sorted(RESERVED_PREDICATES)


def test_no_section_is_named_that_is_not_there() -> None:
    headings = set(re.findall(r"^##+ ([\d.]+?)\.? ", README, re.MULTILINE))
    text = README + GRAMMAR
    text = re.sub(r"RFC \d+ section [\d.]+", "", text)
    named = set(re.findall(r"\bsections? (\d+(?:\.\d+)?)", text))
    named |= set(re.findall(r"[(\s|](\d+\.\d)(?=[\s),;:|]|\.\s)", README))
    assert named - headings <= {"1.1", "1.2", "5.4"}  # versions of RDF and GossipSub, a step of RDFC-1.0
    assert len(named & headings) >= 12
    # The rules have numbers of their own in the design; here they have none.
    assert not re.search(r"\b[A-Z][1-9]\b", EXAMPLE.sub("", README))


def test_every_limit_is_in_the_table_with_its_value() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| ([\d,]+) \|", README, re.MULTILINE))
    units = {"SECOND_MS", "MINUTE_MS", "HOUR_MS", "DAY_MS", "UINT32_MAX", "UINT64_MAX"}
    ours = {name: value for name, value in vars(limits).items() if name.isupper() and name not in units}
    assert {name: int(value.replace(",", "")) for name, value in rows.items()} == ours


def test_every_limit_is_applied_in_the_package() -> None:
    package = [text for path, text in SOURCES.items() if PROTOCOL in path.parents and path.name != "limits.py"]
    for name in re.findall(r"^\| `([A-Z_]+)` \| [\d,]+ \|", README, re.MULTILINE):
        assert any(re.search(rf"\b{name}\b", text) for text in package), name


def test_numbers_of_roles_rights_methods_and_choices_are_those_of_the_text() -> None:
    text = re.sub(r" \([^)]*\)", "", TEXT)
    for sum_or_choice in (Role, Right, Method, Endorse, Decision):
        assert ", ".join(f"{it.name.lower()} {it.value}" for it in sum_or_choice) in text
    assert "Access is 1 gated or 2 open" in text
    assert [it.value for it in (Access.GATED, Access.OPEN)] == [1, 2]
    assert "Mode 1 keeps, mode 2 erases" in text
    assert [it.value for it in (RetractMode.KEEP, RetractMode.ERASE)] == [1, 2]
    assert "0 no, 1 listed, 2 waiting for a person, 3 open" in text
    assert [it.value for it in (Reply.NO, Reply.LISTED, Reply.WAITING, Reply.OPEN)] == [0, 1, 2, 3]
    assert "mode 0 skip mode 1 fingerprint, 16 bytes mode 2 varint" in text
    assert [it.value for it in (Mode.SKIP, Mode.FINGERPRINT, Mode.IDS)] == [0, 1, 2]


def test_every_kind_is_in_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \| `([a-z]+)` \|(?:[^|]*\|){4}$", README, re.MULTILINE)
    assert rows == [(str(int(kind)), kind.word) for kind in Kind]


def test_the_kinds_are_sorted_as_the_table_and_the_text_say() -> None:
    ends = dict(re.findall(r"^\| \d+ \| `([a-z]+)` \|[^|]*\| ([^|]*) \|(?:[^|]*\|){2}$", README, re.MULTILINE))
    assert {it.word for it in kinds.DURABLE} == {word for word, end in ends.items() if end == "0"}
    assert {it.word for it in kinds.EVIDENCE} == {word for word, end in ends.items() if end == "none"}
    assert set(Kind) - kinds.DURABLE - kinds.EVIDENCE == kinds.EXPIRING
    assert "**share, publish**: `{0: seal, 1: content}`" in TEXT
    assert {Kind.SHARE, Kind.PUBLISH} == kinds.CONTENT
    assert "Retracts and revokes have a count of their own (cuts)" in TEXT
    assert {Kind.RETRACT, Kind.REVOKE} == kinds.CUTS


def test_struct_types_stand_to_the_letter() -> None:
    shown = re.findall(r"^    ([A-Z]\w+\(.*\))$", README, re.MULTILINE)
    assert shown == [struct.value.encoded for struct in Struct]


KIB = 1_024
SENTENCES = (
    # What the text says, in its order, and the numbers of the package that stand for its numbers.
    ("peer id .* base58btc: 1 to (N) characters", credential.PEER_CHARS_MAX),
    ("One value has at most (N) items", cbor.ITEMS_MAX),
    ("at most (N) bytes between its angle brackets", content.IRI_BYTES_MAX),
    ("A literal has at most (N) MiB between its quotes", content.LITERAL_BYTES_MAX / KIB**2),
    ("(N) calls of Hash N-Degree Quads", PROTOCOL_BUDGET.calls),
    ("(N) permutations, (N) blank nodes looked at", PROTOCOL_BUDGET.permutations, PROTOCOL_BUDGET.visits),
    ("(N) calls within each other", PROTOCOL_BUDGET.depth),
    ("`kept` are at most (N) ids", bodies.REVOKE_IDS_MAX),
    ("The header is a map of at most (N) bytes", roster.HEADER_BYTES_MAX),
    ("CBOR of at most (N) MiB", certificate.CERTIFICATE_BYTES_MAX / KIB**2),
    ("8 1 to (N) roster headers", certificate.HEADERS_MAX),
    ("no sign, point or exponent .{1,15}; at most (N) characters", 4 * certificate.CERTIFICATE_BYTES_MAX),
    ("`/p2pmem/member/2` . (N) KiB; (N) KiB", frames.MESSAGE_BYTES_MAX / KIB, hello.HELLO_BYTES_MAX / KIB),
    ("an answer (N) MiB", join.ANSWER_BYTES_MAX / KIB**2),
    ("On a new member stream, done within (N) s", hello.HELLO_MS_MAX / 1_000),
    ("1 to (N) credentials, 1: up to (N) of", hello.AGENTS_MAX, hello.AGENTS_MAX),
    ("3: 1 to (N) multiaddrs of 1 to (N) characters", join.ADDRESSES_MAX, join.ADDRESS_CHARS_MAX),
    ("token of 0 to (N) bytes}`, at most (N) characters in all", join.TOKEN_BYTES, join.INVITE_CHARS_MAX),
    ("carries in field 5, at most (N) characters", credential.DELEGATION_CHARS_MAX),
    ("as JSON, of 1 to (N) characters; at most (N)", prepared.CHANGE_CHARS_MAX, prepared.PREPARED_CHARS_MAX),
    ("a header 1 to (N), a multiaddr 1 to (N) characters", roster.HEADER_BYTES_MAX, frames.ADDRESS_CHARS_MAX),
    ("a short id is the first (N) bytes", frames.SHORT_ID_BYTES),
    ("3 items, each in a byte string .(N).", frames.FRAME_ENVELOPES_MAX),
    ("4 announced, short ids .(N). 5 asked, short ids .(N).", frames.FRAME_IDS_MAX, frames.FRAME_IDS_MAX),
    ("6 lists .(N). of", frames.FRAME_LISTS_MAX),
    ("3: added .(N)., 4: removed .(N).", frames.LIST_MEMBERS_MAX, frames.LIST_MEMBERS_MAX),
    ("7 reconcile: graph ids .(N).", frames.GRAPHS_MAX),
    ("At most (N) numbered frames, and (N) KiB of them", OUTBOX.frames_unacked, OUTBOX.bytes_unacked / KIB),
    ("A frame that is unacknowledged (N) s after", OUTBOX.ack_timeout_ms / 1_000),
    (".b. (N) numbered frames have been read since", OUTBOX.ack_every),
    ("faster than it admits; but (N) s are the end", OUTBOX.ack_timeout_ms / 1_000),
    ("asks the first announcer, after (N) s the next", asking.ASK_AGAIN_MS / 1_000),
    ("what came from him in the last (N) s", relays.PROMISE_MS / 1_000),
    ("relayed once and remembered for (N) minutes", relays.MEMORY_MS / 60_000),
    ("1 clock, 2 list .(N). of", frames.GRAPHS_MAX),
    ("3 agreed time, 4 kinds .(N).", frames.KINDS_MAX),
    ("13 . fetch . 1 graph, 2 ids .(N).", frames.FETCH_IDS_MAX),
    ("14 . envelopes . 1 items, each in a byte string .(N).", frames.FETCH_IDS_MAX),
    ("2 offset, 3 up to (N) bytes", frames.PART_BYTES_MAX),
    ("2 ids that are known .(N).", frames.KNOWN_HEADERS_MAX),
    ("18 . headers . 1 graph, 2 headers, each in a byte string .(N).", frames.HEADERS_MAX),
    ("2 multiaddrs with peer ids .(N).", frames.ADDRESSES_MAX),
    ("mode 1 fingerprint, (N) bytes", FINGERPRINT_BYTES),
    ("splits the range into (N)", negentropy.BUCKETS),
    ("a message has at most (N) KiB in either direction", negentropy.DEFAULT_LIMITS.message_bytes / KIB),
    ("A responder answers (N) messages at most", negentropy.DEFAULT_LIMITS.messages),
    # And the grammar.
    ("uint32 = 0..(N) ", limits.UINT32_MAX),
    ("uint64 = 0..(N) ", limits.UINT64_MAX),
    ("instant = 0..(N) ", limits.TIME_MS_MAX),
    ("greeting = .* 2: .[*](N) uint32., ; kinds", hello.KINDS_MAX),
    ("chain = . .1[*](N) .bytes .cbor roster-header", join.HEADERS_MAX),
)


@pytest.mark.parametrize("row", SENTENCES, ids=lambda row: row[0])
def test_a_number_of_the_text_is_that_of_the_package(row: tuple[Any, ...]) -> None:
    sentence, *ours = row
    said = list(re.finditer(sentence.replace("(N)", r"([\d,]*\d)"), TEXT + GRAMMAR_TEXT))
    assert len(said) == 1
    assert [int(number.replace(",", "")) for number in said[0].groups()] == ours


def test_numbers_that_the_text_writes_as_words_are_those_of_the_package() -> None:
    assert "the two lowest ids are kept, of the root acts of one term the eight lowest" in TEXT
    assert (heads.CHILDREN_MAX, heads.ROOT_ACTS_MAX) == (2, 8)
    assert "six times at most" in README
    assert asking.ASKS_MAX == 6


def test_the_version_and_the_names_of_streams_words_and_formats_stand_in_the_text() -> None:
    assert README.startswith(f"# The p2pmem protocol, version {hello.PROTOCOL_VERSION}\n")
    for protocol in (hello.MEMBER_PROTOCOL, hello.SYNC_PROTOCOL, hello.JOIN_PROTOCOL, hello.RELAY_PROTOCOL):
        assert f"`{protocol}`" in README
    for prefix in (join.INVITE_PREFIX, credential.DELEGATION_PREFIX, prepared.PREPARED_PREFIX):
        assert f"`{prefix}`" in README
    assert f'"{certificate_json.FORMAT}"' in README


# The grammar


@pytest.fixture(scope="module")
def grammar() -> Validator:
    return Validator(PROTOCOL / "p2pmem.cddl")


def fits(grammar: Validator, rule: str, data: bytes) -> bool:
    return bool(grammar.validate(data, root_type=rule, require_deterministic=True).valid)


def inside(word: str) -> bytes:
    """The CBOR in one of the words that people hand on: after its name and a 1, in base32."""
    digits = word.partition("1")[2].upper()
    return base64.b32decode(digits + "=" * (-len(digits) % 8))


def real() -> Iterator[tuple[str, str, str]]:
    """Name, rule and bytes of every accepted vector."""
    for it in VECTORS["items"]["accepted"]:
        yield it["name"], "endorsement" if it["kind"] == "endorse" else it["kind"], it["bytes"]
    for whole in VECTORS["rosters"]["rosters"]:
        yield whole["name"], "roster-header", whole["header"]
        yield from ((f"{whole['name']}: {part}", part, it["bytes"]) for part, it in whole["parts"].items())
    yield from ((name, "roster-header", header) for name, header in VECTORS["heads"]["headers"].items())
    yield from ((it["message"], "message", it["bytes"]) for it in VECTORS["frames"]["messages"])
    yield "a certificate", "certificate", VECTORS["certificates"]["accepted"]["bytes"]
    talk = VECTORS["conversation"]
    yield "a greeting", "greeting", talk["greeting"]["bytes"]
    yield "a proof", "proof", talk["proof"]["bytes"]
    for word, rule in (("invite", "invite"), ("delegation", "handed-delegation"), ("prepared", "prepared-change")):
        yield f"the word of: {word}", rule, inside(talk[word]["text"]).hex()
    yield from ((f"ask {it['name']}", "ask", it["bytes"]) for it in talk["asks"])
    yield from ((f"answer {it['name']}", "answer", it["bytes"]) for it in talk["answers"])


REAL = list(real())


@pytest.mark.parametrize(("rule", "data"), [it[1:] for it in REAL], ids=[it[0] for it in REAL])
def test_what_is_accepted_fits_the_grammar(grammar: Validator, rule: str, data: str) -> None:
    assert fits(grammar, rule, raw(data))


def wrong() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is refused for its form alone, with the rule that it breaks."""
    yield from (("item", it) for it in VECTORS["items"]["refused_by_form"])
    yield from (("roster-header", it) for it in VECTORS["rosters"]["refused_headers"])
    yield from ((it["part"], it) for it in VECTORS["rosters"]["refused_parts"])
    yield from (("greeting", it) for it in VECTORS["conversation"]["refused_greetings"])
    yield from (("ask", it) for it in VECTORS["conversation"]["refused_asks"])
    yield from (("answer", it) for it in VECTORS["conversation"]["refused_answers"])


ALWAYS = {"bad-shape", "bad-version", "not-cbor", "not-deterministic", "trailing-bytes", "content-not-attached-right"}
# Between two fields, or about order: beyond a grammar.
BEYOND = re.compile(
    r"order|twice|verifier of the quorum|delegation|previous root|without one|M above|M of 0|default life|fewer|"
    r"term|version 2|ends as it begins|owner|characters|sub-graph|kinds|high s"
)


def test_what_is_refused_does_not_fit_but_where_a_grammar_cannot_say_it(grammar: Validator) -> None:
    refused_by_grammar = 0
    for rule, it in wrong():
        does_fit = fits(grammar, rule, raw(it["bytes"]))
        refused_by_grammar += not does_fit
        if does_fit:
            assert it["reason"] not in ALWAYS, it["name"]
            assert BEYOND.search(it["name"]), it["name"]
    assert refused_by_grammar >= 40


ITEMS = {kind.word for kind in Kind} | {"endorsement"}


@settings(max_examples=300)
@given(st.data())
def test_changed_bytes_that_are_accepted_fit_the_grammar(grammar: Validator, data: st.DataObject) -> None:
    """The grammar is not narrower than the package."""
    readers = {"roster-header": SignedHeader.decode, "message": frames.decode}
    _, rule, text = data.draw(st.sampled_from([it for it in REAL if it[1] in readers or it[1] in ITEMS]))
    good = bytearray(raw(text))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    read = readers.get(rule, decode_item)
    try:
        value = read(bytes(good))
    except RefusedError:
        return
    if not isinstance(value, frames.Skipped):
        assert fits(grammar, rule if rule in readers else "item", bytes(good))
