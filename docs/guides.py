"""Puts the guides of the recipes' and the executors' folders on the site: a hook of mkdocs.

Each guide remains the README of its folder. The site has the same text as a page, and links between the guides and the
pages lead to pages of the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
GUIDES = {"writing_recipes.md": "recipes/README.md", "writing_executors.md": "executors/README.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page to the site for each guide."""
    for page, guide in GUIDES.items():
        text = (ROOT / guide).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=re.sub(r"\]\(\.\./docs/", "](", text)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links to a guide's file by links to its page."""
    for page, guide in GUIDES.items():
        markdown = markdown.replace(f"](../{guide})", f"]({page})")
    return markdown
