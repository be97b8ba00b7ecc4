"""torch.utils.checkpoint: the function is traced like any other, and what it makes is marked to be made once more."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, noop_context_fn

from thunder_core.acquire.lookasides.table import lookaside

UNSAID = (
    "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly; "
    "use_reentrant=False is recommended."
)


@lookaside(checkpoint)
def call_checkpointed(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Note which bound symbols belong to the call.

    PyTorch's own code is left to run for what it refuses, and for contexts of the user's, which may save what they
    like: there autograd's hooks have nothing to say, and all is saved as usual.
    """

    def run(
        function: Callable[..., Any],
        *args: Any,
        use_reentrant: bool | None = None,
        preserve_rng_state: bool = True,
        context_fn: object = None,
        determinism_check: str = "default",
        debug: bool = False,
        early_stop: bool = True,
        **kwargs: Any,
    ) -> Any:
        if use_reentrant is None:
            warnings.warn(UNSAID, stacklevel=2)
        start = len(acquisition.recorder.bound_symbols)
        cut = use_reentrant is not False and not any(_requires_grad(arg) for arg in args)
        try:
            with torch.no_grad() if cut else nullcontext():
                return acquisition.machine.call(function, *args, **kwargs)
        finally:
            acquisition.checkpointed.append(range(start, len(acquisition.recorder.bound_symbols)))

    return None if is_refused(kwargs) else run


KNOWN = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


def is_refused(kwargs: dict[str, Any]) -> bool:
    """Whether a call of `checkpoint` has contexts of the user's, or is one that PyTorch refuses."""
    others = kwargs.get("use_reentrant") is not False and (kwargs.keys() - set(KNOWN) or kwargs.get("debug"))
    return kwargs.get("context_fn", noop_context_fn) is not noop_context_fn or bool(others)


def _requires_grad(value: object) -> bool:
    """Whether autograd follows an argument: if it follows none, the reentrant variant leaves autograd off."""
    return isinstance(value, torch.Tensor) and value.requires_grad
