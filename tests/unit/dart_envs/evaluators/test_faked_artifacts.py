"""What only looks right to one reader scores 0: formulas nobody computed, hidden parts, links for files, pictures that viewers change."""

from __future__ import annotations

import io
import tarfile
import zipfile
from base64 import b64decode
from typing import Any

import numpy as np
import pytest
from fake_window_desktop import FakeWindowDesktop, ManualClock, reply
from PIL import Image, ImageCms

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.getters import GETTERS, GetterContext
from dart_envs.evaluators.images import decode_image
from dart_envs.evaluators.metrics import METRICS
from dart_envs.tasks.office.documents import presentation, spreadsheet, text_document


def document(content: str, old: str = "", new: str = "") -> GuestFile:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(b64decode(content))) as given, zipfile.ZipFile(made, "w") as archive:
        for name in given.namelist():
            archive.writestr(name, given.read(name).decode().replace(old, new, 1) if old else given.read(name))
    return GuestFile("/f", made.getvalue())


def test_a_value_beside_a_formula_must_be_its_result() -> None:
    given = spreadsheet(("S", [["a", 1], ["b", 2], ["Total", 3]]))
    cell = '<table:table-cell office:value-type="float" office:value="3">'
    rules = {"rows": [["a", 1.0], ["b", 2.0], ["Total", 3.0]], "cells": {"B3": {"formula": True}}}
    scores = [
        METRICS["check_spreadsheet"](
            document(given, cell, cell.replace(" office", f' table:formula="{formula}" office', 1)), rules, {}
        )
        for formula in ("of:=SUM([.B1:.B2])", "of:=SUM([.B1:.B1])", "of:=[.B1]*0")
    ]
    assert scores == [1.0, 0.0, 0.0]


def test_one_sheet_is_asked_for_and_a_decoy_beside_it_is_none() -> None:
    rows = [["a", 1.0]]
    assert METRICS["check_spreadsheet"](document(spreadsheet(("S", rows))), {"rows": rows}, {}) == 1
    assert METRICS["check_spreadsheet"](document(spreadsheet(("Decoy", rows), ("S", [["b"]]))), {"rows": rows}, {}) == 0


def test_a_cells_own_text_counts_and_not_what_is_shown_beside_it() -> None:
    file = document(spreadsheet(("S", [["a"]])), 'value-type="string"', 'value-type="string" office:string-value="b"')
    assert METRICS["check_spreadsheet"](file, {"rows": [["a"]]}, {}) == 0


@pytest.mark.parametrize(
    "extra",
    [
        '<text:section text:display="none"><text:p>a</text:p></text:section>',
        "<text:user-index><text:index-body><text:p>other</text:p></text:index-body></text:user-index>",
    ],
)
def test_text_that_is_hidden_or_beside_the_paragraphs_spoils_a_document(extra: str) -> None:
    rules = {"paragraphs": [{"text": "a"}]}
    assert METRICS["check_text_document"](document(text_document(["a"])), rules, {}) == 1
    with pytest.raises(InvalidArtifact):
        METRICS["check_text_document"](
            document(text_document(["a"]), "</office:text>", f"{extra}</office:text>"), rules, {}
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('svg:x="1.5cm"', 'svg:x="200cm"'),
        ('svg:y="0.8cm"', 'svg:y="-30cm"'),
        (
            "</draw:page>",
            "<draw:g><draw:frame><draw:text-box><text:p>other</text:p></draw:text-box></draw:frame></draw:g></draw:page>",
        ),
    ],
)
def test_what_is_not_in_the_boxes_of_a_slide_spoils_it(old: str, new: str) -> None:
    given, rules = presentation([("A", ["b"])]), {"slides": [{"title": "A", "lines": ["b"]}]}
    assert METRICS["check_slides"](document(given), rules, {}) == 1
    with pytest.raises(InvalidArtifact):
        METRICS["check_slides"](document(given, old, new), rules, {})


