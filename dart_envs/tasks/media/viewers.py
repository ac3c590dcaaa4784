"""Looking at pictures and documents: the image viewer eog, the PDF viewer evince.

Role: families whose answer must be seen: which picture shows what, how many shapes there are, on which page a word is. Rule: file names
say nothing about what a file shows. Non-goals: changing pictures (`dart_envs.tasks.media.gimp`).
"""

from __future__ import annotations

import base64
import hashlib
from random import Random

from dart_envs.evaluators.images import draw_scene, encode_png
from dart_envs.tasks.basics.parts import DONE, JsonDict, all_of, contents_are_only_in, key, pause, step
from dart_envs.tasks.media.parts import (
    BACKGROUND_COLOURS,
    COLOURS,
    HEIGHT,
    KINDS,
    PICTURES,
    WIDTH,
    empty_folder,
    image_shows,
    random_scene,
    run_python,
    write_scene_image,
)
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.system.parts import folder_tree_is, place_window, random_names

VIEWER_SIZE = (620, 480)
SMALL = (160, 120)
"""Size of a picture with one shape."""
DOCUMENTS = "/home/user/Documents"


def open_viewer(random: Random, program: str, path: str) -> list[JsonDict]:
    """Steps: a viewer shows a file, somewhere on the screen."""
    title = path.rpartition("/")[2]
    return [
        step("launch", command=[program, path]),
        step("wait_window", window_name=title, timeout_s=40.0),
        place_window(random, title, size=VIEWER_SIZE),
        step("activate_window", window_name=title),
    ]


def single_shape_scene(random: Random, kind: str, colour: str) -> JsonDict:
    """A scene with one shape in it."""
    width, height = SMALL
    r = random.randrange(18, 36)
    shape = {
        "kind": kind,
        "colour": list(COLOURS[colour]),
        "x": random.randrange(r + 5, width - r - 5),
        "y": random.randrange(r + 5, height - r - 5),
        "r": r,
    }
    return {"size": [width, height], "background": list(random.choice(BACKGROUND_COLOURS)), "shapes": [shape]}


def image_facts(described: JsonDict) -> JsonDict:
    """Facts of a picture's file."""
    return {"kind": "file", "sha256": hashlib.sha256(encode_png(draw_scene(described))).hexdigest()}


SHAPE_NAMES = {"box": "square", "circle": "circle", "triangle": "triangle"}


def turn_in_viewer(random: Random) -> TaskDraft:
    """Turn a picture and save it under its own name. The near miss turns it without saving."""
    name = f"{random_names(random, 1)[0]}.png"
    described = random_scene(random)
    way, keys = random.choice([("clockwise", ("ctrl", "r")), ("counter-clockwise", ("ctrl", "shift", "r"))])
    change = "turn_right" if way == "clockwise" else "turn_left"
    path = f"{PICTURES}/{name}"
    asked = random.choice(
        [
            "Turn the picture {0} by 90 degrees {1} and save it.",
            "{0} lies on its side: turn it by 90 degrees {1}, and save it.",
        ]
    )
    return TaskDraft(
        instruction=asked.format(name, way),
        config=[*empty_folder(), write_scene_image(path, described), *open_viewer(random, "eog", path)],
        evaluator=image_shows(path, described, [[[change]]]),
        oracle=[key(*keys), pause(1.0), key("ctrl", "s"), pause(1.5), DONE],
        near_miss=[key(*keys), pause(1.0), DONE],
        exploits=[
            run_python(f"from PIL import Image\nImage.new('RGB', ({HEIGHT}, {WIDTH}), 'white').save('{name}')"),
            run_python(f"from PIL import Image\nImage.open('{name}').resize(({HEIGHT}, {WIDTH})).save('{name}')"),
        ],
    )


def gallery(random: Random, count: int) -> dict[str, tuple[str, str, JsonDict]]:
    """Pictures of one shape each, all different in shape or colour: kind, colour and scene by file name."""
    drawn = random.sample([(kind, colour) for kind in KINDS for colour in COLOURS], count)
    return {
        f"{name}.png": (kind, colour, single_shape_scene(random, kind, colour))
        for name, (kind, colour) in zip(random_names(random, count), drawn, strict=True)
    }


