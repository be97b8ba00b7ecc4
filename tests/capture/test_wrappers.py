"""Wrapper tensors with `__torch_dispatch__`: in inference, the trace contains their inner operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent, OperationFailed
from thunder_core.frontend.acquire.acquire import acquire

DETACH = torch.ops.aten.detach.default


class Quantized(Tensor):
    """A weight in eight bits that is dequantized for each operation."""

    @staticmethod
    def __new__(cls: Any, data: Tensor, scale: Tensor, axis: int = 0) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype)

    def __init__(self, data: Tensor, scale: Tensor, axis: int = 0) -> None:
        self.packed, self.scale, self.axis = data, scale, axis

    @staticmethod
    def of(tensor: Tensor) -> Any:
        scale = tensor.abs().amax() / 127
        return Quantized((tensor / scale).round().to(torch.int8), scale)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["packed", "scale"], self.axis

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["packed"], inner["scale"], context)

    def whole(self) -> Any:
        return self.packed.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DETACH:
            return cls(args[0].packed, args[0].scale, args[0].axis)
        plain = [arg.whole() if isinstance(arg, cls) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


class Opaque(Tensor):
    """A wrapper with `__torch_dispatch__` that does not expose its inner tensors."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def model() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    layer.weight = nn.Parameter(Quantized.of(layer.weight.detach()), requires_grad=False)
    return nn.Sequential(layer, nn.ReLU())


def weight(seed: int = 0) -> Any:
    return Quantized.of(torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)))


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": nn.functional.linear,
    "operators": lambda x, w: (w + 1, x @ w.t(), w.shape, w.dtype),
    "what it holds": lambda x, w: x @ (w.packed * w.scale).t(),
    "its method": lambda x, w: x @ w.whole().t(),
    "made": lambda x, w: nn.functional.linear(Quantized.of(x), w),
    "returned": lambda x, w: (w is w, w, Quantized.of(x * 2)),
}


def observable(value: Any) -> Any:
    if isinstance(value, Quantized):
        return type(value), observable(value.packed), observable(value.scale), value.axis
    if isinstance(value, tuple):
        return [observable(item) for item in value]
    return (type(value), value.tolist()) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_match_eager(name: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(program)
    with torch.no_grad():
        for step in range(2):
            x, w = torch.randn(2, 4), weight(step)
            assert observable(compiled(x, w)) == observable(program(x, w))
    assert thunder.cache_misses(compiled) == 1


def test_a_module_with_a_wrapped_weight_is_compiled() -> None:
    module = model()
    compiled = thunder.jit(module)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 4)
            assert torch.equal(compiled(x), module(x))
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (1, 1)


def test_contents_of_a_wrapper_are_guarded() -> None:
    compiled, x, w = thunder.jit(PROGRAMS["operators"]), torch.randn(2, 4), weight()
    with torch.no_grad():
        compiled(x, w)
        w.scale = w.scale.double()
        w.axis = 1
        compiled(x.double(), Quantized(w.packed, w.scale, 0))
        compiled(x.double(), Quantized(w.packed, w.scale, 1))
        compiled(x, torch.randn(3, 4))
    assert thunder.cache_misses(compiled) == 4


def test_gradients_through_a_wrapper_are_refused() -> None:
    with pytest.raises(OperationFailed, match="a tensor of class Quantized, which wraps other tensors"):
        thunder.jit(nn.functional.linear, data_dependent="error")(torch.randn(2, 4, requires_grad=True), weight())


def test_values_of_a_wrapper_are_refused() -> None:
    with pytest.raises(DataDependent):
        thunder.jit(lambda x, w: w.tolist(), data_dependent="error")(torch.ones(2), weight())


REFUSED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "opaque": (
        lambda: Tensor._make_subclass(Opaque, torch.ones(2)),
        "a tensor of class Opaque cannot be traced: .*__torch_dispatch__",
    ),
    "layout": (
        lambda: torch.ones(2).to_mkldnn(),
        "a tensor of class Tensor with layout torch._mkldnn cannot be traced",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_refusal_names_the_reason(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(OperationFailed, match=reason) as caught:
        thunder.jit(lambda x: x + 1, data_dependent="error")(make())
    assert caught.value.where is not None


def test_parameter_without_shape_is_named_in_the_refusal() -> None:
    with pytest.raises(OperationFailed, match="no shape yet"):
        acquire(lambda module, x: module(x), (nn.LazyLinear(2), torch.ones(1, 2)), {})


def test_a_returned_wrapper_has_the_sizes_of_each_call() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    compiled = thunder.jit(lambda x: x * 2)
    for length in (8, 5, 6, 7):
        wrapper = TwoTensor(torch.randn(4, length), torch.randn(4, length))
        result = compiled(wrapper)
        assert all(type(extent) is int for extent in (*result.shape, *result.stride()))
        assert (result.shape, result.stride()) == (wrapper.shape, wrapper.stride())
        torch.testing.assert_close((result.a, result.b), (wrapper.a * 2, wrapper.b * 2))
