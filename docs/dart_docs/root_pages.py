"""Pages of the site that lie at the root of the repository.

Role: their paths in the site, and their text with links that work there. Rule: a link into `docs/` becomes relative to the site, a link to
a file that is no page becomes its name. Non-goals: changing what they say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT_PAGES: Mapping[str, str] = {
    "project/security.md": "SECURITY.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/changelog.md": "CHANGELOG.md",
}
"""Path in the site: file at the root of the repository."""
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def read_root_page(path: Path) -> str:
    """Read a page of the repository's root for the site.

    Args:
        path: The file.

    Returns:
        Markdown.
    """
    return _LINK.sub(_site_link, path.read_text(encoding="utf-8"))


def _site_link(link: re.Match[str]) -> str:
    text, target = link["text"], link["target"]
    if target.startswith(("https://", "http://", "#")):
        return link[0]
    file, _, anchor = target.partition("#")
    anchor = f"#{anchor}" if anchor else ""
    if file.startswith("docs/") and file.endswith(".md"):
        return f"[{text}](../{file.removeprefix('docs/')}{anchor})"
    page = next((site for site, source in ROOT_PAGES.items() if source == file), None)
    return f"[{text}]({Path(page).name}{anchor})" if page else text
