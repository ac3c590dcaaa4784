"""Samples written in other formats come back with the same boxes and scores; the commands around them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from dart_agent.cli import app
from dart_agent.errors import ConfigError
from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.datasets.formats import ReadableFormat, WritableFormat, read_dataset, write_dataset
from dart_agent.grounding.datasets.report import AnswerRecord, judge_answers
from dart_agent.grounding.samples import GroundingSample, GroundingTarget, read_image, write_samples
from tests.unit.dart_agent.published_grounding import osworld_g, picture, put, screenspot

BOXES = ((3, 7, 10, 20), (0, 0, 97, 61), (12.5, 0.1, 33.3, 60.9), (90, 59, 97, 61))
"""On a picture whose sides are primes, so that shares are never exact."""


def ours(root: Path) -> GroundingDataset:
    """Four questions with one box each, of two applications."""
    picture(root / "images" / "a.png", 97, 61)
    samples = tuple(
        GroundingSample(
            sample_id=f"s/{number}",
            image="images/a.png",
            image_wh=(97, 61),
            instruction=f"klick auf „Größe {number}“",
            targets=(GroundingTarget(boxes=(box,)),),
            application=("galculator", "mousepad")[number % 2],
            element_type=("text", "icon")[number % 2],
            role="push-button",
            kind="functional",
            screen_id="start",
            platform="linux",
            group="train",
        )
        for number, box in enumerate(BOXES)
    )
    return GroundingDataset("samples", root, samples)


def with_all_kinds(root: Path) -> GroundingDataset:
    """The same with a refusal, a polygon and a drag."""
    dataset = ours(root)
    first = dataset.samples[0]
    corners = ((0.0, 0.0), (20.5, 0.0), (0.0, 20.0))
    polygon = GroundingTarget(polygons=(corners,), polygon_border="even-odd")
    extra = (
        first.model_copy(update={"sample_id": "none", "targets": ()}),
        first.model_copy(update={"sample_id": "polygon", "targets": (polygon,)}),
        first.model_copy(update={"sample_id": "drag", "targets": (*first.targets, polygon)}),
    )
    return GroundingDataset("samples", root, dataset.samples + extra)


def same(found: GroundingSample, written: GroundingSample) -> bool:
    """Equal but for where the image is."""
    return found.model_copy(update={"image": written.image}) == written


def scores(dataset: GroundingDataset) -> object:
    """Each question is answered with a corner of its box, every second one a bit outside."""
    answers = {}
    for number, sample in enumerate(dataset.samples):
        _, _, right, bottom = sample.targets[0].boxes[0]
        answers[sample.sample_id] = AnswerRecord(
            sample_id=sample.sample_id, points=((right + 0.001 * (number % 2), bottom),)
        )
    return judge_answers(dataset, answers, 1) | {"dataset": "", "published": "", "published_samples": 0}


@pytest.mark.parametrize("kind", list(WritableFormat))
def test_what_is_written_comes_back_with_the_same_boxes_and_scores(tmp_path: Path, kind: WritableFormat) -> None:
    if kind is WritableFormat.HUGGINGFACE:
        pytest.importorskip("pyarrow")
    dataset = ours(tmp_path / "ours")
    assert write_dataset(tmp_path / "out", dataset, kind) == (4, 0)
    found = read_dataset(tmp_path / "out", ReadableFormat.AUTO, tmp_path / "unpacked")
    assert found.name == kind.value
    by_id = {sample.sample_id: sample for sample in found.samples}
    assert all(same(by_id[sample.sample_id], sample) for sample in dataset.samples)
    pixels = read_image(dataset.root / "images" / "a.png")
    assert all((read_image(found.root / sample.image) == pixels).all() for sample in found.samples)
    assert scores(found) == scores(dataset)
    assert judge_answers(found, {}, 1)["hit@1"] == 0


def test_os_atlas_has_shares_and_screenspot_width_and_height(tmp_path: Path) -> None:
    dataset = ours(tmp_path / "ours")
    write_dataset(tmp_path / "atlas", dataset, WritableFormat.OS_ATLAS)
    (screen,) = json.loads((tmp_path / "atlas" / "os_atlas.json").read_text())
    assert screen["img_filename"] == "images/a.png"
    assert screen["elements"][0]["bbox"] == [3 / 97, 7 / 61, 10 / 97, 20 / 61]
    write_dataset(tmp_path / "spot", dataset, WritableFormat.SCREENSPOT)
    records = json.loads((tmp_path / "spot" / "screenspot_desktop.json").read_text())
    assert records[0]["bbox"] == [3, 7, 7, 13]
    assert records[0]["data_type"] == "text"
    assert records[0]["data_source"] == "galculator"
    assert json.loads((tmp_path / "spot" / "screenspot_web.json").read_text()) == []


def test_published_records_of_os_atlas_are_read_in_both_forms(tmp_path: Path) -> None:
    element = {"instruction": "x", "bbox": [0.1, 0.2, 0.5, 1.0002], "data_type": "icon"}
    put(tmp_path / "linux_splited.json", [{"img_filename": "a.png", "elements": [element, element]}])
    put(tmp_path / "uibert_raw.json", [{"img_filename": "a.png", "instruction": "y", "bbox": [0, 0, 0.5, 0.5]}])
    picture(tmp_path / "linux_images" / "a.png", 100, 50)
    found = read_dataset(tmp_path, ReadableFormat.AUTO, tmp_path)
    assert found.name == "os-atlas"
    assert [sample.sample_id for sample in found.samples] == [
        "linux_splited-0-0", "linux_splited-0-1", "uibert_raw-0-0"
    ]  # fmt: skip
    assert found.samples[0].targets[0].boxes == ((10, 10, 50, 50.01),)
    put(tmp_path / "uibert_raw.json", [{"img_filename": "a.png", "elements": [element | {"bbox": [0, 0, 50, 25]}]}])
    with pytest.raises(ConfigError, match=r"record 0 of .*uibert_raw.json .* shares of the image .*; divide"):
        read_dataset(tmp_path, ReadableFormat.AUTO, tmp_path)


def test_a_published_data_set_of_hugging_face_is_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    picture(tmp_path / "a.png", 1000, 700)
    content = (tmp_path / "a.png").read_bytes()
    row = {
        "file_name": "a.png", "bbox": [30 / 1000, 70 / 700, 111 / 1000, 201 / 700], "instruction": "open it",
        "data_type": "icon", "data_source": "ios", "image": {"bytes": content, "path": "a.png"},
    }  # fmt: skip
    (tmp_path / "set" / "data").mkdir(parents=True)
    path = tmp_path / "set" / "data" / "test-00000-of-00001.parquet"
    for kind in (pa.float64(), pa.float32()):
        table = pa.Table.from_pylist([row])
        column = pa.array([row["bbox"]], pa.list_(kind))
        pq.write_table(table.set_column(table.schema.get_field_index("bbox"), "bbox", column), path)
        (sample,) = read_dataset(tmp_path / "set", ReadableFormat.AUTO, tmp_path / "unpacked").samples
        assert sample.targets[0].boxes == ((30, 70, 111, 201),)
        assert (sample.application, sample.element_type, sample.image_wh) == ("ios", "icon", (1000, 700))
    pq.write_table(pa.Table.from_pylist([{"instruction": "x"}]), path)
    with pytest.raises(ConfigError, match="lacks the columns image, bbox"):
        read_dataset(tmp_path / "set", ReadableFormat.AUTO, tmp_path / "unpacked")
    path.write_bytes(b"not parquet")
    with pytest.raises(ConfigError, match="is no Parquet file"):
        read_dataset(tmp_path / "set", ReadableFormat.AUTO, tmp_path / "unpacked")


def screenspot_of_hugging_face(folder: Path, **columns: object) -> Path:
    """ScreenSpot as rootsautomation publishes it: five samples of four cells, with boxes of the right half of the picture."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    picture(folder / "a.png", 100, 50)
    image = {"bytes": (folder / "a.png").read_bytes(), "path": "a.png"}
    (folder / "a.png").unlink()
    kinds = (("ios", "text"), ("android", "text"), ("macos", "icon"), ("gitlab", "icon"), ("windows", "text"))
    rows = [
        {
            "file_name": "a.png", "bbox": [0.5, 0.0, 1.0, 1.0], "instruction": "open it", "data_type": kind,
            "data_source": source, "image": image, **columns,
        }
        for source, kind in kinds
    ]  # fmt: skip
    (folder / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "data" / "test-00000-of-00001.parquet")
    return folder


