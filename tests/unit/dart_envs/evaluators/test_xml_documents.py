"""XML of desktops: the same tree as the library's, and what no answer needs is refused before it is built."""

from __future__ import annotations

from xml.etree.ElementTree import ParseError, fromstring, tostring

import pytest

from dart_envs.evaluators import xml_documents
from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.xml_documents import parse_xml

DOCUMENT = '<a xmlns="urn:x" xmlns:o="urn:o" o:k="1">one<o:b c="&lt;2"/>two<![CDATA[<3]]></a>'
BOMB = '<!DOCTYPE a [<!ENTITY b "cccccccccc">]><a>&b;</a>'


@pytest.mark.parametrize("content", [DOCUMENT, DOCUMENT.encode(), f'<?xml version="1.0"?>{DOCUMENT}'.encode("utf-16")])
def test_the_tree_is_that_of_the_library(content: str | bytes) -> None:
    assert tostring(parse_xml(content, "d")) == tostring(fromstring(content))


@pytest.mark.parametrize(
    "content",
    [BOMB, f"<!--{'x' * 5000}-->{BOMB}".encode(), f'<?xml version="1.0"?>{BOMB}'.encode("utf-16"), "<!DOCTYPE a><a/>"],
)
def test_a_document_type_is_refused_wherever_it_stands(content: str | bytes) -> None:
    with pytest.raises(InvalidArtifact, match="d has a document type"):
        parse_xml(content, "d")


@pytest.mark.parametrize("part", ["<b/>", "<b></b>"])
def test_more_elements_than_any_answer_needs_are_refused(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_documents, "MAX_TAGS", 100)
    assert len(parse_xml(f"<a>{part * 30}</a>", "d")) == 30
    with pytest.raises(InvalidArtifact, match="more elements than any answer needs"):
        parse_xml(f"<a>{part * 100}</a>", "d")
    attributes = " ".join(f'k{number}=""' for number in range(101))
    with pytest.raises(InvalidArtifact, match="more elements"):
        parse_xml(f"<a {attributes}/>", "d")


def test_what_is_no_xml_is_told_as_by_the_library() -> None:
    for content in ("<a>", "", "<a></b>", b"\xff\xfe<"):
        with pytest.raises(ParseError):
            parse_xml(content, "d")
