"""PyTorch's functionalization of single operations: each that writes is replaced by operations that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.tracing.capture.fakes.fake import fake_like, new_mode
from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.symbolic.shape_env import number_of
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.symbols import LIFTS, is_random, symbol_of
from thunder_core.tracing.capture.torch_facts.writes import updates_statistics, written_values
from thunder_core.tracing.ir.evaluate import evaluate_one
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.overlap import span

ATEN = torch.ops.aten
NOT_RECORDED = frozenset({torch.ops.prim.device.default})
WITH_EXACT_SCHEMA = {"aten::native_batch_norm": ATEN._native_batch_norm_legit.default}

# Operators that PyTorch differentiates for real numbers alone.
NOT_COMPLEX = frozenset({ATEN.slice_scatter.default, ATEN.select_scatter.default})
# Operators whose derivative in PyTorch is wrong: that of this one reads the argument `noise`, not what was drawn.
WRONG_DERIVATIVES = frozenset({"aten::rrelu_with_noise_functional"})


class NotFunctionalizable(Exception):
    """An operation has no equivalent that writes nothing; the message says why."""


class Functionalizer:
    """Runs operations of a trace under functionalization and writes down the operations that they turn into.

    Each operation runs a second time, as it stands, on tensors without data that share memory as the real ones do; the
    overlap of what it reads and writes is checked there. `value` maps a tensor of the trace to the proxy that holds its
    value after the writes so far. `environment` is that of the symbols in sizes, if there are any. Autograd may
    follow the tensors that are `followed` from when they are made.
    """

    def __init__(
        self, next_name: Callable[[], str], environment: Any = None, followed: Iterable[str] = frozenset()
    ) -> None:
        self._bsyms: list[BoundSymbol] = []
        self._mode = new_mode(environment)
        self._functional_tensors: dict[str, torch.Tensor] = {}  # by the names of the trace
        self._aliasing_fakes: dict[str, torch.Tensor] = {}  # those that alias as the real ones do, by the same names
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._followed = set(followed)
        self._next_name = next_name
        self._target: object = None  # the operation that is functionalized

    def add(self, proxy: TensorProxy) -> None:
        """Add a tensor that is an input of the trace, or an output of one of its bound symbols."""
        self._aliasing_fakes[proxy.name] = fake_like(proxy, self._mode)
        fake = fake_like(proxy, self._mode)
        self._proxies[id(fake)] = (fake, proxy)
        self._functional_tensors[proxy.name] = torch._to_functional_tensor(fake)

    def take_operations(self) -> list[BoundSymbol]:
        """Return the operations that were written down since the last call, and forget them."""
        bsyms, self._bsyms = self._bsyms, []
        return bsyms

    def _functional_of(self, proxy: TensorProxy) -> torch.Tensor:
        if proxy.name not in self._functional_tensors:
            self.add(proxy)
        return self._functional_tensors[proxy.name]

    def value(self, proxy: TensorProxy) -> TensorProxy:
        """The proxy that holds the value of a tensor of the trace after the writes so far.

        Asking for it may write down operations that make a view again.
        """
        tensor = self._functional_of(proxy)
        self._target = None
        with self._functionalizing():
            torch._functionalize_sync(tensor)
            return self._proxy(torch._from_functional_tensor(tensor))

    def run(self, operation: BoundSymbol) -> None:
        """Check the overlap of an operation's arguments, then functionalize it and record what it becomes.

        Raises `NotFunctionalizable`, or whatever PyTorch raises.
        """
        for proxy in operation.inputs:
            if isinstance(proxy, TensorProxy):
                self._functional_of(proxy)
        with torch.no_grad(), torch._C._DisableAutocast(), self._mode, _OverlapChecks():  # type: ignore[no-untyped-call]
            _evaluate_into(operation, operation.symbol.target, self._aliasing_fakes)
        self._target = operation.symbol.target
        with self._functionalizing():
            _evaluate_into(operation, _with_exact_schema(operation.symbol.target), self._functional_tensors)

    @contextmanager
    def _functionalizing(self) -> Iterator[None]:
        with torch.no_grad(), torch._C._DisableAutocast(), self._mode, _Recording(self):
            torch._enable_functionalization(reapply_views=True)
            try:
                yield
            finally:
                torch._disable_functionalization()  # type: ignore[no-untyped-call]

    def _proxy(self, fake: torch.Tensor) -> TensorProxy:
        pair = self._proxies.get(id(fake))
        if pair is None:
            pair = self._proxies[id(fake)] = (fake, tensor_proxy(self._next_name(), fake))
        return pair[1]

    def record(self, operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one functional operation and record it as a bound symbol.

        `copy` is recorded as `_to_copy`, `expand` and `clone`, a lifted scalar as `scalar_tensor`, queries of devices
        not at all. Raises `NotFunctionalizable` for an operation that still writes, that PyTorch differentiates
        wrongly, or that reads a tensor without a proxy.
        """
        if operator in NOT_RECORDED:
            return operator(*args, **kwargs)
        if torch.Tag.inplace_view in operator.tags or operator._schema.is_mutable:
            raise NotFunctionalizable(f"{operator} has no out-of-place form")
        if operator._schema.name in WRONG_DERIVATIVES:
            raise NotFunctionalizable(f"PyTorch's derivative of {operator} differs from that of its in-place form")
        if operator is ATEN.unfold_backward.default and self._target is not operator and not tiles(*args):
            raise NotFunctionalizable("PyTorch's functionalization loses elements that no window of `unfold` covers")
        if operator in NOT_COMPLEX and args[0].is_complex() and self._proxy(args[0]).name in self._followed:
            raise NotFunctionalizable(f"PyTorch has no derivative of {operator} for complex numbers")
        if operator is ATEN.copy.default:
            return self._copied(*args)
        if operator is ATEN.zero.default and args[0].is_complex():  # whose derivative PyTorch has of `zero_` alone
            return self.record(ATEN.fill.Scalar, (args[0], 0), {})
        if operator in LIFTS and not self._is_known(args[0]):
            return self._constant(args[0])
        output = operator(*args, **kwargs)
        if not all(map(self._is_known, tensors_in((args, kwargs)))):
            raise NotFunctionalizable(f"{operator} reads a tensor that has no name")

        def proxy(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self._proxy(leaf)
            return number_of(leaf)

        arguments = replace_leaves(args, proxy), replace_leaves(dict(kwargs), proxy)
        bsym = BoundSymbol(symbol_of(operator), *arguments, replace_leaves(output, proxy))
        if any(proxy.name in self._followed for proxy in bsym.inputs):
            self._followed.update(
                proxy.name for proxy in bsym.tensors if proxy.dtype.is_floating_point or proxy.dtype.is_complex
            )
        self._bsyms.append(replace(bsym, ordered=is_random(operator, args, kwargs)))
        return output

    def _copied(self, into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Record `copy` as `_to_copy`, `expand` and `clone`, of which autograd has the derivatives.

        What is written over has a gradient, too, which is zero: where autograd follows it, `where` says so.
        """
        if (source.dtype, source.device) != (into.dtype, into.device):
            where = {"dtype": into.dtype, "device": into.device, "non_blocking": non_blocking}
            source = self.record(ATEN._to_copy.default, (source,), where)
        if source.shape != into.shape:
            source = self.record(ATEN.expand.default, (source, list(into.shape)), {})
        if self._proxy(into).name in self._followed:
            always = self.record(ATEN.scalar_tensor.default, (1,), {"dtype": torch.bool, "device": into.device})
            source = self.record(ATEN.where.self, (always, source, into), {})
        result: torch.Tensor = self.record(ATEN.clone.default, (source,), {"memory_format": torch.contiguous_format})
        return result

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._proxies

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record a zero-dimensional constant as `scalar_tensor`; raises `NotFunctionalizable` for another constant."""
        if tensor.ndim or tensor.device.type != "cpu" or tensor.is_meta:
            raise NotFunctionalizable("the operation uses a constant tensor that is not a scalar on the CPU")
        with torch.utils._python_dispatch._disable_current_modes():
            value = tensor.item()
        return self.record(  # type: ignore[no-any-return]
            ATEN.scalar_tensor.default, (value,), {"dtype": tensor.dtype, "device": tensor.device}
        )


def _evaluate_into(operation: BoundSymbol, function: Callable[..., Any], tensors: dict[str, torch.Tensor]) -> None:
    """Call a function on an operation's arguments, looked up in `tensors`, to which its results are added.

    Raises `NotFunctionalizable` if a result has another shape or dtype than the trace says.
    """
    numbers = {proxy.name: proxy.value for proxy in operation.inputs if isinstance(proxy, NumberProxy)}
    output = evaluate_one(operation, {**tensors, **numbers}, lambda _, args, kwargs: function(*args, **kwargs))
    results = tensors_in(_outputs_with_proxies(output, operation.output))
    outputs = {leaf.name: leaf for leaf in leaves(operation.output) if isinstance(leaf, TensorProxy)}
    for proxy, tensor in zip(outputs.values(), results, strict=True):
        if tuple(tensor.shape) != proxy.shape or tensor.dtype != proxy.dtype:
            raise NotFunctionalizable("the result has another shape or dtype than in the trace")
        tensors.setdefault(proxy.name, tensor)


def tiles(windows: torch.Tensor, shape: Sequence[Any], dim: int, size: int, step: int) -> bool:
    """Whether the windows of `unfold` cover each element of a tensor of that shape once.

    Where a view made by `unfold` is written to, PyTorch makes the tensor anew of the windows alone, and of zeros.
    """
    return size == step and (not shape or statically_known_true(shape[dim] % step == 0))


class _OverlapChecks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises `NotFunctionalizable` for operations with overlapping arguments, as PyTorch does for most.

    These are a write to a tensor with a stride of zero, a write that overlaps another argument in part, and writes to
    several tensors one of which shares memory with another argument.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
        every = [leaf for leaf in leaves(list(written_values(func, args, kwargs or {}))) if leaf is not None]
        for written in every:
            if len(every) > 1 and sum(memory_of(written) == memory_of(other) for other in tensors) > 1:
                raise NotFunctionalizable(f"{func} writes to several tensors, and to memory that overlaps")
            if any(not stride and size > 1 for size, stride in zip(written.shape, written.stride(), strict=True)):
                raise NotFunctionalizable(f"{func} writes to an element more than once")
            if any(_partially_overlap(written, other) for other in tensors):
                raise NotFunctionalizable(f"{func} reads memory that it writes to")
        return func(*args, **(kwargs or {}))


def _partially_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the memory spans of two tensors overlap although they are not the same view of it."""
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
        return self.functionalizer.record(func, args, kwargs or {})


def _with_exact_schema(function: Callable[..., Any]) -> Callable[..., Any]:
    """The variant of an operator whose schema says what it writes; the operator itself where its own schema does."""
    if not isinstance(function, torch._ops.OpOverload) or not updates_statistics(function):
        return function
    if function._schema.name not in WITH_EXACT_SCHEMA:
        raise NotFunctionalizable(f"{function} writes to an argument that its schema does not declare as written")
    return WITH_EXACT_SCHEMA[function._schema.name]


def _outputs_with_proxies(result: Any, output: Any) -> Any:
    """The results of an operation that have a proxy in the trace; the others are dropped."""
    if isinstance(output, Proxy) or not isinstance(result, tuple | list):
        return result if output is not None else None
    return [one for one, known in zip(result, output, strict=True) if isinstance(known, Proxy)]
