"""The light and the dark picture of a report, made by a browser that may not be installed."""

from __future__ import annotations

import shutil

import pytest

from docs import picture

PAGE = (
    """<style>body { background: white } @media (prefers-color-scheme: dark) { body { background: black } }</style>"""
)


def test_missing_browser_is_reported_with_suitable_ones(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit):
        picture.main([str(tmp_path / "report.html")])
    assert "chromium-headless-shell" in capsys.readouterr().err


def test_missing_report_is_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(SystemExit):
        picture.main([str(tmp_path / "report.html")])
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.skipif(not any(map(shutil.which, picture.BROWSERS)), reason="needs a headless Chromium")
def test_a_picture_in_each_colour_scheme(monkeypatch, tmp_path):
    (tmp_path / "report.html").write_text(PAGE)
    monkeypatch.setattr(picture, "FOLDER", tmp_path)
    picture.main([str(tmp_path / "report.html")])
    light, dark = ((tmp_path / f"report-{scheme}.png").read_bytes() for scheme in picture.SCHEMES)
    assert light.startswith(b"\x89PNG")
    assert dark.startswith(b"\x89PNG")
    assert light != dark
