"""The applications with windows that tasks use, and the programs that are them."""

from __future__ import annotations

from collections.abc import Mapping

APPLICATION_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "chrome": ("google-chrome", "google-chrome-stable", "chromium"),
    "browser": ("google-chrome", "google-chrome-stable", "chromium"),
    "gimp": ("gimp",),
    "vlc": ("vlc",),
    "thunderbird": ("thunderbird",),
    "vscode": ("code",),
    "nautilus": ("nautilus",),
    "gedit": ("gedit",),
    "gnometerminal": ("gnome-terminal",),
    "libreoffice": ("soffice", "libreoffice"),
    "calc": ("localc", "libreoffice-calc"),
    "writer": ("lowriter", "libreoffice-writer"),
    "impress": ("loimpress", "libreoffice-impress"),
    "mousepad": ("mousepad",),
    "thunar": ("thunar",),
    "lxterminal": ("lxterminal",),
    "galculator": ("galculator",),
    "zenity": ("zenity",),
    "eog": ("eog",),
    "evince": ("evince",),
    "xfce4mimesettings": ("xfce4-mime-settings",),
    "xfdesktop": ("xfdesktop",),
    "xfwm4": ("xfwm4",),
}
"""Programs or packages of which an image needs one, by the name of the application without its spaces, hyphens and underscores."""
