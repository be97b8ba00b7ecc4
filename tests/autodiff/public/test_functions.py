"""`grad`, `value_and_grad`, `vjp` and `jvp` compared with `torch.func`: equal values, structures and errors."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_core.foundation.errors import NotDifferentiable, RecompileWarning, WrongInputs

NET = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6), torch.nn.GELU(), torch.nn.Linear(6, 3))
IMAGE = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.MaxPool2d(2)).eval()
TARGETS = torch.tensor([0, 2, 1])


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def attention(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x[None], x[None].sin(), x[None].cos(), is_causal=True)


def switched(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale


def written(x: torch.Tensor) -> torch.Tensor:
    hidden = x * 2
    hidden += x
    other = torch.empty_like(hidden).copy_(hidden * x[0])
    return functional.relu(other.mul_(x), inplace=True)


TABLE: dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor]] = {
    "sin": (torch.sin, numbers(3, 4)),
    "polynomial": (lambda x: x**3 - 2 * x, numbers(3, 4)),
    "softmax": (lambda x: functional.softmax(x, -1) * x, numbers(3, 4)),
    "log_softmax": (lambda x: functional.log_softmax(x, -1)[:, 1], numbers(3, 4)),
    "layer_norm": (lambda x: functional.layer_norm(x, (4,)) * x, numbers(3, 4)),
    "rms_norm": (lambda x: functional.rms_norm(x, (4,)) * x, numbers(3, 4)),
    "gelu": (lambda x: functional.gelu(x).exp(), numbers(3, 4)),
    "silu": (lambda x: functional.silu(x).exp(), numbers(3, 4)),
    "matmul": (lambda x: x @ x.T @ x, numbers(3, 4)),
    "linear": (lambda x: functional.linear(x, x[:2], x[0, :2]), numbers(3, 4)),
    "cross_entropy": (lambda x: functional.cross_entropy(x, TARGETS), numbers(3, 4)),
    "views": (lambda x: torch.cat([x.T.reshape(3, 4), x.flip(0)[:, ::2].repeat(1, 2)]), numbers(3, 4)),
    "masks": (lambda x: torch.where(x > 0, x, x.exp()).masked_fill(x > 1, 0.0), numbers(3, 4)),
    "cumsum": (lambda x: x.cumsum(0).logsumexp(1), numbers(3, 4)),
    "norms": (lambda x: x.std(0) * torch.linalg.vector_norm(x), numbers(3, 4)),
    "embedding": (lambda x: functional.embedding(TARGETS, x).square(), numbers(3, 4)),
    "index": (lambda x: x[TARGETS, TARGETS] * x[:, 0], numbers(3, 4)),
    "norm_in_training": (lambda x: functional.batch_norm(x, None, None, training=True) * x, numbers(5, 4)),
    "solve": (lambda x: torch.linalg.inv(x @ x.T + torch.eye(3, dtype=x.dtype)), numbers(3, 4)),
    "convolution": (lambda x: functional.conv1d(x[None], x[None, :, :2].sin()), numbers(3, 6)),
    "partly_off": (switched, numbers(3, 4)),
    "module": (NET.double(), numbers(3, 4)),
    "image": (IMAGE.double(), numbers(1, 1, 8, 8)),
    "written": (written, numbers(3, 4)),
    "attention": (attention, numbers(2, 3, 4)),
}
NO_SECOND = {"attention"}  # PyTorch has no derivative for the backward of its CPU kernel


def scalar(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    return lambda x: function(x).square().sum()


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.fixture(autouse=True, scope="module")
def torch_func_is_ready():
    """Import the modules that PyTorch loads for its own forward mode, which cause warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.func.jvp(torch.sin, (torch.ones(1),), (torch.ones(1),))


@pytest.mark.parametrize("name", TABLE)
def test_gradients_match_torch_func(name):
    function, x = TABLE[name]
    same(thunder.grad(scalar(function))(x), torch.func.grad(scalar(function))(x))


