"""Samples that cannot be used: images outside of their folder, targets without an area or beside the image, no text; what is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dart_agent.cli import app
from dart_agent.errors import ConfigError
from dart_agent.grounding.datasets.formats import ReadableFormat, read_dataset
from dart_agent.grounding.samples import LEAST_AREA_PX2, GroundingTarget, polygon_area, read_samples
from dart_train.grounding.batches import SampleSet
from tests.unit.dart_agent.published_grounding import osworld_g, picture, put, screenspot, screenspot_pro

LINE = ((0.1, 0.3), (0.2, 0.6), (0.7, 2.1))
"""Corners on a line, of which rounding makes an area."""


def lines(path: Path, *samples: dict[str, Any]) -> Path:
    """A file of samples about one image of 100 x 50, as somebody else could have written it."""
    common = {"image": "a.png", "image_wh": [100, 50], "instruction": "x"}
    records = [common | {"sample_id": str(number)} | sample for number, sample in enumerate(samples)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["ground", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.mark.parametrize("image", ["../escaped.png", "/etc/hostname", "images/../../escaped.png"])
@pytest.mark.parametrize("kind", ["samples", "huggingface", "os-atlas", "screenspot"])
def test_images_outside_of_the_folder_are_refused(tmp_path: Path, image: str, kind: str) -> None:
    box = [{"boxes": [[0, 0, 5, 5]]}]
    path = lines(tmp_path / "data" / "samples.jsonl", {"targets": box}, {"targets": box, "image": image})
    picture(tmp_path / "data" / "a.png")
    picture(tmp_path / "escaped.png")
    (tmp_path / "data" / "images").mkdir()
    before = sorted(tmp_path.rglob("*"))
    code, text = run("convert", path, tmp_path / "deep" / "out", "--to", kind)
    assert code == 2
    assert f"line 2 of {path} is no grounding sample: `image`: {image} leads out of the folder" in text
    assert text.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ConfigError, match="line 2"):
        SampleSet([path])


def test_links_in_the_folder_are_followed(tmp_path: Path) -> None:
    picture(tmp_path / "elsewhere" / "a.png")
    path = lines(tmp_path / "data" / "samples.jsonl", {"targets": []})
    (path.parent / "a.png").symlink_to(tmp_path / "elsewhere" / "a.png")
    assert run("convert", path, tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "a.png").read_bytes() == (tmp_path / "elsewhere" / "a.png").read_bytes()


@pytest.mark.parametrize(
    "target",
    [
        {"polygons": [LINE]},
        {"polygons": [[[10, 10], [20, 10], [40, 10]]]},
        {"polygons": [[[0, 0], [9, 0], [9, 9]], [[10, 10], [20, 20], [20, 20]]]},
        {"boxes": [[5, 5, 5, 9]]},
        {"boxes": [[5, 5, 5.00000001, 5.00000001]]},
        {"boxes": [[0, 0, 9, 9], [5, 5, 5.00000001, 5.00000001]]},
    ],
)
def test_targets_without_an_area_are_refused_with_file_and_line(tmp_path: Path, target: dict[str, Any]) -> None:
    path = lines(tmp_path / "samples.jsonl", {"targets": []}, {"targets": [target]})
    picture(tmp_path / "a.png")
    with pytest.raises(ConfigError, match=rf"line 2 of {path} is no grounding sample: `targets.0`"):
        SampleSet([path])
    with pytest.raises(ConfigError, match="line 2"):
        list(read_samples(path))


def test_the_area_of_a_polygon_is_that_of_the_shoelace_formula() -> None:
    assert polygon_area(((0, 0), (10, 0), (10, 4), (0, 4))) == 40
    assert polygon_area(((0, 4), (10, 4), (10, 0), (0, 0))) == 40
    assert polygon_area([]) == 0
    assert 0 < polygon_area(LINE) < LEAST_AREA_PX2
    assert GroundingTarget(polygons=(((0, 0), (0.01, 0), (0, 0.01)),)).bounds() == (0, 0, 0.01, 0.01)


@pytest.mark.parametrize(
    ("target", "trained"),
    [
        ({"polygons": [[[90, -20], [120, -20], [120, 20]]]}, False),  # around a corner: its bounds are on the image
        ({"polygons": [[[90, -20], [120, -20], [90, 20]]]}, True),
        ({"boxes": [[-20, 0, -10, 10], [110, 0, 120, 10]]}, False),  # on both sides
        ({"boxes": [[-20, 0, -10, 10], [90, 0, 120, 10]]}, True),
        ({"boxes": [[100, 0, 110, 10]]}, False),
    ],
)
def test_targets_beside_the_image_are_refused_before_a_training(
    tmp_path: Path, target: dict[str, Any], trained: bool
) -> None:
    path = lines(tmp_path / "samples.jsonl", {"targets": [target]})
    picture(tmp_path / "a.png")
    if trained:
        assert len(SampleSet([path])) == 1
        return
    with pytest.raises(ConfigError, match="lies outside its image"):
        SampleSet([path])


GOOD = [0.1, 0.1, 0.2, 0.2]


def atlas(folder: Path, *boxes: list[float], instruction: str = "x") -> Path:
    """Training data in OS-Atlas's form: 40 good questions before those of the given boxes, which ask `instruction`."""
    good = [{"instruction": "x", "bbox": GOOD}] * 40
    given = [{"instruction": instruction, "bbox": box} for box in boxes]
    put(folder / "linux.json", [{"img_filename": "a.png", "elements": [*good, *given]}])
    picture(folder / "images" / "a.png")
    return folder