@pytest.mark.parametrize(
    ("name", "kind", "version", "average"),
    [
        ("ScreenSpot", "auto", "screenspot", "macro"),
        ("download", "huggingface", "screenspot", "macro"),
        ("ScreenSpot_v2", "auto", "screenspot-v2", "micro"),
        ("datasets--HongxinLi--ScreenSpot_v2/snapshots/1f", "auto", "screenspot-v2", "micro"),
        ("screenspot-v2-work/ScreenSpot", "auto", "screenspot", "macro"),
        ("download", "screenspot-v2", "screenspot-v2", "micro"),
        ("ScreenSpot_v2", "screenspot", "screenspot", "macro"),
    ],
)
def test_screenspot_of_hugging_face_is_scored_as_published(
    tmp_path: Path, name: str, kind: str, version: str, average: str
) -> None:
    found = read_dataset(screenspot_of_hugging_face(tmp_path / name), ReadableFormat(kind), tmp_path / "unpacked")
    assert found.name == version
    assert [one.platform for one in found.samples] == ["mobile", "mobile", "desktop", "web", "desktop"]
    right = AnswerRecord(sample_id=found.samples[0].sample_id, points=((75.0, 25.0),))
    result = judge_answers(found, {right.sample_id: right}, 1)
    assert (result["samples"], result["published_samples"]) == (5, 1272)
    assert result["published"] == {
        "average": average,
        "hit@1": pytest.approx(1 / 8 if average == "macro" else 1 / 5),
        "micro": 1 / 5,
        "macro": pytest.approx(1 / 8),
        "cells": {
            "desktop icon": {"hit@1": [0, 1]},
            "desktop text": {"hit@1": [0, 1]},
            "mobile text": {"hit@1": [1, 2]},
            "web icon": {"hit@1": [0, 1]},
        },
    }


