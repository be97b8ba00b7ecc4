"""Every page is linked from the first page and from the site's list, and every link has an existing target."""

from __future__ import annotations

import re

import pytest

from tests.readme import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name != "index.md")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)|(?:src|srcset)=\"([^\"]+)\"")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_linked_from_the_first_and_on_the_site(page):
    assert f"]({page})" in (DOCS / "index.md").read_text(encoding="utf-8")
    assert f": {page}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}" for page in ("index.md", *PAGES))])
def test_links_have_existing_targets(page):
    text = re.sub(r"`[^`\n]+`", "", (ROOT / page).read_text(encoding="utf-8"))  # code may look like a link
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        assert "://" in target or ((ROOT / page).parent / target).exists(), target


def test_the_readme_shows_the_report_in_light_and_dark():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"<picture>.*?</picture>", text, re.DOTALL)
    assert re.findall(r'(?:src|srcset)="(docs/report-\w+\.png)"', picture) == [
        "docs/report-dark.png",
        "docs/report-light.png",
    ]
    assert 'alt="' in picture
    for scheme in ("light", "dark"):
        assert (DOCS / f"report-{scheme}.png").read_bytes().startswith(b"\x89PNG")