def test_training_data_leave_out_and_count_boxes_that_are_no_targets(tmp_path: Path) -> None:
    folder = atlas(tmp_path / "data", [0.3, 0.3, 0.3, 0.4], [0.9, 0.9, 1.02, 1.0])
    code, text = run("convert", folder, tmp_path / "out")
    assert code == 2
    assert "has no area" in text
    assert "`dart-agent ground convert --drop` leaves such records out" in text
    code, text = run("convert", folder, tmp_path / "out", "--drop")
    assert (code, text) == (0, f"40 samples written to {tmp_path / 'out'}, 2 left out\n")
    assert len(SampleSet([tmp_path / "out" / "samples.jsonl"])) == 40
    code, text = run("convert", folder, tmp_path / "again", "--drop", "--to", "os-atlas")
    assert (code, text) == (0, f"40 samples written to {tmp_path / 'again'}, 2 left out\n")
    (tmp_path / "answers.jsonl").write_text("")
    assert run("score", folder, tmp_path / "answers.jsonl")[0] == 2


def test_training_data_leave_out_and_count_records_without_an_instruction(tmp_path: Path) -> None:
    folder = atlas(tmp_path / "data", GOOD, instruction="")
    code, text = run("convert", folder, tmp_path / "out")
    assert code == 2
    assert (
        f"the instruction of record 0 of {folder / 'linux.json'} is empty; `dart-agent ground convert --drop`" in text
    )
    assert text.count("\n") == 1
    code, text = run("convert", folder, tmp_path / "out", "--drop")
    assert (code, text) == (0, f"40 samples written to {tmp_path / 'out'}, 1 left out\n")


@pytest.mark.parametrize("instruction", ["", None])
def test_rows_in_parquet_without_an_instruction_are_left_out_and_counted(
    tmp_path: Path, instruction: str | None
) -> None:
    rows = [{"instruction": text, "bbox": GOOD} for text in ["x", instruction]]
    parquet(tmp_path / "set", rows)
    code, text = run("convert", tmp_path / "set", tmp_path / "out")
    assert code == 2
    assert "the instruction of row test-1 is empty" in text
    code, text = run("convert", tmp_path / "set", tmp_path / "out", "--drop")
    assert (code, text) == (0, f"1 samples written to {tmp_path / 'out'}, 1 left out\n")


@pytest.mark.parametrize(
    ("make", "file"),
    [
        (screenspot, "screenspot_mobile.json"),
        (screenspot_pro, "annotations/blender_windows.json"),
        (osworld_g, "benchmark/OSWorld-G.json"),
    ],
)
def test_a_record_of_a_benchmark_without_an_instruction_is_named(
    tmp_path: Path, make: Callable[[Path], Path], file: str
) -> None:
    path = make(tmp_path / "set") / file
    first, *others = json.loads(path.read_text())
    put(path, [first | {"instruction": ""}, *others])
    code, text = run("convert", tmp_path / "set", tmp_path / "out", "--drop")
    assert code == 2
    assert f"record 0 of {path} is no record of" in text
    assert "`instruction`: string should have at least 1 character" in text
    assert text.count("\n") == 1


def test_boxes_in_another_form_are_not_left_out(tmp_path: Path) -> None:
    code, text = run("convert", atlas(tmp_path / "data", *[[5.0, 5.0, 20.0, 20.0]] * 4), tmp_path / "out", "--drop")
    assert code == 2
    assert f"4 of 44 boxes in {tmp_path / 'data'} lie outside of their images" in text


