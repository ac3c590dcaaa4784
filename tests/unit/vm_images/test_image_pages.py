"""What the pages about images say of recipes: the tutorial's is `basic` with what it marks as new, and recipes are copied as written."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from imagebuild.recipe import PLACES, read_recipe

ROOT = Path(__file__).resolve().parents[3]
BASIC = ROOT / "vm_images/recipes/basic.toml"
TUTORIAL = (ROOT / "docs/tutorials/own-desktop-image.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs/image-recipes.md").read_text(encoding="utf-8")


def tutorial_recipe() -> str:
    (found,) = re.findall(r'^```toml title="images/kiosk.toml"\n(.*?)^```', TUTORIAL, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_tutorials_recipe_is_basic_with_what_it_marks_as_new(tmp_path: Path) -> None:
    told, basic = tomllib.loads(tutorial_recipe()), tomllib.loads(BASIC.read_text(encoding="utf-8"))
    assert told.pop("name") == "kiosk"
    assert told.pop("warm")
    assert told.pop("applications")
    assert told["packages"].pop("mine") == ["xarchiver"]
    del basic["name"]
    assert told == basic
    assert tutorial_recipe().count("# new") == 4
    (tmp_path / "kiosk.toml").write_text(tutorial_recipe(), encoding="utf-8")
    read_recipe(tmp_path / "kiosk.toml")


def test_the_recipe_of_basic_is_copied_by_the_command_of_the_page(tmp_path: Path) -> None:
    (command,) = re.findall(r"^    (cp .*basic\.toml.*)$", REFERENCE, re.MULTILINE)
    command = command.replace("$(python ", f"$({sys.executable} ")
    subprocess.run(["bash", "-ec", command], cwd=tmp_path, check=True)
    assert (tmp_path / "kiosk.toml").read_bytes() == BASIC.read_bytes()


def test_every_key_is_in_the_table_of_the_page() -> None:
    rows = "\n".join(line for line in REFERENCE.splitlines() if line.startswith("| "))
    for key in {key for keys in PLACES.values() for key in keys}:
        assert re.search(rf"\b{key}\b", rows), key
