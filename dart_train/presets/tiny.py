"""The preset `tiny`: about one million parameters; it learns to read a small vocabulary on screens in minutes on two cores.

Role: the policy of `make demo` and of the tests. Rule: a word that is not listed is encoded byte by byte and is slower to learn.
"""

from __future__ import annotations

from dart_train.presets.spec import ModelPreset

NOUNS = (
    "Apple Bread Chair Drum Eagle Fork Grape Honey Igloo Jacket Kite Lemon Moon Nut Olive Piano Quilt River Sun Tiger "
    "Umbrella Violin Wolf Xylophone Yarn Zebra"
)
INTERFACE = (
    "OK Cancel Apply Close Save Open Yes No Next Back Help File Edit View Search Select Delete New Copy Paste Print Send "
    "Reset Clear Done Quit Tick Untick Choose Press Click Find Type Enter Write Word Name Row Box Button List Menu Item "
    "Task Previous Step Steps Text Screen Window Dialog Red Green Blue Yellow Black White"
)
FUNCTION_WORDS = (
    "the a an and then in on at to of with is it from for named called word button row box list entry field item menu "
    "confirm press click choose select tick type write open close dialog shown window whose label labelled done nothing "
    "first second third fourth fifth sixth seventh eighth "
    "last above below left right next both all none not only that this into by be as or answer read "
    "where what which nothing empty screen find show copy under over name text step task previous wait finish finished"
)


def _unique(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split()))


TINY = ModelPreset(
    name="tiny",
    hidden_size=96,
    intermediate_size=256,
    text_layers=3,
    heads=3,
    head_dim=32,
    vision_layers=2,
    vision_hidden_size=96,
    vision_intermediate_size=256,
    vision_heads=3,
    patch_size=16,
    merge_size=2,
    position_grid=24,
    deepstack_layers=(0,),
    mrope_section=(6, 5, 5),
    max_positions=4096,
    input_wh=(256, 160),
    coordinate_step_px=8,
    pixel_mean=0.85,
    pixel_std=0.2,
    initializer_range=0.02,
    words=_unique(f"{NOUNS} {INTERFACE} {FUNCTION_WORDS}"),
)