def test_rows_of_training_data_in_parquet_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [{"instruction": "x", "bbox": box} for box in [[0.1, 0.1, 0.5, 0.5]] * 20 + [[0.1, 0.1, 0.1, 0.5]]]
    parquet(tmp_path / "set", rows)
    assert run("convert", tmp_path / "set", tmp_path / "out")[0] == 2
    code, text = run("convert", tmp_path / "set", tmp_path / "out", "--drop")
    assert (code, text) == (0, f"20 samples written to {tmp_path / 'out'}, 1 left out\n")
    whole = [row | {"file_name": "a.png", "data_type": "icon", "data_source": "ios"} for row in rows]
    parquet(tmp_path / "spot", whole)
    code, text = run("convert", tmp_path / "spot", tmp_path / "benchmark", "--drop")
    assert code == 2
    assert "row test-20 has no area" in text
    assert "--drop" not in text


@pytest.mark.parametrize(
    "box",
    [
        [-0.3, 0.1, -0.1, 0.2],  # beside the image
        [-0.001, 0.1, 0.0, 0.2],  # beside it, by a part of a pixel
        [0.2, 0.3, 57, 42],  # right and bottom in pixels
        [0.2, 0.3, 1.1, 0.6],
        [0.2, -0.1, 0.3, 0.6],
    ],
)
def test_boxes_beyond_the_image_are_left_out_of_training_data(tmp_path: Path, box: list[float]) -> None:
    good = [-0.0005, 0.1, 1.0005, 0.5]  # a slack that published data need
    parquet(tmp_path / "set", [{"instruction": "x", "bbox": one} for one in [good] * 20 + [box]])
    for folder, kept in ((tmp_path / "set", 20), (atlas(tmp_path / "atlas", box), 40)):
        code, text = run("convert", folder, tmp_path / "out")
        assert code == 2
        assert "lies beyond its image" in text
        assert "`dart-agent ground convert --drop` leaves such records out" in text
        out = tmp_path / f"kept-{kept}"
        code, text = run("convert", folder, out, "--drop")
        assert (code, text) == (0, f"{kept} samples written to {out}, 1 left out\n")
        assert len(SampleSet([out / "samples.jsonl"])) == kept


def test_boxes_that_overlap_the_border_are_not_taken_for_another_form(tmp_path: Path) -> None:
    folder = atlas(tmp_path / "data", *[[0.8, 0.1, 1.1, 0.2]] * 10)
    code, text = run("convert", folder, tmp_path / "out", "--drop")
    assert (code, text) == (0, f"40 samples written to {tmp_path / 'out'}, 10 left out\n")


@pytest.mark.parametrize(
    ("box", "count", "error"),
    [
        ([0.8, 0.1, 1.1, 0.2], 1, ""),  # a part of it is on the image, as in other files of ScreenSpot
        ([-0.3, 0.1, -0.1, 0.2], 1, "the box of row test-20 lies beyond its image"),
        ([0.2, 0.3, 57, 42], 1, ""),
        ([0.2, 0.3, 57, 42], 2, "2 of 22 boxes in"),
    ],
)
def test_boxes_of_a_benchmark_in_parquet_follow_the_rule_of_its_json(
    tmp_path: Path, box: list[float], count: int, error: str
) -> None:
    columns = {"instruction": "x", "file_name": "a.png", "data_type": "icon", "data_source": "ios"}
    parquet(tmp_path / "spot", [columns | {"bbox": one} for one in [GOOD] * 20 + [box] * count])
    code, text = run("convert", tmp_path / "spot", tmp_path / "out", "--drop")
    assert code == (2 if error else 0)
    assert error in text


def test_benchmarks_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    spot = screenspot(tmp_path / "spot")
    put(spot / "screenspot_web.json", [{"img_filename": "b.png", "instruction": "x", "bbox": [5, 5, 0, 4]}])
    g = osworld_g(tmp_path / "g")
    path = g / "benchmark" / "OSWorld-G.json"
    records = json.loads(path.read_text())
    put(path, [records[0], records[1] | {"box_coordinates": [0, 0, 10, 10, 20, 20]}])
    for folder, sentence in ((spot, "has no area"), (g, f"the polygon of record 1 of {path} has no area")):
        with pytest.raises(ConfigError, match=sentence):
            read_dataset(folder, ReadableFormat.AUTO, tmp_path / "unpacked", drop=True)


def parquet(folder: Path, rows: list[dict[str, Any]]) -> None:
    """A data set of Hugging Face about one picture of 100 x 50."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    picture(folder / "a.png")
    image = {"bytes": (folder / "a.png").read_bytes(), "path": "a.png"}
    (folder / "a.png").unlink()
    (folder / "data").mkdir()
    pq.write_table(pa.Table.from_pylist([{**row, "image": image} for row in rows]), folder / "data" / "test.parquet")
