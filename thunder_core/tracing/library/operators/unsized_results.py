"""Operators whose kernels compute the sizes of some results, and the backward operators that read these results.

Traces call these operators as functions, so that no executor compiles them for the sizes in a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

ATEN = torch.ops.aten


@contextmanager
def saving_for_backward() -> Iterator[None]:
    """Run a block in grad mode, so that kernels also return the values that their backward reads.

    If grad mode was off, autograd does not record the block.
    """
    if torch.is_grad_enabled():
        yield
        return
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


def function_for(
    name: str, operator: torch._ops.OpOverload, around: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Callable[..., Any]:
    """Return a function of this module that calls an operator."""

    def call(*args: Any) -> Any:
        with around():
            return operator(*args)

    call.__name__ = call.__qualname__ = name
    call.tags = [torch.Tag.dynamic_output_shape]  # type: ignore[attr-defined]
    return call


rnn_layer = function_for("rnn_layer", ATEN.mkldnn_rnn_layer.default, saving_for_backward)
rnn_layer_backward = function_for("rnn_layer_backward", ATEN.mkldnn_rnn_layer_backward.default)
ctc_loss = function_for("ctc_loss", ATEN._ctc_loss.Tensor)
ctc_loss_backward = function_for("ctc_loss_backward", ATEN._ctc_loss_backward.Tensor)
ctc_loss_of_lists = function_for("ctc_loss_of_lists", ATEN._ctc_loss.default)
ctc_loss_of_lists_backward = function_for("ctc_loss_of_lists_backward", ATEN._ctc_loss_backward.default)

FUNCTIONS: Mapping[object, Callable[..., Any]] = {
    ATEN.mkldnn_rnn_layer.default: rnn_layer,
    ATEN.mkldnn_rnn_layer_backward.default: rnn_layer_backward,
    ATEN._ctc_loss.Tensor: ctc_loss,
    ATEN._ctc_loss_backward.Tensor: ctc_loss_backward,
    ATEN._ctc_loss.default: ctc_loss_of_lists,
    ATEN._ctc_loss_backward.default: ctc_loss_of_lists_backward,
}
# Operators that return a value for their backward only if autograd is on, and functions that always return the value.
SAVING: Mapping[object, Callable[..., Any]] = {ATEN.mkldnn_rnn_layer.default: rnn_layer}
