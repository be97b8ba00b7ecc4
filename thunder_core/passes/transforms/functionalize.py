"""Functionalization of a trace: in-place writes become out-of-place operations; inputs are written at the end."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from thunder_core.backend.functionalization.functionalizer import Functionalizer
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.analysis.aliasing import AliasSets, alias_sets, is_view
from thunder_core.tracing.analysis.grad_mode import followed_by_autograd, followed_when_made, grad_modes
from thunder_core.tracing.analysis.own_derivatives import has_derivative_rule
from thunder_core.tracing.capture.fakes.fake import fake_like, new_mode
from thunder_core.tracing.capture.torch_facts.settings import is_decisive
from thunder_core.tracing.capture.torch_facts.switches import switches_inference_mode
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.torch_facts.writes import is_reshaping, updates_statistics
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves
from thunder_core.tracing.library.overlap import span

MADE_BY = "functionalize"
ALIAS, COPY = torch.ops.aten.alias.default, torch.ops.aten.copy_.default
RESIZES = ("aten.set_.", "aten.resize_.", "aten.resize_as_.")
DETACHING = ("aten.detach.", "aten.data.")  # autograd does not see writes to their results
UNSEEN = "aten.data."  # writes to its result do not increase the version of its input, but a final copy would
FACTORY = re.compile(r"torch\.ops\.aten\.(new_\w+|\w+_like|zeros|ones|full|empty|rand|randn|eye|arange)\.")
AS_STRIDED = "aten.as_strided."  # may address memory outside of its input


@dataclass(frozen=True)
class Functionalize(Transform):
    """Replace in-place writes by out-of-place operations, with PyTorch's own functionalization.

    A written input or constant gets one `copy_` at the end of the trace. An alias set keeps its in-place writes if
    several inputs or constants share it, if autograd tracks an input or constant in it (the final copy would change
    saved tensors), if an operation resizes it or replaces its storage, or if a bound symbol that changes the state of
    the process may touch it. It also keeps them if autograd tracks it and it is touched with grad mode off or detached.
    All tracked alias sets keep their writes if a result would no longer require a gradient, or if PyTorch has no
    derivative of an out-of-place operation. A kept write still increases the version counter of the tensor, so that
    autograd can report the modification by an in-place operation; a functionalized write does not.
    """

    before: ClassVar[tuple[str, ...]] = ("cse", "dce")

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace with in-place writes functionalized wherever that is safe.

        An alias set that turns out not to be functionalizable keeps its writes, and the pass restarts.
        """
        aliasing = alias_sets(trace.bound_symbols, trace.aliases)
        representatives = {aliasing.representative(name) for bsym in trace.bound_symbols for name in bsym.mutates}
        if representatives:
            representatives -= _KeptMemory(trace, aliasing).kept_representatives()
        while representatives:
            try:
                functional = _Rewriting(trace, aliasing, frozenset(representatives)).trace()
            except _KeepWrites as unfit:
                representatives -= unfit.representatives
                continue
            if not _changes_derivatives(trace, functional):
                return functional
            representatives -= {aliasing.representative(name) for name in followed_by_autograd(trace)}
        return trace.having(trace.bound_symbols, made_by=MADE_BY)


def _changes_derivatives(source: Trace, functional: Trace) -> bool:
    """Whether the functional form loses a gradient of a result, or has an operation without a derivative."""
    before, after = followed_by_autograd(source), followed_by_autograd(functional)
    pairs = zip(leaves(source.output), leaves(functional.output), strict=True)
    if any(getattr(old, "name", "") in before and getattr(new, "name", "") not in after for old, new in pairs):
        return True
    calls = {bsym.symbol for bsym in source.bound_symbols}
    new = (bsym for bsym in functional.bound_symbols if bsym.symbol not in calls)
    by_operator = {bsym.symbol: bsym for bsym in new if any(proxy.name in after for proxy in bsym.inputs)}
    return any(_lacks_derivative(bsym, after) for bsym in by_operator.values())


def _lacks_derivative(operation: BoundSymbol, requires_grad_names: Set[str]) -> bool:
    """Whether PyTorch has no derivative of an operation, so that autograd raises an error in the backward."""
    tensors = [proxy for proxy in operation.inputs if isinstance(proxy, TensorProxy)]
    mode = new_mode(environment_of(operation.inputs))
    with torch.enable_grad(), torch.inference_mode(False), torch._C._DisableAutocast(), mode:
        values = {
            proxy.name: getattr(proxy, "value", 1) for proxy in operation.inputs
        }  # 1 for numbers read from tensors
        for proxy in tensors:
            values[proxy.name] = fake_like(proxy, mode).requires_grad_(proxy.name in requires_grad_names)
        evaluate([operation], values)
    nodes = (getattr(values[proxy.name], "grad_fn", None) for proxy in operation.outputs)
    return any(node is not None and node.name().endswith("NotImplemented") for node in nodes)


