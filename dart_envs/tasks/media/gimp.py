"""GIMP: changing a picture and exporting it.

Role: families about one picture that is open in GIMP. Rule: the verdict is the exported file, compared with what the change makes of
the scene; the oracle goes through GIMP's own search, dialogs and export. Non-goals: layers and paths that no export shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from dart_envs.tasks.basics.parts import (
    DONE,
    JsonDict,
    click,
    click_button,
    key,
    pause,
    step,
    type_text,
    wait_until_idle,
)
from dart_envs.tasks.media.parts import (
    HEIGHT,
    PICTURES,
    WIDTH,
    empty_folder,
    image_shows,
    random_name_pair,
    random_scene,
    run_python,
    write_scene_image,
)
from dart_envs.tasks.suite import Family, TaskDraft

PROCESS = "gimp-2.10"
OPEN_S = 60.0
DIALOG_S = 1.5
SEARCH_S = 2.0


def open_app(name: str, described: JsonDict) -> list[JsonDict]:
    """Steps: the scene's picture is open in GIMP."""
    path = f"{PICTURES}/{name}.png"
    return [
        *empty_folder(),
        write_scene_image(path, described),
        step("launch", command=["gimp", "--new-instance", "--no-splash", path]),
        step("wait_window", window_name=f"[{name}] (imported)", timeout_s=OPEN_S),
        step("activate_window", window_name=f"[{name}] (imported)"),
        step("sleep", seconds=2.0),
        wait_until_idle(PROCESS),
    ]


def run_gimp_action(words: str, *, nth: int = 0) -> list[JsonDict]:
    """Moves: perform the nth action that GIMP's search finds."""
    field = click("text", "", window="Search Actions", deferred=True)
    return [key("/"), field, type_text(words), pause(SEARCH_S), *[key("down")] * nth, key("enter"), pause(DIALOG_S)]


def confirm_dialog(button: str = "OK") -> list[JsonDict]:
    """Moves: press the button that does what a dialog says."""
    return [click_button(button, deferred=True), pause(DIALOG_S)]


def export_image(name: str, kind: str = "png") -> list[JsonDict]:
    """Moves: export as this file of the folder of the pictures, which the dialog shows, with the format's own settings."""
    form = {"png": "PNG", "jpg": "JPEG"}[kind]
    return [
        key("ctrl", "shift", "e"),
        click("push button", "Export", window="Export Image", do="move", deferred=True),
        key("ctrl", "a"),
        type_text(f"{name}.{kind}"),
        key("enter"),
        click_button("Export", window=f"Export Image as {form}", deferred=True),
        pause(DIALOG_S),
        DONE,
    ]


def exported_image_shows(path: str, described: JsonDict, any_of: Sequence[Sequence[Any]], **options: Any) -> JsonDict:
    """Evaluator: what GIMP has exported, once it rests."""
    return image_shows(path, described, any_of, **options) | {"postconfig": [wait_until_idle(PROCESS)]}


def image_change_draft(
    random: Random,
    asked: str,
    changes: Sequence[Sequence[Any]],
    moves: list[JsonDict],
    wrong_moves: list[JsonDict],
    described: JsonDict | None = None,
    **options: Any,
) -> TaskDraft:
    """A draft: one change, exported under another name. The exploits copy the picture as it is, and draw an empty one of the right size."""
    given, made = random_name_pair(random)
    described = described or random_scene(random)
    return TaskDraft(
        instruction=f"{asked} Export the result as {made}.png in the folder {PICTURES}.",
        config=open_app(given, described),
        evaluator=exported_image_shows(f"{PICTURES}/{made}.png", described, changes, **options),
        oracle=[*moves, *export_image(made)],
        near_miss=[*wrong_moves, *export_image(made)],
        exploits=[
            run_python(f"import shutil\nshutil.copy('{given}.png', '{made}.png')"),
            run_python(
                "from PIL import Image\n"
                f"picture = Image.open('{given}.png')\n"
                f"Image.new('RGB', picture.size, 'grey').save('{made}.png')"
            ),
        ],
    )


FLIPS = {"horizontally": "flip image horizontally", "vertically": "flip image vertically"}


def flip_picture(random: Random) -> TaskDraft:
    """Mirror the picture. The near miss mirrors it the other way."""
    way, wrong = random.sample(sorted(FLIPS), 2)
    said = {"horizontally": "left and right", "vertically": "top and bottom"}[way]
    asked = random.choice([f"Flip the picture {way}.", f"Mirror the picture, so that {said} change places."])
    return image_change_draft(
        random, asked, [[[f"flip_{way}"]]], run_gimp_action(FLIPS[way]), run_gimp_action(FLIPS[wrong])
    )


TURNS = {
    "turn_right": ("90 degrees clockwise", "rotate the image 90 degrees to the right"),
    "turn_left": ("90 degrees counter-clockwise", "rotate the image 90 degrees to the left"),
    "turn_over": ("180 degrees", "turn the image upside-down"),
}


