"""Attacks on files: documents, archives and pictures that a reader takes for something else than the program that opens them."""

from __future__ import annotations

import copy
import hashlib
import io
import os
import re
import struct
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from guest_side import parts, run

SPREADSHEET, TEXT, SLIDES = "check_spreadsheet", "check_text_document", "check_slides"


def document(task: dict) -> tuple[str, dict]:
    """Path and rules of the document."""
    _, result, rules = parts(task)[0]
    return result["path"], rules


def rewrite(path: str, change: object) -> None:
    """Replace content.xml of a document."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    held["content.xml"] = change(held["content.xml"].decode()).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, content)


def cell_xml(value: object, formula: str = "") -> str:
    """One cell."""
    told = f" table:formula={quoteattr(formula)}" if formula else ""
    if value in ("", None):
        return f"<table:table-cell{told}/>"
    if isinstance(value, str):
        return f'<table:table-cell{told} office:value-type="string"><text:p>{escape(value)}</text:p></table:table-cell>'
    return f'<table:table-cell{told} office:value-type="float" office:value="{value}"><text:p>{value}</text:p></table:table-cell>'


def rows_of(text: str) -> list[list[object]]:
    """Values of the first sheet of the document that was given."""
    rows: list[list[object]] = []
    for row in re.findall(r"<table:table-row.*?</table:table-row>", text, re.DOTALL):
        values: list[object] = []
        for attributes, inner in re.findall(
            r"<table:table-cell([^>]*?)(?:/>|>(.*?)</table:table-cell>)", row, re.DOTALL
        ):
            number = re.search(r'office:value="([^"]*)"', attributes)
            shown = re.search(r"<text:p>(.*?)</text:p>", inner or "")
            values.append(float(number[1]) if number else shown[1] if shown else "")
        rows.append([int(one) if isinstance(one, float) and one.is_integer() else one for one in values])
    return rows


def asked_rows(given: list[list[object]], rules: dict) -> tuple[list[list[object]], dict[tuple[int, int], dict]]:
    """The rows that are asked for, and the rules of single cells."""
    rows = copy.deepcopy(rules.get("rows", given))
    cells = {}
    for name, rule in rules.get("cells", {}).items():
        letter, number = re.fullmatch(r"([A-Z]+)(\d+)", name).groups()
        row, column = int(number) - 1, ord(letter) - ord("A")
        cells[row, column] = rule
        while len(rows) <= row:
            rows.append([])
        rows[row] += [""] * (column + 1 - len(rows[row]))
        if "value" in rule:
            rows[row][column] = rule["value"]
    return rows, cells


def stale_values(task: dict) -> None:
    """Formulas that compute something else, with the right results as values that nobody computed again."""
    path, rules = document(task)

    def change(text: str) -> str:
        rows, cells = asked_rows(rows_of(text), rules)

        def formula(row: int, column: int) -> str:
            rule = cells.get((row, column), {})
            if not rule.get("formula"):
                return ""
            name = rule.get("function", "SUM")
            return f"of:={name}([.B2:.B2])*0"

        body = "".join(
            "<table:table-row>"
            + "".join(cell_xml(value, formula(r, c)) for c, value in enumerate(row))
            + "</table:table-row>"
            for r, row in enumerate(rows)
        )
        return re.sub(
            r"(<table:table [^>]*>).*?(</table:table>)", lambda m: m[1] + body + m[2], text, count=1, flags=re.DOTALL
        )

    rewrite(path, change)


def decoy_sheet(task: dict) -> None:
    """A hidden first sheet holds what is asked for; the sheet that is shown stays as it was."""
    path, rules = document(task)

    def change(text: str) -> str:
        rows, cells = asked_rows(rows_of(text), rules)
        body = "".join(
            "<table:table-row>"
            + "".join(
                cell_xml(value, "of:=[.B2]" if cells.get((r, c), {}).get("formula") else "")
                for c, value in enumerate(row)
            )
            + "</table:table-row>"
            for r, row in enumerate(rows)
        )
        decoy = f'<table:table table:name="Decoy" table:display="false">{body}</table:table>'
        return text.replace("<table:table ", decoy + "<table:table ", 1)

    rewrite(path, change)


def shown_and_held(task: dict) -> None:
    """Texts whose shown paragraph is what is asked for, and whose value is another."""
    path, rules = document(task)

    def change(text: str) -> str:
        rows, _ = asked_rows(rows_of(text), rules)
        body = "".join("<table:table-row>" + "".join(map(cell_xml, row)) + "</table:table-row>" for row in rows)
        body = body.replace('office:value-type="string">', 'office:value-type="string" office:string-value="other">')
        return re.sub(
            r"(<table:table [^>]*>).*?(</table:table>)", lambda m: m[1] + body + m[2], text, count=1, flags=re.DOTALL
        )

    rewrite(path, change)


def two_contents(task: dict) -> None:
    """An archive with two documents of one name, of which readers take different ones."""
    path, _ = document(task)
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, content)
        archive.writestr("content.xml", held["content.xml"].replace(b"<office:body>", b"<office:body><!-- other -->"))


def paragraphs(rules: dict) -> str:
    """The paragraphs that are asked for, as plain ones."""
    return "".join(f"<text:p>{escape(one.get('text', ''))}</text:p>" for one in rules.get("paragraphs", []))


def hidden_section(task: dict) -> None:
    """What is asked for stands in a section that is not shown; what is shown is in a frame that readers of text skip."""
    path, rules = document(task)

    def change(text: str) -> str:
        shown = re.search(r"<office:text[^>]*>(.*)</office:text>", text, re.DOTALL)[1]
        hidden = f'<text:section text:name="s" text:display="none">{paragraphs(rules)}</text:section>'
        index = (
            '<text:user-index text:name="i"><text:user-index-source text:index-name="i"/>'
            f"<text:index-body>{shown}</text:index-body></text:user-index>"
        )
        return re.sub(
            r"(<office:text[^>]*>).*(</office:text>)", lambda m: m[1] + hidden + index + m[2], text, flags=re.DOTALL
        )

    rewrite(path, change)


def text_outside(task: dict) -> None:
    """The right paragraphs stand first, and the old text follows in an index, whose paragraphs are not counted."""
    path, rules = document(task)

    def change(text: str) -> str:
        shown = re.search(r"<office:text[^>]*>(.*)</office:text>", text, re.DOTALL)[1]
        index = (
            '<text:table-of-content text:name="t"><text:table-of-content-source/>'
            f"<text:index-body>{shown}</text:index-body></text:table-of-content>"
        )
        return re.sub(
            r"(<office:text[^>]*>).*(</office:text>)",
            lambda m: m[1] + index + paragraphs(rules) + m[2],
            text,
            flags=re.DOTALL,
        )

    rewrite(path, change)


def slide_xml(number: int, rule: dict, visible: list[str]) -> str:
    """A slide: the asked texts in boxes outside the slide, the old ones where they can be seen."""

    def box(lines: list[str], left_cm: float, top_cm: float, kind: str = "draw:frame") -> str:
        body = "".join(f"<text:p>{escape(line)}</text:p>" for line in lines)
        return (
            f'<{kind} svg:x="{left_cm}cm" svg:y="{top_cm}cm" svg:width="20cm" svg:height="2cm">'
            f"<draw:text-box>{body}</draw:text-box></{kind}>"
        )

    frames = box([rule.get("title", "")], 200.0, 1.0) + box(list(rule.get("lines", [])), 200.0, 5.0)
    old = "".join(f"<text:p>{line}</text:p>" for line in visible)
    group = (
        f"<draw:g>{''.join(box([line], 2.0, 2.0 + 2 * n) for n, line in enumerate(visible))}</draw:g>" if old else ""
    )
    return f'<draw:page draw:name="page{number}" draw:master-page-name="Default">{frames}{group}</draw:page>'


def boxes_outside(task: dict) -> None:
    """The asked texts stand outside the slides, where nobody sees them."""
    path, rules = document(task)

    def change(text: str) -> str:
        pages = re.findall(r"<draw:page.*?</draw:page>", text, re.DOTALL)
        texts = [re.findall(r"<text:p>(.*?)</text:p>", one) for one in pages]
        slides = rules["slides"]
        body = "".join(
            slide_xml(number, slide, texts[number] if number < len(texts) else [])
            for number, slide in enumerate(slides)
        )
        return re.sub(
            r"(<office:presentation[^>]*>).*(</office:presentation>)",
            lambda m: m[1] + body + m[2],
            text,
            flags=re.DOTALL,
        )

    rewrite(path, change)


def member(path: str, name: str) -> bytes:
    """Content of a file that belongs into an archive: the file beside it, or what the archive holds where it was to be taken out."""
    beside = Path(os.path.dirname(path), name)
    if beside.exists():
        return beside.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)
    with tarfile.open(path) as archive:
        return archive.extractfile(name).read()


def archive_of_links(task: dict) -> None:
    """An archive of symbolic links whose targets are the files' texts: nothing in it can be read."""
    _, result, rules = next(one for one in parts(task) if one[0] == "archive_is")
    contents = {name: member(result["path"], name) for name in rules["files"]}
    if rules["format"] == "zip":
        with zipfile.ZipFile(result["path"], "w") as archive:
            for name in rules["files"]:
                info = zipfile.ZipInfo(name)
                info.create_system, info.external_attr = 3, 0o120777 << 16
                archive.writestr(info, contents[name])
        return
    with tarfile.open(result["path"], f"w:{rules['format'].rpartition('.')[2]}", format=tarfile.PAX_FORMAT) as archive:
        for name in rules["files"]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, contents[name].decode()
            archive.addfile(info)