class _KeepWrites(Exception):
    """Raised if the in-place writes to some alias sets must be kept.

    `representatives` are the sets' representatives.
    """

    def __init__(self, representatives: Iterable[str]) -> None:
        super().__init__()
        self.representatives = frozenset(representatives)


class _KeptMemory:
    """Finds the alias sets of a trace whose in-place writes must be kept, by their representatives."""

    def __init__(self, trace: Trace, aliasing: AliasSets) -> None:
        self.trace = trace
        self.aliasing = aliasing
        self.recorded = followed_by_autograd(trace)
        self.followed = {aliasing.representative(name) for name in self.recorded}
        self.given = Counter(
            aliasing.representative(name) for name in (*(p.name for p in trace.inputs), *trace.constants)
        )

    def kept_representatives(self) -> set[str]:
        """Return the representatives of the alias sets whose in-place writes must be kept."""
        kept = {
            representative
            for representative, count in self.given.items()
            if count > 1 or representative in self.followed
        }
        enabled = torch.is_grad_enabled()  # after the loop, the grad mode at the end
        bsyms = self.trace.bound_symbols
        for bsym, enabled in zip(bsyms, grad_modes(bsyms), strict=True):
            kept |= set() if enabled else self._of((*bsym.inputs, *bsym.outputs)) & self.followed
            kept |= self._kept_for_ordered(bsym) if bsym.ordered else set()
            for operation in bsym.at_level("aten"):
                kept |= self._kept_for_operation(operation, bsym)
            if switches_inference_mode(bsym) or is_decisive(bsym):
                return {
                    self.aliasing.representative(name) for each in self.trace.bound_symbols for name in each.mutates
                }
        if enabled:
            return kept
        return kept | self.followed  # autograd does not see later operations on the results

    def _of(self, proxies: Iterable[Proxy]) -> set[str]:
        return {self.aliasing.representative(proxy.name) for proxy in proxies}

    def _kept_for_ordered(self, bsym: BoundSymbol) -> set[str]:
        """Return the alias sets to keep because of a bound symbol that changes the state of the process.

        None are kept if its aten operations change at most the default generator, or if it writes nothing and returns
        no memory of its inputs; otherwise, all alias sets that it reads or returns are kept.
        """
        if bsym.subsymbols and all(map(_advances_default_generator_at_most, bsym.at_level("aten"))):
            return set()
        inputs, outputs = self._of(bsym.inputs), self._of(bsym.outputs)
        only_reads = bool(bsym.subsymbols) and not bsym.mutates and not inputs & outputs
        return set() if only_reads else inputs | outputs

    def _kept_for_operation(self, operation: BoundSymbol, bsym: BoundSymbol) -> set[str]:
        """Return the alias sets to keep because of an aten operation of a bound symbol.

        Reasons are resizes, in-place view operations on inputs or outputs, `detach` of a tensor that autograd tracks,
        `.data` of such a tensor or of an input, `as_strided` outside of its input, and updates of running statistics
        that the schema does not declare.
        """
        name = operation.symbol.name.removeprefix("torch.ops.")
        memory = self._of(operation.outputs)
        if name.startswith(RESIZES):
            return memory
        target = operation.symbol.target
        if isinstance(target, torch._ops.OpOverload) and is_reshaping(target):
            return memory & (self.given.keys() | self._of(self.trace.outputs))  # the object is visible outside
        if name.startswith(DETACHING):
            detaches = any(proxy.name in self.recorded for proxy in bsym.inputs) and _is_used(operation, bsym)
            unseen = memory & self.given.keys() if name.startswith(UNSEEN) else set()
            return unseen | (memory & self.followed if detaches else set())
        if _is_as_strided(operation):
            return memory & (self.given.keys() | (set() if _stays_within(operation) else self.followed))
        if updates_statistics(target) and any(proxy.name in self.recorded for proxy in bsym.outputs):
            return {self.aliasing.representative(name) for name in bsym.mutates}
        return set()


