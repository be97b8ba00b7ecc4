"""The call cache of a recording.

A call with the same function, constants and tensor metadata as an earlier call does not run on fakes again: its bound
symbol is renamed, and its result gets new fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from thunder_core.tracing.capture.fakes.memo import CachedCall, cached_call, fresh_fake, rebuild, signature
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.location import Location
from thunder_core.tracing.capture.torch_facts.symbols import QUERIES_OF_STATE
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol


class CallCache:
    """The cached calls of a recording, by key (see `signature`).

    `make_view(fake, base)` makes `fake` a view of `base` in autograd's graph.
    """

    def __init__(self, tensors: Tensors, make_view: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        self._tensors = tensors
        self._make_view = make_view
        self._calls: dict[Hashable, CachedCall] | None = {}

    def key(
        self, function: Callable[..., Any], args: object, kwargs: object
    ) -> tuple[Hashable | None, list[torch.Tensor]]:
        """Return the key of a call, or None if it cannot be cached, and the tensors that a call with a key reads."""
        if self._calls is None or function in QUERIES_OF_STATE:
            return None, []
        return signature(function, args, kwargs, self._tensors.describe)

    def find(self, key: Hashable | None) -> CachedCall | None:
        """Return the cached call of a key, or None."""
        return self._calls.get(key) if self._calls and key is not None else None

    def add(self, key: Hashable, bsym: BoundSymbol | None, tensors_read: list[torch.Tensor], result: object) -> None:
        """Cache a call, if its result can be rebuilt for other tensors and no call of `disable` came before."""
        named = [(tensor, self._tensors.proxy(tensor)) for tensor in tensors_read]
        call = cached_call(bsym, named, result, self._tensors.proxy)
        if call is not None and self._calls is not None:
            self._calls[key] = call

    def clear(self) -> None:
        """Drop all calls, because equal calls may give other results from now on."""
        if self._calls:
            self._calls.clear()

    def disable(self) -> None:
        """Cache no more calls, because the metadata of a tensor was changed in place."""
        self._calls = None

    def replay(
        self, call: CachedCall, tensors_read: list[torch.Tensor], get_location: Callable[[], Location]
    ) -> tuple[BoundSymbol | None, Any]:
        """Rebuild a cached call for other tensors: return the renamed bound symbol, and the result with new fakes."""
        proxies: dict[str, Proxy] = {}
        new_tensors: dict[int, torch.Tensor] = {}
        for (old, proxy), tensor in zip(call.read, tensors_read, strict=True):
            proxies[proxy.name] = self._tensors.proxy(tensor)
            new_tensors[id(old)] = tensor
        for proxy in call.intermediates:
            proxies[proxy.name] = proxy.with_name(self._tensors.next_name())
        for output, old in zip(call.results, call.fresh, strict=True):
            fake = new_tensors[id(old)] = fresh_fake(output, tensors_read, self._tensors.mode)
            if output.is_differentiable_view and output.view_of is not None:
                self._make_view(fake, tensors_read[output.view_of])
            proxies[output.proxy.name] = self._tensors.adopt(fake, output.proxy.with_name(self._tensors.next_name()))
        bsym = call.bsym
        if bsym is not None:
            location = get_location()
            bsym = bsym.rename(proxies, at=(location.source, location.module))
        return bsym, rebuild(call.result, new_tensors)
