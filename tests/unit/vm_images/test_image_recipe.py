"""Recipes: the bundled one reads; a wrong one names its file and field."""

from pathlib import Path

import pytest
from imagebuild.errors import UsageError
from imagebuild.manifest import packages_digest, recipe_digest
from imagebuild.recipe import Application, read_recipe

RECIPES = Path(__file__).resolve().parents[3] / "vm_images" / "recipes"

GOOD = """
name = "small"
suite = "bookworm"
mirror = "http://deb.debian.org/debian"
security_mirror = "http://deb.debian.org/debian-security"

[packages]
one = ["zenity", "dbus"]
two = ["dbus"]

[exclude]
paths = ["/usr/share/man/*"]
except = []

[user]
name = "user"
uid = 1000
password = "password"
groups = ["sudo"]
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_basic_recipe_holds_what_tasks_drive() -> None:
    recipe = read_recipe(RECIPES / "basic.toml")
    assert {"zenity", "mousepad", "thunar", "lxterminal", "galculator", "xvfb", "openbox"} <= set(recipe.packages)
    assert (recipe.user.name, recipe.user.uid) == ("user", 1000)


def test_packages_are_sorted_and_listed_once(tmp_path: Path) -> None:
    assert read_recipe(written(tmp_path, GOOD)).packages == ("dbus", "zenity")


def test_order_and_grouping_of_packages_do_not_change_the_recipe(tmp_path: Path) -> None:
    first = read_recipe(written(tmp_path, GOOD)).canonical()
    regrouped = GOOD.replace('one = ["zenity", "dbus"]\ntwo = ["dbus"]', 'all = ["dbus", "zenity"]')
    assert read_recipe(written(tmp_path, regrouped)).canonical() == first


def test_the_desktop_recipe_holds_what_osworld_tasks_drive() -> None:
    recipe = read_recipe(RECIPES / "desktop.toml")
    wanted = {"chromium", "libreoffice-calc", "libreoffice-writer", "libreoffice-impress", "gimp", "vlc", "thunderbird"}
    assert wanted | {"gnome-terminal", "nautilus", "gedit", "evince", "eog", "fonts-noto-cjk", "xfce4-panel"} <= set(
        recipe.packages
    )
    assert {"pulseaudio", "pulseaudio-utils", "xfce4-pulseaudio-plugin"} <= set(recipe.packages)
    panel = RECIPES / "desktop/etc/xdg/xfce4/xfconf/xfce-perchannel-xml/xfce4-panel.xml"
    assert 'value="pulseaudio"' in panel.read_text(encoding="utf-8")
    assert (recipe.user.name, recipe.user.password) == ("user", "password")


def test_only_packages_decide_the_packages_layer(tmp_path: Path) -> None:
    plain = read_recipe(written(tmp_path, GOOD))
    warmed = read_recipe(written(tmp_path, GOOD.replace("\n[packages]", 'warm = [["true"]]\n[packages]')))
    assert warmed.canonical() != plain.canonical()
    assert warmed.packages_canonical() == plain.packages_canonical()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("\n[packages]", 'warm = ["soffice"]\n[packages]'), "warm must be a list of commands, each a list of words"),
        (("[exclude]", 'warm = [["soffice"]]\n[exclude]'), "`warm` belongs above the first [section]"),
        (("uid = 1000", 'uid = 1000\nwarm = [["soffice"]]'), "user.warm; `warm` belongs above the first [section]"),
        (("\n[packages]", "paths = []\n[packages]"), "unknown key paths; `paths` belongs in [exclude]"),
        (
            ('suite = "bookworm"', 'suite = "bookworm"\nbase = "basic"'),
            "unknown key base; a recipe has no base: list all",
        ),
        (('suite = "bookworm"', "suite = 12"), "suite"),
        (('suite = "bookworm"', 'suite = "bookworm"\ncolour = "red"'), "unknown key colour"),
        (("uid = 1000", 'uid = "1000"'), "user.uid"),
        (("uid = 1000", "uid = 1000\nshell = 1"), "unknown key user.shell"),
        (('["dbus"]', '["Not A Package"]'), "packages.two"),
        (('["dbus"]', '"dbus"'), "packages.two"),
        (('name = "small"', 'name = "other"'), "must be 'small'"),
        (('name = "user"', 'name = "kiosk"'), "user.name must be like user"),
        (("except = []", ""), "exclude.except"),
        (("[user]", "[user"), "small.toml"),
    ],
)
def test_a_wrong_recipe_is_refused_with_its_field(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=r"small\.toml") as caught:
        read_recipe(written(tmp_path, GOOD.replace(*change)))
    assert said in str(caught.value)


def test_an_unknown_recipe_lists_the_known_ones(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    with pytest.raises(UsageError, match="known recipes: small"):
        read_recipe(tmp_path / "missing.toml")


def test_sources_are_signed_and_cover_updates_and_security(tmp_path: Path) -> None:
    lines = read_recipe(written(tmp_path, GOOD)).sources(Path("/keys"))
    assert [line.split()[3] for line in lines] == ["bookworm", "bookworm-updates", "bookworm-security"]
    assert all("[signed-by=/keys]" in line for line in lines)


APPLICATIONS = """
[[applications]]
command = ["xpad", "--new"]
role = "push button"
name = "New"
"""


def test_a_recipe_names_the_programs_that_verify_starts(tmp_path: Path) -> None:
    bare = read_recipe(written(tmp_path, GOOD))
    recipe = read_recipe(written(tmp_path, GOOD + APPLICATIONS))
    assert recipe.applications == (Application(("xpad", "--new"), "push button", "New"),)
    assert packages_digest(recipe) == packages_digest(bare), "the packages are taken over"
    assert recipe_digest(recipe, tmp_path / "none") != recipe_digest(bare, tmp_path / "none")


@pytest.mark.parametrize(
    ("line", "instead", "words"),
    [
        ('command = ["xpad", "--new"]', "command = []", r"applications\.0\.command"),
        ('role = "push button"', "", r"applications\.0\.role must be"),
        ('name = "New"', 'name = "New"\nx = 1', r"unknown key applications\.0\.x$"),
        (
            'name = "New"',
            'name = "New"\nwarm = [["xpad"]]',
            r"applications\.0\.warm; `warm` belongs above the first \[section\]",
        ),
    ],
)
def test_a_wrong_program_names_its_field(tmp_path: Path, line: str, instead: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_recipe(written(tmp_path, GOOD + APPLICATIONS.replace(line, instead)))
