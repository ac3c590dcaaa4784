"""MkDocs hook: adds the pages that are generated from the code, and those that lie at the root of the repository.

Role: `on_files` of MkDocs. Rule: a page of the repository's root is taken as it is, with its links to `docs/` made relative. Non-goals:
what the generated pages say (`dart_docs`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from dart_docs.pages import PAGES  # noqa: E402 - found through the line above
from dart_docs.root_pages import ROOT_PAGES, read_root_page  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages.

    Args:
        files: The files that MkDocs found.
        config: The configuration of MkDocs.

    Returns:
        The same files with more of them.
    """
    for path, render in PAGES.items():
        files.append(File.generated(config, path, content=render()))
    for path, source in ROOT_PAGES.items():
        files.append(File.generated(config, path, content=read_root_page(HERE.parent / source)))
    return files
