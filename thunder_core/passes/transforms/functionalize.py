"""Functionalization of a trace: in-place writes become out-of-place operations, and inputs are written at the end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from thunder_core.backend.functionalization.functionalizer import Functionalizer
from thunder_core.backend.functionalization.kept_memory import KeptMemory, is_as_strided
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.analysis.aliasing import AliasSets, alias_sets, is_view
from thunder_core.tracing.analysis.grad_mode import names_tracked_when_defined, tracked_by_autograd
from thunder_core.tracing.analysis.own_derivatives import has_derivative_rule
from thunder_core.tracing.capture.fakes.fake import fake_like, new_mode
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves

MADE_BY = "functionalize"
ALIAS, COPY = torch.ops.aten.alias.default, torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Functionalize(Transform):
    """Replace in-place writes by out-of-place operations, with PyTorch's own functionalization.

    An alias set is a set of tensors that may share memory. An input or constant that the program writes to gets one
    `copy_` at the end of the trace. The in-place writes to an alias set stay if
    - the set contains several inputs or constants,
    - it contains an input or constant that autograd tracks, because the final copy would change saved tensors,
    - an operation resizes a tensor of the set or replaces its storage,
    - a bound symbol that changes the state of the process may read or write the set, or
    - autograd tracks the set, and a bound symbol uses it in no-grad mode or detaches it. (Exception: autograd tracks
      the set only since a later write to a tensor, and from then on, only this tensor is used.)

    All tracked alias sets keep their writes if a result would no longer require a gradient, or if PyTorch has no
    derivative of an out-of-place operation. An in-place write that stays increases the version counter of the tensor,
    so that autograd can report the write as an error. A functionalized write does not.
    """

    before: ClassVar[tuple[str, ...]] = ("cse", "dce")

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace with in-place writes functionalized wherever that is safe.

        If functionalizing an alias set fails, the alias set keeps its writes, and the pass restarts.
        """
        aliasing = alias_sets(trace.bound_symbols, trace.aliases)
        representatives = {aliasing.representative(name) for bsym in trace.bound_symbols for name in bsym.mutates}
        separated_at: dict[str, int] = {}
        if representatives:
            memory = KeptMemory(trace, aliasing)
            representatives -= memory.kept_representatives()
            separated_at = memory.separated_at
        while representatives:
            try:
                functional = _Rewriting(trace, aliasing, frozenset(representatives), separated_at).trace()
            except _KeepWrites as failure:
                representatives -= failure.representatives
                continue
            if not _changes_derivatives(trace, functional):
                return functional
            representatives -= {aliasing.representative(name) for name in tracked_by_autograd(trace)}
        return trace.having(trace.bound_symbols, made_by=MADE_BY)


def _changes_derivatives(source: Trace, functional: Trace) -> bool:
    """Whether a result of the functional trace no longer requires a gradient, or an operation has no derivative."""
    before, after = tracked_by_autograd(source), tracked_by_autograd(functional)
    pairs = zip(leaves(source.output), leaves(functional.output), strict=True)
    if any(getattr(old, "name", "") in before and getattr(new, "name", "") not in after for old, new in pairs):
        return True
    calls = {bsym.symbol for bsym in source.bound_symbols}
    new = (bsym for bsym in functional.bound_symbols if bsym.symbol not in calls)
    tracked = (bsym for bsym in new if any(proxy.name in after for proxy in bsym.inputs))
    by_operator = {(bsym.symbol, _has_complex_input(bsym)): bsym for bsym in tracked}
    return any(_lacks_derivative(bsym, after) for bsym in by_operator.values())


def _has_complex_input(operation: BoundSymbol) -> bool:
    """Whether an operation has a complex argument. Some derivatives of PyTorch support only real tensors."""
    return any(isinstance(proxy, TensorProxy) and proxy.dtype.is_complex for proxy in operation.inputs)


def _lacks_derivative(operation: BoundSymbol, requires_grad_names: Set[str]) -> bool:
    """Whether PyTorch has no derivative of an operation: autograd raises an error in the forward or the backward."""
    tensors = [proxy for proxy in operation.inputs if isinstance(proxy, TensorProxy)]
    mode = new_mode(environment_of(operation.inputs))
    with torch.enable_grad(), torch.inference_mode(False), torch._C._DisableAutocast(), mode:
        # A number that the program reads from a tensor has no value while tracing, so 1 is used in its place.
        values = {proxy.name: getattr(proxy, "value", 1) for proxy in operation.inputs}
        for proxy in tensors:
            values[proxy.name] = fake_like(proxy, mode).requires_grad_(proxy.name in requires_grad_names)
        try:
            evaluate([operation], values)
        except RuntimeError as error:  # `slice_scatter` of complex tensors
            if "does not support automatic differentiation" not in str(error):
                raise
            return True
    nodes = (getattr(values[proxy.name], "grad_fn", None) for proxy in operation.outputs)
    return any(node is not None and node.name().endswith("NotImplemented") for node in nodes)


