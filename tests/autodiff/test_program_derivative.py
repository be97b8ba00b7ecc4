"""A compiled program in autograd's graph: each use is run in eager and compiled, and all results are compared."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional

import tests.autodiff.derivative_uses
import tests.autodiff.derivative_views
import tests.autodiff.derivative_writes  # noqa: F401 registers cases
import thunder_core as thunder
from tests.autodiff.derivative_cases import CASES, gated, leaf
from thunder_core.compilation.compiler import last_program
from thunder_core.passes.autodiff.reverse_mode import Differentiated, Underivable

FUSED = ("gradients", "second_derivative", "all_outputs", "returned_views", "random_numbers", "running_statistics")


def compare(name: str, executors: tuple[str, ...]) -> None:
    one = CASES[name]
    compiled = thunder.jit(one.program, executors=executors)
    expected = one.use(one.program)
    for _ in range(2):
        found = one.use(compiled)
        assert len(found) == len(expected)
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            if isinstance(theirs, torch.Tensor):
                assert ours.stride() == theirs.stride(), number
            torch.testing.assert_close(ours, theirs, msg=lambda text, number=number: f"{number}: {text}")


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_match_eager(name):
    compare(name, ("torch",))


@pytest.mark.parametrize("name", FUSED)
def test_results_and_gradients_of_fused_regions_match_eager(name):
    compare(name, ("inductor", "torch"))


OWN = ("gradients", "returned_views", "random_numbers", "running_statistics", "integers")


@pytest.mark.parametrize("name", [*OWN, "of_a_vector", "beside_new_tensors", "beside_values", "new_leaf"])
def test_program_has_a_compiled_backward(name):
    compiled = thunder.jit(CASES[name].program)
    CASES[name].use(compiled)
    assert last_program(compiled).no_backward_reason == ""
    assert thunder.last_backward_traces(compiled)


def test_program_recorded_by_autograd_has_a_reason():
    compiled = thunder.jit(CASES["written_after_it_was_saved"].program)
    CASES["written_after_it_was_saved"].use(compiled)
    assert "add_" in thunder.last_backward_reason(compiled)
    assert thunder.last_backward_traces(compiled) == []


def test_region_names_the_tensors_of_its_gradients():
    compiled = thunder.jit(gated, executors=("inductor", "torch"))
    CASES["gradients"].use(compiled)
    assert re.search(r"\[inductor\]  gradients of [xy], [xy]$", str(thunder.last_backward_traces(compiled)[-1]), re.M)


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")])
def test_gradients_at_once_match_gradients_one_by_one(executors):
    compiled = thunder.jit(lambda x: x.sin().mul(x).exp(), executors=executors)
    x = leaf(4)
    ones = torch.eye(4)
    (found,) = torch.autograd.grad(compiled(x), x, ones, is_grads_batched=True)
    wanted = [torch.autograd.grad(compiled(x), x, item)[0] for item in ones]
    torch.testing.assert_close(found, torch.stack(wanted))
    torch.testing.assert_close(torch.autograd.functional.jacobian(compiled, x, vectorize=True), found)


def test_program_without_a_backward_has_a_reason():
    compiled = thunder.jit(gated)
    compiled(leaf(2).detach(), leaf(2).detach())
    assert thunder.last_backward_reason(compiled) == "nothing that it reads requires a gradient"
    with torch.no_grad():
        compiled(leaf(2), leaf(2))
    assert thunder.last_backward_reason(compiled) == "autograd was off when it was traced"


def test_each_line_of_a_backward_names_the_line_that_it_derives():
    compiled = thunder.jit(gated, executors=("torch",))
    CASES["gradients"].use(compiled)
    first, *_, last = thunder.last_backward_traces(compiled)
    assert all(line.derives is not None for line in first.bound_symbols)
    names = [line.derives.symbol.short_name for line in first.bound_symbols]
    assert list(dict.fromkeys(names)) == ["mul", "exp", "tanh", "silu"]
    text = str(last)
    assert "# ---- backward of gated ----" in text
    assert "# of t0 = torch.nn.functional.silu(x" in text
    assert {"gradient of x", "gradient of y"} <= set(re.findall(r"gradient of [xy]$", text, flags=re.MULTILINE))


def only_whole_backwards(monkeypatch):
    """Refuse each backward for only some of the results; return a list that gets an item for each other backward."""
    derived, whole = Differentiated.backward, []

    def only_whole(self, given, *parts):
        if not all(given):
            raise Underivable("it reads what was not saved")
        whole.append(given)
        return derived(self, given, *parts)

    monkeypatch.setattr(Differentiated, "backward", only_whole)
    return whole


@pytest.mark.parametrize("name", ["unused_outputs", "all_outputs", "some_results_of_one_that_writes"])
def test_missing_backward_for_some_results_falls_back_to_autograd(monkeypatch, name):
    """Autograd records the body again; a body that writes cannot run again, and gets zeros for missing gradients."""
    only_whole_backwards(monkeypatch)
    compare(name, ("torch",))


def counted(x, calls):
    calls.add_(1)
    return x.sin(), x.exp()


def test_backward_with_zeros_for_missing_gradients_is_compiled_once(monkeypatch):
    whole = only_whole_backwards(monkeypatch)
    compiled = thunder.jit(counted)
    for index in range(2):
        x, y = leaf(3), leaf(3)
        compiled(x, torch.zeros(()))[index].sum().backward()
        counted(y, torch.zeros(()))[index].sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert len(whole) == 1


def transcribed(x: torch.Tensor) -> torch.Tensor:
    return functional.ctc_loss(x.log_softmax(-1)[:, None], torch.tensor([[1, 2]]), (6,), (2,))


# Programs that PyTorch differentiates, and that cannot be differentiated without data.
RECORDED = {
    "ctc_loss of lengths in a tuple": (transcribed, "it does not run without data"),
}
SIZED_BY_VALUES = {
    "a mask": lambda x: (x * 2)[x > 0],
    "masked_select": lambda x: (x * 2).masked_select(x > 0),
    "pad": lambda x: functional.pad(x * 2, (0, (x > 0).sum())),
    "repeat_interleave": lambda x: (x * 2).repeat_interleave((x > 0).sum(1), dim=0),
    "interpolate": lambda x: functional.interpolate((x * 2)[None], size=((x > 0).sum(),)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_program_without_a_compiled_backward_is_recorded_with_a_reason(name):
    program, reason = RECORDED[name]
    assert reason in thunder.last_backward_reason(compared(program))


@pytest.mark.parametrize("name", SIZED_BY_VALUES)
def test_program_with_sizes_out_of_tensors_has_a_backward(name):
    assert thunder.last_backward_reason(compared(SIZED_BY_VALUES[name])) == ""


def compared(program):
    compiled, results = thunder.jit(program), []
    for call in (compiled, program):
        x = leaf(6, 4)
        out = call(x)
        out.square().sum().backward()
        results.append((out.detach(), x.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    return compiled
