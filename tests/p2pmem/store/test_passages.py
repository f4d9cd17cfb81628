"""What an asset says, in words."""

from __future__ import annotations

import hypothesis.strategies as st
import pyoxigraph as ox
import pytest
from hypothesis import given
from p2pmem_protocol.errors import MisuseError

from p2pmem.recall.passages import (
    MAX_ASSET_CHARACTERS,
    MAX_PASSAGE_CHARACTERS,
    MAX_PASSAGES,
    MAX_PASSAGES_PER_SUBJECT,
    Passage,
    extract_passages,
    local_name,
)
from p2pmem.recall.words import MAX_QUESTION_TERMS, index_text, match_expression, question_phrases

LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
XSD = "http://www.w3.org/2001/XMLSchema#"


def texts(*lines: str) -> list[str]:
    return [passage.text for passage in extract_passages("".join(f"{line} .\n" for line in lines).encode()).passages]


def test_a_passage_begins_with_the_name_and_says_each_statement() -> None:
    extract = extract_passages(
        f"""<http://ex.org/trial#42> <http://ex.org/hasSideEffect> <http://ex.org/Nausea> .
<http://ex.org/trial#42> <{LABEL}> "Statin trial"@en .
<http://ex.org/trial#42> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <http://schema.org/MedicalTrial> .
""".encode()
    )
    assert extract.passages == (Passage("http://ex.org/trial#42", "Statin trial. hasSideEffect Nausea. MedicalTrial"),)
    assert not extract.truncated


def test_what_another_subject_is_called_is_said_instead_of_its_iri() -> None:
    found = texts("<urn:x:a> <urn:x:knows> <urn:x:b8f3>", f'<urn:x:b8f3> <{LABEL}> "Ada"')
    assert found == ["a. knows Ada", "Ada"]


def test_blank_nodes_are_said_where_they_are_pointed_at() -> None:
    found = texts(
        "<urn:x:a> <urn:x:address> _:c14n0",
        '_:c14n0 <urn:x:city> "Oslo"',
        "_:c14n0 <urn:x:geo> _:c14n1",
        '_:c14n1 <urn:x:lat> "59.9"',
    )
    assert found == ["a. address city Oslo. address geo lat 59.9"]


def test_blank_nodes_that_only_point_at_each_other_are_said_all_the_same() -> None:
    found = texts("_:c14n0 <urn:x:next> _:c14n1", "_:c14n1 <urn:x:next> _:c14n0", '_:c14n1 <urn:x:is> "here"')
    assert any("here" in text for text in found)


def test_dates_are_said_in_words_too_and_bytes_not_at_all() -> None:
    found = texts(
        f'<urn:x:a> <urn:x:at> "2023-05-08T10:00:00Z"^^<{XSD}dateTime>',
        f'<urn:x:a> <urn:x:bad> "2023-99-08"^^<{XSD}date>',
        f'<urn:x:a> <urn:x:blob> "QUJD"^^<{XSD}base64Binary>',
    )
    assert found == ["a. at 2023-05-08T10:00:00Z (8 May 2023). bad 2023-99-08. blob"]


def test_triple_terms_and_markup_are_said_in_words() -> None:
    html = "http://www.w3.org/1999/02/22-rdf-syntax-ns#HTML"
    found = texts(
        '<urn:x:a> <urn:x:says> <<( <urn:x:b> <urn:x:likes> "tea" )>>',
        f'<urn:x:a> <urn:x:page> "<p>fish &amp; <b>chips</b></p>"^^<{html}>',
    )
    assert found == ["a. says b likes tea. page fish & chips"]


def test_long_text_is_cut_into_bounded_passages_that_all_begin_with_the_name() -> None:
    sentence = "The quick brown fox jumps over the lazy dog. "
    found = texts(f'<urn:x:story> <urn:x:text> "{sentence * 200}"')
    assert len(found) > 5
    assert all(text.startswith("story. ") and len(text) <= MAX_PASSAGE_CHARACTERS for text in found)
    assert all(text.endswith("dog.") for text in found), "cut between sentences"
    assert sum(text.count("quick") for text in found) == 200


