"""What metrics share. Role: kinds of results, and how a verdict is written.

Rule: pure; a result of the wrong kind raises `InvalidArtifact` (the policy's doing) or TypeError/ValueError/KeyError (a wrong rule, which
becomes an `EvaluatorError`). Non-goals: any one metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact, load_json

TextResult = Annotated[Any, "text, a file, or a list of texts (its lines)"]
PrintedResult = Annotated[Any, "text"]
FileResult = Annotated[Any, "a file"]
FilesResult = Annotated[Any, "a list of files"]
JsonResult = Annotated[Any, "JSON as text or as a file, an object, or a list"]
NamesResult = Annotated[Any, "a list of texts"]
ListResult = Annotated[Any, "a list, or text"]
ElementsResult = Annotated[Any, "a list of elements"]
TreeResult = Annotated[Any, "facts by path"]
ObjectResult = Annotated[Any, "an object"]
AnyResult = Annotated[Any, "any value"]
"""What a metric takes, in the words of the reference page."""

Options = Mapping[str, Any]
Metric = Callable[[Any, Any, Options], float]


def as_text(result: Any) -> str:
    """Text of a result: a file's content, a string, or lines of a list of strings."""
    if isinstance(result, GuestFile):
        return result.text
    if isinstance(result, str):
        return result
    if isinstance(result, Sequence) and all(isinstance(line, str) for line in result):
        return "\n".join(result)
    raise TypeError(f"expected text, got {type(result).__name__}")


def as_json(result: Any) -> Any:
    """Parsed JSON of a result. Raises InvalidArtifact where it is not JSON: the policy may have broken the file."""
    if isinstance(result, Mapping | list) and not isinstance(result, str):
        return result
    try:
        return load_json(as_text(result))
    except ValueError as error:
        raise InvalidArtifact(f"not JSON: {error}") from error


def binary_score(good: bool) -> float:
    """1.0 or 0.0."""
    return 1.0 if good else 0.0
