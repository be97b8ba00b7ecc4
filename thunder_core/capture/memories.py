"""Memories of the calls of one recording, which are done once more in the names of other tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from thunder_core.capture.memo import Memory, fresh_fake, rebuilt, remember, signature
from thunder_core.capture.place import Place
from thunder_core.capture.symbols import QUESTIONS
from thunder_core.capture.tensors import Tensors
from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol


class Memories:
    """The memories of a recording, by the signatures of calls.

    `follow(fake, base)` has autograd take a fake for a view of another one.
    """

    def __init__(self, tensors: Tensors, follow: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        self._tensors = tensors
        self._follow = follow
        self._known: dict[Hashable, Memory] | None = {}

    def key(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Hashable | None:
        """The key that a call is remembered by; None for one that cannot be."""
        if self._known is None or function in QUESTIONS:
            return None
        return signature(function, args, kwargs, self._tensors.describe)

    def find(self, key: Hashable | None) -> Memory | None:
        """The memory under a key."""
        return self._known.get(key) if self._known and key is not None else None

    def add(self, key: Hashable, bsym: BoundSymbol | None, read: list[torch.Tensor], output: Any) -> None:
        """Remember a call, if that can be."""
        named = [(tensor, self._tensors.proxy(tensor)) for tensor in read]
        memory = remember(bsym, named, output, self._tensors.proxy)
        if memory is not None and self._known is not None:
            self._known[key] = memory

    def forget(self) -> None:
        """Calls may mean something else from now on."""
        if self._known:
            self._known.clear()

    def end(self) -> None:
        """Nothing is remembered from now on: signatures do not tell tensors apart any more."""
        self._known = None

    def again(
        self, memory: Memory, read: list[torch.Tensor], place: Callable[[], Place]
    ) -> tuple[BoundSymbol | None, Any]:
        """The bound symbol of a remembered call with these tensors, at a place, and its result, in fakes."""
        names: dict[str, Proxy] = {}
        fakes: dict[int, torch.Tensor] = {}
        for (old, proxy), tensor in zip(memory.read, read, strict=True):
            names[proxy.name] = self._tensors.proxy(tensor)
            fakes[id(old)] = tensor
        for proxy in memory.intermediates:
            names[proxy.name] = proxy.named(self._tensors.next_name())
        for output, old in zip(memory.made, memory.fresh, strict=True):
            fake = fakes[id(old)] = fresh_fake(output, read, self._tensors.mode)
            if output.follows and output.view_of is not None:
                self._follow(fake, read[output.view_of])
            names[output.proxy.name] = self._tensors.adopt(fake, output.proxy.named(self._tensors.next_name()))
        bsym = memory.bsym
        if bsym is not None:
            here = place()
            bsym = bsym.renamed(names, at=(here.source, here.module))
        return bsym, rebuilt(memory.result, fakes)