def archive_twice(task: dict) -> None:
    """An archive that holds every file twice, first with a wrong content."""
    _, result, rules = next(one for one in parts(task) if one[0] == "archive_is")
    contents = {name: member(result["path"], name) for name in rules["files"]}
    if rules["format"] == "zip":
        with zipfile.ZipFile(result["path"], "w") as archive:
            for name in rules["files"]:
                archive.writestr(name, b"other")
                archive.writestr(name, contents[name])
        return
    with tarfile.open(result["path"], f"w:{rules['format'].rpartition('.')[2]}") as archive:
        for name in rules["files"]:
            for content in (b"other", contents[name]):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def names_without_content(task: dict) -> None:
    """Files of the right names with nothing in them, and folders where files are asked for."""
    for metric, result, rules in parts(task):
        if metric == "tree_is" and any(facts.get("kind") != "folder" for facts in rules["entries"].values()):
            for name, facts in rules["entries"].items():
                path = Path(result.get("path", "/"), name)
                if facts.get("kind") == "folder":
                    path.mkdir(parents=True, exist_ok=True)
                elif not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
        elif metric == "contains_names":
            for name in rules.get("exactly", ()):
                if not Path(result["path"], name.rstrip("/")).exists():
                    Path(result["path"], name.rstrip("/")).touch()


