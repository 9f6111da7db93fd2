# SPDX-License-Identifier: BSD-3-Clause
"""The documentation's site: `make site` builds it into build/site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

project = "torch-outboard"
author = copyright = "torch-outboard contributors"
version = release = re.findall(r'__version__ = "(.+)"', (ROOT / "torch_outboard" / "_version.py").read_text())[0]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"torch-outboard {version}"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
# Quotes of the sources leave lines out, by "…", which no language allows.
suppress_warnings = ["misc.highlighting_failure"]
# Where the sources are, such as https://example.com/torch-outboard/tree/main. Without it, links to sources are text.
SOURCES = os.environ.get("OUTBOARD_SOURCES", "")

_LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def _without_sources(text: str, folder: Path) -> str:
    """Return a page with the links that leave the site led to the sources; links to nothing stay, and warn."""

    def lead(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if not target.exists() or target.is_relative_to(ROOT / "docs"):
            return match[0]
        path = target.relative_to(ROOT)
        return f"[{match[1]}]({SOURCES}/{path}{match[3] or ''})" if SOURCES else match[1]

    return _LINK.sub(lead, text)


def _read_page(app: Any, page: str, source: list[str]) -> None:
    source[0] = _without_sources(source[0], (ROOT / "docs" / page).parent)
    if page == "index":  # MyST's include cannot lead README's links, which start at its own folder
        readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n")[2]
        source[0] = source[0].replace("README", _without_sources(readme, ROOT).replace("](docs/", "]("), 1)


def setup(app: Any) -> None:
    """Let links to sources lead out of the site."""
    app.connect("source-read", _read_page)
