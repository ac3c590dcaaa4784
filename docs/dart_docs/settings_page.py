"""The page of every `DART_...` environment variable.

Role: the farm's settings from their model, and the variables that other programs read. Rule: a test compares the names with those in the
code. Non-goals: settings of a recipe (`recipe_page`).
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_docs.fields import field_rows
from dart_docs.markdown import code, table
from dart_server.settings import FarmSettings

PREFIX = "DART_"
CLIENT_VARIABLES: Mapping[str, str] = {
    "DART_FARM_URL": "The farm that clients, environments and `dart-farm` talk to: `http://HOST:PORT`, "
    "`https://HOST:PORT` or `unix:/PATH`. "
    "Without it clients use, and start where needed, the embedded farm of this user.",
    "DART_API_KEY": "The API key that clients send. Without it the key file of the embedded farm is read.",
    "DART_SCORER": "Which implementation of getters and metrics evaluates a task that names none: `auto` "
    "(default), `builtin` or `osworld`.",
    "DART_SCORER_DIR": "Folder of the environment with OSWorld's own evaluators that `dart-envs scorer install` makes.",
    "DART_ASSETS_DIR": "Folder of downloaded task files; see [Tasks](../tasks.md#files-from-the-internet).",
    "DART_SCORER_WORKERS": "How many processes of OSWorld's own evaluators run at a time, from 1 to 64.",
    "DART_SCORER_ALLOW_CODE": "Set to 1, metrics of OSWorld that run a program of the policy on this machine are allowed.",
    "DART_ASSET_MAX_BYTES": "The largest file that is downloaded, in bytes; 4 GiB by default.",
    "DART_OFFLINE": "Set to 1, nothing is downloaded: a file that is not in the assets folder is an error.",
    "DART_AGENT_API_KEY": "The key that `dart-agent serve` demands of its clients, and that an endpoint policy sends.",
}
"""Variables that clients and command-line programs read."""
GUEST_VARIABLES: Mapping[str, str] = {
    "DART_RESOLUTION": "Width and height of the screen, `WIDTHxHEIGHT` in pixels.",
    "DART_FONT_SIZE": "Font size of the desktop.",
    "DART_PORT": "TCP port of the guest agent where the desktop is a virtual machine.",
    "DART_PROXY_PORT": "Port of the egress proxy on the desktop's loopback.",
    "DART_GUEST_ALLOW_LOCAL": "For tests of the guest agent: it serves without a desktop.",
}
"""Variables inside a desktop, set by the provider that makes it."""


DEVELOPMENT_VARIABLES: Mapping[str, str] = {
    "DART_REQUIRE_LIVE": "Tests: set to 1, a test that this host cannot run fails instead of being skipped.",
    "DART_TEST_RERUNS": "Tests: how often a failed test is run again by itself.",
    "DART_TEST_POSTGRES_URL": "Tests: the PostgreSQL server to use; `make test-postgres` starts one and sets it.",
    "DART_BROWSER": "Browser tests: the Chromium to use.",
    "DART_BROWSER_DRIVER": "Browser tests: its driver.",
}
"""Variables of the tests and of development scripts."""


def variable_names() -> set[str]:
    """Every documented variable."""
    return {*_farm_variables(), *CLIENT_VARIABLES, *GUEST_VARIABLES, *DEVELOPMENT_VARIABLES}


def _farm_variables() -> list[str]:
    return [f"{PREFIX}{name.upper()}" for name in FarmSettings.model_fields]


def settings_page() -> str:
    """Render the page."""
    farm = [
        (
            code(name),
            row.type,
            code(row.default) if row.default != "see meaning" else "computed",
            row.limits,
            row.meaning,
        )
        for name, row in zip(_farm_variables(), field_rows(FarmSettings), strict=True)
    ]
    return "".join(
        (
            "# Settings\n\n",
            "This page is for people who run a farm or a client. After it you know every environment variable "
            "that DART reads, with its default. "
            "A wrong value is refused with one sentence and exit code 2 before anything starts.\n\n",
            "## The farm\n\n",
            "`dart-farm serve` and the embedded farm read these. Sizes are in bytes, or in MiB where the name "
            "says so. Times are in seconds. "
            "Lists are written in JSON.\n\n",
            table(("variable", "type", "default", "limits", "meaning"), farm),
            "## Clients and commands\n\n",
            table(("variable", "meaning"), ((code(name), text) for name, text in CLIENT_VARIABLES.items())),
            "## Inside a desktop\n\n",
            "The provider sets these when it makes a desktop. You need them only where you write an image recipe.\n\n",
            table(("variable", "meaning"), ((code(name), text) for name, text in GUEST_VARIABLES.items())),
            "## Development\n\n",
            table(("variable", "meaning"), ((code(name), text) for name, text in DEVELOPMENT_VARIABLES.items())),
        )
    )