def test_two_parts_of_one_name_spoil_a_document() -> None:
    made = io.BytesIO(b64decode(text_document(["a"])))
    with zipfile.ZipFile(made, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("content.xml", "<a/>")
    with pytest.raises(InvalidArtifact, match="two parts"):
        METRICS["check_text_document"](GuestFile("/f", made.getvalue()), {}, {})


def test_links_in_archives_are_no_files() -> None:
    zipped, packed = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        info = zipfile.ZipInfo("a.txt")
        info.create_system, info.external_attr = 3, 0o120777 << 16
        archive.writestr(info, "text")
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        link = tarfile.TarInfo("a.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "text"
        archive.addfile(link)
    for form, content in (("zip", zipped), ("tar.gz", packed)):
        with pytest.raises(InvalidArtifact, match="link"):
            METRICS["archive_is"](GuestFile("/a", content.getvalue()), {"format": form, "files": {}}, {})


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def picture(**options: Any) -> bytes:
    made = io.BytesIO()
    Image.fromarray(np.zeros((4, 6, 3), dtype=np.uint8)).save(made, "PNG", **options)
    return made.getvalue()


def test_pictures_that_viewers_show_in_another_way_are_spoiled() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    other = Image.new("RGB", (6, 4), "white")
    assert decode_image(picture())[0] == decode_image(picture(icc_profile=SRGB))[0] == "PNG"
    for spoiled, words in (
        (picture(exif=turned.tobytes()), "turn"),
        (picture(save_all=True, append_images=[other], default_image=True), "moves"),
        (picture(icc_profile=b"profile"), "colour profile"),
        (
            picture(icc_profile=SRGB.replace(b"rXYZ", b"xXYZ").replace(b"bXYZ", b"rXYZ").replace(b"xXYZ", b"bXYZ")),
            "colour profile",
        ),
    ):
        with pytest.raises(InvalidArtifact, match=words):
            decode_image(spoiled)


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#<playlist><location>/m/a.wav</location></playlist>\n/m/b.wav\n",
        "[playlist]\n<playlist><location>/m/a.wav</location>\n",
        '<playlist xmlns="http://xspf.org/ns/0/"><!-- <location>/m/a.wav</location> --><trackList/></playlist>',
    ],
)
def test_titles_in_comments_are_not_in_a_playlist(text: str) -> None:
    rules = {"paths": ["/m/a.wav"], "folder": "/m"}
    assert METRICS["playlist_is"](GuestFile("/p", text.encode()), rules, {}) == 0


def test_a_playlist_with_a_document_type_is_spoiled() -> None:
    text = '<?xml version="1.0"?><!DOCTYPE a><playlist/>'
    with pytest.raises(InvalidArtifact, match="document type"):
        METRICS["playlist_is"](GuestFile("/p", text.encode()), {"paths": [], "folder": "/m"}, {})


SKELETON = "# ~/.bashrc\ncase $- in\n    *i*) ;;\nesac\n\nif [ -x /a ]; then\n    alias ls='ls --color'\nfi\n"


@pytest.mark.parametrize(
    ("added", "score"),
    [
        ("alias k='date -u'\n", 1),
        ('# mine\n\nalias k="df -h"\nalias k="date -u" l=ls\n', 1),
        ("", 0),
        ("# alias k='date -u'\n", 0),
        ("alias k='df -h'\n", 0),
        ("alias k='date -u'\nalias k='df -h'\n", 0),
    ],
)
def test_the_alias_that_a_start_up_file_defines(added: str, score: float) -> None:
    files = [GuestFile("/a", (SKELETON + added).encode()), GuestFile("/b", SKELETON.encode())]
    assert METRICS["alias_is"](files, {"name": "k", "command": "date -u"}, {}) == score


@pytest.mark.parametrize(
    "text",
    [
        f"{SKELETON}echo \"alias k='date -u'\"; exit\n",
        f"{SKELETON}alias() {{ echo; }}\nalias k='date -u'\n",
        f"{SKELETON}alias k='date -u'\nPROMPT_COMMAND='unalias k'\n",
        f"{SKELETON}alias k='date -u'; unalias k\n",
        f"{SKELETON}alias k=$(date -u)\n",
        f"{SKELETON}if false; then\nalias k='date -u'\nfi\n",
        SKELETON.replace("    alias ls", "alias k='date -u'\n    alias ls"),
        f"{SKELETON}alias k='date -u\n",
    ],
)
def test_start_up_files_that_do_something_else_are_spoiled(text: str) -> None:
    files = [GuestFile("/a", text.encode()), GuestFile("/b", SKELETON.encode())]
    with pytest.raises(InvalidArtifact):
        METRICS["alias_is"](files, {"name": "k", "command": "date -u"}, {})
    emptied = [GuestFile("/a", b"alias k='date -u'\n"), GuestFile("/b", SKELETON.encode())]
    assert METRICS["alias_is"](emptied, {"name": "k", "command": "date -u"}, {}) == 0


def context(*replies: str, returncode: int = 0) -> GetterContext:
    desktop = FakeWindowDesktop()
    left = list(replies)

    def answer(_desktop: Any, _args: list[str], _stdin: str) -> Any:
        return reply(left.pop(0), returncode=returncode)

    desktop.other_script = lambda: answer(None, [], "")
    names = ("find", "setpriv", "dbus-send", "curl", "xfconf-query", "sh", "stat")
    desktop.programs |= dict.fromkeys(names, answer) | dict.fromkeys((f"/usr/bin/{name}" for name in names), answer)
    return GetterContext(desktop, ManualClock())