def delete_picture(random: Random) -> TaskDraft:
    """Delete the picture that shows a given shape. The near miss deletes another."""
    shown = gallery(random, 5)
    goal, wrong = random.sample(sorted(shown), 2)
    kind, colour, _ = shown[goal]
    asked = random.choice(
        ["Delete the picture that shows a {0} {1}.", "One of the pictures shows a {0} {1}. Delete it."]
    )
    return TaskDraft(
        instruction=f"{asked.format(colour, SHAPE_NAMES[kind])} The pictures are in {PICTURES}.",
        config=[
            *empty_folder(),
            *(write_scene_image(f"{PICTURES}/{name}", described) for name, (_, _, described) in shown.items()),
            *open_viewer(random, "eog", f"{PICTURES}/{min(shown)}"),
        ],
        evaluator=all_of(
            folder_tree_is(
                {name: image_facts(described) for name, (_, _, described) in shown.items() if name != goal}, PICTURES
            ),
            contents_are_only_in([image_facts(shown[goal][2])["sha256"]]),
        ),
        oracle=run_python(f"os.remove('{goal}')"),
        near_miss=run_python(f"os.remove('{wrong}')"),
        exploits=[
            run_python(f"open('{goal}', 'w').close()"),
            run_python("for name in os.listdir('.'):\n    os.remove(name)"),
        ],
    )


def name_pictures(random: Random) -> TaskDraft:
    """Name three pictures after what they show. The near miss swaps two of them."""
    colours = random.sample(sorted(COLOURS), 3)
    shown = {
        f"{name}.png": single_shape_scene(random, random.choice(KINDS), colour)
        for name, colour in zip(random_names(random, 3), colours, strict=True)
    }
    new = dict(zip(shown, (f"{colour}.png" for colour in colours), strict=True))
    first, second, third = shown

    def renamed(names_now: dict[str, str]) -> list[JsonDict]:
        return run_python("\n".join(f"os.rename('{old}', '{name}')" for old, name in names_now.items()))

    return TaskDraft(
        instruction=(
            f"Each of the three pictures in {PICTURES} shows one shape: {', '.join(sorted(colours))}. Rename each to the "
            f"colour of its shape, as in {min(colours)}.png."
        ),
        config=[
            *empty_folder(),
            *(write_scene_image(f"{PICTURES}/{name}", described) for name, described in shown.items()),
            *open_viewer(random, "eog", f"{PICTURES}/{min(shown)}"),
        ],
        evaluator=folder_tree_is({new[name]: image_facts(described) for name, described in shown.items()}, PICTURES),
        oracle=renamed(new),
        near_miss=renamed({first: new[second], second: new[first], third: new[third]}),
        exploits=[
            run_python(
                "\n".join(f"os.rename('{old}', '{old}.old'); open('{name}', 'w').close()" for old, name in new.items())
            ),
            run_python(
                f"import shutil\nfor name in {sorted(new.values())}:\n    shutil.copy('{first}', name)\n"
                f"for name in {sorted(shown)}:\n    os.remove(name)"
            ),
        ],
    )


