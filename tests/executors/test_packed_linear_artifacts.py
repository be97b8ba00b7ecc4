"""An artifact with the packed linear kernel runs without a compiler, on processors that have its instructions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import thunder_core as thunder
from tests.executors.kernel_choices import assert_equal_without_compiler
from tests.executors.packed_layers import EXECUTORS, KERNEL, Layer, claimed_in
from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.workflow.artifact.format import compatibility
from thunder_core.workflow.artifact.format.read import read_manifest
from thunder_executors.inductor.building import machine
from thunder_executors.inductor.building.machine import PROCESSORS
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


AVX2 = frozenset(PROCESSORS[1][1])
AVX512 = frozenset(PROCESSORS[0][1])


def saved_with(processor, monkeypatch, folder):
    """Save an artifact that was made on a processor with these instruction sets, and return its manifest's needs."""
    monkeypatch.setattr(machine, "instruction_sets", lambda: processor)
    monkeypatch.setattr(compatibility, "instruction_sets", lambda: processor)
    compiled = thunder.jit(Layer(), executors=EXECUTORS)
    with torch.no_grad():
        compiled(torch.randn(20, 48))
    assert claimed_in(compiled)
    thunder.save(compiled, folder)
    return read_manifest(folder).needs


def test_an_artifact_for_avx2_runs_on_processors_with_avx512(tmp_path, monkeypatch):
    assert saved_with(AVX2, monkeypatch, tmp_path / "artifact") == AVX2
    monkeypatch.setattr(compatibility, "instruction_sets", lambda: AVX512)
    layer, x = Layer(), torch.randn(20, 48)
    with torch.no_grad():
        torch.testing.assert_close(thunder.load(tmp_path / "artifact", layer)(x), layer(x))


def test_a_processor_with_avx512_makes_an_artifact_for_avx2_if_the_environment_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert saved_with(AVX512, monkeypatch, tmp_path / "artifact") == AVX2
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    assert machine.processors()[0] == "x86-64-v4"


def test_an_artifact_for_avx512_says_on_avx2_how_to_make_one_for_both(monkeypatch):
    monkeypatch.setattr(compatibility, "instruction_sets", lambda: AVX2)
    with pytest.raises(ArtifactForeign, match="avx512f") as refused:
        compatibility.require_instructions(SimpleNamespace(needs=AVX512))
    assert "ATEN_CPU_CAPABILITY=avx2" in refused.value.fix
    assert "the other one" not in compatibility.narrower_fix(("avx2", "avx512f"))


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
