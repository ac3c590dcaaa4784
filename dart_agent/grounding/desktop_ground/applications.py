"""Which applications an image has, and how they are opened.

Role: `APPLICATIONS` by image. Rule: an application opens with files of ours, so that its screens have contents that do not change with the
day; it has several starts where its windows differ. Non-goals: what is done in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dart_agent.errors import ConfigError

HOME = "/home/user"
NOTES = "Shopping list\n\nbread\nmilk\napples\n\nCall the plumber on Tuesday.\n"
TABLE = "Name,City,Amount\nAda,London,12\nGrace,New York,7\nAlan,Cambridge,31\nEdsger,Rotterdam,4\n"
PAGE = """<!doctype html><html lang="en"><title>Order form</title><body style="font: 16px sans-serif; margin: 24px">
<h1>Order form</h1><p><a href="#terms">Terms of delivery</a> <a href="#contact">Contact</a></p>
<p><label>Name <input name="name"></label> <label>City <input name="city"></label></p>
<p><label><input type="checkbox" checked> Gift wrap</label> <label><input type="checkbox"> Express</label></p>
<p><label><input type="radio" name="pay" checked> Card</label> <label><input type="radio" name="pay"> Invoice</label></p>
<p><label>Size <select><option>Small</option><option>Large</option></select></label></p>
<p><button style="background: #c22; color: white">Discard</button> <button>Keep draft</button>
<button style="background: #26c; color: white">Order now</button></p></body></html>
"""
FILES: Mapping[str, str] = {
    f"{HOME}/Documents/notes.txt": NOTES,
    f"{HOME}/Documents/table.csv": TABLE,
    f"{HOME}/Documents/page.html": PAGE,
    f"{HOME}/Documents/letter.txt": "Dear Ms Lovelace,\n\nthank you for your order.\n",
    f"{HOME}/Pictures/readme.txt": "Pictures of the garden.\n",
    f"{HOME}/Music/list.txt": "Songs.\n",
}
"""Files of the user in every application, by path."""
CSV_WITHOUT_QUESTION = "--infilter=Text - txt - csv (StarCalc):44,34,76,1"
"""LibreOffice reads a CSV file with commas (44), double quotes (34) and UTF-8 (76) from row 1. It does not ask how."""


@dataclass(frozen=True, slots=True)
class GroundApplication:
    """An application of an image.

    Attributes:
        name: Our name of it.
        starts: How it is opened: name of the state, and the command line.
    """

    name: str
    starts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImageApplications:
    """The applications of an image.

    Attributes:
        applications: The applications.
        least: How many questions a benchmark of the image has at least.
    """

    applications: tuple[GroundApplication, ...]
    least: int


def _simple(name: str, *argv: str) -> GroundApplication:
    return GroundApplication(name, {"start": argv or (name,)})


_ZENITY = GroundApplication(
    "zenity",
    {
        "form": (
            "zenity", "--forms", "--title=Registration", "--text=Your data", "--add-entry=First name",
            "--add-entry=Surname", "--add-password=Password", "--add-calendar=Birthday",
        ),
        "list": (
            "zenity", "--list", "--title=Fruit", "--text=What do you like?", "--column=Name", "--column=Colour",
            "Apple", "red", "Plum", "blue", "Lemon", "yellow", "Pear", "green",
        ),
        "checklist": (
            "zenity", "--list", "--checklist", "--title=Parts", "--column=Take", "--column=Part",
            "TRUE", "Wheel", "FALSE", "Chain", "FALSE", "Saddle",
        ),
        "scale": ("zenity", "--scale", "--title=Volume", "--text=How loud?", "--value=30"),
        "question": ("zenity", "--question", "--title=Storage", "--text=Empty the wastebasket?"),
        "colour": ("zenity", "--color-selection", "--title=Colour", "--color=red"),
        "calendar": ("zenity", "--calendar", "--title=Day", "--day=3", "--month=5", "--year=2024"),
    },
)  # fmt: skip
_SETTINGS = GroundApplication(
    "settings",
    {
        "manager": ("xfce4-settings-manager",),
        "appearance": ("xfce4-appearance-settings",),
        "keyboard": ("xfce4-keyboard-settings",),
        "mouse": ("xfce4-mouse-settings",),
        "windows": ("xfwm4-settings",),
        "window tweaks": ("xfwm4-tweaks-settings",),
        "accessibility": ("xfce4-accessibility-settings",),
        "desktop": ("xfdesktop-settings",),
    },
)
_EVERYWHERE = (
    _simple("mousepad", "mousepad", f"{HOME}/Documents/notes.txt"),
    _simple("thunar", "thunar", HOME),
    _simple("lxterminal"),
    _simple("galculator"),
    _ZENITY,
)
APPLICATIONS: Mapping[str, ImageApplications] = {
    "basic": ImageApplications(_EVERYWHERE, least=100),
    "desktop": ImageApplications(
        (
            *_EVERYWHERE,
            GroundApplication(
                "gedit",
                {
                    "letter": ("gedit", f"{HOME}/Documents/letter.txt"),
                    "two files": ("gedit", f"{HOME}/Documents/letter.txt", f"{HOME}/Documents/notes.txt"),
                },
            ),
            GroundApplication("nautilus", {"home": ("nautilus", HOME), "documents": ("nautilus", f"{HOME}/Documents")}),
            _simple("gnome-terminal"),
            _simple("chromium", "google-chrome", f"file://{HOME}/Documents/page.html"),
            _simple("thunderbird"),
            _simple("writer", "soffice", "--norestore", "--writer"),
            GroundApplication(
                "calc",
                {
                    "table": ("soffice", "--norestore", "--calc", CSV_WITHOUT_QUESTION, f"{HOME}/Documents/table.csv"),
                    "import": ("soffice", "--norestore", "--calc", f"{HOME}/Documents/table.csv"),
                },
            ),
            _simple("impress", "soffice", "--norestore", "--impress"),
            _simple("draw", "soffice", "--norestore", "--draw"),
            _simple("gimp"),
            _simple("vlc", "vlc", "--no-qt-privacy-ask"),
            _simple("evince"),
            _simple("eog"),
            _simple("file-roller"),
            _SETTINGS,
            _simple("appfinder", "xfce4-appfinder"),
            _simple("volume-control", "pavucontrol"),
        ),
        least=1000,
    ),
}
"""By image."""


def find_applications(image: str, names: tuple[str, ...]) -> ImageApplications:
    """The applications to open.

    Args:
        image: Name of the image.
        names: Names of applications; none: all.

    Returns:
        The applications.

    Raises:
        ConfigError: The image or an application is not known.
    """
    known = APPLICATIONS.get(image)
    if known is None:
        raise ConfigError(f"no applications of an image {image} are known: give --image {' or '.join(APPLICATIONS)}")
    by_name = {application.name: application for application in known.applications}
    strange = [name for name in names if name not in by_name]
    if strange:
        raise ConfigError(f"the image {image} has no application {strange[0]}: it has {', '.join(by_name)}")
    if not names:
        return known
    return ImageApplications(tuple(by_name[name] for name in dict.fromkeys(names)), least=1)
