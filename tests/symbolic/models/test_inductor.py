"""Inductor compiles regions with symbolic sizes once; the kernels serve all sizes and match eager."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from tests.processes import run_python
from tests.symbolic.sizes.test_sizes import assert_same
from thunder_core.backend.claiming.claim import claims_by_executor
from thunder_core.backend.fusion.conditions import find_unmet_at_hints
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.partition import partition_into_regions
from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.inductor import EXECUTOR
from thunder_executors.inductor.build import build

EXECUTORS = ("inductor", "torch")
SHAPES = ((3, 5), (1, 1), (4, 7), (2, 1), (1, 64))


def chain(x: torch.Tensor, weight: torch.Tensor) -> Any:
    hidden = (x @ weight).relu() * 2 + x.shape[1]
    turned = (x.transpose(1, 2) * 2).contiguous().view(x.shape[0], -1) + torch.arange(x.shape[1] * 8)
    return hidden.softmax(-1), hidden.sum(0) + 1, turned


def slices(x: torch.Tensor, weight: torch.Tensor) -> Any:
    half = x.shape[1] // 2
    return torch.cat([x[:, half:] * 2, x[:, :half] + 1], 1).exp(), functional.pad(x.exp() + weight[0, 0], (0, 0, 1, 2))


def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = functional.gelu(x @ weight) * 2 + 1
    return (functional.layer_norm(hidden, (16,)).softmax(1).square() * x.shape[0]).mean()


def not_inductors(trace: Trace) -> list[str]:
    """Return the operations of a trace that Inductor does not run, except for deletions and unpacking."""
    return [bsym.symbol.name for bsym in trace.bound_symbols if bsym.executor not in ("inductor", "")]


def kernels() -> int:
    """Return the number of regions in the cache."""
    return len(list(Path(os.environ["THUNDER_CACHE_DIR"], "kernels", "entries").glob("*")))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("function", [chain, slices])
def test_all_sizes_share_one_compiled_region(function: Any, own_cache: None) -> None:
    compiled = thunder.jit(function, cache="symbolic values", executors=EXECUTORS)
    weight, counts = torch.randn(8, 16), []
    with torch.no_grad():
        for shape in SHAPES:
            x = torch.randn(*shape, 8)
            assert_same(function(x, weight), compiled(x, weight))
            counts.append(kernels())
    assert thunder.cache_misses(compiled) <= 2
    assert not_inductors(thunder.last_traces(compiled)[-1]) == []
    assert counts[0] == 1
    assert counts[-1] <= thunder.cache_misses(compiled)


def test_gradients_are_compiled_for_all_sizes(own_cache: None) -> None:
    compiled = thunder.jit(loss, cache="symbolic values", executors=EXECUTORS)
    weight = torch.randn(8, 16, requires_grad=True)
    for shape in SHAPES:
        x = torch.randn(*shape, 8)
        (found,) = torch.autograd.grad(compiled(x, weight), weight)
        (expected,) = torch.autograd.grad(loss(x, weight), weight)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert thunder.cache_misses(compiled) <= 2
    assert not thunder.last_backward_reason(compiled)
    assert not_inductors(thunder.last_backward_traces(compiled)[-1]) == []
    assert kernels() <= 2 * thunder.cache_misses(compiled)


def llama() -> LlamaForCausalLM:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 100}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))


def tokens(batch: int, length: int) -> dict[str, Any]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, : length // 3] = 0
    return {"input_ids": torch.randint(0, 100, (batch, length)), "attention_mask": mask, "use_cache": False}


@torch.no_grad()
def test_a_llama_is_compiled_for_all_lengths_and_batches() -> None:
    model = llama().eval()
    compiled = thunder.jit(model, cache="symbolic values", executors=EXECUTORS)
    for batch, length in ((3, 20), (2, 33), (4, 7), (1, 64), (1, 1), (2, 1)):
        given = tokens(batch, length)
        torch.testing.assert_close(compiled(**given).logits, model(**given).logits, rtol=1e-4, atol=1e-5)
        if length > 1:
            assert thunder.cache_misses(compiled) == 1
            assert not_inductors(thunder.last_traces(compiled)[-1]) == []
    assert thunder.cache_misses(compiled) <= 3  # the model branches on a length of one


def test_a_llama_is_trained_at_all_lengths_and_batches() -> None:
    model = llama()
    compiled = thunder.jit(model, cache="symbolic values", executors=EXECUTORS)
    for batch, length in ((3, 20), (1, 33), (4, 7), (2, 2)):
        given = tokens(batch, length)
        gradients = []
        for run in (model, compiled):
            found = run(**given, labels=given["input_ids"]).loss
            gradients.append([found.detach(), *torch.autograd.grad(found, list(model.parameters()))])
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
        assert thunder.cache_misses(compiled) == 1
    for trace in (thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]):
        assert trace.refused == ()  # PyTorch only runs single operations between regions
        counts = claims_by_executor(trace)
        assert counts["inductor"] > 2 * counts.get("torch", 0)


def test_tensors_without_elements_are_not_passed_to_kernels() -> None:
    """The maximum of no elements is an error in eager, and would be an arbitrary value in a kernel."""

    def greatest(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).amax(1) + 1

    compiled = thunder.jit(greatest, cache="symbolic values", executors=EXECUTORS)
    assert_same(greatest(torch.ones(3, 5)), compiled(torch.ones(3, 5)))
    assert_same(greatest(torch.ones(0, 5)), compiled(torch.ones(0, 5)))
    with pytest.raises(IndexError):
        compiled(torch.ones(2, 0))
    assert_same(greatest(torch.ones(1, 2)), compiled(torch.ones(1, 2)))


def region_of(function: Any, *args: Any) -> Region:
    """Return the first region of a program with symbolic sizes."""
    compiled = thunder.jit(function, cache="symbolic values", executors=("torch",))
    compiled(*args)
    trace = next(trace for trace in thunder.last_traces(compiled) if trace.made_by.startswith("drop"))
    return partition_into_regions(trace, EXECUTOR.fuses, updates=EXECUTOR.updates).occurrences[0][1].region


def test_equal_regions_have_one_digest_for_any_names_of_symbols() -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * x.shape[1] + 1

    def other(n: int, x: torch.Tensor) -> torch.Tensor:
        return x.exp() * x.shape[1] + 1 if n > 2 else x

    def another(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * x.shape[0] + 1

    first, second = region_of(one, torch.ones(3, 4)), region_of(other, 7, torch.ones(6, 5))
    assert first.digest == second.digest
    assert first.digest != region_of(another, torch.ones(3, 4)).digest
    assert "2: size" not in first.text
    assert "0x" not in first.text


def test_unmet_conditions_on_the_symbols_of_a_region_are_reported() -> None:
    region = region_of(lambda x: x.exp() * 2 + 1, torch.ones(3, 4))
    (code,) = build([region])
    assert isinstance(code, MachineCode)
    assert code.conditions == ()
    assert find_unmet_at_hints(("s0 == 3", "s0*s1 >= s1"), region.symbols) == ""
    assert find_unmet_at_hints(("s0 == 3", "s1 % 3 == 0"), region.symbols) == "s1 % 3 == 0"


HEAD = torch.randn(16, 8)


def last_position(x: torch.Tensor) -> torch.Tensor:
    heads = x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2).exp() * 2
    return heads.transpose(1, 2).reshape(x.shape)[:, -1:] @ HEAD.t()


def test_last_position_is_computed_for_a_batch_and_a_length_of_one() -> None:
    (code,) = build([region_of(last_position, torch.randn(3, 5, 8))])
    assert isinstance(code, MachineCode)
    assert code.conditions == ()
    run = code.function("last_position")
    for batch, length in ((3, 5), (1, 5), (4, 1), (1, 1)):
        x = torch.randn(batch, length, 8)
        torch.testing.assert_close(run([x, HEAD, batch, length]), last_position(x))


def test_an_artifact_serves_other_lengths_without_a_compiler(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, torch, thunder_core as thunder

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.linear = torch.nn.Linear(8, 8)

            def forward(self, x):
                return (torch.nn.functional.silu(self.linear(x)) * 2.0 + x.shape[1]).softmax(1)

        model = Model()
        sys.modules["models"] = sys.modules["__main__"]
        Model.__module__ = "models"
        torch.set_grad_enabled(False)
        if sys.argv[1] == "save":
            compiled = thunder.jit(model, executors=("inductor", "torch"), cache="symbolic values")
            compiled(torch.ones(2, 3, 8))
            thunder.save(compiled, sys.argv[2])
        else:
            compiled = thunder.load(sys.argv[2], model, strict=True)
            for shape in ((2, 3), (1, 64), (5, 1)):
                x = torch.randn(*shape, 8)
                torch.testing.assert_close(compiled(x), model(x))
            assert thunder.cache_misses(compiled) == 0
            assert "region_0" in str(thunder.last_traces(compiled)[-1])
            assert "torch._inductor.compile_fx" not in sys.modules
        """
    )
    (tmp_path / "run.py").write_text(script)
    saved = run_python(tmp_path / "run.py", "save", tmp_path / "artifact")
    assert saved.returncode == 0, saved.stderr
    without = {**os.environ, "CXX": "/bin/false", "THUNDER_CACHE_DIR": str(tmp_path / "empty")}
    message = run_python(tmp_path / "run.py", "load", tmp_path / "artifact", env=without)
    assert message.returncode == 0, message.stderr


def test_float_and_computed_size_have_separate_names() -> None:
    def program(x: torch.Tensor, number: float) -> Any:
        return x + number, x.transpose(0, 1).reshape(-1) * 2

    compiled = thunder.jit(program, executors=EXECUTORS, cache="symbolic values")
    with torch.no_grad():
        for shape, number in (((8, 8), 5.0), ((2, 3), -1.5)):
            x = torch.randn(shape)
            assert_same(compiled(x, number), program(x, number))
    assert "region_0" in str(thunder.last_traces(compiled)[-1])
    assert thunder.cache_misses(compiled) == 1
