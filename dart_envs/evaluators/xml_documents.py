"""XML that a desktop made, parsed within bounds.

Role: `parse_xml` gives the tree of a document. Rule: a document type is refused wherever it stands and in whatever encoding, because its
entities can make a small file a large tree; so is what has more elements or attributes than any answer needs. Both are seen before the
tree is built. Non-goals: what documents mean (`dart_envs.evaluators.opendocument`).
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, ParseError, TreeBuilder
from xml.parsers import expat

from dart_envs.evaluators.artifacts import InvalidArtifact

MAX_TAGS = 400_000
"""Of start and end tags together, and of attributes; a document of 100 pages has some ten thousand."""


def parse_xml(content: bytes | str, name: str) -> Element:
    """Parse a document.

    Args:
        content: The document.
        name: What errors call it.

    Returns:
        Its root; names are `{namespace}name`.

    Raises:
        InvalidArtifact: It has a document type, or is too large.
        ParseError: It is not XML.
    """
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if data.count(b"<") > MAX_TAGS or data.count(b"=") > MAX_TAGS:
        raise InvalidArtifact(f"{name} has more elements than any answer needs")
    builder = TreeBuilder()
    parser = expat.ParserCreate("utf-8" if isinstance(content, str) else None, "}")
    parser.buffer_text = True

    def refuse(*_: object) -> None:
        raise InvalidArtifact(f"{name} has a document type")

    def start(tag: str, attributes: dict[str, str]) -> None:
        builder.start(_qualified(tag), {_qualified(key): value for key, value in attributes.items()})

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda tag: builder.end(_qualified(tag))
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ParseError(str(error)) from error
    return builder.close()


def _qualified(name: str) -> str:
    return f"{{{name}" if "}" in name else name
