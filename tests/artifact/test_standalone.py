"""Standalone programs: the distributions whose versions are compared."""

from __future__ import annotations

import importlib.metadata

import pytest

from thunder_core.artifact.standalone import related

REQUIREMENTS = ["torch>=2", 'kernels ; extra == "device"', 'pytest ; extra == "dev-torch"', 'ruff ; extra == "quality"']


def test_distributions_of_development_extras_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIREMENTS)
    assert related(["library"]) == {"library", "torch", "kernels"}


def test_a_distribution_that_is_not_installed_requires_nothing() -> None:
    assert related(["no-such-distribution"]) == {"no-such-distribution"}
