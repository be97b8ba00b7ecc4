"""PyTorch's functionalization of single operations: out-of-place operations replace an in-place operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.tracing.analysis.aliasing import shares_storage, written_tensors
from thunder_core.tracing.capture.fakes.fake import fake_like, new_mode
from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.symbolic.shape_env import TraceShapeEnv, number_of
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.symbols import LIFTS, is_random, symbol_of
from thunder_core.tracing.capture.torch_facts.writes import updates_statistics, written_values
from thunder_core.tracing.ir.evaluate import evaluate_bound_symbol
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.overlap import span

ATEN = torch.ops.aten
MAX_NUMBERS = 64  # maximum numbers in a constant that is printed with its bound symbol
UNRECORDED_OPERATIONS = frozenset({torch.ops.prim.device.default})
VARIANTS_WITH_EXACT_SCHEMA = {"aten::native_batch_norm": ATEN._native_batch_norm_legit.default}

# Operators that PyTorch differentiates for real numbers only.
WITHOUT_COMPLEX_DERIVATIVE = frozenset({ATEN.slice_scatter.default, ATEN.select_scatter.default})
# Operators with a wrong derivative in PyTorch: this derivative reads the argument `noise`, not the generated noise.
WRONG_DERIVATIVES = frozenset({"aten::rrelu_with_noise_functional"})


class NotFunctionalizable(Exception):
    """Raised if an operation has no equivalent that writes nothing; the message is the reason."""


class Functionalizer:
    """Runs operations of a trace under functionalization, and records the resulting operations.

    Each operation also runs unchanged on tensors without data that alias like the real tensors, to check the overlap of
    its arguments. `value` maps a tensor of the trace to the proxy of its value after the writes so far.
    `environment` is the environment of the symbols in sizes, if there are any. `tracked` are the names of tensors that
    autograd may track.
    """

    def __init__(
        self,
        next_name: Callable[[], str],
        environment: TraceShapeEnv | None = None,
        tracked: Iterable[str] = frozenset(),
    ) -> None:
        self._bsyms: list[BoundSymbol] = []
        self._mode = new_mode(environment)
        self._functional_tensors: dict[str, torch.Tensor] = {}  # by the names of the trace
        self._aliasing_fakes: dict[str, torch.Tensor] = {}  # fakes that alias like the real tensors, by the same names
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._tracked = set(tracked)
        self._next_name = next_name
        self._expanded: set[str] = set()  # views of expanded tensors, by the names of the trace
        self._target: object = None  # the operation that is being functionalized

    def add(self, proxy: TensorProxy) -> None:
        """Add a tensor that is an input of the trace, or an output of one of its bound symbols."""
        self._aliasing_fakes[proxy.name] = fake_like(proxy, self._mode)
        fake = fake_like(proxy, self._mode)
        self._proxies[id(fake)] = (fake, proxy)
        self._functional_tensors[proxy.name] = torch._to_functional_tensor(fake)

    def take_operations(self) -> list[BoundSymbol]:
        """Return the operations that were recorded since the last call of this method."""
        bsyms, self._bsyms = self._bsyms, []
        return bsyms

    def _functional_of(self, proxy: TensorProxy) -> torch.Tensor:
        if proxy.name not in self._functional_tensors:
            self.add(proxy)
        return self._functional_tensors[proxy.name]

    def value(self, proxy: TensorProxy) -> TensorProxy:
        """Return the proxy of the value that a tensor of the trace has after the writes so far.

        The call may record operations that recompute a view.
        """
        tensor = self._functional_of(proxy)
        self._target = None
        with self._functionalizing():
            torch._functionalize_sync(tensor)
            return self._proxy(torch._from_functional_tensor(tensor))

    def run(self, operation: BoundSymbol) -> None:
        """Check the overlap of an operation's arguments, then functionalize it and record the resulting operations.

        Raises `NotFunctionalizable`, or an error of PyTorch.
        """
        for proxy in operation.inputs:
            if isinstance(proxy, TensorProxy):
                self._functional_of(proxy)
        with torch.no_grad(), torch._C._DisableAutocast(), self._mode, _OverlapChecks():  # type: ignore[no-untyped-call]
            _evaluate_into(operation, operation.symbol.target, self._aliasing_fakes)
        self._require_no_write_to_expanded(operation)
        self._target = operation.symbol.target
        with self._functionalizing():
            _evaluate_into(operation, _with_exact_schema(operation.symbol.target), self._functional_tensors)

    def _require_no_write_to_expanded(self, operation: BoundSymbol) -> None:
        """Raise `NotFunctionalizable` for a write to a part of an expanded tensor, and note views of such tensors.

        PyTorch's functionalization adds the difference to the tensor that was expanded. The addition rounds the result,
        and turns infinities into NaN.
        """
        written = {*operation.mutates, *(proxy.name for proxy in written_tensors(operation))}
        if written & self._expanded:
            raise NotFunctionalizable(f"{operation.symbol.name} writes to a part of an expanded tensor")
        if shares_storage(operation):
            reads_expanded = any(proxy.name in self._expanded for proxy in operation.inputs)
            tensors = (proxy for proxy in operation.outputs if isinstance(proxy, TensorProxy))
            self._expanded.update(proxy.name for proxy in tensors if reads_expanded or is_expanded(proxy))

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
        """Run a functional operation and record it as a bound symbol.

        `copy` is recorded as `_to_copy`, `expand` and `clone`, and a lifted scalar as `scalar_tensor`; queries of
        devices are not recorded. Raises `NotFunctionalizable` for an operation that still writes, that PyTorch
        differentiates wrongly, or that reads a tensor without a proxy.
        """
        if operator in UNRECORDED_OPERATIONS:
            return operator(*args, **kwargs)
        self._require_functional(operator, args)
        if operator is ATEN.copy.default:
            return self._copy(*args)
        if operator is ATEN.zero.default and args[0].is_complex():  # PyTorch differentiates only `zero_`
            return self.record(ATEN.fill.Scalar, (args[0], 0), {})
        if operator in LIFTS and not self._has_proxy(args[0]):
            return self._constant(args[0])
        output = operator(*args, **kwargs)
        if not all(map(self._has_proxy, tensors_in((args, kwargs)))):
            raise NotFunctionalizable(f"{operator} reads a tensor that has no name")
        self._append(operator, args, kwargs, output)
        return output

    def _require_functional(self, operator: torch._ops.OpOverload, args: Sequence[Any]) -> None:
        """Raise `NotFunctionalizable` for an operation that still writes, or that PyTorch differentiates wrongly."""
        if torch.Tag.inplace_view in operator.tags or operator._schema.is_mutable:
            raise NotFunctionalizable(f"{operator} has no out-of-place form")
        if operator._schema.name in WRONG_DERIVATIVES:
            raise NotFunctionalizable(f"PyTorch's derivative of {operator} differs from that of its in-place form")
        if operator is ATEN.unfold_backward.default and self._target is not operator and not windows_tile(*args):
            raise NotFunctionalizable("PyTorch's functionalization loses elements that no window of `unfold` covers")
        if (
            operator in WITHOUT_COMPLEX_DERIVATIVE
            and args[0].is_complex()
            and self._proxy(args[0]).name in self._tracked
        ):
            raise NotFunctionalizable(f"PyTorch has no derivative of {operator} for complex numbers")

    def _append(
        self, operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], output: object
    ) -> None:
        """Append the bound symbol of an operation; its results need a gradient if its inputs do."""

        def proxy(leaf: object) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self._proxy(leaf)
            return number_of(leaf)

        arguments = replace_leaves(args, proxy), replace_leaves(dict(kwargs), proxy)
        bsym = BoundSymbol(symbol_of(operator), *arguments, replace_leaves(output, proxy))
        if any(proxy.name in self._tracked for proxy in bsym.inputs):
            self._tracked.update(
                proxy.name for proxy in bsym.tensors if proxy.dtype.is_floating_point or proxy.dtype.is_complex
            )
        self._bsyms.append(replace(bsym, ordered=is_random(operator, args, kwargs)))

    def _copy(self, into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Record `copy` as `_to_copy`, `expand` and `clone`, which autograd can differentiate.

        The overwritten tensor has a gradient too, which is zero: `where` records it if autograd tracks the tensor.
        """
        if (source.dtype, source.device) != (into.dtype, into.device):
            where = {"dtype": into.dtype, "device": into.device, "non_blocking": non_blocking}
            source = self.record(ATEN._to_copy.default, (source,), where)
        if source.shape != into.shape:
            source = self.record(ATEN.expand.default, (source, list(into.shape)), {})
        if self._proxy(into).name in self._tracked:
            always = self.record(ATEN.scalar_tensor.default, (1,), {"dtype": torch.bool, "device": into.device})
            source = self.record(ATEN.where.self, (always, source, into), {})
        result: torch.Tensor = self.record(ATEN.clone.default, (source,), {"memory_format": torch.contiguous_format})
        return result

    def _has_proxy(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._proxies

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record a constant on the CPU, such as a list of indices, as a call that creates it from its numbers.

        Raises `NotFunctionalizable` for other constants.
        """
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or tensor.numel() > MAX_NUMBERS:
            raise NotFunctionalizable("the operation uses a constant on a GPU, or a constant with many numbers")
        with torch.utils._python_dispatch._disable_current_modes():
            numbers = tensor.tolist()
        options = {"dtype": tensor.dtype, "device": tensor.device}
        if not tensor.ndim:
            return self.record(ATEN.scalar_tensor.default, (numbers,), options)  # type: ignore[no-any-return]
        constant: torch.Tensor = ATEN.empty.memory_format(tensor.shape, **options)
        self._bsyms.append(BoundSymbol(symbol_of(torch.tensor), (numbers,), options, self._proxy(constant)))
        return constant


def _evaluate_into(operation: BoundSymbol, function: Callable[..., Any], tensors: dict[str, torch.Tensor]) -> None:
    """Call a function on an operation's arguments from `tensors`, and add its results to `tensors`.

    Raises `NotFunctionalizable` if a result's shape or dtype differs from the trace.
    """
    numbers = {proxy.name: proxy.value for proxy in operation.inputs if isinstance(proxy, NumberProxy)}
    output = evaluate_bound_symbol(operation, {**tensors, **numbers}, lambda _, args, kwargs: function(*args, **kwargs))
    results = tensors_in(_outputs_with_proxies(output, operation.output))
    outputs = {leaf.name: leaf for leaf in leaves(operation.output) if isinstance(leaf, TensorProxy)}
    for proxy, tensor in zip(outputs.values(), results, strict=True):
        if tuple(tensor.shape) != proxy.shape or tensor.dtype != proxy.dtype:
            raise NotFunctionalizable("the result has another shape or dtype than in the trace")
        tensors.setdefault(proxy.name, tensor)


def is_expanded(proxy: TensorProxy) -> bool:
    """Whether a dimension of a tensor repeats the same elements."""
    pairs = zip(proxy.shape, proxy.stride, strict=False)  # a sparse tensor has no strides
    return any(type(stride) is int and not stride and not (type(size) is int and size <= 1) for size, stride in pairs)


def windows_tile(windows: torch.Tensor, shape: Sequence[Any], dim: int, size: int, step: int) -> bool:
    """Whether the windows of `unfold` cover each element of a tensor of that shape exactly once.

    If a view made by `unfold` is written to, PyTorch rebuilds the tensor from the windows, with zeros elsewhere.
    """
    return size == step and (not shape or statically_known_true(shape[dim] % step == 0))


class _OverlapChecks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that raises `NotFunctionalizable` for overlapping arguments, as PyTorch does for most operations.

    Refused are a write to a tensor with a stride of zero, a write that partially overlaps another argument, and writes
    to several tensors if one of them shares memory with another argument.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
        every = [leaf for leaf in leaves(list(written_values(func, args, kwargs or {}))) if leaf is not None]
        for written in every:
            if len(every) > 1 and sum(memory_of(written) == memory_of(tensor) for tensor in tensors) > 1:
                raise NotFunctionalizable(f"{func} writes to several tensors, and to memory that overlaps")
            if any(not stride and size > 1 for size, stride in zip(written.shape, written.stride(), strict=True)):
                raise NotFunctionalizable(f"{func} writes to an element more than once")
            if any(_partially_overlap(written, tensor) for tensor in tensors):
                raise NotFunctionalizable(f"{func} reads memory that it writes to")
        return func(*args, **(kwargs or {}))


def _partially_overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the memory spans of two tensors overlap although they are not the same view of the memory."""
    if memory_of(left) != memory_of(right) or not left.numel() or not right.numel():
        return False
    starts = [tensor.storage_offset() * tensor.element_size() for tensor in (left, right)]
    same = starts[0] == starts[1] and left.shape == right.shape and left.stride() == right.stride()
    is_disjoint = starts[0] + span(left) <= starts[1] or starts[1] + span(right) <= starts[0]
    return not (same or is_disjoint)


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that passes each operation of functionalization to a functionalizer, which records it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, functionalizer: Functionalizer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.functionalizer = functionalizer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.functionalizer.record(func, args, kwargs or {})


def _with_exact_schema(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the variant of an operator whose schema declares its writes; the operator itself if its schema does."""
    if not isinstance(function, torch._ops.OpOverload) or not updates_statistics(function):
        return function
    if function._schema.name not in VARIANTS_WITH_EXACT_SCHEMA:
        raise NotFunctionalizable(f"{function} writes to an argument that its schema does not declare as written")
    return VARIANTS_WITH_EXACT_SCHEMA[function._schema.name]


def _outputs_with_proxies(result: Any, output: Any) -> Any:
    """Return the results of an operation that have a proxy in the trace, without the other results."""
    if isinstance(output, Proxy) or not isinstance(result, tuple | list):
        return result if output is not None else None
    return [value for value, proxy in zip(result, output, strict=True) if isinstance(proxy, Proxy)]