LISTS = "\0/a\n{0}\0/b\n{1}\0/c\n\0/d\n\0own\n{2}\0system\ngood.desktop\nother.desktop\n"
RIGHT = "[Default Applications]\nimage/png=good.desktop;other.desktop\n"


@pytest.mark.parametrize(
    ("listed", "entry"),
    [
        (("", RIGHT, ""), "good.desktop"),
        (("[Default Applications]\nimage/png=other.desktop\n", RIGHT, ""), "other.desktop"),
        (("", "[Added Associations]\nimage/png=good.desktop\n", ""), ""),
        (("", RIGHT, "good.desktop\n"), None),
        (("", RIGHT.replace("good", "gone"), ""), None),
        (("", f"{RIGHT}image/png=other.desktop\n", ""), "other.desktop"),
        (("", f"no key\n{RIGHT}", ""), ""),
    ],
)
async def test_the_default_application_is_an_installed_program(listed: tuple[str, str, str], entry: str | None) -> None:
    held = context(LISTS.format(*listed))
    config = {"type": "default_application", "kind": "image/png"}
    if entry is None:
        with pytest.raises(InvalidArtifact, match="installed"):
            await GETTERS["default_application"](held, config)
    else:
        assert await GETTERS["default_application"](held, config) == entry


def processes(executable: str, *ports: int) -> str:
    found = [{"pid": 7, "executable": executable, "ports": list(ports)}]
    return str(found).replace("'", '"')


@pytest.mark.parametrize("seen", [processes("/usr/bin/vlc", 8181), processes("/usr/bin/python3.11", 8080), "[]", "no"])
async def test_a_player_that_the_task_did_not_start_says_nothing(seen: str) -> None:
    with pytest.raises(InvalidArtifact):
        await GETTERS["vlc_state"](context(seen, '{"state": "paused"}'), {"type": "vlc_state", "protected": True})


async def test_settings_are_told_by_the_service_that_the_task_started() -> None:
    config = {"type": "xfconf", "channel": "a", "property": "/b", "protected": True}
    service = processes("/usr/lib/x/xfce4/xfconf/xfconfd")
    switch, text = "   variant       boolean true\n", '   variant       string "true"\n'
    assert await GETTERS["xfconf"](context("   uint32 7\n", service, "true\n", switch), config) == "true"
    assert await GETTERS["xfconf"](context("   uint32 7\n", service, "left\n"), config) == "left"
    with pytest.raises(InvalidArtifact, match="is a text, which programs ignore"):
        await GETTERS["xfconf"](context("   uint32 7\n", service, "true\n", text), config)
    for owner, seen in (("   uint32 8\n", service), ("   uint32 7\n", processes("/usr/bin/python3.11")), ("", service)):
        with pytest.raises(InvalidArtifact, match="another program"):
            await GETTERS["xfconf"](context(owner, seen, "true\n"), config)


def test_a_formula_that_cannot_be_computed_and_a_cell_of_two_kinds_are_no_values() -> None:
    given, rules = spreadsheet(("S", [["a", 3]])), {"rows": [["a", 3.0]]}
    cell = '<table:table-cell office:value-type="float" office:value="3">'
    believed = cell.replace(" office", ' table:formula="of:=IF(TRUE();1;0)" office', 1)
    assert METRICS["check_spreadsheet"](document(given), rules, {}) == 1
    assert METRICS["check_spreadsheet"](document(given, cell, believed), rules, {}) == 0
    kinds = (
        '<table:table-cell xmlns:calcext="urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0"'
        ' calcext:value-type="string" office:value-type="float" office:value="3">'
    )
    with pytest.raises(InvalidArtifact, match="two kinds"):
        METRICS["check_spreadsheet"](document(given, cell, kinds), rules, {})


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ('text:display="none"', "not shown"),
        ('fo:font-size="1pt"', "not shown"),
        ('fo:color="#ffffff"', "not shown"),
        ('fo:color="#ff0000"', None),
    ],
)
def test_words_that_nobody_sees_are_no_text(style: str, words: str | None) -> None:
    content = document(
        text_document(["a"]), "<text:p>a</text:p>", '<text:p><text:span text:style-name="Z">a</text:span></text:p>'
    )
    made = f'<style:style style:name="Z" style:family="text"><style:text-properties {style}/></style:style>'
    names = (
        'xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0"'
        ' xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0"'
    )
    groups = f"<office:automatic-styles {names}>{made}</office:automatic-styles>"
    with zipfile.ZipFile(io.BytesIO(content.content)) as archive:
        text = archive.read("content.xml").decode()
    styled = io.BytesIO()
    with zipfile.ZipFile(styled, "w") as archive:
        archive.writestr("content.xml", text.replace("<office:body>", f"{groups}<office:body>", 1))
    file = GuestFile("/f", styled.getvalue())
    if words is None:
        assert METRICS["check_text_document"](file, {"paragraphs": [{"text": "a"}]}, {}) == 1
    else:
        with pytest.raises(InvalidArtifact, match=words):
            METRICS["check_text_document"](file, {"paragraphs": [{"text": "a"}]}, {})


