"""The site builds without a warning, has a search, sections and the guides of other folders, and no source."""

from __future__ import annotations

from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs.guides import GUIDES
from tests.readme import ROOT

SECTIONS = ("Start", "Use", "Concepts", "How it works", "Reference")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site that was built in strict mode."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_site_has_the_guides_of_other_folders(site):
    for page, guide in GUIDES.items():
        title = (ROOT / guide).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert f">{title}</h1>" in (site / page.removesuffix(".md") / "index.html").read_text(encoding="utf-8")


def test_links_to_and_from_guides_stay_on_the_site(site):
    first = (site / "index.html").read_text(encoding="utf-8")
    for page in GUIDES:
        assert f'href="{page.removesuffix(".md")}/"' in first
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert not [page for page in pages if 'README.md"' in page]


def test_site_can_be_searched_and_holds_no_source(site):
    assert "Tutorial" in (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert not [path for path in site.rglob("*") if path.suffix in {".py", ".pyc"} or path.name == "__pycache__"]


def test_site_and_first_page_have_the_same_sections():
    nav = load_config(str(ROOT / "mkdocs.yml")).nav
    assert [title for section in nav for title in section] == list(SECTIONS)
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")] == list(SECTIONS)
