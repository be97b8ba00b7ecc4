"""The program's questions whether PyTorch's functions are overridden have eager's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    has_torch_function,
    has_torch_function_unary,
    has_torch_function_variadic,
)

import thunder_core as thunder

QUESTIONS: dict[str, Callable[[Any], bool]] = {
    "several": lambda x: has_torch_function((x, x + 1)),
    "one": has_torch_function_unary,
    "computed": lambda x: has_torch_function_unary(x + 1),
    "some": lambda x: has_torch_function_variadic(x, 3, None),
}


class Sub(Tensor):
    """A subclass of Tensor, whose inherited `__torch_function__` PyTorch calls."""


class Mode(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


VALUES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.ones(2),
    "parameter": lambda: nn.Parameter(torch.ones(2)),
    "subclass": lambda: torch.ones(2).as_subclass(Sub),
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_answers_are_those_of_eager(question: Callable[[Any], bool], make: Callable[[], Any]) -> None:
    def in_mode(x: Any) -> bool:
        with Mode():
            return question(x)

    def without_functions(x: Any) -> bool:
        with torch._C.DisableTorchFunction():
            return question(x)

    for program in (question, in_mode, without_functions):
        fast = thunder.jit(lambda x, program=program: program(x))
        assert [fast(make()) for _ in range(2)] == [program(make())] * 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_padding_of_an_encoder_is_zero_as_in_eager() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval()
    x, mask = torch.randn(2, 3, 4), torch.tensor([[False, False, True], [False, True, True]])
    fast = thunder.jit(encoder, executors=("torch",))
    with torch.no_grad():
        torch.testing.assert_close(fast(x), encoder(x))
        result = fast(x, src_key_padding_mask=mask)
        torch.testing.assert_close(result, encoder(x, src_key_padding_mask=mask))
    assert not result[mask].any()
