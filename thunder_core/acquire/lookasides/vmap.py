"""torch.vmap: the function is traced on tensors that stand for one element of a batch, by PyTorch's own rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._functorch.vmap import vmap_impl
from torch.utils._pytree import tree_flatten, tree_unflatten

from thunder_core.acquire.lookasides.table import lookaside


@lookaside(vmap_impl)
def call_batched(
    acquisition: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Callable[..., Any]:
    """PyTorch's own code runs natively, and calls the program's function back; what it reads is read here before."""
    machine = acquisition.machine

    def read(tree: Any) -> Any:
        return tree_unflatten(*machine.call(tree_flatten, tree))

    def run(called: Callable[..., Any], in_dims: Any, out_dims: Any, *rest: Any, **kwargs: Any) -> Any:
        *options, arguments = *rest[:2], read(rest[2:])

        def element(*args: Any, **kwargs: Any) -> Any:
            return read(machine.call(called, *args, **kwargs))

        def batched(element: Callable[..., Any], *arguments: Any) -> Any:
            return function(element, read(in_dims), read(out_dims), *options, *arguments, **kwargs)

        return acquisition.recorder.batches.vmap(batched, element, arguments)

    return run