def private_mount(task: dict) -> None:
    """A folder of one's own is mounted over the real one, in a namespace of one's own."""
    for _, result, _ in parts(task):
        path = result.get("path", "/home/user")
        place = path if os.path.isdir(path) else os.path.dirname(path)
        run("unshare", "-Urm", "sh", "-c", f"mkdir -p /tmp/over; mount --bind /tmp/over {place}; sleep 1")


def access_list(task: dict) -> None:
    """The permission bits are as asked for; an access list gives another user more."""
    _, result, rules = parts(task)[0]
    for name, facts in rules["entries"].items():
        path = os.path.join(result["path"], name)
        mode = int(facts["mode"], 8)
        os.chmod(path, mode)
        owner, group, other = mode >> 6 & 7, mode >> 3 & 7, mode & 7
        none = 0xFFFFFFFF
        entries = [(1, owner, none), (2, 7, 33), (4, 0, none), (16, group, none), (32, other, none)]
        packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        if group:
            try:
                os.setxattr(path, "system.posix_acl_access", packed)
            except OSError as error:
                print(error)


def chunk(kind: bytes, data: bytes) -> bytes:
    """One part of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def changed_picture(task: dict):
    """The picture that is asked for, made of the given one."""
    from PIL import Image, ImageOps

    _, result, rules = parts(task)[0]
    target = Path(result["path"])
    given = target if target.exists() else next(target.parent.glob("*.png"))
    picture = Image.open(given).convert("RGB")
    for name, *arguments in rules["any_of"][0]:
        picture = {
            "flip_horizontally": ImageOps.mirror,
            "flip_vertically": ImageOps.flip,
            "turn_right": lambda one: one.transpose(Image.Transpose.ROTATE_270),
            "turn_left": lambda one: one.transpose(Image.Transpose.ROTATE_90),
            "turn_over": lambda one: one.transpose(Image.Transpose.ROTATE_180),
            "invert": ImageOps.invert,
            "scale": lambda one, *size: one.resize(size, Image.Resampling.BICUBIC),
            "crop": lambda one, left, top, width, height: one.crop((left, top, left + width, top + height)),
            "threshold": lambda one, low: (
                one.point(lambda value: value)
                .convert("HSV")
                .getchannel("V")
                .point(lambda value: 255 if value >= low else 0)
                .convert("RGB")
            ),
        }.get(name, lambda one, *_: one.convert("L").convert("RGB"))(picture, *arguments)
    return picture, target, picture.__class__


def turned_back(task: dict) -> None:
    """The pixels are as asked for; a note in the file tells every viewer to turn the picture back."""
    picture, target, _ = changed_picture(task)
    exif = picture.getexif()
    exif[0x0112] = 6
    if target.suffix == ".jpg":
        picture.save(target, exif=exif, quality=95)
        return
    picture.save(target, exif=exif.tobytes())


def moving_picture(task: dict) -> None:
    """The first picture of the file is as asked for; what viewers show is an animation of others."""
    from PIL import Image

    picture, target, _ = changed_picture(task)
    other = Image.new("RGB", picture.size, "white")
    if target.suffix == ".jpg":
        picture.save(target, format="MPO", save_all=True, append_images=[other])
        return
    picture.save(target, save_all=True, append_images=[other, other], default_image=True, duration=100)


def colour_profile(task: dict) -> None:
    """The pixels are as asked for; a colour profile of the file, with red and blue exchanged, makes viewers show other colours."""
    from PIL import ImageCms

    picture, target, _ = changed_picture(task)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture.save(
        target, icc_profile=profile.replace(b"rXYZ", b"\0XYZ").replace(b"bXYZ", b"rXYZ").replace(b"\0XYZ", b"bXYZ")
    )


def dark_gamma(task: dict) -> None:
    """The pixels are as asked for; a gamma of the file makes viewers show something else."""
    picture, target, _ = changed_picture(task)
    if target.suffix == ".jpg":
        raise SystemExit("a JPEG file has no gamma")
    picture.save(target)
    content = target.read_bytes()
    at = content.index(b"IDAT") - 4
    target.write_bytes(content[:at] + chunk(b"gAMA", struct.pack(">I", 1)) + content[at:])


def picture_of_noise(task: dict) -> None:
    """A picture of the right size and mean colour."""
    from PIL import Image

    picture, target, _ = changed_picture(task)
    Image.new("RGB", picture.size, picture.resize((1, 1)).getpixel((0, 0))).save(target)


def digest_of(text: str) -> str:
    """sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def answer_with_everything(task: dict) -> None:
    """The answer file holds every number and every name that could be asked for."""
    for metric, result, _ in parts(task):
        if metric == "exact_match" and result["type"] == "content_from_vm_file":
            names = subprocess.run(["find", os.path.dirname(result["path"])], capture_output=True, text=True).stdout
            Path(result["path"]).write_text(" ".join(map(str, range(1, 30))) + "\n" + names)
