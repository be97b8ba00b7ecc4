"""Create bound symbols that call PyTorch's operators.

The operators run on meta tensors to get the results' metadata.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves, replace_leaves


@dataclass
class Emitter:
    """A factory of bound symbols for a trace. New results get names that are not among the trace's `used_names`."""

    trace: Trace
    used_names: set[str] = field(init=False)

    def __post_init__(self) -> None:
        proxies: Iterable[Proxy] = itertools.chain(
            self.trace.inputs, *((*bsym.inputs, *bsym.outputs) for bsym in self.trace.bound_symbols)
        )
        self.used_names = {proxy.name for proxy in proxies} | set(self.trace.constants)

    def call(
        self,
        operator: Callable[..., Any],
        *args: Any,
        at: BoundSymbol,
        output: object = None,
        ordered: bool = False,
        **kwargs: Any,
    ) -> BoundSymbol:
        """Return a bound symbol that calls an operator; `output` is its result, or None for new proxies.

        The call belongs to the bound symbol `at`: it gets the source line and the module of `at`, and new results get
        names that begin with the name of its first result. A call that changes state besides its results is `ordered`,
        so that no region and no CUDA graph contains it.
        """
        device = next(leaf.device for leaf in leaves(args) if isinstance(leaf, TensorProxy))
        result = output
        if result is None:
            meta_result = operator(*replace_leaves(args, without_data), **kwargs)
            result = replace_leaves(meta_result, lambda leaf: self._proxy(leaf, device, at))
        source = at.source or (at.derives.source if at.derives else None)
        return BoundSymbol(
            symbol_of(operator), args, kwargs, result, (), source, at.module, derives=at.derives, ordered=ordered
        )

    def _proxy(self, leaf: Any, device: torch.device, at: BoundSymbol) -> Any:
        """Return a new proxy on a device for a meta tensor, or any other leaf unchanged."""
        return on_device(tensor_proxy(self.next_name(at), leaf), device) if isinstance(leaf, torch.Tensor) else leaf

    def next_name(self, at: BoundSymbol) -> str:
        """Return a new name that begins with the name of a bound symbol's first result."""
        stem = at.outputs[0].name
        name = next(name for number in itertools.count() if (name := f"{stem}_{number}") not in self.used_names)
        self.used_names.add(name)
        return name


def without_data(leaf: object) -> Any:
    """Return a meta tensor with the metadata of a proxy, or any other leaf unchanged."""
    if not isinstance(leaf, TensorProxy):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device="meta")


def on_device(proxy: TensorProxy, device: torch.device) -> TensorProxy:
    """Return a copy of a proxy on another device."""
    return TensorProxy(proxy.name, proxy.shape, proxy.stride, proxy.dtype, device)
