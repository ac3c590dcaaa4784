"""Building blocks of the suite `media`: scenes, pictures in the desktop, verdicts over them.

Role: one short function per thing that several families need. Rule: a scene has no symmetry, so that no turn or flip leaves it as it
was. Non-goals: drawing what a task asks for.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from random import Random
from typing import Any

from dart_envs.evaluators.images import draw_scene, encode_png
from dart_envs.tasks.basics.parts import JsonDict, step
from dart_envs.tasks.system.parts import random_names

PICTURES = "/home/user/Pictures"
COLOURS = {
    "red": (205, 40, 45),
    "green": (45, 150, 60),
    "blue": (40, 80, 200),
    "yellow": (235, 205, 50),
    "purple": (130, 60, 160),
    "orange": (235, 130, 30),
}
BACKGROUND_COLOURS = ((238, 232, 220), (220, 232, 240), (226, 240, 224), (240, 224, 232))
KINDS = ("box", "circle", "triangle")
WIDTH, HEIGHT = 320, 240


def random_scene(random: Random, size: tuple[int, int] = (WIDTH, HEIGHT), *, border: int = 0) -> JsonDict:
    """Three shapes of different colours, one of them in each of three of the corners."""
    width, height = size
    corners = random.sample([(0.22, 0.25), (0.75, 0.28), (0.25, 0.74), (0.78, 0.72)], 3)
    colours = random.sample(sorted(COLOURS), 3)
    radii = random.sample(range(height // 10, height // 5), 3)
    shapes = [
        {
            "kind": random.choice(KINDS),
            "colour": list(COLOURS[colour]),
            "x": int(width * x) + random.randrange(-6, 7),
            "y": int(height * y) + random.randrange(-6, 7),
            "r": r,
        }
        for (x, y), colour, r in zip(corners, colours, radii, strict=True)
    ]
    drawn = {"size": [width, height], "background": list(random.choice(BACKGROUND_COLOURS)), "shapes": shapes}
    return drawn | {"border": border} if border else drawn


def write_scene_image(path: str, described: JsonDict) -> JsonDict:
    """Step: the scene as a PNG file."""
    content = base64.b64encode(encode_png(draw_scene(described))).decode()
    return step("write_binary", path=path, content_base64=content)


def empty_folder(folder: str = PICTURES) -> list[JsonDict]:
    """Steps: an empty folder."""
    return [
        step("execute", command=["rm", "-rf", folder], expect_returncode=0),
        step("execute", command=["mkdir", "-p", folder], expect_returncode=0),
    ]


def image_shows(
    path: str, described: JsonDict, any_of: Sequence[Sequence[Any]], form: str = "PNG", **options: Any
) -> JsonDict:
    """Evaluator: the file is the scene's picture after one of these lists of changes."""
    rules = {"scene": described, "any_of": list(any_of), "format": form}
    return {
        "func": "picture_is",
        "result": {"type": "vm_file", "path": path},
        "expected": {"type": "rule", "rules": rules},
        "options": options,
    }


def random_name_pair(random: Random) -> tuple[str, str]:
    """Names of what is given and of what is asked for."""
    given, made = random_names(random, 2)
    return given, made


def run_python(source: str) -> list[JsonDict]:
    """Moves: Python that the desktop's user runs, in the folder of the pictures."""
    return [{"do": "code", "text": f"import os\nos.chdir({PICTURES!r})\n{source}"}]
