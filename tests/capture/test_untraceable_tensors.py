"""Quantized and nested tensors are refused with a way out, in place of a result with another dtype than eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import OperationFailed

SCALE = 0.1


def per_tensor(x: Tensor) -> Any:
    return torch.quantize_per_tensor(x, SCALE, 0, torch.qint8)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "dequantized": lambda x: per_tensor(x).dequantize(),
    "read": lambda x: x if per_tensor(x).is_quantized else -x,
    "unsigned": lambda x: torch.dequantize(torch.quantize_per_tensor(x, SCALE, 0, torch.quint8)),
    "scale in a tensor": lambda x: torch.quantize_per_tensor(x, x[0], torch.tensor(0), torch.qint8).dequantize(),
    "list": lambda x: torch.quantize_per_tensor([x], x[:1], torch.tensor([0]), torch.qint8)[0].dequantize(),
    "dynamic": lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False).dequantize(),
    "per channel": lambda x: torch.quantize_per_channel(x, x, torch.zeros(2), 0, torch.qint8).dequantize(),
    "empty": lambda x: torch.empty(2, dtype=torch.qint8),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_makes_a_quantized_tensor_is_refused(name: str) -> None:
    with pytest.raises(OperationFailed, match="a tensor with a quantized dtype") as caught:
        thunder.jit(PROGRAMS[name], data_dependent="error")(torch.ones(2))
    assert caught.value.where is not None
    assert "quantize by a recipe" in str(caught.value)


def test_a_quantized_input_is_refused() -> None:
    with pytest.raises(OperationFailed, match="with a quantized dtype") as caught:
        thunder.jit(lambda x: x.dequantize() + 1, data_dependent="error")(per_tensor(torch.ones(2)))
    assert "pass `x.dequantize()`" in str(caught.value)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
def test_layers_that_dequantize_inside_of_an_operator_are_traced() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 2))
    quantized = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, torch.qint8)
    assert torch.equal(thunder.jit(quantized)(torch.ones(1, 4)), quantized(torch.ones(1, 4)))


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_with_its_layout(layout: torch.layout) -> None:
    parts = [torch.ones(2), torch.ones(3)]
    with pytest.raises(OperationFailed, match=rf"a nested tensor \({layout}\) cannot be traced") as caught:
        thunder.jit(lambda x: x * 2, data_dependent="error")(torch.nested.nested_tensor(parts, layout=layout))
    assert "to_padded_tensor" in str(caught.value)
