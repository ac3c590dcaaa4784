"""LibreOffice Impress: its options and its View menu."""

from __future__ import annotations

from dart_envs.osworld_proof.moves import Oracle, click, pause, triple_click, type_text

ORACLES = {
    "2cd43775-7085-45d8-89fa-9e35c0a915cf": Oracle(
        "Options dialog",
        (
            click("menu", "Tools"),
            click("menu item", "Options..."),
            pause(3),
            click("tree item", "Load/Save"),
            click("tree item", "General"),
            pause(1),
            click("check box", "Save AutoRecovery information every:"),
            triple_click("spin button", "Save AutoRecovery information every:", at=(0.3, 0.5)),
            type_text("3\t"),
            click("push button", "OK"),
            pause(3),
        ),
    ),
    "ef9d12bd-bcee-4ba0-a40e-918400f43ddf": Oracle(
        "View menu", (click("menu", "View"), click("check menu item", "Slide Pane"), pause(2))
    ),
}
