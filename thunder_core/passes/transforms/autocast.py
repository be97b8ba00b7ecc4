"""Mixed precision: a trace transform with the effect of torch.autocast on a program."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from thunder_core.foundation.errors import DataDependent, OperationFailed
from thunder_core.passes.recipe import Transform
from thunder_core.passes.replay import Replay
from thunder_core.tracing.capture.fakes.memo import metadata, signature
from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.torch_facts.autocast import DEVICES, State, autocast_state, changes
from thunder_core.tracing.capture.torch_facts.switches import switches_autocast
from thunder_core.tracing.capture.torch_facts.symbols import as_bound_symbol
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BACKWARD_OF, BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.objects import CHECK_NAMES

CAST = torch.ops.aten._to_copy.default


@dataclass(frozen=True)
class Autocast(Transform):
    """Compute operations in `dtype` or in float32, as torch.autocast does.

    PyTorch decides the dtype of each operation and the casts of its inputs: each bound symbol runs on tensors without
    data under torch.autocast, and the resulting operations replace the bound symbol. Casts become separate bound
    symbols, so that a weight is cast once and compilers see the casts. If the user's call on cast inputs computes the
    same without autocast, the casts and the call replace the bound symbol instead of its operations. The program's own
    uses of torch.autocast take precedence: an inner `enabled=False`, or another dtype. The inputs and results of
    branches and loops keep their dtypes, so that both branches have the same dtypes, and so have all iterations of a
    loop.
    """

    dtype: torch.dtype = torch.bfloat16

    before: ClassVar[tuple[str, ...]] = ("cse", "dce")

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace with the casts of torch.autocast.

        Raises `OperationFailed` for a program that calls backward(), because the trace already has the operations of
        the backward, which eager PyTorch would derive from the cast operations.
        """
        return self._cast(trace, keeps_dtypes=False)

    def of_function(self, function: Trace) -> Trace:
        """Return a function, as a trace, with casts; its results are cast back to their former dtypes."""
        return self._cast(function, keeps_dtypes=True)

    def _cast(self, trace: Trace, *, keeps_dtypes: bool) -> Trace:
        for bsym in trace.bound_symbols:
            if bsym.module.startswith(BACKWARD_OF):
                raise OperationFailed(
                    "Autocast cannot be applied to a program that calls backward() itself",
                    fix="put the forward part under torch.autocast in the program, or compile only this part",
                    where=bsym.source,
                )
        ambient = autocast_state()
        off = tuple((False, dtype) for _, dtype in ambient)
        cast = _Replay(trace).under(self.dtype, keeps_dtypes=keeps_dtypes)
        bsyms = (*changes(ambient, off), *cast.bound_symbols, *changes(off, ambient))
        return cast.having(bsyms, made_by="autocast")


class _Replay(Replay):
    """Runs the bound symbols of a trace again under autocast."""

    title = "Autocast"

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._context = _Context()
        self._unchanged_calls: set[Hashable] = set()

    def under(self, dtype: torch.dtype, *, keeps_dtypes: bool) -> Trace:
        """Return the trace with its bound symbols run under autocast, except where the program switches autocast.

        With `keeps_dtypes`, results are cast back to their former dtypes.
        """
        with ExitStack() as stack:
            for kind in DEVICES:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
            stack.enter_context(self._recorder.recording())
            self._run_all()
            output = replace_leaves(self.trace.output, self._restore) if keeps_dtypes else self.trace.output
        return self.trace.having(self.bsyms, made_by="autocast", output=self._proxies_of(output))

    def _run(self, bsym: BoundSymbol) -> None:
        target = bsym.symbol.target
        if switches_autocast(bsym):
            self._context.follow(bsym)
        elif target is torch.manual_seed:
            self.bsyms.append(bsym)
        elif bsym.functions:
            self._append_with_restored_operands(bsym)
        elif returns_or_checks_value(bsym):
            self._append_unchanged(bsym)
        else:
            self._call(bsym)

    def _call(self, bsym: BoundSymbol) -> None:
        """Run a bound symbol under autocast. Leave it unchanged if tensor values determine a size of its result."""
        target = bsym.symbol.target
        args, kwargs = self._values_of((bsym.args, dict(bsym.kwargs)))
        try:
            output, bsyms = self._record(target, args, kwargs)
        except DataDependent:
            read = (proxy for proxy in bsym.inputs if isinstance(proxy, TensorProxy))
            if any(self._value(proxy).dtype is not proxy.dtype for proxy in read):
                raise
            self._append_with_restored_operands(bsym)
            return
        self._bind(bsym.output, output)
        self.bsyms += self._explicit(target, args, kwargs, bsyms[0]) if is_computation(bsyms) else bsyms

    def _restore(self, leaf: object) -> Any:
        """Return the value of a proxy. If its dtype has changed, record a bound symbol that casts it back."""
        value = self._value(leaf)
        if not isinstance(leaf, TensorProxy) or value.dtype is leaf.dtype:
            return value
        with _without_autocast():
            value, bsyms = self._record(CAST, (value,), {"dtype": leaf.dtype})
        self.bsyms += bsyms
        return value

    def _record(self, target: Callable[..., Any], args: object, kwargs: object) -> tuple[Any, list[BoundSymbol]]:
        output, bsyms = super()._record(target, args, kwargs)
        return output, [bsym for bsym in bsyms if not switches_autocast(bsym)]

    def _record_without_autocast(self, target: Callable[..., Any], args: object, kwargs: object) -> list[BoundSymbol]:
        """Return the bound symbols of a call without autocast.

        An empty list if the call fails because of its dtypes.
        """
        try:
            return self._record(target, args, kwargs)[1]
        except RuntimeError:
            return []

    def _explicit(
        self, target: Callable[..., Any], args: object, kwargs: object, bsym: BoundSymbol
    ) -> Iterable[BoundSymbol]:
        """Return bound symbols that compute, without autocast, the same as `bsym`: the call recorded under autocast."""
        key, _ = signature(target, args, kwargs, self._recorder.tensors.describe)
        if key is not None and (key, autocast_state()) in self._unchanged_calls:
            return [bsym]
        before = autocast_state()
        with _without_autocast():
            if key_of(self._record_without_autocast(target, args, kwargs)) == key_of([bsym]):
                self._unchanged_calls.add((key, before))
                return [bsym]
            return self._with_casts(target, args, kwargs, bsym)

    def _with_casts(
        self, target: Callable[..., Any], args: object, kwargs: object, bsym: BoundSymbol
    ) -> Sequence[BoundSymbol]:
        """Return the casts and the user's call on cast inputs if these compute the same as `bsym`.

        Otherwise, return the operations of `bsym`.
        """
        tensors_by_name = {self._recorder.proxy_of(tensor).name: tensor for tensor in tensors_in((args, kwargs))}
        casts = [p for p in bsym.subsymbols if p.symbol.target is CAST and p.args[0].name in tensors_by_name]
        casted = {c.args[0].name: self._record(CAST, (tensors_by_name[c.args[0].name],), c.kwargs) for c in casts}

        def cast(leaf: object) -> Any:
            name = self._recorder.proxy_of(leaf).name if isinstance(leaf, torch.Tensor) else ""
            return casted[name][0] if name in casted else leaf

        operations = [as_bound_symbol(operation, bsym) for operation in bsym.subsymbols]
        direct = self._record_without_autocast(target, *replace_leaves((args, kwargs), cast))
        names = {c.output.name: self._recorder.proxy_of(casted[c.args[0].name][0]).name for c in casts}
        rest = replace(bsym, subsymbols=tuple(operation for operation in bsym.subsymbols if operation not in casts))
        if key_of(direct) != key_of([rest], names):
            return operations
        results = {old.name: new for old, new in zip(direct[0].outputs, bsym.outputs, strict=True)}
        return [*(new for _, bsyms in casted.values() for new in bsyms), direct[0].rename(results)]


