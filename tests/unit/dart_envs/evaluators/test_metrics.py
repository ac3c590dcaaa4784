from __future__ import annotations

from typing import Any

import osworld_cases
import pytest

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.metrics import METRICS, osworld, text
from dart_server.wire import A11yElement


def file(content: bytes | str) -> GuestFile:
    return GuestFile("/f", content.encode() if isinstance(content, str) else content)


BUTTON = A11yElement(role="text", name="display", text=" 42 ", states=["showing", "focused"], x=0, y=0, w=5, h=5)

CASES: list[tuple[str, Any, Any, dict[str, Any], float]] = [
    ("exact_match", "Apple\n", {"expected": "Apple"}, {}, 1),
    ("exact_match", "Apple", {"expected": "apple"}, {}, 0),
    ("exact_match", "Apple\n", {"expected": "Apple"}, {"strict": True}, 0),
    ("exact_match", {"width": 5}, {"expected": {"width": 5}}, {}, 1),
    ("exact_match", file("Apple\n"), {"expected": "Apple"}, {}, 1),
    ("literal_match", "A", "A", {}, 1),
    ("literal_match", "A", "a", {}, 0),
    ("literal_match", "A", "a", {"ignore_case": True}, 1),
    ("is_in_list", ["a", "b"], {"expected": "b"}, {}, 1),
    ("is_in_list", ["a"], {"expected": "b"}, {}, 0),
    ("match_in_list", "b\n", {"expected": ["a", "b"]}, {}, 1),
    ("match_in_list", "c", {"expected": ["a", "b"]}, {}, 0),
    ("check_include_exclude", "one two", {"include": ["one"], "exclude": ["three"]}, {}, 1),
    ("check_include_exclude", "one two", {"include": ["one", "four"]}, {}, 0),
    ("check_include_exclude", "one two", {"include": ["one"], "exclude": ["two"]}, {}, 0),
    ("check_list", "ab\ncd", {"expect": ["^c"], "unexpect": ["x"]}, {}, 1),
    ("check_list", ["ab", "cd"], {"expect": ["^d"]}, {}, 0),
    ("check_list", "ab", {"expect": [], "unexpect": ["b$"]}, {}, 0),
    ("check_json", '{"a": {"b": [1, 5]}}', {"expect": [{"key": ["a", "b", 1], "method": "ge", "ref": 5}]}, {}, 1),
    ("check_json", '{"a": 1}', {"expect": [{"key": ["b"], "method": "ne", "ref": 5}]}, {}, 0),
    ("check_json", '{"a": "x"}', {"expect": [{"key": ["a"], "method": "lt", "ref": 5}]}, {}, 0),
    ("check_json", '{"a": 1}', {"expect": [], "unexpect": [{"key": ["a"], "ref": 1}]}, {}, 0),
    ("check_json", '{"a": "green tea"}', {"expect": [{"key": ["a"], "method": "re", "ref": "^gr"}]}, {}, 1),
    ("check_json_settings", '{"a": 1, "b": 2}', {"expected": {"a": 1}}, {}, 1),
    ("check_json_settings", '{"b": 2}', {"expected": {"a": None}}, {}, 0),
    ("check_direct_json_object", {"a": "x"}, {"expected": {"a": ["x", "y"]}}, {}, 1),
    ("check_direct_json_object", {"a": "z"}, {"expected": {"a": ["x", "y"]}}, {}, 0),
    ("check_direct_json_object", {"a": "xyz"}, {"expected": {"a": "y"}, "expect_in_result": True}, {}, 1),
    ("compare_text_file", file("a\n"), {"expected": "a"}, {}, 1),
    ("compare_text_file", file("a\n\n"), file("a\n"), {}, 0),
    ("compare_text_file", file("A  b"), "a b", {"ignore_blanks": True, "ignore_case": True}, 1),
    ("compare_config", file("k=1\n"), {"expected": "k=1\n"}, {}, 1),
    ("compare_config", file("k=1"), {"expected": "k=1\n"}, {}, 0),
    ("compare_csv", file('a,"b"\n\n1,2\n'), "a,b\n1,2", {}, 1),
    ("compare_csv", file("a, b"), "a,b", {}, 0),
    ("compare_csv", file("a, B"), "a,b", {"strict": False, "ignore_case": True}, 1),
    ("file_contains", file("one two"), {"expected": ["two", "one"]}, {}, 1),
    ("file_contains", file("one two"), {"expected": ["three"]}, {}, 0),
    ("exists", file(""), None, {}, 1),
    ("exists", [], None, {}, 0),
    ("contains_names", ["a", "b/"], {"include": ["b/"], "exclude": ["c"]}, {}, 1),
    ("contains_names", ["ab"], {"include": ["a"]}, {}, 0),
    ("contains_names", ["a", "b"], {"exactly": ["b", "a"]}, {}, 1),
    ("contains_names", ["a", "b", "c"], {"exactly": ["b", "a"]}, {}, 0),
    ("contains_element", [BUTTON], {"role": "text", "text": "42", "states": ["focused"]}, {}, 1),
    ("contains_element", [BUTTON], {"text": "4"}, {}, 0),
    ("contains_element", [BUTTON], {"name": "display", "states": ["checked"]}, {}, 0),
    *osworld_cases.BY_HAND,
]


@pytest.mark.parametrize(("func", "result", "expected", "options", "reward"), CASES)
def test_metric(func: str, result: Any, expected: Any, options: dict[str, Any], reward: float) -> None:
    assert METRICS[func](result, expected, options) == reward


def test_every_metric_is_seen_to_pass_and_to_fail() -> None:
    seen = {(func, bool(reward)) for func, *_, reward in CASES}
    assert seen == {(func, good) for func in {**text.METRICS, **osworld.METRICS} for good in (True, False)}


@pytest.mark.parametrize(
    ("func", "result"),
    [
        ("check_json", file("{")),
        ("check_json_settings", "[1]"),
        ("check_direct_json_object", "[1]"),
        ("compare_text_file", file(b"\xff\xfe")),
    ],
)
def test_what_the_policy_broke_is_spoiled(func: str, result: Any) -> None:
    with pytest.raises(InvalidArtifact):
        METRICS[func](result, {"expected": {}, "expect": []}, {})


def test_a_wrong_rule_is_not_spoiled() -> None:
    with pytest.raises(KeyError):
        METRICS["exact_match"]("a", {}, {})
