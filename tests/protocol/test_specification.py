"""README.md and p2pmem.cddl say what the package does: examples, tables and grammar are held against it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cddl_verifier import Validator
from hypothesis import given, settings, strategies as st
from p2pmem_protocol import frames, limits
from p2pmem_protocol.content import IRI_BYTES_MAX, LITERAL_BYTES_MAX, RESERVED_PREDICATES
from p2pmem_protocol.eip712 import Struct
from p2pmem_protocol.envelope import decode_item
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.hello import JOIN_PROTOCOL, MEMBER_PROTOCOL, RELAY_PROTOCOL, SYNC_PROTOCOL
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import DKG
from p2pmem_protocol.rdfc import PROTOCOL_BUDGET
from p2pmem_protocol.roster import SignedHeader

PROTOCOL = Path(__file__).parents[2] / "protocol"
README = (PROTOCOL / "README.md").read_text()
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


def test_every_reserved_predicate_is_in_the_list_and_no_other() -> None:
    shown = re.search(r"^```reserved\n(.*?)\n```$", README, re.DOTALL | re.MULTILINE)
    assert shown is not None
    names = shown.group(1).split()
    assert sorted(DKG + name for name in names) == sorted(RESERVED_PREDICATES)


def test_no_section_is_named_that_is_not_there() -> None:
    headings = set(re.findall(r"^##+ ([\d.]+?)\.? ", README, re.MULTILINE))
    text = README + (PROTOCOL / "p2pmem.cddl").read_text()
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


def test_every_kind_is_in_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \| `([a-z]+)` \|(?:[^|]*\|){4}$", README, re.MULTILINE)
    assert rows == [(str(int(kind)), kind.word) for kind in Kind]


def test_struct_types_stand_to_the_letter() -> None:
    shown = re.findall(r"^    ([A-Z]\w+\(.*\))$", README, re.MULTILINE)
    assert shown == [struct.value.encoded for struct in Struct]


def test_other_numbers_in_the_text() -> None:
    budget = PROTOCOL_BUDGET
    for number in (budget.calls, budget.permutations, budget.visits, budget.depth, IRI_BYTES_MAX):
        assert f"{number:,}" in README
    assert "1 MiB between its quotes" in README
    assert LITERAL_BYTES_MAX == 2**20
    for protocol in (MEMBER_PROTOCOL, SYNC_PROTOCOL, JOIN_PROTOCOL, RELAY_PROTOCOL):
        assert f"`{protocol}`" in README


# The grammar


@pytest.fixture(scope="module")
def grammar() -> Validator:
    return Validator(PROTOCOL / "p2pmem.cddl")


def fits(grammar: Validator, rule: str, data: bytes) -> bool:
    return bool(grammar.validate(data, root_type=rule, require_deterministic=True).valid)


def real() -> Iterator[tuple[str, str, str]]:
    """Name, rule and bytes of every accepted vector."""
    for it in VECTORS["items"]["accepted"]:
        yield it["name"], "endorsement" if it["kind"] == "endorse" else it["kind"], it["bytes"]
    for roster in VECTORS["rosters"]["rosters"]:
        yield roster["name"], "roster-header", roster["header"]
        yield from ((f"{roster['name']}: {part}", part, it["bytes"]) for part, it in roster["parts"].items())
    yield from ((name, "roster-header", header) for name, header in VECTORS["heads"]["headers"].items())
    yield from ((it["message"], "message", it["bytes"]) for it in VECTORS["frames"]["messages"])
    yield "a certificate", "certificate", VECTORS["certificates"]["accepted"]["bytes"]
    talk = VECTORS["conversation"]
    yield "a greeting", "greeting", talk["greeting"]["bytes"]
    yield "a proof", "proof", talk["proof"]["bytes"]
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
