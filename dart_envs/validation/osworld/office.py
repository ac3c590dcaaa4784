"""LibreOffice Impress: its options and its View menu."""

from __future__ import annotations

from dart_envs.validation.osworld.actions import (
    Oracle,
    click,
    double_click,
    key,
    pause,
    triple_click,
    type_text,
    wait_for_element,
)

ORACLES = {
    "2cd43775-7085-45d8-89fa-9e35c0a915cf": Oracle(
        "Options dialog",
        (
            # The program asks for a template first.
            click("push button", "Close", window="Select a Template"),
            wait_for_element("menu", "Tools"),
            pause(2),
            key("alt", "f12"),
            pause(3),
            double_click("table cell", "Load/Save"),
            pause(1),
            click("table cell", "General", nth=1),
            pause(1.5),
            # AutoRecovery is on, with 10 minutes. The number's field has no name; it is to the right of the check box.
            triple_click("check box", "Save AutoRecovery information every:", at=(1.0, 0.5), dx=20),
            type_text("3\t"),
            click("push button", "OK"),
            pause(3),
        ),
    ),
    "ef9d12bd-bcee-4ba0-a40e-918400f43ddf": Oracle(
        "View menu", (click("menu", "View"), click("check menu item", "Slide Pane"), pause(2))
    ),
}