@pytest.mark.parametrize("name", sorted(TABLE.keys() - NO_SECOND))
def test_second_derivatives_match_torch_func(name):
    function, x = TABLE[name]

    def twice(grad: Any) -> Any:
        return grad(lambda y: grad(scalar(function))(y).sin().sum())(x)

    same(twice(thunder.grad), twice(torch.func.grad))


@pytest.mark.parametrize("name", sorted(TABLE.keys() - NO_SECOND))
def test_forward_mode_matches_torch_func(name):
    function, x = TABLE[name]
    tangent = numbers(*x.shape, seed=1)
    same(thunder.jvp(function, (x,), (tangent,)), torch.func.jvp(function, (x,), (tangent,)))


@pytest.mark.parametrize("name", sorted(TABLE.keys() - NO_SECOND))
def test_forward_over_reverse_matches_torch_func(name):
    function, x = TABLE[name]
    tangent = numbers(*x.shape, seed=1)
    ours = thunder.jvp(thunder.grad(scalar(function)), (x,), (tangent,))
    same(ours, torch.func.jvp(torch.func.grad(scalar(function)), (x,), (tangent,)))


@pytest.mark.parametrize("name", TABLE)
def test_vjp_matches_torch_func(name):
    function, x = TABLE[name]
    output, pull = thunder.vjp(function, x)
    expected, pull_expected = torch.func.vjp(function, x)
    same(output, expected)
    for seed in range(2):
        cotangent = numbers(*output.shape, seed=seed)
        same(pull(cotangent), pull_expected(cotangent))


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "convolution", "solve"])
def test_derivatives_match_finite_differences(name):
    function, x = TABLE[name]
    direction, step = numbers(*x.shape, seed=1), 1e-6
    slope = (scalar(function)(x + step * direction) - scalar(function)(x - step * direction)) / (2 * step)
    torch.testing.assert_close((thunder.grad(scalar(function))(x) * direction).sum(), slope, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(thunder.jvp(scalar(function), (x,), (direction,))[1], slope, rtol=1e-6, atol=1e-6)


def test_forward_and_backward_are_one_program():
    gradient = thunder.grad(lambda x: functional.silu(x).sum())
    gradient(numbers(3, 4))
    assert thunder.last_backward_traces(gradient) == []
    names = [line.symbol.short_name for line in thunder.last_traces(gradient)[-1].bound_symbols]
    assert "silu_backward" in " ".join(line.symbol.name for line in thunder.last_traces(gradient)[-1].bound_symbols)
    assert "sum" not in names, "nobody asked for the value"


def test_derivatives_are_compiled_once():
    def cube(x: torch.Tensor) -> torch.Tensor:
        return (x**3).sum()

    for seed in range(3):
        thunder.grad(cube)(numbers(3, seed=seed))
        thunder.jvp(cube, (numbers(3, seed=seed),), (numbers(3),))
        thunder.vjp(cube, numbers(3, seed=seed))
    assert thunder.cache_hits(thunder.grad(cube)) == 2
    assert thunder.cache_misses(thunder.grad(cube)) == 1


@dataclass(frozen=True)
class Scaled:
    """Callables that compare equal but compute different results."""

    name: str
    factor: float = field(default=1.0, compare=False)

    def __call__(self, x):
        return (x * self.factor).sum()

    def scaled(self, x):
        return self(x) * self.factor


@pytest.mark.parametrize("of", [lambda scaled: scaled, lambda scaled: scaled.scaled, lambda scaled: scaled.__call__])
def test_functions_that_compare_equal_have_their_own_derivatives(of):
    x = torch.ones(2)
    for factor in (2.0, 5.0):
        function = of(Scaled("a", factor))
        assert torch.equal(thunder.grad(function)(x), torch.func.grad(function)(x))
        assert torch.equal(thunder.vjp(function, x)[1](torch.ones(()))[0], torch.func.grad(function)(x))
        assert torch.equal(thunder.jvp(function, (x,), (x,))[1], torch.func.jvp(function, (x,), (x,))[1])


def test_a_method_is_compiled_once_for_its_object():
    scaled = Scaled("a", 2.0)
    first, second = thunder.grad(scaled.scaled), thunder.grad(scaled.scaled)
    assert first is second


def test_reads_of_the_function_are_guarded():
    factors = {"of": 2.0}
    gradient = thunder.grad(lambda x: (x * factors["of"]).sum())
    whole = thunder.jit(lambda x: gradient(x) + 1)
    same(gradient(torch.ones(2)), torch.full((2,), 2.0))
    same(whole(torch.ones(2)), torch.full((2,), 3.0))
    factors["of"] = 5.0
    same(gradient(torch.ones(2)), torch.full((2,), 5.0))
    same(whole(torch.ones(2)), torch.full((2,), 6.0))


def loss(parameters: dict[str, Any], batch: tuple[torch.Tensor, ...], scale: float) -> Any:
    x, y = batch
    hidden = torch.tanh(x @ parameters["layers"][0] + parameters["bias"])
    error = (hidden @ parameters["layers"][1] - y).square().mean() * scale
    return error, {"hidden": hidden}


PARAMETERS = OrderedDict(layers=[numbers(4, 5), numbers(5, 2, seed=1)], bias=numbers(5, seed=2), unused=numbers(2))
BATCH = (numbers(3, 4, seed=3), numbers(3, 2, seed=4))


@pytest.mark.parametrize("argnums", [0, 1, -2, (0, 1), (1,)])
def test_trees_and_argnums_match_torch_func(argnums):
    ours, ours_aux = thunder.grad(loss, argnums, has_aux=True)(PARAMETERS, BATCH, 2.0)
    theirs, theirs_aux = torch.func.grad(loss, argnums, has_aux=True)(PARAMETERS, BATCH, 2.0)
    same(ours, theirs)
    same(ours_aux["hidden"], theirs_aux["hidden"])
    assert type(ours) is type(theirs)


def test_value_comes_before_the_gradient():
    (value, aux), gradient = thunder.value_and_grad(loss, has_aux=True)(PARAMETERS, BATCH, 2.0)
    expected, (expected_value, expected_aux) = torch.func.grad_and_value(loss, has_aux=True)(PARAMETERS, BATCH, 2.0)
    same([value, aux["hidden"], gradient], [expected_value, expected_aux["hidden"], expected])
    value, gradient = thunder.value_and_grad(lambda x: x.square().sum())(BATCH[0])
    same([value, gradient], [BATCH[0].square().sum(), 2 * BATCH[0]])


def test_vjp_and_jvp_of_trees_match_torch_func():
    def function(parameters: Any, batch: Any) -> Any:
        value, aux = loss(parameters, batch, 2.0)
        return {"loss": value, "hidden": [aux["hidden"]]}, aux["hidden"].argmax(-1)

    output, pull, aux = thunder.vjp(function, PARAMETERS, BATCH, has_aux=True)
    expected, pull_expected, aux_expected = torch.func.vjp(function, PARAMETERS, BATCH, has_aux=True)
    cotangents = {"loss": torch.tensor(2.0, dtype=torch.float64), "hidden": [numbers(3, 5)]}
    same([output, aux, pull(cotangents)], [expected, aux_expected, pull_expected(cotangents)])
    tangents = (OrderedDict(PARAMETERS), BATCH)
    ours = thunder.jvp(function, (PARAMETERS, BATCH), tangents, has_aux=True)
    same(ours, torch.func.jvp(function, (PARAMETERS, BATCH), tangents, has_aux=True))


def test_gradients_of_functional_call_match_torch_func():
    parameters = {name: value.detach() for name, value in NET.named_parameters()}
    x, y = numbers(3, 4), numbers(3, 3, seed=1)

    def error(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(torch.func.functional_call(NET, parameters, (x,)), y)

    same(thunder.grad(error)(parameters, x, y), torch.func.grad(error)(parameters, x, y))
    assert NET[0].weight.requires_grad
    assert NET[0].weight.grad is None


def test_derivatives_inside_a_compiled_program_match_torch_func():
    def descend(parameters: Any, batch: Any) -> Any:
        (value, _), gradient = thunder.value_and_grad(loss, has_aux=True)(parameters, batch, 1.0)
        return value, {name: parameters[name] - 0.1 * gradient[name] for name in ("bias", "unused")}

    value, updated = thunder.jit(descend)(PARAMETERS, BATCH)
    gradient, (expected, _) = torch.func.grad_and_value(loss, has_aux=True)(PARAMETERS, BATCH, 1.0)
    same(value, expected)
    same(updated["bias"], PARAMETERS["bias"] - 0.1 * gradient["bias"])
    same(updated["unused"], PARAMETERS["unused"])


def test_vjp_and_jvp_inside_a_compiled_program_match_torch_func():
    def both(x: torch.Tensor, t: torch.Tensor) -> Any:
        output, pull = thunder.vjp(lambda y: (y.softmax(-1), y.sin()), x)
        first, second = pull((t, t)), pull((output[0], t))
        return output, first, second, thunder.jvp(torch.tanh, (x,), (t,))

    def expected(x: torch.Tensor, t: torch.Tensor) -> Any:
        output, pull = torch.func.vjp(lambda y: (y.softmax(-1), y.sin()), x)
        return output, pull((t, t)), pull((output[0], t)), torch.func.jvp(torch.tanh, (x,), (t,))

    x, t = numbers(3, 4), numbers(3, 4, seed=1)
    same(thunder.jit(both)(x, t), expected(x, t))


def test_only_the_argument_is_differentiated():
    x = numbers(3)
    same(thunder.grad(lambda y: (y * x).sum())(x), x)
    same(thunder.grad(lambda y: thunder.grad(lambda z: (y * z).sum())(y).sum())(x), torch.ones_like(x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_autograd_mode_outside_does_not_matter(mode):
    def within(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return thunder.grad(lambda y: switched(y).square().sum())(x)

    x = numbers(3)
    expected = torch.func.grad(lambda y: switched(y).square().sum())(x)
    with mode():
        same(thunder.grad(lambda y: switched(y).square().sum())(x), expected)
        same(thunder.jit(within)(x), expected)
        output, pull = thunder.vjp(torch.sin, x)
        same(pull(x)[0], x * x.cos())
        assert not output.requires_grad


def test_autograd_differentiates_the_derivatives():
    def trained(grad: Any, vjp: Any) -> list[torch.Tensor]:
        x = numbers(3).requires_grad_(True)
        weight = numbers(3, seed=1).requires_grad_(True)
        gradient = grad(lambda y: (y.exp() * weight).sum())(x)
        gradient.square().sum().backward()
        output, pull = vjp(lambda y: y.sin() * weight, x)
        (output.sum() + pull(x)[0].sum()).backward()
        return [gradient, output, x.grad, weight.grad]

    same(trained(thunder.grad, thunder.vjp), trained(torch.func.grad, torch.func.vjp))


def test_results_without_outside_gradients_do_not_require_grad():
    output, pull = thunder.vjp(torch.sin, numbers(3))
    gradient = pull(numbers(3))[0]
    assert (output.requires_grad, gradient.requires_grad) == (False, False)


def test_random_numbers_are_generated_once():
    function = lambda x: functional.dropout(x * x, 0.5).sum()  # noqa: E731
    x = numbers(8)
    for ours, theirs in ((thunder.grad, torch.func.grad), (thunder.value_and_grad, torch.func.grad_and_value)):
        torch.manual_seed(3)
        expected = theirs(function, argnums=0)(x)
        torch.manual_seed(3)
        found = ours(function)(x)
        same(found if ours is thunder.grad else found[::-1], expected)


@pytest.mark.parametrize("executors", [("inductor", "torch")])
def test_forward_and_backward_are_fused(executors):
    function = lambda x: functional.silu(x).softmax(-1).square().sum()  # noqa: E731
    x = numbers(3, 4, dtype=torch.float32)
    gradient = thunder.grad(function, executors=executors)
    torch.testing.assert_close(gradient(x), torch.func.grad(function)(x))
    assert [line.executor for line in thunder.last_traces(gradient)[-1].bound_symbols if line.executor] == ["inductor"]
    kept = thunder.grad(thunder.jit(function, executors=executors))
    torch.testing.assert_close(kept(x), torch.func.grad(function)(x))
    assert "inductor" in [line.executor for line in thunder.last_traces(kept)[-1].bound_symbols]


def test_gradients_of_complex_arguments_match_torch_func():
    function = lambda z: (z * z.conj()).real.sum() + z.abs().sum()  # noqa: E731
    z = torch.complex(numbers(3), numbers(3, seed=1))
    same(thunder.grad(function)(z), torch.func.grad(function)(z))
    same(thunder.jvp(function, (z,), (z,)), torch.func.jvp(function, (z,), (z,)))


X = numbers(3)
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "vector": (
        lambda: thunder.grad(torch.sin)(X),
        NotDifferentiable,
        "without dimensions, but returned a tensor of shape",
    ),
    "integer": (lambda: thunder.grad(torch.sum)(TARGETS), WrongInputs, "a tensor of torch.int64"),
    "number": (lambda: thunder.grad(torch.sum)([X, 3.0]), WrongInputs, "but got an object of class float"),
    "nothing": (lambda: thunder.grad(torch.sum)([]), WrongInputs, "no tensor to differentiate"),
    "no tensor": (lambda: thunder.grad(lambda x: 3.0)(X), NotDifferentiable, "returned an object of class float"),
    "integers": (lambda: thunder.grad(lambda x: x.argmax())(X), NotDifferentiable, "a tensor of torch.int64"),
    "complex": (lambda: thunder.grad(lambda x: x.sum() * 1j)(X), NotDifferentiable, "a tensor of torch.complex128"),
    "place": (lambda: thunder.grad(torch.sum, argnums=1)(X), WrongInputs, "names argument 1, but the call has 1"),
    "places": (lambda: thunder.grad(torch.sum, argnums=(0, -1))(X), WrongInputs, "names an argument twice"),
    "text": (lambda: thunder.grad(torch.sum, argnums="x")(X), WrongInputs, "is not a number or a tuple of numbers"),
    "aux": (lambda: thunder.grad(torch.sum, has_aux=True)(X), NotDifferentiable, r"a pair \(output, aux\), not a"),
    "no function": (lambda: thunder.grad(3), WrongInputs, "not an object of class int"),
    "no tuples": (lambda: thunder.jvp(torch.sin, X, X), WrongInputs, "must be tuples"),
    "tangents": (lambda: thunder.jvp(torch.sin, (X,), (X, X)), WrongInputs, "the tangents have the structure"),
    "shapes": (lambda: thunder.jvp(torch.sin, (X,), (X[:2],)), WrongInputs, r"is \[2\] and torch.float64"),
    "cotangents": (lambda: thunder.vjp(torch.sin, X)[1]((X,)), WrongInputs, "the cotangents have the structure"),
    "no results": (lambda: thunder.vjp(lambda x: [], X), NotDifferentiable, "returns no tensor"),
    "vjp of integers": (lambda: thunder.vjp(torch.sin, TARGETS), WrongInputs, "a tensor of torch.int64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_calls_are_refused(name):
    call, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        call()


def test_refusal_names_the_line():
    def lacks_formula(x: torch.Tensor) -> torch.Tensor:
        hidden = x * 2
        hidden = torch.igamma(hidden, x)
        return hidden.sum()

    with pytest.raises(NotDifferentiable, match=r"grad: `torch.igamma` at .*") as caught:
        thunder.grad(lacks_formula)(X)
    assert caught.value.where is not None
    assert caught.value.where.lineno == lacks_formula.__code__.co_firstlineno + 2


def test_hessians_are_symmetric():
    function = lambda x: x[0] * x[1].exp() + x[2].sin() * x[0] ** 2  # noqa: E731
    rows = [thunder.jvp(thunder.grad(function), (X,), (row,))[1] for row in torch.eye(3, dtype=X.dtype)]
    same(torch.stack(rows), torch.func.hessian(function)(X))
    assert math.isclose(rows[0][1].item(), rows[1][0].item())


# ---- inference mode -------------------------------------------------------------------------------------------

DERIVATIVES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "grad": lambda library, x: library.grad(lambda x: (x.sin() * x).sum())(x),
    "grad of grad": lambda library, x: library.grad(lambda x: library.grad(lambda y: (y.sin() * y).sum())(x).sum())(x),
    "vjp": lambda library, x: library.vjp(lambda x: x.exp() * x, x)[1](x.cos()),
    "jvp": lambda library, x: library.jvp(lambda x: x.exp() * x, (x,), (x.cos(),)),
    "jvp by the backward": lambda library, x: library.jvp(lambda x: functional.logsigmoid(x).cumsum(0), (x,), (x,)),
    "jvp of grad": lambda library, x: library.jvp(library.grad(lambda x: x.tanh().square().sum()), (x,), (x,)),
}


@pytest.mark.parametrize("inside", [False, True], ids=["around the call", "in the program"])
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_derivatives_are_the_same_in_inference_mode(derivative: str, inside: bool) -> None:
    take, x = DERIVATIVES[derivative], numbers(4)

    def program(x: torch.Tensor) -> Any:
        with torch.inference_mode():
            return take(thunder, x)

    expected = take(torch.func, x)
    with torch.inference_mode(not inside):
        x = x if inside else x.clone()  # created in inference mode
        found = thunder.jit(program)(x) if inside else take(thunder, x)
    for actual, wanted in zip(leaves_of(found), leaves_of(expected), strict=True):
        torch.testing.assert_close(actual.clone(), wanted)


def leaves_of(tree: Any) -> list[torch.Tensor]:
    return [tree] if isinstance(tree, torch.Tensor) else [leaf for part in tree for leaf in leaves_of(part)]


def test_vjp_of_a_program_that_runs_in_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        weakref.finalize(torch.nn.Identity(), int)
        return x * x

    for tracked in (False, True):
        x, cotangent = torch.tensor([1.0, 2.0], requires_grad=tracked), torch.tensor([3.0, 4.0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecompileWarning)
            output, pull = thunder.vjp(program, x)
        wanted, wanted_pull = torch.func.vjp(program, x)
        assert torch.equal(output, wanted) and output.requires_grad is wanted.requires_grad
        assert torch.equal(pull(cotangent)[0], wanted_pull(cotangent)[0])


@pytest.mark.parametrize("requires_grad", [False, True])
def test_vjp_results_depend_on_a_parameter_outside_as_in_pytorch(requires_grad: bool) -> None:
    weight = torch.tensor(2.0, requires_grad=requires_grad)
    output, _ = thunder.vjp(lambda x: x.sin() * weight, torch.ones(2))
    wanted, _ = torch.func.vjp(lambda x: x.sin() * weight, torch.ones(2))
    assert output.requires_grad is wanted.requires_grad is requires_grad
    if requires_grad:
        gradients = [torch.autograd.grad(result.sum(), weight)[0] for result in (output, wanted)]
        assert torch.equal(*gradients)
