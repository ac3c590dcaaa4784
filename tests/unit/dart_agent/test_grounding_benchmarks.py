"""Published benchmarks: read as they are published, and scored as their authors do, against scores computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dart_agent.errors import ConfigError
from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.datasets.formats import ReadableFormat, detect_format, read_dataset
from dart_agent.grounding.datasets.report import AnswerRecord, judge_answers, read_answers
from dart_agent.grounding.scoring import Point, is_hit
from tests.unit.dart_agent.published_grounding import osworld_g, picture, put, screenspot, screenspot_pro


def read(folder: Path, kind: str = "auto") -> GroundingDataset:
    return read_dataset(folder, ReadableFormat(kind), folder / "unpacked")


def score(dataset: GroundingDataset, points: dict[str, Point | str | None]) -> dict[str, Any]:
    """A point, "refuse", or None for an answer that cannot be read; what is not named is not answered."""
    answers = {
        name: AnswerRecord(sample_id=name, points=None if point is None else () if isinstance(point, str) else (point,))
        for name, point in points.items()
    }
    return judge_answers(dataset, answers, 1)


def test_screenspot_is_scored_as_published(tmp_path: Path) -> None:
    dataset = read(screenspot(tmp_path))
    assert dataset.name == "screenspot"
    first = dataset.samples[0]
    assert first.targets[0].boxes == ((60, 10, 90, 30),)  # not (60, 10, 30, 20), which has no area
    assert (first.platform, first.application, first.element_type) == ("mobile", "ios", "text")
    result = score(
        dataset,
        {
            "mobile-0000": (90.0, 30.0),  # on the corner: right
            "mobile-0001": (9.9, 15.0),
            "mobile-0002": None,
            "desktop-0000": (50.0, 0.0),
            "web-0000": (95.1, 20.0),
        },
    )
    assert result["hit@1"] == 2 / 5
    assert result["published"] == {
        "average": "macro",
        "hit@1": pytest.approx((1 / 2 + 0 + 1 + 0) / 4),
        "micro": 2 / 5,
        "macro": pytest.approx(3 / 8),
        "cells": {
            "desktop text": {"hit@1": [1, 1]},
            "mobile icon": {"hit@1": [0, 1]},
            "mobile text": {"hit@1": [1, 2]},
            "web icon": {"hit@1": [0, 1]},
        },
    }
    assert result["by_application"]["ios"] == {"hit@1": [1, 2]}
    assert result["by_platform"]["mobile"] == {"hit@1": [1, 3]}
    assert result["by_size"] == {
        "below 16 px": {"hit@1": [0, 1]},
        "16 to 32 px": {"hit@1": [1, 2]},
        "32 to 64 px": {"hit@1": [1, 2]},
    }
    assert (result["samples"], result["published_samples"]) == (5, 1272)


def test_screenspot_v2_averages_over_samples(tmp_path: Path) -> None:
    dataset = read(screenspot(tmp_path, "screenspot-v2"))
    assert dataset.name == "screenspot-v2"
    result = score(dataset, {"mobile-0000": (60.0, 10.0), "mobile-0001": (10.0, 10.0)})
    assert result["published"]["average"] == "micro"
    assert result["published"]["hit@1"] == 2 / 5
    assert result["published"]["macro"] == 1 / 4
    assert result["unanswered"] == 3


def test_the_converted_copy_of_screenspot_v2_has_other_boxes(tmp_path: Path) -> None:
    converted = {"img_filename": "a.png", "instruction": "x", "bbox": [60, 10, 90, 30], "img_size": [100, 50]}
    screenspot(tmp_path, "screenspot-v2")
    put(tmp_path / "screenspot_mobile_v2.json", [converted | {"ui_type": "text", "platform": "mobile", "group": "x"}])
    sample = read(tmp_path).samples[0]
    assert sample.targets[0].boxes == ((60, 10, 90, 30),)
    assert sample.element_type == "text"


def test_boxes_in_the_wrong_form_are_refused(tmp_path: Path) -> None:
    folder = screenspot(tmp_path)
    record = json.loads((folder / "screenspot_desktop.json").read_text())[0]
    put(folder / "screenspot_desktop.json", [record | {"bbox": [80, 30, 95, 45]}])  # edges: the middle would be at 127
    with pytest.raises(ConfigError, match=r"1 of 1 boxes in .*screenspot_desktop.json lie outside"):
        read(folder)
    pro = screenspot_pro(tmp_path / "pro")
    path = pro / "annotations" / "blender_windows.json"
    put(path, [json.loads(path.read_text())[0] | {"bbox": [100, 20, 80, 60]}])  # width and height instead of edges
    with pytest.raises(ConfigError, match="has no area"):
        read(pro)


def test_screenspot_pro_compares_shares_and_averages_over_samples(tmp_path: Path) -> None:
    dataset = read(screenspot_pro(tmp_path))
    assert dataset.name == "screenspot-pro"
    assert [sample.sample_id for sample in dataset.samples] == [
        "blender_windows/blender_windows_0",
        "vscode_macos/vscode_macos_0",
        "vscode_macos/vscode_macos_0#2",
        "vscode_macos/vscode_macos_0#3",
    ]
    blender = dataset.samples[0]
    assert blender.image_wh == (100, 50)  # the picture's own size, not the noted 200 x 100
    assert blender.targets[0].boxes == ((50, 10, 90, 40),)
    result = score(
        dataset,
        {
            "blender_windows/blender_windows_0": (50.0, 40.0),
            "vscode_macos/vscode_macos_0": (20.0, 20.0),
            "vscode_macos/vscode_macos_0#2": (59.0, 20.0),
            "vscode_macos/vscode_macos_0#3": (6.0, 0.0),
        },
    )
    assert result["published"]["hit@1"] == 2 / 4  # the mean of the groups would be (1/1 + 1/3) / 2
    assert result["published"]["cells"] == {
        "Creative": {"hit@1": [1, 1]},
        "Creative icon": {"hit@1": [1, 1]},
        "Dev": {"hit@1": [1, 3]},
        "Dev icon": {"hit@1": [0, 2]},
        "Dev text": {"hit@1": [1, 1]},
    }
    assert result["macro_group"] == pytest.approx(2 / 3)
    assert result["by_platform"]["windows"] == {"hit@1": [1, 1]}


def test_a_negative_record_of_screenspot_pro_wants_a_refusal(tmp_path: Path) -> None:
    folder = screenspot_pro(tmp_path)
    path = folder / "annotations" / "blender_windows.json"
    put(path, [json.loads(path.read_text())[0] | {"gt_type": "negative"}])
    (negative, *_) = read(folder).samples
    assert is_hit(negative, ())
    assert not is_hit(negative, ((60.0, 20.0),))


def test_merged_annotations_of_screenspot_pro_do_not_count_twice(tmp_path: Path) -> None:
    folder = screenspot_pro(tmp_path)
    put(folder / "annotations" / "all.json", json.loads((folder / "annotations" / "vscode_macos.json").read_text()))
    with pytest.raises(ConfigError, match=r"twice.*remove all.json"):
        read(folder)
    for name in ("vscode_macos", "blender_windows"):
        (folder / "annotations" / f"{name}.json").unlink()
    assert len(read(folder).samples) == 3


@pytest.mark.parametrize(
    ("sample_id", "point", "right"),
    [
        ("box-0", (80.0, 40.0), True),  # width and height: the right border is at 80
        ("box-0", (81.0, 20.0), False),
        ("box-0", "refuse", False),
        ("tri-0", (19.0, 20.0), True),
        ("tri-0", (21.0, 20.0), False),  # in the bounding box, not in the polygon
        ("tri-0", (20.0, 20.0), False),  # on the hypotenuse: outside for the authors' ray to the right
        ("tri-0", (0.0, 20.0), True),  # on the left border: inside for it
        ("none-0", "refuse", True),
        ("none-0", (1.0, 1.0), False),
        ("none-0", None, False),  # what cannot be read is no refusal
    ],
)
def test_osworld_g_judges_each_type_of_box(
    tmp_path: Path, sample_id: str, point: Point | str | None, right: bool
) -> None:
    result = score(read(osworld_g(tmp_path)), {sample_id: point})
    assert result["hit@1"] == pytest.approx(right / 3)


def test_osworld_g_reports_four_scores_and_overlapping_categories(tmp_path: Path) -> None:
    answers: dict[str, Point | str | None] = {"box-0": (70.0, 20.0), "tri-0": (90.0, 40.0), "none-0": (5.0, 5.0)}
    folder = osworld_g(tmp_path)
    original, refined = read(folder / "benchmark"), read(folder, "osworld-g-refined")
    assert original.samples[0].instruction == "the box"
    assert refined.samples[0].instruction == "refined: the box"
    for dataset in (original, refined):
        result = score(dataset, answers)
        assert result["hit@1"] == pytest.approx(1 / 3)
        assert result["without_refusals"] == {"samples": 2, "hit@1": 1 / 2}
        assert result["published"]["cells"] == {
            "layout_understanding": {"hit@1": [1, 2]},
            "refusal": {"hit@1": [0, 1]},
            "text_matching": {"hit@1": [1, 1]},
        }
        assert result["by_size"]["refusal"] == {"hit@1": [0, 1]}


def test_osworld_g_follows_the_picture_where_its_size_was_noted_wrongly(tmp_path: Path) -> None:
    folder = osworld_g(tmp_path)
    picture(folder / "benchmark" / "images" / "a.png", 200, 50)
    box, triangle, _ = read(folder).samples
    assert box.targets[0].boxes == ((120, 10, 160, 40),)
    assert triangle.targets[0].polygons == (((0, 0), (80, 0), (0, 40)),)


def test_hit_at_k_counts_the_first_answer(tmp_path: Path) -> None:
    dataset = read(osworld_g(tmp_path))
    wrong, right = ((0.0, 45.0),), ((70.0, 20.0),)
    for k, expected in ((1, 0), (2, 0), (3, 1)):
        for first in (wrong[0:1], None):
            answer = AnswerRecord(sample_id="box-0", points=first, candidates=(wrong, right))
            assert judge_answers(dataset, {"box-0": answer}, k)[f"hit@{k}"] == pytest.approx(expected / 3)
    refusal = AnswerRecord(sample_id="box-0", points=(), candidates=(right,))
    assert judge_answers(dataset, {"box-0": refusal}, 3)["hit@3"] == 0, "a refusal is the last answer"


def test_answers_in_a_file_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"sample_id": "a", "points": [[1, 2]]}\n{"sample_id": "b", "points": null}\n')
    assert {name: answer.points for name, answer in read_answers(path).items()} == {"a": ((1, 2),), "b": None}
    with pytest.raises(ConfigError, match="2 answers are to questions that the data lack, such as a"):
        judge_answers(read(osworld_g(tmp_path / "data")), read_answers(path), 1)
    path.write_text('{"sample_id": "a", "points": []}\n' * 2)
    with pytest.raises(ConfigError, match=r"line 2 .* a second time"):
        read_answers(path)
    path.write_text('{"sample_id": "a"}\n')
    with pytest.raises(ConfigError, match=r"line 1 .* `points`"):
        read_answers(path)


def _without(folder: Path, name: str) -> Path:
    (folder / name).unlink()
    return folder


@pytest.mark.parametrize(
    ("make", "missing", "sentence"),
    [
        (screenspot, "screenspot_web.json", r"no complete ScreenSpot: screenspot_web.json is missing; put all files"),
        (screenspot, "screenspot_imgs/b.png", r"image b.png of ScreenSpot is not in .*screenspot_imgs: unpack"),
        (screenspot_pro, "images/blender/b.png", r"image blender/b.png of ScreenSpot-Pro is not in .*: unpack"),
        (osworld_g, "benchmark/classification_result.json", r"classification_result.json is missing; put all files"),
    ],
)
def test_an_incomplete_folder_is_named_with_the_fix(tmp_path: Path, make: Any, missing: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(_without(make(tmp_path), missing))


def test_what_is_no_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file or folder"):
        detect_format(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="no files of a known format"):
        detect_format(tmp_path)
    folder = screenspot(tmp_path / "spot")
    (folder / "screenspot_web.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(ConfigError, match="pointer of Git LFS"):
        read(folder)
    put(folder / "screenspot_web.json", [{"img_filename": "a.png", "instruction": "x"}])
    with pytest.raises(ConfigError, match=r"record 0 of .*screenspot_web.json is no record of ScreenSpot: `bbox`"):
        read(folder)
    put(folder / "screenspot_web.json", [{"img_filename": "../a.png", "instruction": "x", "bbox": [0, 0, 1, 1]}])
    with pytest.raises(ConfigError, match="outside of its folder"):
        read(folder)
