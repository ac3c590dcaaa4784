"""Settings of the Xfce session: window manager, file manager, desktop, appearance, default applications.

Role: families about its settings dialogs. Rule: the verdict is what the settings daemon that the task started says, so that neither a
settings file written behind its back nor another program that answers in its name counts. Non-goals: settings of applications.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from random import Random

from dart_envs.evaluators.getters.system import BUS_OWNER_ARGV, XFCONF_NAME
from dart_envs.setup.protected import AS_PROTECTED, PROTECTED_GID
from dart_envs.tasks.basics.parts import DONE, JsonDict, all_of, click, key, pause, step, type_text
from dart_envs.tasks.basics.words import sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.system.parts import HOME, place_window, setting_is

CHANNELS = f"{HOME}/.config/xfce4/xfconf/xfce-perchannel-xml"


SERVICE_SCRIPT = f"""for attempt in 1 2 3 4 5 6 7 8 9 10; do
  pkill -x xfconfd
  {shlex.join(AS_PROTECTED)} env HOME={HOME} USER=user LOGNAME=user setsid /usr/lib/*/xfce4/xfconf/xfconfd </dev/null >/dev/null 2>&1 &
  sleep 0.3
  owner=$({shlex.join([*AS_PROTECTED, *BUS_OWNER_ARGV, f"string:{XFCONF_NAME}"])} | tr -dc '0-9 ')
  set -- $owner
  grep -q "^Gid:.*{PROTECTED_GID}" "/proc/$2/status" && exit 0
done
exit 1
"""
"""Root starts the session's settings service again, in the protected group, until it is the one that answers on the session's bus."""


def start_settings_service() -> JsonDict:
    """Step: the settings service runs in the protected group."""
    command = ["/bin/sh", "-c", SERVICE_SCRIPT]
    return step("execute", command=command, user="root", expect_returncode=0, timeout_s=60)


def open_dialog(random: Random, program: str, title: str, *, by_class: bool = False) -> list[JsonDict]:
    """Steps: a settings dialog, somewhere on the screen; `by_class` where another window has its title, too."""
    return [
        step("launch", command=[program]),
        step("wait_window", window_name=title, by_class=by_class),
        place_window(random, title, by_class=by_class),
        step("activate_window", window_name=title, by_class=by_class),
    ]


def run_shell(line: str) -> list[JsonDict]:
    """Moves: a shell runs this without any window."""
    return [{"do": "code", "text": f"import subprocess\nsubprocess.run(['bash', '-c', {line!r}], check=True)"}]


def edit_settings_file(channel: str, path: str, kind: str, value: str) -> list[JsonDict]:
    """Moves: the settings daemon's file says the right thing, but nobody told the daemon."""
    parts = path.strip("/").split("/")
    opening = "".join(f'<property name="{part}" type="empty">' for part in parts[:-1])
    inner = f'{opening}<property name="{parts[-1]}" type="{kind}" value="{value}"/>{"</property>" * (len(parts) - 1)}'
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<channel name="{channel}" version="1.0">{inner}</channel>\n'
    source = f"import os\nos.makedirs({CHANNELS!r}, exist_ok=True)\nopen({f'{CHANNELS}/{channel}.xml'!r}, 'w').write({text!r})"
    return [{"do": "code", "text": source}]


def click_check_box(name: str) -> list[JsonDict]:
    """Moves: click a check box."""
    return [click("check box", name), pause(), DONE]


CYCLING_OPTIONS = {
    "Cycle through minimized windows in most recently used order": ("cycle_minimized", False),
    "Include hidden (i.e. iconified) windows": ("cycle_hidden", True),
    "Cycle through windows on all workspaces": ("cycle_workspaces", False),
    "Draw frame around selected window while cycling": ("cycle_draw_frame", True),
    "Raise windows while cycling": ("cycle_raise", False),
}
"""Check boxes of the window manager's tweaks: property, and whether it is set at first."""

FILE_MANAGER_OPTIONS = {
    "Show file size in binary format": ("misc-file-size-binary", True),
    "Sort folders before files": ("misc-folders-first", True),
    "Text beside icons": ("misc-text-beside-icons", False),
    "Use current folder icon": ("misc-change-window-icon", True),
    "Remember view settings for each folder": ("misc-directory-specific-settings", False),
}
"""Check boxes of the file manager's preferences."""


def flip_setting(
    random: Random, boxes: dict[str, tuple[str, bool]], channel: str, above: str, opened: list[JsonDict], where: str
) -> TaskDraft:
    """Flip one check box of a dialog. The near miss flips another."""
    label, wrong = random.sample(sorted(boxes), 2)
    name, at_first = boxes[label]
    value = "false" if at_first else "true"
    word = "Switch off" if at_first else "Switch on"
    closing = random.choice(["Leave all else as it is.", "Change nothing else.", "Touch no other setting."])
    rest = [
        setting_is(channel, f"{above}{other}", str(state).lower()) for other, state in boxes.values() if other != name
    ]
    return TaskDraft(
        instruction=f"{word} “{label}” in the {where}. {closing}",
        config=[
            start_settings_service(),
            *(
                step("execute", command=_set(channel, f"{above}{other}", state), expect_returncode=0)
                for other, state in boxes.values()
            ),
            *opened,
        ],
        evaluator=all_of(setting_is(channel, f"{above}{name}", value), *rest),
        oracle=click_check_box(label),
        near_miss=click_check_box(wrong),
        exploits=[
            edit_settings_file(channel, f"{above}{name}", "bool", value),
            run_shell(
                f"xfconf-query -c {channel} -n -t bool -p {above}{name}-{sample_nouns(random, 1)[0].lower()} -s {value}"
            ),
        ],
    )


def _set(channel: str, path: str, state: bool) -> Sequence[str]:
    return ["xfconf-query", "-c", channel, "-p", path, "-n", "-t", "bool", "-s", str(state).lower()]


def window_cycling(random: Random) -> TaskDraft:
    """A check box of the window manager's tweaks."""
    opened = open_dialog(random, "xfwm4-tweaks-settings", "Window Manager Tweaks")
    return flip_setting(random, CYCLING_OPTIONS, "xfwm4", "/general/", opened, "cycling settings of the window manager")


def file_manager_view(random: Random) -> TaskDraft:
    """A check box of the file manager's preferences."""
    opened = open_dialog(random, "thunar-settings", "File Manager Preferences")
    return flip_setting(random, FILE_MANAGER_OPTIONS, "thunar", "/", opened, "display preferences of the file manager")


def workspaces(random: Random) -> TaskDraft:
    """The number of workspaces. The near miss is one off."""
    count = random.randrange(3, 10)
    title = "Workspaces"

    def entered(number: int) -> list[JsonDict]:
        box = {"do": "triple_click", "target": {"role": "spin button", "window": title, "at": [0.2, 0.5]}}
        return [box, type_text(str(number)), key("tab"), pause(1.0), DONE]

    asked = random.choice(
        [f"Set up {count} workspaces.", f"Make it {count} workspaces.", f"Let the desktop have {count} workspaces."]
    )
    return TaskDraft(
        instruction=asked,
        config=[start_settings_service(), *open_dialog(random, "xfwm4-workspace-settings", title)],
        evaluator=setting_is("xfwm4", "/general/workspace_count", str(count)),
        oracle=entered(count),
        near_miss=entered(count - 1),
        exploits=[
            edit_settings_file("xfwm4", "/general/workspace_count", "int", str(count)),
            run_shell(f"xfconf-query -c xfwm4 -n -t int -p /general/workspaces -s {count}"),
        ],
    )


ICONS = {"Home": "show-home", "File System": "show-filesystem", "Trash": "show-trash"}


def desktop_icons(random: Random) -> TaskDraft:
    """Which of the three default icons the desktop shows."""
    goal, kept, other = random.sample(sorted(ICONS), 3)
    both = random.random() < 0.5
    gone = {goal, kept} if both else {goal}
    said = " and ".join(sorted(gone))
    base = "/desktop-icons/file-icons/"
    verdicts = [setting_is("xfce4-desktop", base + name, str(icon not in gone).lower()) for icon, name in ICONS.items()]
    set_off = "; ".join(f"xfconf-query -c xfce4-desktop -p {base}{ICONS[icon]} -s false" for icon in sorted(gone))
    set_wrong = "; ".join(
        f"xfconf-query -c xfce4-desktop -p {base}{ICONS[icon]} -s false" for icon in sorted({other, goal})
    )
    word = random.choice(["Hide", "Remove", "Take away"])
    return TaskDraft(
        instruction=f"{word} {said} from the icons of the desktop in the desktop settings, and keep the other default icons.",
        config=[
            start_settings_service(),
            *(
                step("execute", command=_set("xfce4-desktop", base + name, True), expect_returncode=0)
                for name in ICONS.values()
            ),
            *open_dialog(random, "xfdesktop-settings", "xfdesktop-settings", by_class=True),
        ],
        evaluator=all_of(*verdicts),
        oracle=run_shell(set_off),
        near_miss=run_shell(set_wrong),
        exploits=[
            edit_settings_file("xfce4-desktop", base + ICONS[goal], "bool", "false"),
            run_shell("xfconf-query -c xfce4-desktop -p /desktop-icons/style -s 0"),
        ],
    )


THEME_PLACES = ("/home/user/.themes/{value}", "/home/user/.local/share/themes/{value}")
"""Where a theme of the user's would be taken for the system's of that name."""


def window_theme(random: Random) -> TaskDraft:
    """Title bar theme and alignment of the window manager together. The near miss sets one of the two."""
    theme = random.choice(("Daloa", "Kokodi", "Moheli", "Default", "Greybird-accessibility"))
    side = random.choice(("left", "right"))
    query = "xfconf-query -c xfwm4 -p /general/"
    return TaskDraft(
        instruction=f"Give the windows' title bars the theme {theme}, with titles aligned to the {side}.",
        config=[start_settings_service(), *open_dialog(random, "xfwm4-settings", "Window Manager")],
        evaluator=all_of(
            setting_is("xfwm4", "/general/theme", theme, shadows=THEME_PLACES),
            setting_is("xfwm4", "/general/title_alignment", side),
        ),
        oracle=run_shell(f"{query}theme -s {theme} && {query}title_alignment -s {side}"),
        near_miss=run_shell(f"{query}theme -s {theme}"),
        exploits=[
            edit_settings_file("xfwm4", "/general/title_alignment", "string", side),
            run_shell(f"xfconf-query -c xsettings -p /Net/ThemeName -s {theme} && {query}title_alignment -s {side}"),
        ],
    )


KINDS = {
    "text/plain": ("plain text files", ("org.xfce.mousepad", "chromium")),
    "image/png": ("PNG pictures", ("gimp", "chromium")),
    "application/pdf": ("PDF documents", ("chromium", "gimp")),
    "video/mp4": ("MP4 videos", ("chromium",)),
}
NAMES = {"org.xfce.mousepad": "Mousepad", "gimp": "GIMP", "chromium": "Chromium"}


def default_application(random: Random) -> TaskDraft:
    """Which program opens a kind of file. The near miss sets it for another kind."""
    kind, wrong = random.sample(sorted(KINDS), 2)
    described, programs = KINDS[kind]
    program = random.choice(programs)
    said = random.choice(["Make {0} the default application for {1}.", "Let {1} open in {0} by default."])
    return TaskDraft(
        instruction=said.format(NAMES[program], described),
        config=[
            step("execute", command=["rm", "-f", f"{HOME}/.config/mimeapps.list"]),
            *open_dialog(random, "xfce4-mime-settings", "Default Applications"),
        ],
        evaluator={
            "func": "exact_match",
            "result": {"type": "default_application", "kind": kind},
            "expected": {"type": "rule", "rules": {"expected": f"{program}.desktop"}},
        },
        oracle=run_shell(f"xdg-mime default {program}.desktop {kind}"),
        near_miss=run_shell(f"xdg-mime default {program}.desktop {wrong}"),
        exploits=[
            run_shell(f"printf '[Added Associations]\\n{kind}={program}.desktop;\\n' > ~/.config/mimeapps.list"),
            run_shell(f"touch ~/.config/mimeapps.list && echo '{kind} {program}' > ~/.local/share/mimeapps"),
        ],
    )


FAMILIES = (
    Family("window_cycling", "xfwm4", "flip a setting of the window manager", 8, window_cycling),
    Family("file_manager_view", "thunar", "flip a preference of the file manager", 8, file_manager_view),
    Family("workspaces", "xfwm4", "set the number of workspaces", 10, workspaces),
    Family("desktop_icons", "xfdesktop", "hide default icons of the desktop", 12, desktop_icons),
    Family("window_theme", "xfwm4", "set theme and alignment of title bars", 15, window_theme, held_out=True),
    Family(
        "default_application", "xfce4-mime-settings", "set which program opens a kind of file", 15, default_application
    ),
)
