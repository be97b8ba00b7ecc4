"""Each Triton kernel that a program launches is a line of the trace; kernels within operations are recorded too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import triton_op, wrap_triton

import thunder_core as thunder
from thunder_core.tracing.capture.torch_facts.triton_writes import only_read
from thunder_core.tracing.library import triton_kernels
from thunder_core.tracing.library.triton_kernels import grid_for, grids_of

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

X = torch.linspace(-1.0, 1.0, 10)
SCALE = {"by": 2}


@triton.jit
def add_kernel(x, y, out, scale, size, BLOCK: tl.constexpr):
    """Triton kernels name their compile-time constants in capitals."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    places = y + offsets
    total = tl.load(x + offsets, mask=inside) + tl.load(places, mask=inside) * scale
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def double_kernel(x, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets) * 2)


@triton.jit
def fill_kernel(out, size, BLOCK: tl.constexpr = 4):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, offsets.to(tl.float32), mask=offsets < size)


# Without a GPU, an autotuner cannot choose between several configurations.
tuned_kernel = triton.autotune([triton.Config({"BLOCK": 16})], key=["size"])(add_kernel)
sized_kernel = triton.heuristics({"BLOCK": lambda given: 2 * SCALE["by"]})(add_kernel)
# A heuristic reads the number of warps of the autotuner's configuration.
filled_by_warps = triton.heuristics({"BLOCK": lambda given: 2 * given["num_warps"]})(fill_kernel)
tuned_by_warps = triton.autotune([triton.Config({}, num_warps=4)], key=["size"])(filled_by_warps)


def added(x: Tensor, y: Tensor, scale: int = 1) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 4),)](x, y, out, scale, x.numel(), BLOCK=4)
    return out


def added_by_grid(kernel: Any, x: Tensor, y: Tensor, **numbers: int) -> Tensor:
    """The grid reads the numbers of the kernel's configuration."""
    out, size = torch.empty_like(x), x.numel()
    kernel[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, y, out, 1, size, **numbers)
    return out


def filled_by_grid(kernel: Any, x: Tensor) -> Tensor:
    """The grid reads a number that the call does not pass."""
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(meta["size"], meta["BLOCK"]),)](out, x.numel())
    return out + x


def doubled_in_place(x: Tensor) -> Tensor:
    copy = x[:8].clone()
    half = copy.view(2, 4)[1]
    double_kernel[(1,)](half, BLOCK=4)
    return copy * 2


