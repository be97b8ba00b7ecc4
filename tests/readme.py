"""The example of a README as a plug-in in another package, for the tests that run the example."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def package_with_example(
    page: str, package: str, file: str, group: str, place: Path, patch: pytest.MonkeyPatch
) -> ModuleType:
    """A new package in `place` with the page's only Python example in `file`, registered by an entry point."""
    (example,) = blocks(page, "python")
    (place / package).mkdir()
    (place / package / "__init__.py").write_text("")
    (place / package / file).write_text(example, encoding="utf-8")
    points = EntryPoints([EntryPoint("mine", package, group)])
    patch.setattr(importlib.metadata, "entry_points", lambda **chosen: points.select(**chosen))
    patch.syspath_prepend(str(place))
    return importlib.import_module(f"{package}.{Path(file).stem}")
