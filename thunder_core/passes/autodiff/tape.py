"""The tape: aten operations that run below autograd on tensors without data, recorded as bound symbols."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.backend.functionalization.functionalizer import MAX_NUMBERS
from thunder_core.backend.functionalization.local import functionalize_local
from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.capture.fakes.absent_gpu import DEVICE_QUERIES, is_on_absent_gpu, restore, stand_in_for
from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.symbolic.shape_env import number_of
from thunder_core.tracing.capture.torch_facts.symbols import LIFTS, is_process_group_method, is_random, symbol_of
from thunder_core.tracing.capture.torch_facts.writes import is_reshaping, out_of_place, written_values
from thunder_core.tracing.ir.evaluate import bindings
from thunder_core.tracing.ir.proxy import TensorProxy, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.operators.unsized_results import FUNCTIONS

ALIASES = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})

# A fake may have other strides than the real tensor, for example the result of softplus_backward. A view of the fake
# may then be impossible for the real tensor, so a reshape is recorded.
RECORDED_AS: Mapping[object, Any] = {torch.ops.aten.view.default: torch.ops.aten.reshape.default}


class Underivable(Exception):
    """Raised for a bound symbol whose derivative cannot be traced; the message is the reason."""

    where: SourceLine | None = None  # the source line of the bound symbol
    missing_formula: BoundSymbol | None = None  # the bound symbol, if PyTorch has no derivative of it


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the aten operations below autograd as bound symbols, with new names for their tensors."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. Otherwise, PyTorch imports Dynamo to disable it in `__torch_dispatch__`, which is slow."""
        return False

    def __init__(self, prefix: str, proxies: Mapping[int, tuple[torch.Tensor, TensorProxy]] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bsyms: list[BoundSymbol] = []
        self._prefix = prefix
        # The tensors and their proxies, by the id of the tensor. Tensors are kept alive, so that no other tensor gets
        # the id.
        self._proxies = dict(proxies or {})
        self._last = -1

    def continue_in_backward(self) -> Tape:
        """Return a new tape for the backward, with the proxies of all tensors on this tape."""
        return Tape("%g", self._proxies)

    def bind(self, tensor: torch.Tensor, proxy: TensorProxy) -> None:
        """Make the proxy represent the tensor."""
        self._proxies[id(tensor)] = (tensor, proxy)

    def new_proxy(self, tensor: torch.Tensor) -> TensorProxy:
        """Make a proxy with a new name represent the tensor, and return the proxy."""
        self._last = max(self._last + 1, len(self._proxies))
        proxy = replace(tensor_proxy(f"{self._prefix}{self._last}", tensor), requires_grad=False)
        self.bind(tensor, proxy)
        return proxy

    def proxy(self, tensor: torch.Tensor) -> TensorProxy:
        """Return the proxy of a tensor; raise `Underivable` for a tensor that the tape does not know."""
        pair = self._proxies.get(id(tensor))
        if pair is None:
            raise Underivable("it uses a tensor that no recorded operation made")
        return pair[1]

    def bind_result(self, tensor: torch.Tensor, proxy: TensorProxy) -> None:
        """Make the proxy of a result in the trace represent the tensor, in place of the proxy that the tape made.

        If the tensor is not a result of an operation on the tape, for example an input, an alias is recorded.
        """
        before = self.proxy(tensor)
        defined = {out.name for bsym in self.bsyms for out in bsym.defines}
        if before.name == proxy.name:
            return
        if before.name not in defined:
            alias = symbol_of(torch.ops.aten.alias.default)
            self.bsyms.append(BoundSymbol(alias, (before,), {}, replace(proxy, requires_grad=False)))
            self.bind(tensor, proxy)
            return
        self.bsyms = [bsym.rename({before.name: proxy}) for bsym in self.bsyms]
        for identity, (tensor_of_proxy, known_proxy) in list(self._proxies.items()):
            if known_proxy.name == before.name:
                self._proxies[identity] = (tensor_of_proxy, proxy)

    def functionalize(self) -> list[BoundSymbol]:
        """Return the bound symbols. Where possible, writes to tensors that they allocate are functionalized."""
        if not any(bsym.mutates for bsym in self.bsyms):
            return self.bsyms
        return functionalize_local(self.bsyms, (f"{self._prefix}w{number}" for number in itertools.count()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_process_group_method(func):
            raise Underivable("it calls a method of a process group, which cannot be recorded")
        if is_reshaping(func):
            return self._run_inplace_view(func, args, kwargs)
        self._require_known(tensors_in([*written_values(func, args, kwargs)]))
        if func in DEVICE_QUERIES and is_on_absent_gpu(args[0]):
            return stand_in_for(args[0].device)
        kwargs = restore(kwargs)
        output = func(*args, **kwargs)
        if func in DEVICE_QUERIES:
            return output
        if func in LIFTS:
            self._record_constant(args[0], output)
            return output
        if func in ALIASES and id(args[0]) in self._proxies:
            self.bind(output, self._proxies[id(args[0])][1])
            return output
        self._record(func, args, kwargs, output)
        return output

    def _require_known(self, written: Iterable[torch.Tensor]) -> None:
        """Raise `Underivable` before an operation writes to a tensor that the tape does not know."""
        for tensor in written:
            self.proxy(tensor)

    def _record_constant(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """Record a constant of the program, such as `torch.tensor([1, 2])`, as a call of `torch.tensor`.

        Raises `Underivable` for a constant that is a fake, is not on the CPU, or has too many elements.
        """
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or tensor.numel() > MAX_NUMBERS:
            raise Underivable("it uses a constant tensor")
        with torch.utils._python_dispatch._disable_current_modes():
            numbers = tensor.tolist()
        bsym = BoundSymbol(symbol_of(torch.tensor), (numbers,), {"dtype": tensor.dtype}, self.new_proxy(output))
        self.bsyms.append(bsym)

    def _record(self, func: torch._ops.OpOverload, args: Any, kwargs: Any, output: Any) -> None:
        """Record an operation that has run."""
        read = replace_leaves((tuple(args), dict(kwargs)), self._to_proxy)
        for tensor in tensors_in(output):
            if id(tensor) not in self._proxies:
                self.new_proxy(tensor)
        written = list(written_values(func, args, kwargs))
        self.bsyms.append(
            BoundSymbol(
                symbol=symbol_of(FUNCTIONS.get(func) or RECORDED_AS.get(func, func)),
                args=read[0],
                kwargs=read[1],
                output=replace_leaves(output, self._to_proxy),
                mutates=tuple(self.proxy(tensor).name for tensor in tensors_in(written)),
                ordered=is_random(func, args, kwargs),
                fresh=func in FUNCTIONS,
            )
        )

    def _run_inplace_view(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that changes metadata in place, and record the operation that returns a view instead.

        Raises `Underivable` for a tensor that no operation on the tape made.
        """
        read = replace_leaves((tuple(args), dict(kwargs)), self._to_proxy)
        plain, defined = out_of_place(func), {proxy.name for bsym in self.bsyms for proxy in bsym.defines}
        if plain is None or read[0][0].name not in defined:
            raise Underivable(f"`{func}` changes the shape or the strides of a tensor in place")
        output = func(*args, **kwargs)
        self.bsyms.append(BoundSymbol(symbol_of(plain), read[0], read[1], self.new_proxy(args[0])))
        return output

    def _to_proxy(self, leaf: object) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.proxy(leaf)
        return number_of(leaf)


def pairs_of(proxies: object, result: object) -> Iterator[tuple[TensorProxy, torch.Tensor]]:
    """Yield each tensor of a result, after the proxy at its position; raise `Underivable` if the structures differ."""
    try:
        pairs = list(bindings(proxies, result))
    except ValueError as error:
        raise Underivable("its result differs when it runs again") from error
    for proxy, value in pairs:
        if isinstance(proxy, TensorProxy) and isinstance(value, torch.Tensor):
            yield proxy, value
