"""Tiny data sets in the layouts that their authors publish, with boxes that can be scored by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(path: Path, width: int = 100, height: int = 50) -> None:
    """A picture of random pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def put(path: Path, content: Any) -> None:
    """A JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def screenspot(folder: Path, version: str = "screenspot") -> Path:
    """Four samples: two cells on mobile, one with two samples, and one cell on the desktop and on the web each.

    Boxes are [left, top, width, height] on pictures of 100 x 50."""
    suffix, images = ("", "screenspot_imgs") if version == "screenspot" else ("_v2", "screenspotv2_image")

    def record(box: list[float], kind: str, source: str, image: str = "a.png") -> dict[str, Any]:
        return {"img_filename": image, "bbox": box, "instruction": "do it", "data_type": kind, "data_source": source}

    put(folder / f"screenspot_mobile{suffix}.json", [
        record([60, 10, 30, 20], "text", "ios"),
        record([10, 10, 20, 20], "text", "android"),
        record([0, 0, 10, 10], "icon", "ios"),
    ])  # fmt: skip
    put(folder / f"screenspot_desktop{suffix}.json", [record([50, 0, 50, 50], "text", "windows", "b.png")])
    put(folder / f"screenspot_web{suffix}.json", [record([5, 5, 90, 40], "icon", "shop", "b.png")])
    picture(folder / images / "a.png")
    picture(folder / images / "b.png")
    return folder


def screenspot_pro(folder: Path) -> Path:
    """Boxes are [left, top, right, bottom] of the noted size; the second picture has half of the noted sides."""

    def record(name: str, box: list[float], group: str, kind: str, image: str, size: list[int]) -> dict[str, Any]:
        application, _, system = name.partition("_")
        return {
            "id": f"{name}_0", "img_filename": image, "img_size": size, "bbox": box, "instruction": "the tool",
            "instruction_cn": "x", "application": application, "platform": system, "group": group, "ui_type": kind,
        }  # fmt: skip

    put(folder / "annotations" / "vscode_macos.json", [
        record("vscode_macos", [10, 10, 20, 20], "Dev", "text", "vscode/a.png", [100, 50]),
        record("vscode_macos", [60, 10, 90, 40], "Dev", "icon", "vscode/a.png", [100, 50]),
        record("vscode_macos", [0, 0, 5, 5], "Dev", "icon", "vscode/a.png", [100, 50]),
    ])  # fmt: skip
    put(folder / "annotations" / "blender_windows.json", [
        record("blender_windows", [100, 20, 180, 80], "Creative", "icon", "blender/b.png", [200, 100]),
    ])  # fmt: skip
    picture(folder / "images" / "vscode" / "a.png")
    picture(folder / "images" / "blender" / "b.png", 100, 50)
    return folder


def osworld_g(folder: Path) -> Path:
    """A box, a triangle with the corners (0, 0), (40, 0), (0, 40), and a refusal; refined instructions differ."""
    records = [
        {"id": "box-0", "image_path": "a.png", "image_size": [100, 50], "instruction": "the box", "box_type": "bbox",
         "box_coordinates": [60, 10, 20, 30], "GUI_types": ["Button"]},
        {"id": "tri-0", "image_path": "a.png", "image_size": [100, 50], "instruction": "the shape",
         "box_type": "polygon", "box_coordinates": [0, 0, 40, 0, 0, 40], "GUI_types": []},
        {"id": "none-0", "image_path": "a.png", "image_size": [100, 50], "instruction": "the absent thing",
         "box_type": "refusal", "box_coordinates": [-1, -1, -1, -1], "GUI_types": ["Icon"]},
    ]  # fmt: skip
    put(folder / "benchmark" / "OSWorld-G.json", records)
    put(
        folder / "benchmark" / "OSWorld-G_refined.json",
        [record | {"instruction": f"refined: {record['instruction']}"} for record in records],
    )
    classified = {
        "text_matching": [{"id": "box-0"}],
        "layout_understanding": [{"id": "box-0"}, {"id": "tri-0"}],
        "refusal": [{"id": "none-0"}],
    }
    put(folder / "benchmark" / "classification_result.json", {"classified": classified})
    picture(folder / "benchmark" / "images" / "a.png")
    return folder
