"""The look of the session: fonts by size, nothing that moves by itself.

Role: write the system-wide settings of GTK, dconf, the window manager and the terminal for one font size.
Rule: everything that would change pixels without an action is off (caret blink, animations, recent files, scrollbars
that fade). User settings still win over these, as on any desktop.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

SANS = "DejaVu Sans"
MONO = "DejaVu Sans Mono"

GTK3_SETTINGS = """[Settings]
gtk-theme-name=Adwaita
gtk-icon-theme-name=Adwaita
gtk-font-name={sans} {size}
gtk-cursor-blink=false
gtk-enable-animations=false
gtk-recent-files-enabled=false
gtk-recent-files-max-age=0
gtk-overlay-scrolling=false
gtk-primary-button-warps-slider=true
gtk-enable-event-sounds=false
gtk-enable-input-feedback-sounds=false
"""

DCONF_SETTINGS = """[org/gnome/desktop/interface]
toolkit-accessibility=true
cursor-blink=false
enable-animations=false
overlay-scrolling=false
font-name='{sans} {size}'
document-font-name='{sans} {size}'
monospace-font-name='{mono} {size}'

[org/gnome/desktop/a11y/applications]
screen-reader-enabled=false

[org/gnome/desktop/privacy]
remember-recent-files=false

[org/gnome/desktop/screensaver]
idle-activation-enabled=false
lock-enabled=false

[org/xfce/mousepad/preferences/file]
session-restore='never'

[org/xfce/mousepad/preferences/view]
use-default-monospace-font=true
show-line-numbers=false

[org/xfce/mousepad/preferences/window]
toolbar-visible=false
statusbar-visible=false
remember-size=true
remember-position=false
remember-state=false

[org/xfce/mousepad/state/window]
width=uint32 {width}
height=uint32 {height}
"""

TERMINAL_SETTINGS = """[general]
fontname={mono} {size}
selchars=-A-Za-z0-9,./?%&#:_
scrollback=1000
bgcolor=rgb(255,255,255)
fgcolor=rgb(0,0,0)
color_preset=Custom
disallowbold=false
cursorblinks=false
cursorunderline=false
audiblebell=false
visualbell=false
tabpos=top
geometry_columns={columns}
geometry_rows={rows}
hidescrollbar=true
hidemenubar=true
hideclosebutton=true
hidepointer=false
disablef10=true
disablealt=true
disableconfirm=true
"""

OPENBOX_SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <resistance><strength>0</strength><screen_edge_strength>0</screen_edge_strength></resistance>
  <focus><focusNew>yes</focusNew><followMouse>no</followMouse><raiseOnFocus>no</raiseOnFocus></focus>
  <placement><policy>Smart</policy><center>yes</center><monitor>Primary</monitor></placement>
  <theme>
    <name>Clearlooks</name><titleLayout>NLIMC</titleLayout><keepBorder>yes</keepBorder>
    <animateIconify>no</animateIconify>
    <font place="ActiveWindow"><name>{sans}</name><size>{size}</size><weight>Bold</weight></font>
    <font place="InactiveWindow"><name>{sans}</name><size>{size}</size><weight>Bold</weight></font>
    <font place="MenuHeader"><name>{sans}</name><size>{size}</size></font>
    <font place="MenuItem"><name>{sans}</name><size>{size}</size></font>
  </theme>
  <desktops><number>1</number><popupTime>0</popupTime></desktops>
  <resize><drawContents>yes</drawContents><popupShow>Never</popupShow></resize>
  <keyboard>
    <keybind key="A-F4"><action name="Close"/></keybind>
    <keybind key="A-Tab">
      <action name="NextWindow"><dialog>none</dialog><finalactions><action name="Focus"/><action name="Raise"/></finalactions></action>
    </keybind>
  </keyboard>
  <mouse>
    <dragThreshold>8</dragThreshold><doubleClickTime>400</doubleClickTime><screenEdgeWarpTime>0</screenEdgeWarpTime>
    <context name="Frame">
      <mousebind button="A-Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="A-Left" action="Drag"><action name="Move"/></mousebind>
    </context>
    <context name="Titlebar">
      <mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
      <mousebind button="Left" action="DoubleClick"><action name="ToggleMaximize"/></mousebind>
    </context>
    <context name="Titlebar Top Right Bottom Left TLCorner TRCorner BRCorner BLCorner">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    </context>
    <context name="Top"><mousebind button="Left" action="Drag"><action name="Resize"><edge>top</edge></action></mousebind></context>
    <context name="Left"><mousebind button="Left" action="Drag"><action name="Resize"><edge>left</edge></action></mousebind></context>
    <context name="Right"><mousebind button="Left" action="Drag"><action name="Resize"><edge>right</edge></action></mousebind></context>
    <context name="Bottom"><mousebind button="Left" action="Drag"><action name="Resize"><edge>bottom</edge></action></mousebind></context>
    <context name="TRCorner BRCorner TLCorner BLCorner">
      <mousebind button="Left" action="Drag"><action name="Resize"/></mousebind>
    </context>
    <context name="Client">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Middle" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Right" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    </context>
    <context name="Close">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="Click"><action name="Close"/></mousebind>
    </context>
    <context name="Maximize">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind>
    </context>
    <context name="Iconify">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="Click"><action name="Iconify"/></mousebind>
    </context>
  </mouse>
  <applications/>
</openbox_config>
"""

FILES = {
    "etc/gtk-3.0/settings.ini": GTK3_SETTINGS,
    "etc/dconf/db/local.d/dart": DCONF_SETTINGS,
    "usr/share/lxterminal/lxterminal.conf": TERMINAL_SETTINGS,
    "etc/xdg/openbox/rc.xml": OPENBOX_SETTINGS,
}


WINDOW_SHARE = (0.85, 0.7)
"""Share of the screen (width, height) that a document window takes at first, up to LARGEST_WINDOW."""

LARGEST_WINDOW = (900, 640)
LARGEST_TERMINAL = (80, 24)
CELL_PX_PER_POINT = (0.803, 1.56)
"""Width and height of a terminal cell of MONO at 96 dpi, in pixels per point of font size."""


def measures(font_size: int, resolution: tuple[int, int]) -> dict[str, int]:
    """First sizes: document window in pixels, terminal in cells."""
    window = [
        min(int(side * share), largest)
        for side, share, largest in zip(resolution, WINDOW_SHARE, LARGEST_WINDOW, strict=True)
    ]
    cells = [
        max(10, min(int(side / (font_size * cell)), largest))
        for side, cell, largest in zip(window, CELL_PX_PER_POINT, LARGEST_TERMINAL, strict=True)
    ]
    return {"width": window[0], "height": window[1], "columns": cells[0], "rows": cells[1]}


def render(font_size: int, resolution: tuple[int, int]) -> dict[str, str]:
    """Every settings file (path relative to the root) for a font size in points and a screen in pixels."""
    values = {"sans": SANS, "mono": MONO, "size": font_size, **measures(font_size, resolution)}
    files = dict(FILES)
    for name, value in values.items():
        files = {path: text.replace("{" + name + "}", str(value)) for path, text in files.items()}
    return files


def apply(font_size: int, resolution: tuple[int, int], root: Path = Path("/")) -> None:
    """Write the settings under `root` where they differ, and compile dconf's database."""
    changed = False
    for name, text in render(font_size, resolution).items():
        path = root / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
        changed = True
    if changed:
        # Without dconf those defaults do not apply; the desktop comes up all the same.
        with contextlib.suppress(OSError):
            subprocess.run(
                ["dconf", "update", str(root / "etc/dconf/db")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
