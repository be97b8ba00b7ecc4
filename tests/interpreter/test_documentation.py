"""The example on the page docs/interpreter.md is the file that runs here."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).with_name("observing.py")


def test_example_equals_the_page():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "interpreter.md").read_text()
    assert EXAMPLE.read_text() in page
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=True
    )
    assert done.stdout in page
    assert done.stdout == "100\n['abs', 'SCALE']\n"
