"""The API reference names every public name by its defining module."""

from __future__ import annotations

import importlib
import re

import thunder_core as thunder
from tests.readme import ROOT

PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference():
    listed = re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE)
    public = (getattr(thunder, name) for name in thunder.__all__ if name != "__version__")
    defined = ((importlib.import_module(named.__module__), named) for named in public)
    assert sorted(listed) == sorted(f"{module.__name__}.{named.__qualname__}" for module, named in defined)
