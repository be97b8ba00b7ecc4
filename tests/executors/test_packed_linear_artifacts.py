"""An artifact with the packed linear kernel runs without a compiler, on processors that have its instructions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thunder_core as thunder
from tests.executors.kernel_choices import assert_equal_without_compiler
from tests.executors.packed_layers import EXECUTORS, KERNEL, Layer, claimed_in
from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.workflow.artifact.format import compatibility
from thunder_executors.packed_linear import EXECUTOR

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason=str(EXECUTOR.missing()))
IMPORTS = "from tests.executors.packed_layers import Layer"


def test_an_artifact_runs_in_a_process_without_compiler_or_cache(tmp_path):
    compiled = thunder.jit(Layer(), executors=EXECUTORS)
    assert_equal_without_compiler(compiled, torch.randn(20, 48), IMPORTS, "Layer()", tmp_path)


def test_an_artifact_is_refused_by_a_processor_that_lacks_its_instructions(tmp_path, monkeypatch):
    layer, x = Layer(), torch.randn(20, 48)
    compiled = thunder.jit(layer, executors=EXECUTORS)
    with torch.no_grad():
        compiled(x)
    thunder.save(compiled, tmp_path / "artifact")
    monkeypatch.setattr(compatibility, "instruction_sets", lambda: frozenset({"sse4_2"}))
    with pytest.raises(ArtifactForeign, match="avx2"):
        thunder.load(tmp_path / "artifact", layer)


def test_the_executor_is_missing_if_the_processor_lacks_avx2(monkeypatch):
    monkeypatch.setattr("thunder_executors.packed_linear.claims.missing_processor", lambda: "the kernel needs AVX2")
    assert KERNEL.missing() == "the kernel needs AVX2"
    compiled = thunder.jit(Layer(), executors=EXECUTORS)
    with torch.no_grad():
        compiled(torch.randn(20, 48))
    assert claimed_in(compiled) == []


def test_an_artifact_in_bfloat16_runs_in_a_process_without_compiler_or_cache(tmp_path):
    compiled = thunder.jit(nn.Sequential(Layer().bfloat16(), nn.Identity()), executors=EXECUTORS)
    module = "torch.nn.Sequential(Layer().bfloat16(), torch.nn.Identity())"
    assert_equal_without_compiler(compiled, torch.randn(20, 48).bfloat16(), IMPORTS, module, tmp_path)