class _Context:
    """The program's own torch.autocast contexts, which begin and end inside the transform's context.

    A context sets the autocast state and increments the nesting depth. At its end, it decrements the depth and restores
    the previous state. At the end of the program's outermost context, the trace restores the state that the process had
    while tracing. The transform must instead restore the state of its own context. A program's context also sets the
    flag of the autocast cache, which must stay off while the transform runs.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._is_ending = False
        self._outer_state: State | None = None

    def follow(self, bsym: BoundSymbol) -> None:
        """Apply a bound symbol that switches autocast to the autocast state of this process."""
        target = bsym.symbol.target
        if target in (torch.autocast_increment_nesting, torch.autocast_decrement_nesting):
            self._depth += 1 if target is torch.autocast_increment_nesting else -1
            self._is_ending = target is torch.autocast_decrement_nesting and self._depth == 0
        elif target is torch.set_autocast_cache_enabled:
            self._is_ending = False
        elif target is not torch.clear_autocast_cache:
            if self._outer_state is None:
                self._outer_state = autocast_state()
            if self._is_ending:
                restore(self._outer_state)
            else:
                target(*bsym.args, **bsym.kwargs)


def restore(state: State) -> None:
    """Set the autocast state."""
    for kind, (enabled, dtype) in zip(DEVICES, state, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def returns_or_checks_value(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol reads a number from a tensor for the program's control flow, or checks a value.

    A read by `Tensor.item` is not included.
    """
    returns_value = bool(bsym.outputs) and not bsym.tensors and not bsym.has_effect
    reads_tensor = returns_value and any(isinstance(proxy, TensorProxy) for proxy in bsym.inputs)
    return bsym.symbol.name in CHECK_NAMES or (reads_tensor and bsym.symbol.target is not torch.Tensor.item)


def is_computation(bsyms: Sequence[BoundSymbol]) -> bool:
    """Whether a call was recorded as a single bound symbol, which has operations and does not write."""
    return len(bsyms) == 1 and bool(bsyms[0].subsymbols) and not bsyms[0].mutates


def key_of(bsyms: Sequence[BoundSymbol], names: Mapping[str, str] | None = None) -> Hashable:
    """Return a key for aten operations. Equal keys mean equal computations.

    The key does not contain the names of results. `names` maps names of inputs to names that the key has instead.
    """
    key_of_name: dict[str, Hashable] = dict(names or {})
    keys: list[Hashable] = []
    for bsym in bsyms:
        for operation in bsym.subsymbols:
            keys.append(
                (
                    operation.symbol,
                    *(_describe(leaf, key_of_name) for leaf in leaves((operation.args, dict(operation.kwargs)))),
                )
            )
            for proxy in operation.outputs:
                key_of_name.setdefault(proxy.name, len(keys))
                keys.append(_describe(proxy, key_of_name))
    return tuple(keys)


def _describe(leaf: object, names: Mapping[str, Hashable]) -> Hashable:
    if isinstance(leaf, TensorProxy):
        return (names.get(leaf.name, leaf.name), metadata(leaf))
    return names.get(leaf.name, leaf.name) if isinstance(leaf, Proxy) else repr(leaf)


@contextmanager
def _without_autocast() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in DEVICES:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