def count_shapes(random: Random) -> TaskDraft:
    """How many shapes of one kind there are. The near miss counts another kind."""
    counts = dict(zip(KINDS, random.sample(range(2, 7), 3), strict=True))
    cells = [(x, y) for x in range(6) for y in range(4)]
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    shapes = [
        {
            "kind": kind,
            "colour": list(COLOURS[random.choice(sorted(COLOURS))]),
            "x": 40 + 80 * x,
            "y": 40 + 80 * y,
            "r": random.randrange(18, 34),
        }
        for kind, (x, y) in zip(kinds, random.sample(cells, len(kinds)), strict=True)
    ]
    described = {"size": [480, 320], "background": list(random.choice(BACKGROUND_COLOURS)), "shapes": shapes}
    name = f"{random_names(random, 1)[0]}.png"
    kind, wrong = random.sample(KINDS, 2)
    asked = random.choice(["How many {0}s are there in the picture {1}?", "Count the {0}s in the picture {1}."])

    def answered(text: str) -> list[JsonDict]:
        return run_python(f"open('count.txt', 'w').write('{text}')")

    return TaskDraft(
        instruction=f"{asked.format(SHAPE_NAMES[kind], name)} Write the number into a new file {PICTURES}/count.txt.",
        config=[
            *empty_folder(),
            write_scene_image(f"{PICTURES}/{name}", described),
            *open_viewer(random, "eog", f"{PICTURES}/{name}"),
        ],
        evaluator={
            "func": "exact_match",
            "result": {"type": "content_from_vm_file", "path": f"{PICTURES}/count.txt"},
            "expected": {"type": "rule", "rules": {"expected": str(counts[kind])}},
        },
        oracle=answered(f"{counts[kind]}"),
        near_miss=answered(f"{counts[wrong]}"),
        exploits=[answered(""), answered(" ".join(map(str, range(2, 7))))],
    )


def pdf_document(pages: list[list[str]]) -> bytes:
    """A PDF of these lines of text, page by page."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids: list[str] = []
    for listed in pages:
        shown = " ".join(f"({line}) Tj T*" for line in listed)
        stream = f"BT /F1 14 Tf 22 TL 60 760 Td {shown} ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        kids.append(f"{len(objects) + 1} 0 R")
        resources = f"/Resources << /Font << /F1 3 0 R >> >> /Contents {len(objects)} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] {resources} >>".encode())
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    content, places = b"%PDF-1.4\n", []
    for number, written in enumerate(objects, start=1):
        places.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, written)
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    tail = f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(content)}\n%%EOF\n"
    return content + head.encode() + tail.encode()


def find_page(random: Random) -> TaskDraft:
    """On which page of a document something is said. The near miss names the next page."""
    count = random.randrange(6, 12)
    pages = [[f"{word} {random.randrange(100, 999)}" for word in random_names(random, 12)] for _ in range(count)]
    code = f"code {random.choice('KQXZ')}{random.randrange(1000, 9999)}"
    page = random.randrange(2, count)
    pages[page - 1].insert(random.randrange(2, 10), code)
    name = f"{random.choice(['report', 'minutes', 'catalogue', 'manual'])}.pdf"
    path = f"{DOCUMENTS}/{name}"
    asked = random.choice(["On which page of {0} does “{1}” stand?", "Find the page of {0} that has “{1}” on it."])

    def answered(text: str) -> list[JsonDict]:
        return run_python(f"open('{DOCUMENTS}/page.txt', 'w').write('{text}')")

    return TaskDraft(
        instruction=f"{asked.format(name, code)} Write its number into a new file {DOCUMENTS}/page.txt.",
        config=[
            *empty_folder(DOCUMENTS),
            step("write_binary", path=path, content_base64=base64.b64encode(pdf_document(pages)).decode()),
            *open_viewer(random, "evince", path),
        ],
        evaluator={
            "func": "exact_match",
            "result": {"type": "content_from_vm_file", "path": f"{DOCUMENTS}/page.txt"},
            "expected": {"type": "rule", "rules": {"expected": str(page)}},
        },
        oracle=answered(f"{page}"),
        near_miss=answered(f"{page + 1}"),
        exploits=[answered(""), answered(" ".join(map(str, range(1, count + 1))))],
    )


FAMILIES = (
    Family("turn_in_viewer", "eog", "turn a picture in the image viewer", 8, turn_in_viewer),
    Family("delete_picture", "eog", "delete the picture that shows a shape", 15, delete_picture),
    Family("name_pictures", "eog", "name pictures after what they show", 30, name_pictures, held_out=True),
    Family("count_shapes", "eog", "count shapes in a picture", 15, count_shapes),
    Family("find_page", "evince", "find the page of a document", 20, find_page),
)
