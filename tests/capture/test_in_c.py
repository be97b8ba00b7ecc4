"""The results of operations that C++ code computes for fakes have the metadata of eager PyTorch's results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from thunder_core.tracing.capture.fakes.faithful import IN_C
from thunder_core.tracing.capture.fakes.fake import FakeStorages, fake_of, new_mode

NAMES = (
    *("view", "as_strided", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "select", "unfold"),
    *("__getitem__", "diagonal", "neg", "clone", "bitwise_and", "bitwise_not", "rsqrt", "sigmoid"),
    *("add", "sub", "mul", "div", "eq", "lt", "softmax", "sum", "mean", "amax", "mm", "bmm", "addmm", "baddbmm"),
)
OPS = [op for op in op_db if op.name in NAMES and not op.variant_test_name]


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The metadata of a tensor."""
    return (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, tensor.is_conj())


class Comparison(TorchDispatchMode):
    """Runs each operation of `IN_C` on fakes too, and collects the pairs of metadata that differ."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = new_mode()
        self.compared = 0
        self.differing: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        storages = FakeStorages()
        fakes = tree_map_only(torch.Tensor, lambda tensor: fake_of(tensor, self.mode, storages), (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in IN_C:
            with _disable_current_modes(), self.mode:
                fake = func(*fakes[0], **fakes[1])
            self.compared += 1
            if facts(fake) != facts(result):
                self.differing.append((func, facts(fake), facts(result)))
        return result


def inputs_of(op: Any, dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """The first samples of an operation, also with tensors whose memory is in another order."""
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), 8):
        yield sample.input, sample.args, sample.kwargs
        if isinstance(sample.input, torch.Tensor) and sample.input.dim() > 1 and op.name != "view":
            reordered = sample.input.transpose(0, -1).contiguous().transpose(0, -1)
            yield reordered, sample.args, sample.kwargs


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_fakes_computed_in_c_have_the_metadata_of_eager(op: Any) -> None:
    comparison = Comparison()
    for dtype in op.dtypes & {torch.float32, torch.int64, torch.bool, torch.complex64}:
        for first, args, kwargs in inputs_of(op, dtype):
            with torch.no_grad(), comparison:
                op.op(first, *args, **kwargs)
    assert comparison.compared
    assert not comparison.differing
