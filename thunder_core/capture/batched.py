"""Tensors inside `torch.vmap`: a trace holds the operations that it makes of them, for all elements of a batch at once.

What stands for one element wraps the whole batch, a fake. Operations on it are PyTorch's to batch; those that come out
beneath are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.autograd_function import custom_function_call

from thunder_core.analysis.own_derivatives import has_own_derivative
from thunder_core.capture.numbers import Numbers, concrete
from thunder_core.capture.symbols import symbol_of
from thunder_core.capture.tensors import Tensors
from thunder_core.errors import ThunderError
from thunder_core.ir.tree import leaves, replace_leaves

TEXTS = frozenset({torch.Tensor.__repr__, torch.Tensor.__format__})  # what a tensor without data has none of
# PyTorch's own indexing within score and mask functions, whose derivative is that of indexing.
INDEXING = ("torch._dynamo._trace_wrapped_higher_order_op", "ModIndex")
is_batched: Callable[[torch.Tensor], bool] = torch._C._functorch.is_batchedtensor


def batched_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among the arguments or results of a call that stand for one element of a batch."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor) and is_batched(leaf)]


def is_indexing(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a call indexes a tensor in a score or mask function, where indices are tensors without dimensions."""
    return function is custom_function_call and (args[0].__module__, args[0].__qualname__) == INDEXING


class Batches:
    """Runs `torch.vmap` in a program that is recorded; `depth` says how many of them the program is in.

    `refuse` gives the error for what is not traced.
    """

    def __init__(
        self,
        tensors: Tensors,
        numbers: Numbers,
        refuse: Callable[[str, str], ThunderError],
    ) -> None:
        self.depth = 0
        self._tensors = tensors
        self._numbers = numbers
        self._refuse = refuse

    def vmap(self, vmap: Callable[..., Any], called: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Run vmap of a function: what it does to whole batches is recorded."""

        def element(*args: Any, **kwargs: Any) -> Any:
            with torch._C._EnableTorchFunction():
                output = called(*args, **kwargs)
            return replace_leaves(output, self._faked)

        self.depth += 1
        try:
            return self.run(vmap, (element, *arguments), {})
        finally:
            self.depth -= 1

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function on tensors that stand for one element of a batch, or one that makes such tensors."""
        args, kwargs = concrete((tuple(args), dict(kwargs))) if self._numbers.any_symbolic else (args, kwargs)
        args, kwargs = replace_leaves((tuple(args), dict(kwargs)), self._faked)
        if has_own_derivative(function) or function in TEXTS:
            raise self._refuse(
                f"`{symbol_of(function).name}` is called inside torch.vmap, where the trace has the whole batch only",
                "call it outside of torch.vmap, or write the batch into it",
            )
        with torch._C.DisableTorchFunction():
            return self._tensors.to_real(function(*args, **kwargs))

    def _faked(self, leaf: Any) -> Any:
        return self._tensors.fake(leaf) if isinstance(leaf, torch.Tensor) and not is_batched(leaf) else leaf