def test_automatic_styles_of_headers_are_not_those_of_the_content() -> None:
    with zipfile.ZipFile(io.BytesIO(b64decode(text_document(["a"])))) as archive:
        text = archive.read("content.xml").decode().replace("<text:p>", '<text:p text:style-name="Z">', 1)
    bold = '<style:style style:name="Z" style:family="paragraph"><style:text-properties fo:font-weight="bold"/></style:style>'
    scores = []
    for group in ("office:automatic-styles", "office:styles"):
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("content.xml", text)
            archive.writestr(
                "styles.xml",
                '<office:document-styles xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"'
                ' xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0"'
                ' xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0">'
                f"<{group}>{bold}</{group}></office:document-styles>",
            )
        rules = {"paragraphs": [{"text": "a", "looks": ["bold"]}]}
        scores.append(METRICS["check_text_document"](GuestFile("/f", made.getvalue()), rules, {}))
    assert scores == [0.0, 1.0]


def test_a_table_inside_a_table_and_marks_of_notes_spoil_a_text() -> None:
    table = "<table:table><table:table-row><table:table-cell>{}</table:table-cell></table:table-row></table:table>"
    names = 'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'
    nested = table.format(table.format("")).replace("<table:table>", f"<table:table {names}>", 1)
    note = "<text:p>a<text:note><text:note-citation>other</text:note-citation></text:note></text:p>"
    for extra, words in ((nested, "table inside a table"), (note, "notes")):
        with pytest.raises(InvalidArtifact, match=words):
            METRICS["check_text_document"](
                document(text_document(["a"]), "</office:text>", f"{extra}</office:text>"), {"paragraphs": []}, {}
            )


def test_a_hole_in_a_picture_is_no_tolerance() -> None:
    scene = {"size": [100, 100], "background": [200, 30, 30], "shapes": []}
    rules = {"scene": scene, "any_of": [[]]}

    def score(*changed: tuple[slice, slice]) -> float:
        held = np.full((100, 100, 3), (200, 30, 30), dtype=np.uint8)
        for rows, columns in changed:
            held[rows, columns] = 0
        made = io.BytesIO()
        Image.fromarray(held).save(made, "PNG")
        return METRICS["picture_is"](GuestFile("/p", made.getvalue()), rules, {})

    edge = (slice(0, 30), slice(10, 13))
    hole = (slice(10, 18), slice(10, 18))
    assert [score(), score(edge), score(hole)] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXTVLCOPT:stop-time=1\n/m/a.wav\n",
        '<playlist xmlns="http://xspf.org/ns/0/"><trackList><track><location>file:///m/a.wav</location>'
        '<extension><option xmlns="http://www.videolan.org/vlc/playlist/ns/0/">no-audio</option></extension></track></trackList></playlist>',
    ],
)
def test_options_of_a_player_spoil_a_playlist(text: str) -> None:
    with pytest.raises(InvalidArtifact, match="options"):
        METRICS["playlist_is"](GuestFile("/p", text.encode()), {"paths": ["/m/a.wav"], "folder": "/m"}, {})


def test_a_line_ends_where_the_program_ends_it() -> None:
    for separator in ("\u2028", "\f", "\x85"):
        file = GuestFile("/s", f"# a{separator}loop=1\n".encode())
        assert METRICS["settings_are"](file, {"expected": {"loop": "1"}}, {}) == 0


def test_files_that_were_noted_have_their_content_still() -> None:
    noted = GuestFile("/n", b"aa  a.wav\nbb  b c.wav\n")
    tree = {"a.wav": {"sha256": "aa"}, "b c.wav": {"sha256": "bb"}, "new": {"sha256": "cc"}}
    assert METRICS["unchanged_since"](tree, noted, {}) == 1
    swapped = {"a.wav": {"sha256": "bb"}, "b c.wav": {"sha256": "aa"}}
    assert METRICS["unchanged_since"](swapped, noted, {}) == 0
    assert METRICS["unchanged_since"]({}, noted, {}) == METRICS["unchanged_since"](tree, GuestFile("/n", b""), {}) == 0
