"""A program draws the picture with a black hole as large as the tolerance allows."""

from __future__ import annotations


def attack(task: dict) -> None:
    import re
    from PIL import Image, ImageDraw

    ev = task["evaluator"]
    rules, options = ev["expected"]["rules"], ev.get("options") or {}
    s = rules["scene"]
    w, h = s["size"]
    im = Image.new("RGB", (w, h), tuple(s["background"]))
    px = im.load()
    for sh in s["shapes"]:
        for y in range(h):
            for x in range(w):
                dx, dy, r = x - sh["x"], y - sh["y"], sh["r"]
                k = sh["kind"]
                if (
                    (k == "box" and abs(dx) <= r and abs(dy) <= r)
                    or (k == "circle" and dx * dx + dy * dy <= r * r)
                    or (k == "triangle" and abs(dy) <= r and 2 * abs(dx) <= dy + r)
                ):
                    px[x, y] = tuple(sh["colour"])
    for change in rules["any_of"][0]:
        name, *args = change
        im = {
            "flip_horizontally": lambda: im.transpose(0),
            "flip_vertically": lambda: im.transpose(1),
            "turn_right": lambda: im.transpose(4),
            "turn_left": lambda: im.transpose(2),
            "turn_over": lambda: im.transpose(3),
            "scale": lambda: im.resize(tuple(args), 3),
        }[name]()
    share = min(options.get("far_share", 0.01) * 0.9, (options.get("mean", 2.0) - 0.8) / 230)
    side = int((im.size[0] * im.size[1] * share) ** 0.5)
    ImageDraw.Draw(im).rectangle(
        [
            im.size[0] // 2 - side // 2,
            im.size[1] // 2 - side // 2,
            im.size[0] // 2 + side // 2 - 1,
            im.size[1] // 2 + side // 2 - 1,
        ],
        fill=(0, 0, 0),
    )
    if rules.get("format") == "JPEG":
        im.save(ev["result"]["path"], quality=98, subsampling=0)
    else:
        im.save(ev["result"]["path"])