def turn_picture(random: Random) -> TaskDraft:
    """Turn the picture. The near miss turns it by another angle."""
    turn, wrong = random.sample(sorted(TURNS), 2)
    asked = random.choice(["Rotate the whole picture by {}.", "Turn the picture by {}."]).format(TURNS[turn][0])
    return image_change_draft(
        random, asked, [[[turn]]], run_gimp_action(TURNS[turn][1]), run_gimp_action(TURNS[wrong][1])
    )


def scale_picture(random: Random) -> TaskDraft:
    """Scale to a width. The near miss is off by a few pixels."""
    share = random.choice([0.25, 0.5, 0.75, 1.5, 2.0])
    width, height = int(WIDTH * share), int(HEIGHT * share)

    def scaled(pixels: int) -> list[JsonDict]:
        return [*run_gimp_action("scale image"), type_text(str(pixels)), key("tab"), pause(), *confirm_dialog("Scale")]

    asked = random.choice(
        [
            "Scale the picture to {0} by {1} pixels.",
            "Scale the picture to a width of {0} pixels and keep its proportions.",
        ]
    )
    return image_change_draft(
        random,
        asked.format(width, height),
        [[["scale", width, height]]],
        scaled(width),
        scaled(width - 8),
        mean=6.0,
        far_share=0.04,
    )


def crop_border(random: Random) -> TaskDraft:
    """Cut a white border off. The near miss turns the picture instead of cropping it."""
    border = random.randrange(12, 50)
    described = random_scene(random, border=border)
    asked = random.choice(
        ["Crop the picture so that its white border is gone.", "The picture has a white border all around: cut it off."]
    )
    return image_change_draft(
        random,
        asked,
        [[["crop", border, border, WIDTH, HEIGHT]]],
        run_gimp_action("crop to content"),
        run_gimp_action("turn the image upside-down"),
        described,
    )


GREYS = ("grey_luma", "grey_luminance", "grey_linear", "grey_average", "grey_lightness", "grey_value")


def grey_picture(random: Random) -> TaskDraft:
    """Shades of grey, by any of GIMP's ways. The near miss inverts the colours."""
    asked = random.choice(
        ["Make the picture shades of grey.", "Take all colour out of the picture.", "Desaturate the picture."]
    )
    moves = [*run_gimp_action("desaturate"), *confirm_dialog()]
    return image_change_draft(
        random, asked, [[[grey]] for grey in GREYS], moves, run_gimp_action("invert", nth=1), mean=4.0
    )


def invert_picture(random: Random) -> TaskDraft:
    """The negative. The near miss takes the colour out."""
    asked = random.choice(["Invert the colours of the picture.", "Turn the picture into its negative."])
    grey = [*run_gimp_action("desaturate"), *confirm_dialog()]
    return image_change_draft(random, asked, [[["invert"]]], run_gimp_action("invert", nth=1), grey)


def threshold_picture(random: Random) -> TaskDraft:
    """Black and white by a threshold. The near miss takes a far lower one."""
    low = random.choice([210, 215, 220])

    def split(number: int) -> list[JsonDict]:
        return [
            *run_gimp_action("threshold"),
            *[key("tab")] * 4,
            key("ctrl", "a"),
            type_text(str(number)),
            *confirm_dialog(),
        ]

    asked = f"Reduce the picture to black and white with Colors > Threshold, with {low} as the low value."
    return image_change_draft(random, asked, [[["threshold", low]]], split(low), split(30))


def export_jpeg(random: Random) -> TaskDraft:
    """The same picture as a JPEG file. The near miss exports a PNG file under that name's stem."""
    given, made = random_name_pair(random)
    described = random_scene(random)
    asked = random.choice(["Export the picture as a JPEG file, {}.", "Save a JPEG copy of the picture as {}."])
    return TaskDraft(
        instruction=asked.format(f"{PICTURES}/{made}.jpg"),
        config=open_app(given, described),
        evaluator=exported_image_shows(
            f"{PICTURES}/{made}.jpg", described, [[]], form="JPEG", mean=6.0, far_share=0.03
        ),
        oracle=export_image(made, "jpg"),
        near_miss=export_image(made),
        exploits=[
            run_python(f"import shutil\nshutil.copy('{given}.png', '{made}.jpg')"),
            run_python(f"from PIL import Image\nImage.new('RGB', ({WIDTH}, {HEIGHT}), 'white').save('{made}.jpg')"),
        ],
    )


APP = "gimp"
FAMILIES = (
    Family("flip_picture", APP, "mirror a picture", 30, flip_picture),
    Family("turn_picture", APP, "turn a picture by 90 or 180 degrees", 30, turn_picture),
    Family("scale_picture", APP, "scale a picture to a width", 35, scale_picture),
    Family("crop_border", APP, "cut off a white border", 30, crop_border, held_out=True),
    Family("grey_picture", APP, "take the colour out of a picture", 30, grey_picture),
    Family("invert_picture", APP, "invert the colours of a picture", 30, invert_picture),
    Family("threshold_picture", APP, "reduce a picture to black and white", 40, threshold_picture, held_out=True),
    Family("export_jpeg", APP, "export a picture as JPEG", 25, export_jpeg),
)
