"""A compiled function within torch.vmap and derivatives of torch.func outside of the function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional as F

import thunder_core as thunder
from thunder_core.foundation.errors import NotTraceable, OperationFailed, RecompileWarning

# PyTorch compiles its own decompositions at their first use.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

X = torch.tensor([0.5, 1.0, 2.0])
ROWS = torch.outer(X, X)
W = torch.linspace(0.5, 2.0, 3, requires_grad=True)
NETWORK = nn.Linear(3, 2)


def scaled(x: Tensor, w: Tensor | None = None, n: int = 2) -> Tensor:
    return (x * (W if w is None else w)).sin().sum() * n


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "vmap": lambda f: vmap(f)(ROWS),
    "vmap of some": lambda f: vmap(f, in_dims=(1, None))(ROWS, X),
    "vmap of vmap": lambda f: vmap(vmap(f))(torch.stack([ROWS, ROWS * 2])),
    "grad": lambda f: grad(f)(X),
    "grad by a keyword": lambda f: grad(lambda y: f(y * 2, n=3))(X),
    "grad of grad": lambda f: grad(lambda y: grad(f)(y).sin().sum())(X),
    "vmap of grad": lambda f: vmap(grad(f))(ROWS),
    "grad of vmap": lambda f: grad(lambda z: vmap(f)(z).sin().sum())(ROWS),
    "jvp": lambda f: jvp(f, (X,), (X,)),
    "vjp": lambda f: vjp(f, X)[1](torch.tensor(1.0)),
    "jacrev": lambda f: jacrev(f)(X),
    "jacfwd": lambda f: jacfwd(f)(X),
    "hessian": lambda f: hessian(f)(X),
    "gradients of vmap": lambda f: torch.autograd.grad(vmap(f)(ROWS).sum(), W),
    "gradients of grad": lambda f: torch.autograd.grad(grad(f)(X).sum(), W),
}


@pytest.mark.parametrize("known", [False, True], ids=["not called before", "called before"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_compiled_function_under_a_transform_equals_eager(name: str, known: bool) -> None:
    compiled = thunder.jit(scaled)
    if known:
        compiled(X)
    for _ in range(2):
        torch.testing.assert_close(TRANSFORMS[name](compiled), TRANSFORMS[name](scaled))


def test_results_keep_their_structure() -> None:
    def program(x: Tensor) -> Any:
        return {"a": x.sin(), "b": (x, [x > 1])}

    compiled = thunder.jit(program)
    torch.testing.assert_close(vmap(compiled)(ROWS), vmap(program)(ROWS))
    torch.testing.assert_close(grad(lambda x: compiled(x)["a"].sum())(X), X.cos())


def test_a_batch_is_compiled_once() -> None:
    calls: list[int] = []

    def program(x: Tensor) -> Tensor:
        calls.append(1)
        return x.sin()

    compiled = thunder.jit(lambda x: program(x), sharp_edges="allow")
    before = len(calls)
    for _ in range(3):
        vmap(compiled)(ROWS)
    assert len(calls) == before + 3  # the epilogue writes
    (batched,) = compiled._thunder.transformed.values()
    assert (batched.misses, batched.hits) == (1, 2)


def test_function_without_tensors_is_the_same_for_each_element() -> None:
    compiled = thunder.jit(lambda: W * 2)
    torch.testing.assert_close(vmap(lambda x: x + compiled())(ROWS), ROWS + W * 2)
    torch.testing.assert_close(grad(lambda x: (x * compiled()).sum())(X), W * 2)


def test_a_module_is_a_function_of_its_state() -> None:
    """Per-sample gradients of a compiled module whose parameters are passed by `functional_call`."""
    compiled, parameters = thunder.jit(NETWORK), dict(NETWORK.named_parameters())

    def per_sample(network: nn.Module) -> Any:
        return vmap(grad(lambda p, x: functional_call(network, p, (x,)).sin().sum()), (None, 0))(parameters, ROWS)

    for _ in range(2):
        torch.testing.assert_close(per_sample(compiled), per_sample(NETWORK))
    torch.testing.assert_close(vmap(compiled)(ROWS), NETWORK(ROWS))


def dropped(x: Tensor) -> Tensor:
    return nn.functional.dropout(x).sum()


def written(x: Tensor) -> Tensor:
    return x.add_(1).sum()


def test_random_numbers_and_writes_of_batches_are_eagers() -> None:
    results = []
    for function in (thunder.jit(dropped), dropped):
        torch.manual_seed(0)
        results.append(vmap(function, randomness="different")(ROWS))
        with pytest.raises(RuntimeError, match="called random operation while in randomness error mode"):
            vmap(function)(ROWS)
    assert torch.equal(*results)
    rows = ROWS.clone()
    torch.testing.assert_close(vmap(thunder.jit(written))(rows), (ROWS + 1).sum(1))
    assert torch.equal(rows, ROWS + 1)


COUNT: list[int] = []


def counted(x: Tensor) -> Tensor:
    COUNT.append(1)
    return x.sin().sum()


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "random numbers": (lambda: grad(thunder.jit(dropped))(X), NotTraceable, "draws random numbers"),
    "random numbers of no batch": (
        lambda: vmap(lambda x: x + thunder.jit(torch.rand)(3), randomness="different")(ROWS),
        NotTraceable,
        "draws random numbers",
    ),
    "writes": (lambda: grad(lambda y: thunder.jit(written)(y * 2))(X), NotTraceable, "writes to its arguments"),
    "effects": (lambda: grad(thunder.jit(counted))(X), NotTraceable, "writes to objects that are not its arguments"),
    "functionalize": (lambda: torch.func.functionalize(thunder.jit(scaled))(X), NotTraceable, "a transform of torch"),
    "a closure": (
        lambda: grad(lambda w: thunder.jit(lambda x: (x * w).sum())(X))(X),
        OperationFailed,
        "inside a transform of torch.func .* that was called from outside",
    ),
    "an address": (
        lambda: grad(lambda w: thunder.jit(lambda x: (x.data_ptr() > 0) * (x * w).sum())(X))(X),
        OperationFailed,
        "data_ptr",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_function_that_cannot_be_recomputed_is_refused_with_the_line(name: str) -> None:
    run, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message) as caught:
        run()
    assert caught.value.where.filename == __file__  # type: ignore[attr-defined]


def test_a_call_that_runs_in_eager_is_refused_beneath_transforms() -> None:
    factors = {"w": X}
    compiled = thunder.jit(lambda x: (x.data_ptr() > 0) * (x * factors["w"]).sum())

    def of_factor(w: Tensor) -> Tensor:
        factors["w"] = w
        return compiled(X)

    with pytest.warns(RecompileWarning, match="data_ptr"):
        assert torch.equal(compiled(X), (X * X).sum())
    with pytest.raises(OperationFailed, match="data_ptr"):
        grad(of_factor)(X)


def test_vmap_of_a_compiled_function_that_also_returns_numbers() -> None:
    def program(x: torch.Tensor) -> dict[str, Any]:
        return {"doubled": x * 2, "size": x.shape[0], "none": None, "last": [x.sum(), "text"]}

    out_dims = {"doubled": 0, "size": None, "none": None, "last": [0, None]}
    x = torch.arange(6.0).view(3, 2)
    found = torch.vmap(thunder.jit(program), out_dims=out_dims)(x)
    wanted = torch.vmap(program, out_dims=out_dims)(x)
    torch.testing.assert_close(found["doubled"], wanted["doubled"])
    torch.testing.assert_close(found["last"][0], wanted["last"][0])
    assert (found["size"], found["none"], found["last"][1]) == (2, None, "text")
    with pytest.raises(ValueError, match="must only return Tensors"):
        torch.vmap(thunder.jit(program))(x)


def in_eager(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_running_statistics_change_once_beneath_derivatives(transform: str) -> None:
    """Autograd does not count the writes to running statistics, and the derivative runs the function again."""
    found = []
    for compile_function in (in_eager, thunder.jit):
        mean, variance, x = torch.zeros(3), torch.ones(3), torch.arange(12.0).view(4, 3)
        normalize = compile_function(lambda x, *statistics: F.batch_norm(x, *statistics, training=True).pow(3))

        def of_input(x: Tensor, normalize: Any = normalize, statistics: Any = (mean, variance)) -> Tensor:
            return normalize(x, *statistics)

        derivative = grad(lambda x: of_input(x).sum())(x) if transform == "grad" else jvp(of_input, (x,), (x,))[1]
        found.append((mean, variance, derivative))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_arguments_without_derivative_are_constants(transform: str) -> None:
    """PyTorch cannot differentiate for the running statistics, and is not asked to."""
    mean, variance, x = torch.zeros(3), torch.ones(3), torch.arange(12.0).view(4, 3)
    found = []
    for compile_function in (in_eager, thunder.jit):
        normalize = compile_function(lambda x, *statistics: F.batch_norm(x, *statistics).pow(3))

        def of_input(x: Tensor, normalize: Any = normalize) -> Tensor:
            return normalize(x, mean, variance)

        found.append(grad(lambda x: of_input(x).sum())(x) if transform == "grad" else jvp(of_input, (x,), (x,))[1])
    torch.testing.assert_close(found[1], found[0])


def test_running_statistics_of_a_closure_are_refused_beneath_derivatives() -> None:
    mean, variance = torch.zeros(3), torch.ones(3)
    normalize = thunder.jit(lambda x: F.batch_norm(x, mean, variance, training=True))
    with pytest.raises(NotTraceable, match="writes to objects that are not its arguments"):
        grad(lambda x: normalize(x).pow(3).sum())(torch.arange(12.0).view(4, 3))


def test_running_statistics_change_once_in_a_function_from_an_artifact(tmp_path: Path) -> None:
    def normalize(x: Tensor, *statistics: Tensor) -> Tensor:
        return F.batch_norm(x, *statistics, training=True).pow(3)

    def statistics_after(function: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        statistics = torch.zeros(3), torch.ones(3)
        grad(lambda x: function(x, *statistics).sum())(x)
        return statistics

    x = torch.arange(12.0).view(4, 3)
    compiled = thunder.jit(normalize)
    compiled(x, torch.zeros(3), torch.ones(3))
    thunder.save(compiled, tmp_path / "artifact")
    loaded = thunder.load(tmp_path / "artifact", normalize)
    torch.testing.assert_close(statistics_after(loaded), statistics_after(normalize))


def test_batches_of_gradients_of_a_function_with_an_unused_result() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin().sum(), x.cos()

    def gradients(function: Callable[..., Any]) -> Tensor:
        return vmap(grad(lambda x: function(x)[0]))(ROWS)

    torch.testing.assert_close(gradients(thunder.jit(program)), gradients(program))
