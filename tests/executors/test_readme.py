"""The example executor in executors/README.md works."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.readme import package_with_example
from thunder_core.foundation import plugins


def swish(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x) + torch.nn.functional.silu(x + 1)


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = package_with_example(
        "executors/README.md", "executor_example", "written_out.py", "thunder.executors", tmp_path, monkeypatch
    )
    assert "written-out" in plugins.names("executors")
    assert module.EXECUTOR.claims == "torch.nn.functional.silu"
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    compiled = thunder.jit(swish, executors=["written-out", "torch"])
    torch.testing.assert_close(compiled(x), swish(x))
    claimed = [bsym.executor for bsym in thunder.last_traces(compiled)[-1].bound_symbols if "silu" in bsym.symbol.name]
    assert claimed == ["written-out", "written-out"]