def test_what_is_too_much_is_left_out_and_said_to_be() -> None:
    one = extract_passages(f'<urn:x:a> <urn:x:text> "{"word " * 200_000}" .\n'.encode())
    assert one.truncated
    assert len(one.passages) == MAX_PASSAGES_PER_SUBJECT
    many = extract_passages("".join(f'<urn:x:s{i}> <urn:x:p> "x" .\n' for i in range(MAX_PASSAGES + 1)).encode())
    assert many.truncated
    assert len(many.passages) == MAX_PASSAGES


def test_many_subjects_that_share_a_large_blank_node_stay_bounded() -> None:
    lines = [f"<urn:x:s{i:04}> <urn:x:p> _:c14n0 .\n" for i in range(800)]
    lines += [f'_:c14n0 <urn:x:p{i}> "some words of a value {i}" .\n' for i in range(800)]
    extract = extract_passages("".join(lines).encode())
    assert extract.truncated
    assert sum(len(passage.text) for passage in extract.passages) < 2 * MAX_ASSET_CHARACTERS


def test_what_is_no_n_quads_is_refused() -> None:
    with pytest.raises(MisuseError):
        extract_passages(b"<urn:a> <urn:p> .\n")
    with pytest.raises(MisuseError, match="nest"):
        extract_passages(b"<urn:a> <urn:p> " + b"<<( <urn:a> <urn:p> " * 20_000)


@pytest.mark.parametrize(
    ("iri", "words"),
    [
        ("http://ex.org/has_side-effect", "has side effect"),
        ("http://ex.org/a%20b/", "a b"),
        ("urn:isbn:123", "123"),
        ("http://ex.org#Größe", "Größe"),
        ("urn:x:", "x"),
    ],
)
def test_local_names(iri: str, words: str) -> None:
    assert local_name(iri) == words


terms = st.one_of(
    st.sampled_from(["<urn:x:a>", "<urn:x:b>", "_:c14n0", "_:c14n1", "_:c14n2"]),
    st.text(max_size=40).map(lambda text: str(ox.Literal(text))),
)


@given(st.lists(st.tuples(st.sampled_from(["<urn:x:a>", "_:c14n0", "_:c14n1", "_:c14n2"]), terms), max_size=12))
def test_every_subject_with_words_is_in_some_passage_and_nothing_fails(pairs: list[tuple[str, str]]) -> None:
    content = "".join(f"{subject} <urn:x:p> {term} .\n" for subject, term in pairs).encode()
    extract = extract_passages(content)
    assert extract == extract_passages(content)
    said = " ".join(index_text(passage.text) for passage in extract.passages)
    for _, term in pairs:
        if term.startswith('"') and not extract.truncated:
            (quad,) = ox.parse(f"<urn:a> <urn:p> {term} .", format=ox.RdfFormat.N_QUADS)
            assert isinstance(quad.object, ox.Literal)
            for word in index_text(quad.object.value).split():
                assert word in said


def test_a_camel_case_word_is_found_whole_and_in_its_parts() -> None:
    assert index_text("hasSideEffect ds000247 HTTPServer2") == (
        "hassideeffect has side effect ds000247 httpserver2 http server 2"
    )


def test_scripts_without_spaces_are_cut_into_characters_and_asked_for_as_phrases() -> None:
    assert index_text("東京タワー tall") == "東 京 タ ワ ー tall"
    assert question_phrases("東京 tower") == ("東 京", "tower")
    assert match_expression(["東 京", "tower"]) == '"東 京" OR "tower"'


def test_a_question_loses_its_stop_words_unless_it_has_no_others() -> None:
    assert question_phrases("What did the doctor say about Ada's statin?") == ("doctor", "say", "ada", "statin")
    assert question_phrases("who are you") == ("who", "are", "you")
    assert question_phrases("?! ()") == ()


def test_a_question_is_bounded() -> None:
    assert len(question_phrases(" ".join(f"w{i}" for i in range(10_000)))) == MAX_QUESTION_TERMS
