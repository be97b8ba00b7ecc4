"""The API reference names every public name by the module that defines it."""

from __future__ import annotations

import importlib
import re

import thunder_core as thunder
from tests.readme import ROOT

PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference():
    listed = re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE)
    public = (getattr(thunder, name) for name in thunder.__all__ if name != "__version__")
    assert sorted(listed) == sorted(f"{importlib.import_module(one.__module__).__name__}.{one.__qualname__}" for one in public)
