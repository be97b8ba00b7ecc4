"""The watch that checks whether each tensor has the layout that was derived for its line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from tests.layouts.unfaithful import UnfaithfulMode
from thunder_core.compilation.compiler import last_program
from thunder_core.foundation.errors import Bug
from thunder_core.passes.recipe import Tolerance
from thunder_core.tracing.capture.fakes import fake
from thunder_core.tracing.ir.proxy import tensor_proxy
from thunder_core.workflow.validation.comparison import ValidationSettings, validate
from thunder_core.workflow.validation.layouts import LayoutWatch, check_layouts, differs


class Viewing(torch.nn.Module):
    """A module that computes a view whose strides PyTorch's metadata functions report wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).permute(0, 2, 1).view(1, 8, 4, 4).exp()


def compiled_wrongly(monkeypatch: pytest.MonkeyPatch, module: torch.nn.Module) -> torch.nn.Module:
    monkeypatch.setattr(fake, "FaithfulMode", UnfaithfulMode)
    compiled: torch.nn.Module = thunder.jit(module)
    compiled(torch.randn(1, 16, 8))
    return compiled


def test_a_mismatch_names_the_line_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiled_wrongly(monkeypatch, Viewing())
    x = torch.randn(1, 16, 8)
    with check_layouts() as watch:
        compiled(x).sum().backward()
    assert str(watch.mismatches[0]).startswith("`t2 = t1.view(1, 8, 4, 4)`")
    assert "strides [8, 1, 32, 8]; traced as torch.float32 of shape [1, 8, 4, 4] and strides [128, 1, 32, 8]" in str(
        watch.mismatches[0]
    )
    assert watch.mismatches[0].source is not None
    found = len(watch.mismatches)
    compiled(x).sum().backward()
    assert len(watch.mismatches) == found


def test_programs_run_as_before_when_the_watch_ends() -> None:
    compiled = thunder.jit(lambda x: x.sin().cos())
    x = torch.randn(3, requires_grad=True)
    code = thunder.jit(lambda x: x)
    wanted = compiled(x)
    with check_layouts() as watch, pytest.raises(Bug), check_layouts():
        pass
    with check_layouts() as watch:
        torch.testing.assert_close(compiled(x), wanted)
        code(x)
    compiled(x).sum().backward()
    assert watch.mismatches == []


def test_differing_strides_and_metadata_are_noticed() -> None:
    proxy = tensor_proxy("x", torch.empty(1, 8, 4, 4))
    assert not differs(torch.empty(1, 8, 4, 4), proxy)
    assert not differs(torch.empty_strided((1, 8, 4, 4), (7, 16, 4, 1)), proxy)
    assert differs(torch.empty(1, 8, 4, 4, memory_format=torch.channels_last), proxy)
    assert differs(torch.empty(1, 8, 4, 4, dtype=torch.float64), proxy)
    assert differs(torch.empty(1, 8, 4, 3), proxy)
    last = tensor_proxy("x", torch.empty(1, 8, 4, 4, memory_format=torch.channels_last))
    assert differs(torch.empty_strided((1, 8, 4, 4), (8, 1, 32, 8)), last)  # not channels last for any kernel
    assert not differs(torch.empty(0, 3), tensor_proxy("x", torch.empty(3, 0).t()))


def test_validation_notes_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Viewing()
    tolerance = Tolerance(times_eager=1.5, floor=1e-6, kl=1.0, top1=0.0)
    inputs = [{"x": torch.randn(1, 16, 8)}]
    wrong = validate(
        compiled_wrongly(monkeypatch, module), module, inputs, tolerance, ValidationSettings(language_model=False)
    )
    assert any("the layout of a tensor differs" in note and "view(1, 8, 4, 4)" in note for note in wrong.notes)
    monkeypatch.undo()
    assert not any(
        "laid out" in n
        for n in validate(
            thunder.jit(module), module, inputs, tolerance, ValidationSettings(language_model=False)
        ).notes
    )


def test_symbolic_sizes_are_checked_against_the_call_and_stay_symbolic() -> None:
    def joined(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], 1).transpose(0, 1).contiguous() * 2

    compiled = thunder.jit(joined, cache="symbolic values")
    with check_layouts() as watch:
        for shape in ((2, 3), (4, 5), (7, 2)):
            compiled(torch.ones(shape))
    assert not watch.mismatches
    assert thunder.cache_misses(compiled) == 1
    trace = thunder.last_traces(compiled)[-1]
    assert "f32[s0, s1]" in str(trace), "a symbol has become a constant"


def test_a_symbolic_size_that_differs_from_the_derived_one_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(lambda x: torch.ops.aten.add(x, 1) * 2, cache="symbolic values")
    compiled(torch.ones(2, 3))
    watch = LayoutWatch()
    watch.with_checks(last_program(compiled).last("computation"))
    watch.check(0, torch.ones(4, 5))
    assert not watch.mismatches
    watch.check(1, torch.ones(4, 6))
    assert "shape [4, 6]" in str(watch.mismatches[0])
