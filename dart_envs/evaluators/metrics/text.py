"""Metrics of text, JSON, tables, lists and the accessibility tree.

Role: one function per metric, and `METRICS` of this module. Names and rule shapes are OSWorld's; `exists`, `contains_names`
and `contains_element` are ours. Non-goals: reading desktops.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.metrics.base import (
    AnyResult,
    ElementsResult,
    JsonResult,
    ListResult,
    Metric,
    NamesResult,
    Options,
    TextResult,
    as_json,
    as_text,
    binary_score,
)


def exact_match(result: AnyResult, rules: Mapping[str, Any], options: Options) -> float:
    """{expected}: the same value; text compares without surrounding white space unless option `strict`."""
    expected = rules["expected"]
    if isinstance(result, str | GuestFile) and isinstance(expected, str) and not options.get("strict"):
        return binary_score(as_text(result).strip() == expected.strip())
    return binary_score(result == expected)


def literal_match(result: TextResult, expected: Any, options: Options) -> float:
    """The same text; option `ignore_case`."""
    held, wanted = as_text(result), as_text(expected)
    return binary_score(held.lower() == wanted.lower() if options.get("ignore_case") else held == wanted)


def is_in_list(result: ListResult, rules: Mapping[str, Any], options: Options) -> float:
    """{expected}: an item of the result, or a part of its text."""
    return binary_score(rules["expected"] in result)


def match_in_list(result: TextResult, rules: Mapping[str, Any], options: Options) -> float:
    """{expected: [...]}: the result is one of these."""
    return binary_score(as_text(result).strip() in rules["expected"])


def check_include_exclude(result: TextResult, rules: Mapping[str, Any], options: Options) -> float:
    """{include: [...], exclude: [...]}: the text has every one of the first and none of the second."""
    text = as_text(result)
    return binary_score(
        all(part in text for part in rules.get("include", ()))
        and not any(part in text for part in rules.get("exclude", ()))
    )


def check_list(result: TextResult, rules: Mapping[str, Any], options: Options) -> float:
    """{expect: [...], unexpect: [...]}: regular expressions, each found in some line / in no line."""
    lines = as_text(result).splitlines()

    def found(pattern: str) -> bool:
        return any(re.search(pattern, line) for line in lines)

    return binary_score(
        all(found(pattern) for pattern in rules.get("expect", ()))
        and not any(found(pattern) for pattern in rules.get("unexpect", ()))
    )


COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": lambda value, ref: bool(value == ref),
    "ne": lambda value, ref: bool(value != ref),
    "lt": lambda value, ref: bool(value < ref),
    "le": lambda value, ref: bool(value <= ref),
    "gt": lambda value, ref: bool(value > ref),
    "ge": lambda value, ref: bool(value >= ref),
    "in": lambda value, ref: bool(value in ref),
    "re": lambda value, ref: re.search(ref, str(value)) is not None,
    "str_list_eq": lambda value, ref: list(map(str, value)) == list(map(str, ref)),
}
_MISSING = object()


def _value_at(value: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value


def check_json(result: JsonResult, rules: Mapping[str, Any], options: Options) -> float:
    """{expect: [{key: [...], method, ref}], unexpect: [...]}: every comparison holds / none of the second does."""
    data = as_json(result)

    def compare(rule: Mapping[str, Any]) -> bool:
        value = _value_at(data, rule["key"])
        method = COMPARISONS[rule.get("method", "eq")]
        if value is _MISSING:
            return False
        try:
            return method(value, rule["ref"])
        except TypeError:
            return False

    return binary_score(all(map(compare, rules.get("expect", ()))) and not any(map(compare, rules.get("unexpect", ()))))


def check_json_settings(result: JsonResult, rules: Mapping[str, Any], options: Options) -> float:
    """{expected: {...}}: the JSON object holds each of these keys with this value."""
    data = as_json(result)
    if not isinstance(data, Mapping):
        raise InvalidArtifact("not a JSON object")
    return binary_score(all(key in data and data[key] == value for key, value in rules["expected"].items()))


def check_direct_json_object(result: JsonResult, rules: Mapping[str, Any], options: Options) -> float:
    """{expected: {...}}: each key's value is the expected one, or one of a list where `expect_in_result` is false and
    a list is given.
    """
    data = as_json(result)
    if not isinstance(data, Mapping):
        raise InvalidArtifact("not a JSON object")
    within = bool(rules.get("expect_in_result", False))
    for key, wanted in rules["expected"].items():
        held = data.get(key)
        if within:
            wanted_parts = wanted if isinstance(wanted, list) else [wanted]
            if held is None or not all(str(part) in str(held) for part in wanted_parts):
                return 0.0
        elif held != wanted and not (isinstance(wanted, list) and held in wanted):
            return 0.0
    return 1.0


def _normalize(text: str, options: Options) -> str:
    if options.get("ignore_blanks"):
        text = re.sub(r"\s+", " ", text).strip()
    return text.lower() if options.get("ignore_case") else text


def _expected_text(expected: Any) -> str:
    return as_text(expected["expected"] if isinstance(expected, Mapping) else expected)


def compare_text_file(result: TextResult, expected: Any, options: Options) -> float:
    """The same text as a file, a string or {expected}; one line end at the end does not count.

    Options `ignore_blanks`, `ignore_case`.
    """
    held, wanted = as_text(result).removesuffix("\n"), _expected_text(expected).removesuffix("\n")
    return binary_score(_normalize(held, options) == _normalize(wanted, options))


def compare_config(result: TextResult, rules: Any, options: Options) -> float:
    """{expected}: the same text, byte for byte."""
    return binary_score(as_text(result) == _expected_text(rules))


def compare_csv(result: TextResult, expected: Any, options: Options) -> float:
    """The same rows of cells.

    Options `strict` (default true: else surrounding white space does not count), `ignore_case`.
    """

    def rows(text: str) -> list[list[str]]:
        text = _normalize(text, {"ignore_case": options.get("ignore_case")})
        parsed = [row for row in csv.reader(io.StringIO(text)) if row]
        return parsed if options.get("strict", True) else [[cell.strip() for cell in row] for row in parsed]

    return binary_score(rows(as_text(result)) == rows(_expected_text(expected)))


def file_contains(result: TextResult, rules: Mapping[str, Any], options: Options) -> float:
    """{expected: [...]}: the text has every one of these."""
    text = as_text(result)
    return binary_score(all(part in text for part in rules["expected"]))


def exists(result: AnyResult, expected: Any, options: Options) -> float:
    """The getter found something (a getter that finds nothing scores 0 by itself)."""
    return binary_score(bool(result) or isinstance(result, GuestFile))


def contains_names(result: NamesResult, rules: Mapping[str, Any], options: Options) -> float:
    """{include: [...], exclude: [...], exactly: [...]}: names in a list, whole names."""
    names = list(result)
    exactly = rules.get("exactly")
    return binary_score(
        all(name in names for name in rules.get("include", ()))
        and not any(name in names for name in rules.get("exclude", ()))
        and (exactly is None or sorted(names) == sorted(exactly))
    )


def contains_element(result: ElementsResult, rules: Mapping[str, Any], options: Options) -> float:
    """{role, name, text, states: [...]}: some accessibility element has all that is given.

    `text` compares without surrounding space.
    """

    def fits(element: Any) -> bool:
        return (
            rules.get("role") in (None, element.role)
            and rules.get("name") in (None, element.name)
            and rules.get("text") in (None, element.text.strip())
            and set(rules.get("states", ())) <= set(element.states)
        )

    return binary_score(any(map(fits, result)))


METRICS: Mapping[str, Metric] = {
    "exact_match": exact_match,
    "literal_match": literal_match,
    "is_in_list": is_in_list,
    "match_in_list": match_in_list,
    "check_include_exclude": check_include_exclude,
    "check_list": check_list,
    "check_json": check_json,
    "check_json_settings": check_json_settings,
    "check_direct_json_object": check_direct_json_object,
    "compare_text_file": compare_text_file,
    "compare_config": compare_config,
    "compare_csv": compare_csv,
    "file_contains": file_contains,
    "exists": exists,
    "contains_names": contains_names,
    "contains_element": contains_element,
}
