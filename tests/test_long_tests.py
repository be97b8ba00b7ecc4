"""tests/long.txt names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import LONG


def test_each_long_test_is_defined() -> None:
    sources: dict[str, str] = {}
    for name in LONG.read_text().splitlines():
        file, *_, function = name.partition("[")[0].split("::")
        text = sources.setdefault(file, (LONG.parent.parent / Path(file)).read_text())
        assert re.search(rf"^ *def {function}\(", text, re.MULTILINE), name