@dataclass
class _Rewriting:
    """One pass over a trace that functionalizes the alias sets with these representatives."""

    source: Trace
    aliasing: AliasSets
    representatives: frozenset[str]
    bsyms: list[BoundSymbol] = field(default_factory=list)

    def __post_init__(self) -> None:
        taken = {proxy.name for bsym in self.source.bound_symbols for proxy in _names(bsym)}
        taken |= {proxy.name for proxy in self.source.inputs} | self.source.constants.keys()
        self._fresh = (name for name in (f"t{n}" for n in itertools.count()) if name not in taken)
        self._makers = {proxy.name: bsym for bsym in self.source.bound_symbols for proxy in bsym.defines}
        self._renamed: dict[str, Proxy] = {}
        self._followed = followed_by_autograd(self.source)
        followed = followed_when_made(self.source)
        self._functionalizer = Functionalizer(lambda: next(self._fresh), environment_of(self.source.inputs), followed)

    def trace(self) -> Trace:
        """Return the functionalized trace; raise `_KeepWrites` for alias sets that cannot be functionalized."""
        for bsym in self.source.bound_symbols:
            if self._must_be_functionalized(bsym):
                self._run(bsym)
            else:
                self.bsyms.append(self._with_current_values(bsym))
        output = renamed_proxies(self.source.output, self._output_names(self._copies()))
        return self.source.having(self.bsyms, made_by=MADE_BY, output=output)

    def _of(self, names: Iterable[str]) -> set[str]:
        return {self.aliasing.representative(name) for name in names} & self.representatives

    def _must_be_functionalized(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol writes to a functionalized alias set, or returns memory of an input in such a set."""
        inputs, outputs = (self._of(proxy.name for proxy in proxies) for proxies in (bsym.inputs, bsym.defines))
        return bool(self._of(bsym.mutates) or inputs & outputs)

    def _run(self, bsym: BoundSymbol) -> None:
        """Functionalize the aten operations of a bound symbol and append the resulting operations.

        Raises `_KeepWrites` if PyTorch fails, if the bound symbol also writes to memory that keeps its writes, or if
        autograd tracks a bound symbol with its own derivative rule, which its operations do not have.
        """
        representatives = self._of(proxy.name for proxy in (*bsym.inputs, *bsym.outputs))
        if has_derivative_rule(bsym) and any(proxy.name in self._followed for proxy in bsym.inputs):
            raise _KeepWrites(representatives)
        if not {self.aliasing.representative(name) for name in bsym.mutates} <= self.representatives:
            raise _KeepWrites(representatives)  # it also writes to memory that is not functionalized
        try:
            for operation in bsym.at_level("aten"):
                if operation.gives_number:
                    continue
                if _is_as_strided(operation):
                    self._value(
                        operation.args[0], representatives
                    )  # raises unless its memory layout is as in the trace
                self._functionalizer.run(operation)
        except Exception as error:  # PyTorch may raise any exception under functionalization
            raise _KeepWrites(representatives) from error
        for proxy in bsym.inputs:
            if isinstance(proxy, TensorProxy) and proxy.name in bsym.mutates:
                self._functionalizer.value(proxy)  # now, because later the grad mode may differ
        for proxy in bsym.tensors:
            if not self._of([proxy.name]):
                self._renamed[proxy.name] = self._value(proxy, representatives)
        self._take(bsym)

    def _with_current_values(self, bsym: BoundSymbol) -> BoundSymbol:
        """Return a bound symbol that is not functionalized, reading the current values of its inputs.

        Tensors that it makes in functionalized alias sets are added to the functionalizer.
        """
        read = [proxy for proxy in bsym.inputs if isinstance(proxy, TensorProxy) and self._of([proxy.name])]
        names: dict[str, Proxy] = {proxy.name: self._value(proxy) for proxy in read}
        names |= {proxy.name: self._renamed[proxy.name] for proxy in bsym.inputs if proxy.name in self._renamed}
        self._take(bsym)
        for proxy in bsym.tensors:
            if self._of([proxy.name]):
                self._functionalizer.add(proxy)
        return bsym.rename(names) if names else bsym

    def _take(self, bsym: BoundSymbol | None) -> None:
        """Append the operations that the functionalizer has recorded, with the source line of a bound symbol."""
        for operation in self._functionalizer.take_operations():
            self.bsyms.append(operation if bsym is None else replace(operation, source=bsym.source, module=bsym.module))

    def _value(self, proxy: TensorProxy, representatives: Iterable[str] = ()) -> TensorProxy:
        """Return the proxy that holds the current value of a tensor.

        Raises `_KeepWrites` if its shape, strides or dtype differ from the trace.
        """
        representatives = representatives or self._of([proxy.name])
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
            if isinstance(proxy, TensorProxy) and self._of([proxy.name]):
                place = last[self.aliasing.representative(proxy.name)]
                value = self._value(proxy)
                self._take(place)
                copy = BoundSymbol(symbol_of(COPY), (proxy, value), {}, proxy, mutates=(proxy.name,))
                self.bsyms.append(replace(copy, source=place.source, module=place.module))
        return self._of(proxy.name for proxy in inputs_used)

    def _output_names(self, written: set[str]) -> dict[str, Proxy]:
        """Return new names for the outputs.

        A view of a written input is recomputed from the input; any other functionalized tensor is replaced by its
        current value, or by an alias if the value is already returned: two tensors in the same memory, such as `x` and
        `x.data`, remain two objects.
        """
        names: dict[str, Proxy] = dict(self._renamed)
        values: set[str] = set()
        for proxy in {proxy.name: proxy for proxy in self.source.outputs}.values():
            if self._of([proxy.name]) & written:
                self._replay_views(proxy, names)
            elif self._of([proxy.name]) and isinstance(proxy, TensorProxy):
                value = self._value(proxy)
                self._take(None)
                names[proxy.name] = self._alias(value) if value.name in values else value
                values.add(value.name)
        return names

    def _alias(self, value: TensorProxy) -> TensorProxy:
        """Append a view of a whole tensor, and return its proxy."""
        alias = value.named(next(self._fresh))
        self.bsyms.append(BoundSymbol(symbol_of(ALIAS), (value,), {}, alias))
        return alias

    def _replay_views(self, proxy: Proxy, names: dict[str, Proxy]) -> None:
        """Append the view operations of an output again, so that it aliases the input after its `copy_`."""
        maker = self._makers.get(proxy.name)
        if maker is None or proxy.name in names:
            return
        if maker.has_effect or not is_view(maker):
            raise _KeepWrites(self._of([proxy.name]))
        for operand in maker.inputs:
            self._replay_views(operand, names)
        read = {operand.name for operand in maker.inputs}
        for name in _names(maker):
            if isinstance(name, TensorProxy) and name.name not in read:
                names[name.name] = name.named(next(self._fresh))
        self.bsyms.append(maker.rename(names))


def _is_as_strided(operation: BoundSymbol) -> bool:
    """Whether an operation is `aten.as_strided`, which may address memory outside of its input."""
    return operation.symbol.name.removeprefix("torch.ops.").startswith(AS_STRIDED)


def _stays_within(operation: BoundSymbol) -> bool:
    """Whether `as_strided` addresses only elements of its input, according to the metadata."""
    (source, *_), result = operation.args, operation.output
    offset = operation.args[3] if len(operation.args) > 3 else operation.kwargs.get("storage_offset")
    if offset is not None or not isinstance(source, TensorProxy) or not isinstance(result, TensorProxy):
        return False
    read, addressed = (torch.empty_strided(proxy.shape, proxy.stride, device="meta") for proxy in (source, result))
    return bool(torch.ops.aten.is_non_overlapping_and_dense(read)) and span(addressed) <= span(read)


def _advances_default_generator_at_most(operation: BoundSymbol) -> bool:
    """Whether an operation changes at most the default random number generator.

    This holds for ATen operators that take neither a generator nor number proxies.
    """
    target = operation.symbol.target
    return isinstance(target, torch._ops.OpOverload) and not any(
        isinstance(leaf, torch.Generator | Proxy) and not isinstance(leaf, TensorProxy)
        for leaf in leaves((operation.args, dict(operation.kwargs)))
    )


def _is_used(operation: BoundSymbol, bsym: BoundSymbol) -> bool:
    """Whether another operation of a bound symbol reads the result of an operation, or the bound symbol returns it.

    A result whose inputs were made by factory functions (`zeros`, `new_empty`) does not count as used, because autograd
    does not track these.
    """
    inputs = {proxy.name for proxy in operation.inputs}
    makers = [other for other in bsym.at_level("aten") if any(proxy.name in inputs for proxy in other.defines)]
    if makers and all(FACTORY.match(maker.symbol.name) for maker in makers):
        return False
    outputs = {proxy.name for proxy in operation.outputs}
    readers = (other for other in bsym.at_level("aten") if other is not operation)
    return any(proxy.name in outputs for reader in readers for proxy in reader.inputs) or any(
        proxy.name in outputs for proxy in bsym.outputs
    )


def _names(bsym: BoundSymbol) -> Iterator[Proxy]:
    """Yield each proxy that a bound symbol or one of its sub-symbols returns."""
    yield from bsym.outputs
    for inner in bsym.subsymbols:
        yield from _names(inner)
