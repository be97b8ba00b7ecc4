"""Takes the pictures of a report for the README, in light and dark mode: `python -m docs.picture REPORT.html`.

`make picture` makes the report first. A headless Chromium is needed (Debian: chromium-headless-shell or chromium).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SCHEMES = {"light": 1, "dark": 0}  # Blink's numbers for the preferred color scheme
SIZE = (1000, 864)  # pixels: down to where a row of figures ends
PATIENCE = 60  # seconds


def picture_of(scheme: str) -> Path:
    """Return the path of the picture in a color scheme."""
    return FOLDER / f"report-{scheme}.png"


def command(browser: str, report: Path, scheme: str, target: Path) -> list[str]:
    """Return the command that takes a picture of the top of a page; a trusted local page needs no sandbox."""
    return [
        browser,
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        f"--window-size={SIZE[0]},{SIZE[1]}",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        f"--screenshot={target}",
        report.resolve().as_uri(),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Take the picture of a report in each colour scheme."""
    parser = argparse.ArgumentParser(prog="docs.picture", description="Take the pictures of a report.")
    parser.add_argument("report", type=Path, help="the report.html of an artifact")
    report: Path = parser.parse_args(arguments).report
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None or not report.is_file():
        parser.error(f"there is no file {report}" if browser else f"there is no browser: install one of {BROWSERS}")
    for scheme in SCHEMES:
        target = picture_of(scheme)
        taken = command(browser, report, scheme, target)
        subprocess.run(taken, check=True, capture_output=True, timeout=PATIENCE)  # noqa: S603
        print(target)


if __name__ == "__main__":
    main()
