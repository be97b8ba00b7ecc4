"""A release of PyTorch that was never tested is refused at the first use, unless the user allows it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import TorchNotTested
from thunder_core.foundation.tested_versions import ALLOW, TESTED, is_tested, release_of, require_tested_torch

NEWER = "2.16.0+cpu"
OLDER = "2.10.2"
X = torch.arange(3.0)


def use_jit(folder: Any) -> None:
    thunder.jit(torch.sin)


def use_compile(folder: Any) -> None:
    thunder.compile(torch.nn.Linear(1, 1))


def use_load(folder: Any) -> None:
    thunder.load(folder)


def use_thunderfx(folder: Any) -> None:
    thunder.thunderfx(torch.sin)


def use_grad(folder: Any) -> None:
    thunder.grad(lambda x: x.sum())(X)


USES = {use.__name__: use for use in (use_jit, use_compile, use_load, use_thunderfx, use_grad)}


@pytest.mark.parametrize("version", [NEWER, OLDER, "3.0.0", "2.16.0a0+git1234567", "2.17.0.dev20261101+cu130"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_first_use_of_an_untested_release_is_refused(use, version, monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.delenv(ALLOW, raising=False)
    with pytest.raises(TorchNotTested, match=f"never with PyTorch {version.replace('+', '[+]')}") as caught:
        use(tmp_path)
    assert ALLOW in caught.value.fix


@pytest.mark.parametrize(("value", "is_refused"), [("1", False), ("true", False), ("0", True), ("", True)])
def test_the_environment_variable_allows_an_untested_release(value, is_refused, monkeypatch):
    monkeypatch.setattr(torch, "__version__", NEWER)
    monkeypatch.setenv(ALLOW, value)
    if is_refused:
        with pytest.raises(TorchNotTested):
            thunder.jit(torch.sin)
    else:
        torch.testing.assert_close(thunder.jit(torch.sin)(X), X.sin())


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.14.1", "2.15.0", "2.15.9+cu132", "2.14.0a0+git12"])
def test_tested_releases_are_accepted(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.delenv(ALLOW, raising=False)
    require_tested_torch()


def test_the_installed_release_is_tested():
    assert is_tested("torch", torch.__version__)


@pytest.mark.parametrize(
    ("version", "release"), [("2.14.1+cpu", (2, 14)), ("3.0", (3, 0)), ("2.9.0", (2, 9)), ("unknown", None)]
)
def test_release_is_read_from_a_version(version, release):
    assert release_of(version) == release


def test_releases_are_compared_as_numbers():
    assert not is_tested("torch", "2.9.0")
    assert not is_tested("torch", "2.100.0")
    assert not is_tested("torch", "unknown")
    assert TESTED["torch"].oldest < TESTED["torch"].newest


def test_import_that_fails_on_an_untested_release_names_the_release(monkeypatch):
    def fail(name: str, *rest: Any) -> ModuleType:
        if name == "thunder_core.compilation.dynamo":
            raise AttributeError("module 'torch' has no attribute '_renamed'")
        return import_module(name, *rest)

    import_module = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", fail)
    monkeypatch.delitem(vars(thunder), "thunderfx", raising=False)
    with pytest.raises(AttributeError, match="_renamed"):
        thunder.thunderfx
    monkeypatch.setattr(torch, "__version__", NEWER)
    with pytest.raises(TorchNotTested) as caught:
        thunder.thunderfx
    assert "_renamed" in str(caught.value.__context__)
    monkeypatch.setenv(ALLOW, "1")
    with pytest.raises(AttributeError, match="_renamed"):
        thunder.thunderfx


def test_importing_the_package_reads_no_versions():
    told = "import sys, thunder_core; print([n for n in ('torch', 'importlib.metadata') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
