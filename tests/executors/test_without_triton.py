"""The executors for the CPU work on a machine without Triton, which only kernels for a GPU need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import EnvironmentLacks
from thunder_core.workflow.pipeline.session.executors import candidates, lost_fusion

PROGRAM = """
import sys
sys.modules["triton"] = None  # before torch, which imports it
import json
import torch
import thunder_core as thunder
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import EnvironmentLacks

missing = []
for name in plugins.names("executors"):
    try:
        plugins.load("executors", name)
    except EnvironmentLacks as error:
        missing.append(name)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
x = torch.randn(3, 8)
compiled = thunder.jit(model, executors=["inductor", "torch"])
with torch.no_grad():
    compiled(x)
    thunder.save(compiled, sys.argv[1])
    torch.testing.assert_close(thunder.load(sys.argv[1], model)(x), model(x))
used = {bsym.executor for bsym in thunder.last_traces(compiled)[-1].bound_symbols}
print(json.dumps({"missing": missing, "used": sorted(used)}))
"""


def test_only_kernels_for_a_gpu_need_triton(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "artifact")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert report["missing"] == ["triton"]
    assert "inductor" in report["used"]


def test_recipe_whose_compiler_cannot_be_loaded_is_reported_as_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: plugins.Group, name: str) -> None:
        raise EnvironmentLacks(f"the executor {name!r} cannot be loaded: No module named 'triton'", fix="install it")

    monkeypatch.setattr(plugins, "load", refuse)
    named = candidates(["inductor", "packed-linear"])
    assert [candidate.fuses for candidate in named] == [True, False]
    assert [degradation.reason for degradation in lost_fusion(named)] == [named[0].reason]
