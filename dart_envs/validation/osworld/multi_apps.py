"""Tasks that OSWorld counts to several applications."""

from __future__ import annotations

from dart_envs.validation.osworld.actions import Oracle, run_shell

ORACLES = {
    "2373b66a-092d-44cb-bfd7-82e86e7a3b4d": Oracle(
        "shell, sar", (run_shell("sar -u 1 30 > ~/Desktop/System_Resources_Report.txt"),)
    ),
    "937087b6-f668-4ba6-9110-60682ee33441": Oracle(
        "shell, xdg-mime",
        (
            run_shell(
                "types=$(grep ^MimeType= /usr/share/applications/vlc.desktop | cut -d= -f2 | tr ';' '\\n' | grep ^video/) &&"
                " xdg-mime default vlc.desktop $types"
            ),
        ),
    ),
}