@triton_op("thunder_tests::triton_added", mutates_args={})
def operator_added(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrap_triton(add_kernel)[(3,)](x, y, out, 1, x.numel(), BLOCK=4)
    return out


operator_added.register_autograd(lambda ctx, gradient: (gradient, gradient * 1))


class Added(torch.autograd.Function):
    """Kernels in the forward and in the backward, as in libraries of training kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return added(x, y, 3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return gradient, added(gradient * x, gradient, 2)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "launch": lambda x: added(x.sin(), x) + 1,
    "grid of a configuration": lambda x: added_by_grid(add_kernel, x, x.cos(), BLOCK=8),
    "autotuned": lambda x: added_by_grid(tuned_kernel, x, x.cos()),
    "heuristics": lambda x: added_by_grid(sized_kernel, x, x.cos()),
    "default of a parameter": lambda x: filled_by_grid(fill_kernel, x),
    "heuristics by the configuration": lambda x: filled_by_grid(tuned_by_warps, x),
    "view of what is written": doubled_in_place,
    "wrapped": lambda x: (out := torch.zeros_like(x), wrap_triton(add_kernel)[(3,)](x, x, out, 1, 10, BLOCK=4))[0],
    "operator": lambda x: operator_added(x, x * 2).sin(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_match_eager(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name])
    for x in (X, X + 1):
        torch.testing.assert_close(compiled(x), PROGRAMS[name](x), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize(
    "program", [lambda x: Added.apply(x, x * 2), PROGRAMS["operator"]], ids=["function", "operator"]
)
def test_gradients_come_from_the_kernels(program: Callable[[Tensor], Tensor]) -> None:
    gradients = []
    for run in (program, compiled := thunder.jit(program)):
        x = X.clone().requires_grad_()
        gradients.append(torch.autograd.grad(run(x).sin().sum(), x)[0])
    torch.testing.assert_close(*gradients)
    assert thunder.last_backward_reason(compiled) == ""


def test_launch_is_one_line_that_writes_to_the_kernels_outputs() -> None:
    compiled = thunder.jit(added)
    compiled(X, X + 1)
    (line,) = [bsym for bsym in thunder.last_traces(compiled)[0].bound_symbols if bsym.symbol.name.endswith(".launch")]
    assert [proxy.name for proxy in line.inputs] == ["x", "y", *line.mutates]
    assert only_read(add_kernel) == {"x", "y"}
    assert "x" not in only_read(double_kernel)


def test_grid_is_computed_for_the_configuration_that_an_autotuner_chooses() -> None:
    configurations = [triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 16})]
    kernel = triton.autotune(configurations, key=["size"])(add_kernel)
    grids = grids_of(kernel, lambda meta: (triton.cdiv(meta["size"], meta["BLOCK"]),), (X, X, X, 1, 10), {}, called)
    assert grids == [({"BLOCK": 4}, (3,)), ({"BLOCK": 16}, (1,))]
    assert grid_for(grids, {"BLOCK": 16, "size": 10}) == (1,)
    with pytest.raises(thunder.errors.OperationFailed, match="chose a configuration"):
        grid_for(grids, {"BLOCK": 8, "size": 10})


def test_grids_differ_with_the_heuristics_of_a_configuration() -> None:
    kernel = triton.autotune([triton.Config({}, num_warps=2), triton.Config({}, num_warps=4)], key=[])(filled_by_warps)
    grids = grids_of(kernel, lambda meta: (10 * meta["BLOCK"] + len(meta),), (X, 10), {"num_ctas": 1}, called)
    assert grids == [({"BLOCK": 4}, (43,)), ({"BLOCK": 8}, (83,))]


def called(function: Callable[..., Any], meta: dict[str, Any]) -> Any:
    return function(meta)


def test_an_input_is_written_to_as_in_eager() -> None:
    x = X[:4].clone()
    thunder.jit(lambda x: double_kernel[(1,)](x, BLOCK=4))(x)
    torch.testing.assert_close(x, X[:4] * 2)


def test_arguments_of_a_launch_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(lambda x: added(x, x, SCALE["by"]))
    for scale in (2, 5):
        monkeypatch.setitem(SCALE, "by", scale)
        torch.testing.assert_close(compiled(X), X + X * scale)
    assert thunder.cache_misses(compiled) == 2


def test_an_artifact_keeps_the_launch(tmp_path: Path) -> None:
    compiled = thunder.jit(added)
    compiled(X, X)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "added.thunder"), added)
    torch.testing.assert_close(loaded(X, X), X * 2)
    assert thunder.cache_misses(loaded) == 0


def test_every_length_has_a_separate_program() -> None:
    """Kernels are launched with integers, so sizes that are kernel arguments are constants."""
    compiled = thunder.jit(added, cache="symbolic values")
    for size in (3, 4, 9):
        x = X[:size]
        torch.testing.assert_close(compiled(x, x), x * 2)
    assert thunder.cache_misses(compiled) == 3


def test_tracing_again_stores_no_second_launch() -> None:
    def count_after_trace(scale: int) -> int:
        torch.testing.assert_close(thunder.jit(added)(X, X, scale), added(X, X, scale), rtol=0, atol=0)
        return len(triton_kernels._launches)

    counts = [count_after_trace(scale) for scale in (7, 7, 8)]
    assert counts[0] == counts[1] < counts[2]