def test_other_data_of_hugging_face_are_not_scored_as_screenspot(tmp_path: Path) -> None:
    folder = screenspot_of_hugging_face(tmp_path / "ScreenSpot", data_type="menu")
    found = read_dataset(folder, ReadableFormat.AUTO, tmp_path / "unpacked")
    assert (found.name, found.published_samples, found.samples[0].platform) == ("huggingface", None, "")
    assert "published" not in judge_answers(found, {}, 1)
    with pytest.raises(ConfigError, match=r"is no copy of ScreenSpot-v2: .* read it with --format huggingface"):
        read_dataset(folder, ReadableFormat.SCREENSPOT_V2, tmp_path / "unpacked")


def test_the_schema_tells_datasets_where_the_images_are(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    write_dataset(tmp_path / "out", with_all_kinds(tmp_path), WritableFormat.HUGGINGFACE, split="train")
    table = pq.read_table(tmp_path / "out" / "data" / "train-00000-of-00001.parquet")
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"}
    assert set(features) == set(table.schema.names)
    assert [box is None for box in table["bbox"].to_pylist()] == [False] * 4 + [True] * 3
    assert "split: train" in (tmp_path / "out" / "README.md").read_text()


def test_every_kind_of_target_survives_where_the_format_has_room(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    dataset = with_all_kinds(tmp_path / "ours")
    for kind in (WritableFormat.SAMPLES, WritableFormat.HUGGINGFACE):
        write_dataset(tmp_path / kind.value, dataset, kind)
        found = read_dataset(tmp_path / kind.value, ReadableFormat.AUTO, tmp_path / "unpacked")
        assert all(map(same, found.samples, dataset.samples))
    for kind in (WritableFormat.SCREENSPOT, WritableFormat.OS_ATLAS):
        with pytest.raises(ConfigError, match=r"3 of 7 samples have no place .* --drop"):
            write_dataset(tmp_path / kind.value, dataset, kind)
        assert write_dataset(tmp_path / kind.value, dataset, kind, drop=True) == (4, 3)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["ground", *map(str, arguments)])
    return result.exit_code, result.output


def test_commands_convert_and_score(tmp_path: Path) -> None:
    folder = osworld_g(tmp_path / "published")
    code, text = run("convert", folder, tmp_path / "out", "--to", "samples", "--format", "osworld-g-refined")
    assert (code, text) == (0, f"3 samples written to {tmp_path / 'out'}\n")
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"sample_id": "box-0", "points": [[60, 10]]}\n{"sample_id": "none-0", "points": []}\n')
    for data in (folder, tmp_path / "out", tmp_path / "out" / "samples.jsonl"):
        code, text = run("score", data, answers)
        assert code == 0
        assert json.loads(text)["hit@1"] == pytest.approx(2 / 3)
    code, text = run("convert", folder, tmp_path / "out")
    assert code == 2
    assert "is not empty: give a new folder" in text


def test_commands_say_what_is_wrong_with_exit_code_2(tmp_path: Path) -> None:
    folder = screenspot(tmp_path / "spot")
    (folder / "screenspot_web.json").unlink()
    empty = tmp_path / "empty.jsonl"
    write_samples(empty, [])
    (tmp_path / "answers.jsonl").write_text("{}\n")
    whole = screenspot(tmp_path / "whole")
    for arguments, sentence in (
        (("eval", folder, "--model", "m"), "screenspot_web.json is missing; put all files"),
        (("eval", empty, "--model", "m"), "holds no grounding sample"),
        (("eval", tmp_path / "none", "--model", "m"), "there is no file or folder"),
        (("eval", whole, "--model", "m", "--format", "screenspot-pro"), "is no ScreenSpot-Pro"),
        (("score", whole, tmp_path / "answers.jsonl"), "line 1"),
        (("convert", tmp_path / "answers.txt", tmp_path / "o"), "there is no file or folder"),
    ):
        code, text = run(*arguments)
        assert code == 2, text
        assert sentence in text
        assert text.count("\n") == 1


def test_broken_pictures_are_named(tmp_path: Path) -> None:
    folder = screenspot(tmp_path)
    (folder / "screenspot_imgs" / "a.png").write_bytes(b"no picture")
    code, text = run("convert", folder, tmp_path / "out")
    assert code == 2
    assert "a.png cannot be read" in text
    Image.new("RGB", (100, 50)).save(folder / "screenspot_imgs" / "a.png")
    assert run("convert", folder, tmp_path / "out")[0] == 0
