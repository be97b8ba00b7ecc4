"""The tape: aten operations that run beneath autograd on tensors without data, written down as bound symbols."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.capture.shape_env import number_of
from thunder_core.capture.symbols import LIFTS, is_random, symbol_of
from thunder_core.capture.tensors import tensors_in
from thunder_core.capture.writes import is_reshaping, out_of_place, written_values
from thunder_core.errors import SourceLine
from thunder_core.functionalization.local import functionalize_local
from thunder_core.ir.evaluate import bindings
from thunder_core.ir.proxy import TensorProxy, tensor_proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import replace_leaves

ALIASES = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})
SKIPPED = frozenset({torch.ops.prim.device.default})
MODED = frozenset({torch.ops.aten.mkldnn_rnn_layer.default})

# PyTorch's metadata does not know all strides (softplus_backward's): what is a view of them may be a copy of others.
RELAXED: Mapping[object, Any] = {torch.ops.aten.view.default: torch.ops.aten.reshape.default}
MOST_NUMBERS = 64  # of a constant that is printed with its bound symbol


class Underivable(Exception):
    """A bound symbol whose derivative is no list of operations; the message says why, `where` its place."""

    where: SourceLine | None = None
    missing_formula: BoundSymbol | None = None  # the bound symbol, if it is one that PyTorch has no derivative of


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the aten operations beneath autograd, in the names that it gives to their tensors."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo takes no part here."""
        return False

    def __init__(self, prefix: str, known: Mapping[int, tuple[torch.Tensor, TensorProxy]] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bsyms: list[BoundSymbol] = []
        self._prefix = prefix
        self._known = dict(known or {})
        self._last = -1

    def continued(self) -> Tape:
        """A tape for the backward of what is on this one."""
        return Tape("%g", self._known)

    def bind(self, tensor: torch.Tensor, proxy: TensorProxy) -> None:
        """Let the proxy stand for the tensor."""
        self._known[id(tensor)] = (tensor, proxy)

    def name(self, tensor: torch.Tensor) -> TensorProxy:
        """A new proxy for a tensor that came into being."""
        self._last = max(self._last + 1, len(self._known))
        proxy = replace(tensor_proxy(f"{self._prefix}{self._last}", tensor), requires_grad=False)
        self.bind(tensor, proxy)
        return proxy

    def proxy(self, tensor: torch.Tensor) -> TensorProxy:
        """The proxy of a tensor that is known; `Underivable` for one that no operation on the tape made."""
        known = self._known.get(id(tensor))
        if known is None:
            raise Underivable("it uses a hidden tensor, which no recorded operation made")
        return known[1]

    def name_result(self, tensor: torch.Tensor, proxy: TensorProxy) -> None:
        """Give a result the name that it has outside; where the tensor has another name, an alias of it is recorded."""
        before = self.proxy(tensor)
        defined = {out.name for bsym in self.bsyms for out in bsym.defines}
        if before.name == proxy.name:
            return
        if before.name not in defined:
            alias = symbol_of(torch.ops.aten.alias.default)
            self.bsyms.append(BoundSymbol(alias, (before,), {}, replace(proxy, requires_grad=False)))
            self.bind(tensor, proxy)
            return
        self.bsyms = [bsym.renamed({before.name: proxy}) for bsym in self.bsyms]
        for number, (other, known) in list(self._known.items()):
            if known.name == before.name:
                self._known[number] = (other, proxy)

    def unwritten(self) -> list[BoundSymbol]:
        """The bound symbols, without writes to what they make as far as that can be."""
        if not any(bsym.mutates for bsym in self.bsyms):
            return self.bsyms
        return functionalize_local(self.bsyms, (f"{self._prefix}w{number}" for number in itertools.count()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_reshaping(func):
            return self._reshape(func, args, kwargs)
        output = func(*args, **kwargs)
        if func in SKIPPED:
            return output
        if func in LIFTS:
            self._constant(args[0], output)
            return output
        if func in ALIASES and id(args[0]) in self._known:
            self.bind(output, self._known[id(args[0])][1])
            return output
        self._note(func, args, kwargs, output)
        return output

    def _constant(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """A tensor that PyTorch made of numbers of the program, as the bound symbol that makes it."""
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or tensor.numel() > MOST_NUMBERS:
            raise Underivable("it holds a constant tensor")
        with torch.utils._python_dispatch._disable_current_modes():
            numbers = tensor.tolist()
        bsym = BoundSymbol(symbol_of(torch.tensor), (numbers,), {"dtype": tensor.dtype}, self.name(output))
        self.bsyms.append(bsym)

    def _note(self, func: torch._ops.OpOverload, args: Any, kwargs: Any, output: Any) -> None:
        if func in MODED:
            raise Underivable(f"`{func}` returns what its backward reads only while autograd is on")
        read = replace_leaves((tuple(args), dict(kwargs)), self._named)
        for tensor in tensors_in(output):
            if id(tensor) not in self._known:
                self.name(tensor)
        written = list(written_values(func, args, kwargs))
        self.bsyms.append(
            BoundSymbol(
                symbol=symbol_of(RELAXED.get(func, func)),
                args=read[0],
                kwargs=read[1],
                output=replace_leaves(output, self._named),
                mutates=tuple(self.proxy(tensor).name for tensor in tensors_in(written)),
                ordered=is_random(func, args, kwargs),
            )
        )

    def _reshape(self, func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
        """A tensor that gets other metadata in place is another name's from then on; it must be made here."""
        read = replace_leaves((tuple(args), dict(kwargs)), self._named)
        plain, defined = out_of_place(func), {proxy.name for bsym in self.bsyms for proxy in bsym.defines}
        if plain is None or read[0][0].name not in defined:
            raise Underivable(f"`{func}` changes the shape or the strides of a tensor in place")
        output = func(*args, **kwargs)
        self.bsyms.append(BoundSymbol(symbol_of(plain), read[0], read[1], self.name(args[0])))
        return output

    def _named(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.proxy(leaf)
        return number_of(leaf)


def paired(names: Any, values: Any) -> Iterator[tuple[TensorProxy, torch.Tensor]]:
    """The tensors of a result with their proxies; raises `Underivable` for a result of another structure."""
    try:
        pairs = list(bindings(names, values))
    except ValueError as error:
        raise Underivable("it returns something else when it is run again") from error
    for proxy, value in pairs:
        if isinstance(proxy, TensorProxy) and isinstance(value, torch.Tensor):
            yield proxy, value


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return str(error).strip().partition("\n")[0]