class _KeepWrites(Exception):
    """Raised if alias sets must keep their in-place writes. `representatives` has one name of each of these sets."""

    def __init__(self, representatives: Iterable[str]) -> None:
        super().__init__()
        self.representatives = frozenset(representatives)


@dataclass
class _Rewriting:
    """One pass over a trace that functionalizes the writes to the alias sets with these representatives.

    `separated_at` maps the representative of an alias set to an index. Writes to this set by bound symbols before the
    index stay in place.
    """

    source: Trace
    aliasing: AliasSets
    representatives: frozenset[str]
    separated_at: Mapping[str, int]
    index: int = 0
    bsyms: list[BoundSymbol] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = {proxy.name for bsym in self.source.bound_symbols for proxy in _nested_outputs(bsym)}
        names |= {proxy.name for proxy in self.source.inputs} | self.source.constants.keys()
        self._fresh = (name for name in (f"t{n}" for n in itertools.count()) if name not in names)
        self._makers = {proxy.name: bsym for bsym in self.source.bound_symbols for proxy in bsym.defines}
        self._renamed: dict[str, Proxy] = {}
        self._tracked = tracked_by_autograd(self.source)
        tracked = names_tracked_when_defined(self.source)
        self._functionalizer = Functionalizer(lambda: next(self._fresh), environment_of(self.source.inputs), tracked)

    def trace(self) -> Trace:
        """Return the functionalized trace; raise `_KeepWrites` for alias sets that cannot be functionalized."""
        for bsym in self.source.bound_symbols:
            if self._must_be_functionalized(bsym):
                self._run(bsym)
            else:
                self.bsyms.append(self._with_current_values(bsym))
            self.index += 1
        output = renamed_proxies(self.source.output, self._output_names(self._copies()))
        return self.source.having(self.bsyms, made_by=MADE_BY, output=output)

    def _functionalized_sets(self, names: Iterable[str]) -> set[str]:
        """Return representatives: of the alias sets that contain these names and are functionalized at this index."""
        touched = {self.aliasing.representative(name) for name in names} & self.representatives
        return {representative for representative in touched if self.index >= self.separated_at.get(representative, 0)}

    def _must_be_functionalized(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol writes to a functionalized alias set, or returns a view of an input in such a set."""
        inputs, outputs = (
            self._functionalized_sets(proxy.name for proxy in proxies) for proxies in (bsym.inputs, bsym.defines)
        )
        return bool(self._functionalized_sets(bsym.mutates) or inputs & outputs)

    def _run(self, bsym: BoundSymbol) -> None:
        """Functionalize the aten operations of a bound symbol and append the resulting operations.

        Raises `_KeepWrites` if PyTorch fails, or if the bound symbol also writes to an alias set that keeps its writes.
        Also raises `_KeepWrites` if the bound symbol has a derivative rule of its own and autograd tracks an input: the
        operations of the bound symbol do not have this rule.
        """
        representatives = self._functionalized_sets(proxy.name for proxy in (*bsym.inputs, *bsym.outputs))
        if has_derivative_rule(bsym) and any(proxy.name in self._tracked for proxy in bsym.inputs):
            raise _KeepWrites(representatives)
        if not {self.aliasing.representative(name) for name in bsym.mutates} <= self._functionalized_sets(bsym.mutates):
            raise _KeepWrites(representatives)  # the bound symbol also writes to an alias set that keeps its writes
        try:
            for operation in bsym.at_level("aten"):
                if operation.returns_number:
                    continue
                if is_as_strided(operation):
                    # This call raises an error if the operand's memory layout differs from its layout in the trace.
                    self._value(operation.args[0], representatives)
                self._functionalizer.run(operation)
        except Exception as error:  # PyTorch may raise any exception under functionalization
            raise _KeepWrites(representatives) from error
        for proxy in bsym.inputs:
            if isinstance(proxy, TensorProxy) and proxy.name in bsym.mutates:
                self._functionalizer.value(proxy)  # now, because later the grad mode may differ
        for proxy in bsym.tensors:
            if not self._functionalized_sets([proxy.name]):
                self._renamed[proxy.name] = self._value(proxy, representatives)
        self._append_recorded(bsym)

    def _with_current_values(self, bsym: BoundSymbol) -> BoundSymbol:
        """Return a bound symbol that is not functionalized, with the current values of its inputs as arguments.

        Tensors that the bound symbol makes in functionalized alias sets are added to the functionalizer.
        """
        read = [
            proxy for proxy in bsym.inputs if isinstance(proxy, TensorProxy) and self._functionalized_sets([proxy.name])
        ]
        names: dict[str, Proxy] = {proxy.name: self._value(proxy) for proxy in read}
        names |= {proxy.name: self._renamed[proxy.name] for proxy in bsym.inputs if proxy.name in self._renamed}
        self._append_recorded(bsym)
        for proxy in bsym.tensors:
            if self._functionalized_sets([proxy.name]):
                self._functionalizer.add(proxy)
        return bsym.rename(names) if names else bsym

    def _append_recorded(self, bsym: BoundSymbol | None) -> None:
        """Append the operations that the functionalizer has recorded, with the source line of a bound symbol."""
        for operation in self._functionalizer.take_operations():
            self.bsyms.append(operation if bsym is None else replace(operation, source=bsym.source, module=bsym.module))

    def _value(self, proxy: TensorProxy, representatives: Iterable[str] = ()) -> TensorProxy:
        """Return the proxy of the current value of a tensor.

        Raises `_KeepWrites` if the shape, strides or dtype of the value differ from those in the trace.
        """
        representatives = representatives or self._functionalized_sets([proxy.name])
        try:
            value = self._functionalizer.value(proxy)
        except Exception as error:  # PyTorch may raise any exception under functionalization
            raise _KeepWrites(representatives) from error
        value = replace(value, requires_grad=proxy.requires_grad)
        if replace(value, name=proxy.name, device=proxy.device, overrides=proxy.overrides) != proxy:
            raise _KeepWrites(representatives)
        return value

    def _copies(self) -> set[str]:
        """Append the final `copy_` to each input and constant; return the representatives of their alias sets."""
        last = {self.aliasing.representative(name): bsym for bsym in self.source.bound_symbols for name in bsym.mutates}
        used = {proxy.name: proxy for bsym in self.source.bound_symbols for proxy in bsym.inputs}
        inputs_used = [
            used[name] for name in (*(p.name for p in self.source.inputs), *self.source.constants) if name in used
        ]
        for proxy in inputs_used:
            if isinstance(proxy, TensorProxy) and self._functionalized_sets([proxy.name]):
                last_write = last[self.aliasing.representative(proxy.name)]
                value = self._value(proxy)
                self._append_recorded(last_write)
                copy = BoundSymbol(symbol_of(COPY), (proxy, value), {}, proxy, mutates=(proxy.name,))
                self.bsyms.append(replace(copy, source=last_write.source, module=last_write.module))
        return self._functionalized_sets(proxy.name for proxy in inputs_used)

    def _output_names(self, written: set[str]) -> dict[str, Proxy]:
        """Map the names of outputs to their proxies in the functionalized trace.

        A view of a written input is recomputed from the input. Any other functionalized tensor is replaced by its
        current value, or by an alias of the value if another output already is this value. Therefore, two tensors in
        the same memory, such as `x` and `x.data`, remain two objects.
        """
        names: dict[str, Proxy] = dict(self._renamed)
        values: set[str] = set()
        for proxy in {proxy.name: proxy for proxy in self.source.outputs}.values():
            if self._functionalized_sets([proxy.name]) & written:
                self._replay_views(proxy, names)
            elif self._functionalized_sets([proxy.name]) and isinstance(proxy, TensorProxy):
                value = self._value(proxy)
                self._append_recorded(None)
                names[proxy.name] = self._alias(value) if value.name in values else value
                values.add(value.name)
        return names

    def _alias(self, value: TensorProxy) -> TensorProxy:
        """Append a view of a whole tensor, and return its proxy."""
        alias = value.with_name(next(self._fresh))
        self.bsyms.append(BoundSymbol(symbol_of(ALIAS), (value,), {}, alias))
        return alias

    def _replay_views(self, proxy: Proxy, names: dict[str, Proxy]) -> None:
        """Append the view operations of an output again, so that it aliases the input after its `copy_`."""
        maker = self._makers.get(proxy.name)
        if maker is None or proxy.name in names:
            return
        if maker.has_effect or not is_view(maker):
            raise _KeepWrites(self._functionalized_sets([proxy.name]))
        for operand in maker.inputs:
            self._replay_views(operand, names)
        read = {operand.name for operand in maker.inputs}
        for name in _nested_outputs(maker):
            if isinstance(name, TensorProxy) and name.name not in read:
                names[name.name] = name.with_name(next(self._fresh))
        self.bsyms.append(maker.rename(names))


def _nested_outputs(bsym: BoundSymbol) -> Iterator[Proxy]:
    """Yield each proxy that a bound symbol or one of its sub-symbols, at any depth, returns."""
    yield from bsym.outputs
    for inner in bsym.subsymbols:
        yield from _nested_outputs(inner)
