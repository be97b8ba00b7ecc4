"""Results for fakes that come from kernels for the meta device alone have the metadata of eager PyTorch's results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

import thunder_core as thunder
from thunder_core.tracing.capture.fakes.fake import FakeStorages, fake_of, new_mode
from thunder_core.tracing.capture.fakes.meta_kernels import LIKE_NEGATION, QUICK

NAMES = (
    *("view", "as_strided", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "select", "unfold"),
    *("__getitem__", "diagonal", "neg", "clone", "bitwise_and", "bitwise_not", "rsqrt", "sigmoid"),
    *("add", "sub", "mul", "div", "eq", "lt", "softmax", "sum", "mean", "amax", "mm", "bmm", "addmm", "baddbmm"),
    *("log", "erf", "ne", "le", "gt", "ge", "log_softmax", "cat", "stack", "constant_pad_nd", "minimum"),
    *("maximum", "cumsum", "where", "masked_fill", "gather", "arange"),
    *(f"nn.functional.{name}" for name in ("gelu", "hardtanh", "relu", "hardswish", "leaky_relu", "elu", "embedding")),
    *("abs", "all", "to", "roll", "repeat", "linalg.vector_norm", "zeros_like", "ones_like", "full_like", "new_ones"),
    *("zeros", "ones", "full", "scalar_tensor", "nn.functional.group_norm", "nn.functional.grid_sample"),
    *(f"nn.functional.{name}" for name in ("layer_norm", "batch_norm", "pad", "scaled_dot_product_attention")),
)
OPS = [op for op in op_db if op.name in NAMES and op.variant_test_name in ("", "constant")]


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The metadata of a tensor."""
    return (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, tensor.is_conj())


class Comparison(TorchDispatchMode):
    """Runs each operation with quick metadata on fakes too, and collects the pairs of metadata that differ."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = new_mode()
        self.compared = 0
        self.differing: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        storages = FakeStorages()
        fakes = tree_map_only(torch.Tensor, lambda tensor: fake_of(tensor, self.mode, storages), (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in QUICK or func in LIKE_NEGATION:
            with _disable_current_modes(), self.mode:
                fake = func(*fakes[0], **fakes[1])
            self.compared += 1
            if (found := tree_map_only(torch.Tensor, facts, (fake, result)))[0] != found[1]:
                self.differing.append((func, *found))
        return result


def inputs_of(op: Any, dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """The first samples of an operation, also with tensors whose memory is in another order."""
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), 8):
        yield sample.input, sample.args, sample.kwargs
        if isinstance(sample.input, torch.Tensor) and sample.input.dim() > 1 and op.name != "view":
            reordered = sample.input.transpose(0, -1).contiguous().transpose(0, -1)
            yield reordered, sample.args, sample.kwargs


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_quick_metadata_is_that_of_eager(op: Any) -> None:
    comparison = Comparison()
    for dtype in op.dtypes & {torch.float32, torch.int64, torch.bool, torch.complex64}:
        for first, args, kwargs in inputs_of(op, dtype):
            with torch.no_grad(), comparison:
                op.op(first, *args, **kwargs)
    assert comparison.compared
    assert not comparison.differing


WITH_NUMBERS: dict[str, Callable[[torch.Tensor], object]] = {
    "clamp": lambda tensor: tensor.clamp(-1, 1),
    "clamp_min": lambda tensor: tensor.clamp_min(0),
    "clamp_max": lambda tensor: tensor.clamp_max(0),
    "clamp_min_float": lambda tensor: tensor.clamp_min(0.5),
    "pow": lambda tensor: tensor**2,
    "pow_float": lambda tensor: tensor**0.5,
    "all": lambda tensor: tensor.all(),
    "eq": lambda tensor: tensor == 1,
    "ge": lambda tensor: tensor >= 0.5,
    "masked_fill": lambda tensor: tensor.masked_fill(tensor.transpose(0, -1).contiguous().transpose(0, -1) > 0, 1),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_quick_metadata_with_numbers_is_that_of_eager(name: str, dtype: torch.dtype) -> None:
    plain = torch.ones(3, 1, 4, dtype=dtype)
    comparison = Comparison()
    with comparison:
        for tensor in (
            plain,
            plain.transpose(0, 2),
            plain[:, :, ::2],
            plain[0, 0, 0],
            plain[:0],
            plain.expand(2, 3, 5, 4),
        ):
            WITH_NUMBERS[name](tensor)
    assert comparison.compared
    assert not comparison.differing


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.nn.functional.gelu, (torch.ones(2, dtype=torch.int64),)),
        (torch.nn.functional.layer_norm, (torch.ones(2, 3), (4,))),
        (torch.nn.functional.layer_norm, (torch.ones(2, 3), (3,), torch.ones(2))),
        (torch.nn.functional.batch_norm, (torch.ones(2, 3), torch.ones(2), torch.ones(2))),
        (torch.nn.functional.batch_norm, (torch.ones(3), torch.ones(3), torch.ones(3))),
        (torch.nn.functional.group_norm, (torch.ones(2, 3), 2)),
        (torch.nn.functional.group_norm, (torch.ones(2, 4), 2, torch.ones(3))),
        (torch.nn.functional.grid_sample, (torch.ones(2, 3, 4, 4), torch.ones(1, 2, 2, 2))),
        (torch.arange, (3, 0)),
        (torch.arange, (0, 3, 0)),
        (torch.cat, ([torch.ones(2, 3), torch.ones(3, 3)], 1)),
        (torch.nn.functional.embedding, (torch.ones(2), torch.ones(3, 4))),
    ],
)
def test_wrong_operands_raise_as_in_eager(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(Exception) as eager:
        function(*arguments)
    with pytest.raises(eager.type):
        thunder.jit(lambda *values: function(*values), executors=("torch",))(*arguments)


def test_known_values_are_computed_by_the_operation_itself() -> None:
    """PyTorch computes operations on constants, so their metadata may not come from a similar operation."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([2.0]).clamp(min=3.0).item() + torch.nn.functional.relu(torch.tensor(1.5)).item()

    x = torch.ones(2)
    assert torch.equal(thunder.jit(program)(x), program(x))
