"""PyTorch's functionalization of single operations: each that writes is replaced by operations that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.capture.fake import fake_like, new_mode
from thunder_core.capture.graph import memory_of
from thunder_core.capture.sizes import number_of
from thunder_core.capture.symbols import LIFTS, is_random, symbol_of
from thunder_core.capture.tensors import tensors_in
from thunder_core.capture.writes import updates_statistics, written_values
from thunder_core.ir.evaluate import evaluate_one
from thunder_core.ir.proxy import NumberProxy, Proxy, TensorProxy, tensor_proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves
from thunder_core.runtime.library.overlap import span

ATEN = torch.ops.aten
QUERIES = frozenset({torch.ops.prim.device.default})
REPLACED = {"aten::native_batch_norm": ATEN._native_batch_norm_legit.default}

# Operators that PyTorch differentiates wrongly: this one by its noise before that was drawn.
WRONG_DERIVATIVES = frozenset({"aten::rrelu_with_noise_functional"})


class NotFunctionalizable(Exception):
    """An operation has no equivalent that writes nothing; the message says why."""


class Functionalizer:
    """Runs operations of a trace under functionalization and writes down the operations that they turn into.

    Each operation runs a second time, as it stands, on tensors without data that share memory as the real ones do; the
    overlap of what it reads and writes is checked there. `value` maps a tensor of the trace to the proxy that holds its
    value after the writes so far. `environment` is that of the symbols in sizes, if there are any.
    """

    def __init__(self, next_name: Callable[[], str], environment: Any = None) -> None:
        self._bsyms: list[BoundSymbol] = []
        self._mode = new_mode(environment)
        self._tensors: dict[str, torch.Tensor] = {}
        self._overlapping: dict[str, torch.Tensor] = {}
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._next_name = next_name

    def add(self, proxy: TensorProxy) -> None:
        """Add a tensor that is an input of the trace, or an output of one of its bound symbols."""
        self._overlapping[proxy.name] = fake_like(proxy, self._mode)
        fake = fake_like(proxy, self._mode)
        self._proxies[id(fake)] = (fake, proxy)
        self._tensors[proxy.name] = torch._to_functional_tensor(fake)

    def take_operations(self) -> list[BoundSymbol]:
        """Return the operations that were written down since the last call, and forget them."""
        bsyms, self._bsyms = self._bsyms, []
        return bsyms

    def _functional(self, proxy: TensorProxy) -> torch.Tensor:
        if proxy.name not in self._tensors:
            self.add(proxy)
        return self._tensors[proxy.name]

    def value(self, proxy: TensorProxy) -> TensorProxy:
        """The proxy that holds the value of a tensor of the trace after the writes so far.

        Asking for it may write down operations that make a view again.
        """
        tensor = self._functional(proxy)
        with self._running():
            torch._functionalize_sync(tensor)
            return self._proxy(torch._from_functional_tensor(tensor))

    def run(self, operation: BoundSymbol) -> None:
        """Run an operation of the trace; raises what PyTorch raises, and `NotFunctionalizable`."""
        for proxy in operation.inputs:
            if isinstance(proxy, TensorProxy):
                self._functional(proxy)
        with torch.no_grad(), torch._C._DisableAutocast(), self._mode, _OverlapChecks():  # type: ignore[no-untyped-call]
            _run(operation, operation.symbol.target, self._overlapping)
        with self._running():
            _run(operation, _with_exact_schema(operation.symbol.target), self._tensors)

    @contextmanager
    def _running(self) -> Iterator[None]:
        with torch.no_grad(), torch._C._DisableAutocast(), self._mode, _Recording(self):
            torch._enable_functionalization(reapply_views=True)
            try:
                yield
            finally:
                torch._disable_functionalization()  # type: ignore[no-untyped-call]

    def _proxy(self, fake: torch.Tensor) -> TensorProxy:
        known = self._proxies.get(id(fake))
        if known is None:
            known = self._proxies[id(fake)] = (fake, tensor_proxy(self._next_name(), fake))
        return known[1]

    def note(self, operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one of the operations that functionalization gives, and write it down as a bound symbol."""
        if operator in QUERIES:
            return operator(*args, **kwargs)
        if torch.Tag.inplace_view in operator.tags or operator._schema.is_mutable:
            raise NotFunctionalizable(f"{operator} has no form that does not write")
        if operator._schema.name in WRONG_DERIVATIVES:
            raise NotFunctionalizable(f"PyTorch's derivative of {operator} is not that of the one that writes")
        if operator is ATEN.copy.default:
            return self._copied(*args)
        if operator in LIFTS and not self._is_known(args[0]):
            return self._constant(args[0])
        output = operator(*args, **kwargs)
        if not all(map(self._is_known, tensors_in((args, kwargs)))):
            raise NotFunctionalizable(f"{operator} reads a tensor that has no name")

        def proxy(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self._proxy(leaf)
            return number_of(leaf)

        words = replace_leaves(args, proxy), replace_leaves(dict(kwargs), proxy)
        bsym = BoundSymbol(symbol_of(operator), *words, replace_leaves(output, proxy))
        self._bsyms.append(replace(bsym, ordered=is_random(operator, args, kwargs)))
        return output

    def _copied(self, into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """The result of `copy`, in operations that autograd can follow, which it cannot `copy`."""
        if (source.dtype, source.device) != (into.dtype, into.device):
            where = {"dtype": into.dtype, "device": into.device, "non_blocking": non_blocking}
            source = self.note(ATEN._to_copy.default, (source,), where)
        if source.shape != into.shape:
            source = self.note(ATEN.expand.default, (source, list(into.shape)), {})
        result: torch.Tensor = self.note(ATEN.clone.default, (source,), {"memory_format": torch.contiguous_format})
        return result

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._proxies

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A number that PyTorch made a tensor of, as an operation that makes it."""
        if tensor.ndim or tensor.device.type != "cpu" or tensor.is_meta:
            raise NotFunctionalizable("a tensor that the operation brings along")
        with torch.utils._python_dispatch._disable_current_modes():
            value = tensor.item()
        return self.note(  # type: ignore[no-any-return]
            ATEN.scalar_tensor.default, (value,), {"dtype": tensor.dtype, "device": tensor.device}
        )


def _run(operation: BoundSymbol, function: Callable[..., Any], tensors: dict[str, torch.Tensor]) -> None:
    """Call the function as the operation does, with these tensors and those that it makes by name."""
    numbers = {proxy.name: proxy.value for proxy in operation.inputs if isinstance(proxy, NumberProxy)}
    output = evaluate_one(operation, {**tensors, **numbers}, lambda _, args, kwargs: function(*args, **kwargs))
    results = tensors_in(_known_outputs(output, operation.output))
    made = {leaf.name: leaf for leaf in leaves(operation.output) if isinstance(leaf, TensorProxy)}
    for proxy, tensor in zip(made.values(), results, strict=True):
        if tuple(tensor.shape) != proxy.shape or tensor.dtype != proxy.dtype:
            raise NotFunctionalizable("the result has another shape")
        tensors.setdefault(proxy.name, tensor)


class _OverlapChecks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses writes to one place twice, and to memory that is read beside it, as PyTorch does for most operations."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
        every = [leaf for leaf in leaves(list(written_values(func, args, kwargs or {}))) if leaf is not None]
        for written in every:
            if len(every) > 1 and sum(memory_of(written) == memory_of(other) for other in given) > 1:
                raise NotFunctionalizable(f"{func} writes to several tensors, and to memory that is there twice")
            if any(not stride and size > 1 for size, stride in zip(written.shape, written.stride(), strict=True)):
                raise NotFunctionalizable(f"{func} writes to one place more than once")
            if any(_partially_overlap(written, other) for other in given):
                raise NotFunctionalizable(f"{func} reads a part of what it writes")
        return func(*args, **(kwargs or {}))


def _partially_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share memory, and are not the same elements in the same order."""
    if memory_of(one) != memory_of(other) or not one.numel() or not other.numel():
        return False
    starts = [tensor.storage_offset() * tensor.element_size() for tensor in (one, other)]
    same = starts[0] == starts[1] and one.shape == other.shape and one.stride() == other.stride()
    apart = starts[0] + span(one) <= starts[1] or starts[1] + span(other) <= starts[0]
    return not (same or apart)


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands each operation that functionalization gives to a functionalizer, which writes it down."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, functionalizer: Functionalizer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.functionalizer = functionalizer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.functionalizer.note(func, args, kwargs or {})


def _with_exact_schema(function: Callable[..., Any]) -> Callable[..., Any]:
    """The variant of an operator whose schema says what it writes; the operator itself where its own schema does."""
    if not isinstance(function, torch._ops.OpOverload) or not updates_statistics(function):
        return function
    if function._schema.name not in REPLACED:
        raise NotFunctionalizable(f"{function} writes what its schema does not say")
    return REPLACED[function._schema.name]


def _known_outputs(result: Any, output: Any) -> Any:
    """The results of an operation that have a proxy in the trace."""
    if isinstance(output, Proxy) or not isinstance(result, tuple | list):
        return result if output is not None else None
    return [one for one, known in zip(result, output, strict=True) if isinstance(known, Proxy)]
