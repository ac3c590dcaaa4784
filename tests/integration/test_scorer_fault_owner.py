"""Who is to blame when an official evaluator raises: the scorer's own processes, without a desktop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dart_envs.scorer import paths
from dart_envs.scorer.workers import ScorerWorker

pytestmark = pytest.mark.skipif(
    paths.read_installation() is None, reason="OSWorld's scorer is not installed: run `dart-envs scorer install`"
)
NOBODY = {"host": "127.0.0.1", "server_port": 9, "chromium_port": 9, "vlc_port": 9}
SIMILAR = "check_file_exists_and_structure_sim"


@pytest.fixture(scope="module")
def worker() -> Iterator[ScorerWorker]:
    with ScorerWorker(paths.scorer_folder()) as worker:
        yield worker


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "picture.png"
    Image.effect_mandelbrot((64, 64), (-3, -2.5, 2, 2.5), 50).save(path)
    return str(path)


@pytest.fixture
def garbage(tmp_path: Path) -> str:
    path = tmp_path / "garbage.png"
    path.write_bytes(b"no picture at all")
    return str(path)


def value(of: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": of}


def judged(
    worker: ScorerWorker, tmp_path: Path, func: str, result: Any, expected: Any = None, conj: str = "and"
) -> dict[str, Any]:
    part = {"func": func, "result": result, "expected": expected, "options": {}}
    request = {"op": "evaluate", "parts": [part], "conj": conj, "desktop": NOBODY, "cache_dir": str(tmp_path / "cache")}
    return worker.request(request, timeout_s=60.0)


def test_a_file_that_the_policy_spoiled_scores_0(
    worker: ScorerWorker, tmp_path: Path, picture: str, garbage: str
) -> None:
    assert judged(worker, tmp_path, SIMILAR, value(picture), value(picture))["score"] == 1.0
    spoiled = judged(worker, tmp_path, SIMILAR, value(garbage), value(picture))
    assert spoiled["score"] == 0.0
    assert "UnidentifiedImageError" in spoiled["parts"][0]["cause"]


def test_a_broken_expected_file_is_the_evaluators(
    worker: ScorerWorker, tmp_path: Path, picture: str, garbage: str
) -> None:
    answer = judged(worker, tmp_path, SIMILAR, value(picture), value(garbage))
    assert answer["failed"] == "evaluator"
    assert "also on the expected file" in answer["message"]


@pytest.mark.parametrize(
    ("func", "result", "expected", "kind"),
    [
        ("no_such_metric", value("a"), value("a"), "evaluator"),
        ("exact_match", {"type": "no_such_getter"}, value({"expected": "a"}), "evaluator"),
        ("exact_match", value("a"), None, "evaluator"),
        (
            "exact_match",
            value("a"),
            {"type": "cloud_file", "path": "http://127.0.0.1:9/gold", "dest": "gold"},
            "expected",
        ),
        ("exact_match", {"type": "vm_command_line", "command": "date"}, value({"expected": "a"}), "desktop"),
        ("compare_text_file", {"type": "vm_file", "path": "/a", "dest": "a"}, value("/etc/hostname"), "desktop"),
    ],
)
def test_what_has_no_verdict_says_whose_failure_it_is(
    worker: ScorerWorker, tmp_path: Path, func: str, result: Any, expected: Any, kind: str
) -> None:
    assert judged(worker, tmp_path, func, result, expected)["failed"] == kind


def test_an_absent_package_is_named_and_never_a_score(worker: ScorerWorker, tmp_path: Path, picture: str) -> None:
    absent = worker.request({"op": "hello"}, timeout_s=60.0)["missing_packages"]
    if "easyocr" not in absent:
        pytest.skip("easyocr is installed")
    answer = judged(worker, tmp_path, "compare_image_text", value(picture), value({"type": "text", "text": ["a"]}))
    assert (answer["failed"], answer["package"]) == ("missing_package", "easyocr")


def test_text_of_the_desktop_is_never_run(worker: ScorerWorker, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    attack = f"[open({str(trace)!r}, 'w').close()]"
    answer = judged(worker, tmp_path, "check_gnome_favorite_apps", value(attack), value({"expected": ["a"]}))
    assert answer["score"] == 0.0
    assert not trace.exists()
