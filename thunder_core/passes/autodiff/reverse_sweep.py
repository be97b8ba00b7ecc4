"""The reverse sweep: it composes the derivations of a trace's bound symbols, from the last to the first."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core.passes.autodiff.control_flow import derive_control_flow
from thunder_core.passes.autodiff.derivation import VJP, Derivation, fresh_names
from thunder_core.passes.autodiff.recomputation.recompute_units import block_of, kept_operation_names
from thunder_core.passes.autodiff.refusals import (
    packed_results,
    require_names_kept,
    require_no_grad_views_unused,
    require_plain_effects,
    require_separate_results,
    require_strided,
    underivable,
    views_made_without_autograd,
)
from thunder_core.passes.autodiff.step import Step, corresponding_proxies, derivation_key, recomputed_views
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.passes.autodiff.vjp import add_gradients, derive
from thunder_core.tracing.analysis.grad_mode import grad_modes, sets_grad_mode
from thunder_core.tracing.analysis.own_derivatives import has_derivative_rule
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import generic_hint_of, sizes_for_trace, symbolic_dense_strides
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.operators.unsized_results import FUNCTIONS

MADE_BY = "differentiate"
WITH_UNSIZED_RESULTS = frozenset(FUNCTIONS.values())
REQUIRE_GRAD = ("torch.Tensor.requires_grad_", "torch.Tensor.requires_grad.__set__")


@dataclass(eq=False)
class ReverseSweep:
    """The bound symbols of a trace with their derivations; a sweep makes the forward and the backward of the trace."""

    trace: Trace
    steps: list[Step]
    requires_grad_names: set[str]
    _names: Iterator[str]
    # names of the results that `require_separate_results` refuses
    _packed_results: set[str] = field(default_factory=set)
    # views, made with grad mode off, of tensors that require a gradient
    _no_grad_views: set[str] = field(default_factory=set)
    # the gradients at the cuts of the latest backward
    _gradients_at_cuts: dict[str, TensorProxy] = field(default_factory=dict)
    # the names of the complete gradients of the latest backward, by tensor
    _cotangents: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, names: Iterator[str] | None = None) -> ReverseSweep:
        """Return the sweep over a trace, with a derivation for each bound symbol that autograd would track.

        Equal bound symbols share a derivation. `names` yields fresh names. Pass `names` for a trace that is part of
        another computation, because the sweep must not use the names of that computation.
        """
        sweep = cls(trace, [], set(), names or fresh_names(trace))
        sweep.requires_grad_names |= {p.name for p in trace.inputs if isinstance(p, TensorProxy) and p.requires_grad}
        if any(getattr(value, "requires_grad", False) for value in trace.constants.values()):
            raise Underivable("a tensor requires a gradient, but no path leads to it")
        sweep._packed_results |= packed_results(trace.bound_symbols)
        derivations: dict[Hashable, Derivation | None] = {}
        enabled = True
        modes = grad_modes(trace.bound_symbols, enabled)
        for bsym, enabled in zip(trace.bound_symbols, modes, strict=True):
            if not sets_grad_mode(bsym):
                sweep._add(bsym, enabled, derivations)
        if not enabled:
            raise Underivable("autograd is off at the end of the program")
        if any(proxy.name in sweep._no_grad_views for proxy in trace.outputs):
            raise Underivable("it returns a view of a tensor that needs a gradient, made while autograd was off")
        return sweep

    @property
    def results(self) -> list[TensorProxy]:
        """The outputs of the trace that receive gradients."""
        return [proxy for proxy in self.trace.output if proxy.name in self.requires_grad_names]

    def _add(self, bsym: BoundSymbol, enabled: bool, derivations: dict[Hashable, Derivation | None]) -> None:
        """Add a bound symbol as a step of the sweep, with its derivation if autograd tracks it."""
        if self._drop_requires_grad(bsym):
            return
        require_plain_effects(bsym, self.requires_grad_names if enabled else set())
        require_no_grad_views_unused(bsym, self._no_grad_views, enabled=enabled)
        step = Step(bsym)
        self.steps.append(step)
        if not enabled:
            require_names_kept(bsym, self.requires_grad_names)
            self._no_grad_views |= views_made_without_autograd(bsym, self.requires_grad_names | self._no_grad_views)
            return
        if not any(proxy.name in self.requires_grad_names for proxy in bsym.inputs):
            return
        require_separate_results(bsym, self._packed_results)
        key = derivation_key(bsym, self.requires_grad_names)
        if key not in derivations:
            derivations[key] = _derive(bsym, self.requires_grad_names)
        step.derivation = derivations[key]
        if step.derivation is not None:
            step.names = corresponding_proxies(step.derivation.bsym, bsym)
            for operation in step.derivation.bsyms:
                self._assign_names(operation, step.names, step.names)
            self.requires_grad_names |= {proxy.name for proxy in step.results}

    def _drop_requires_grad(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol only sets `requires_grad` to True and can be left out.

        If so, the sweep records that its tensors require gradients.

        The call can be left out for tensors that already require a gradient, and for tensors that the trace creates and
        does not return.
        """
        if bsym.symbol.name not in REQUIRE_GRAD or not all((*bsym.args[1:], *bsym.kwargs.values())):
            return False
        outside = {proxy.name for proxy in (*self.trace.inputs, *self.trace.outputs)} | self.trace.constants.keys()
        names = {proxy.name for proxy in bsym.inputs}
        if names & outside - self.requires_grad_names:
            return False
        self.requires_grad_names |= names
        return True

    def _assign_names(self, bsym: BoundSymbol, names: dict[str, Proxy], assigned: Mapping[str, Proxy]) -> None:
        """Add to `names` a proxy with a fresh name for each value that `bsym` makes and that is not in `assigned`."""
        for proxy in bsym.defines:
            if proxy.name not in assigned:
                new = next(self._names)
                names[proxy.name] = proxy.with_name(new) if isinstance(proxy, TensorProxy) else Proxy(new)

    # ---- backward -------------------------------------------------------------------------------------------

    def backward(
        self, has_cotangent: Sequence[bool], cuts: Sequence[str] = (), ends: Sequence[str] | None = None
    ) -> Trace:
        """Return the backward for the results that are marked in `has_cotangent`.

        Its inputs are the gradients of these results; the caller adds the other values that it reads. `cuts` are names
        of tensors from which gradients are not propagated further. If `ends` is given, which names some of the cuts,
        the backward returns the gradients of `ends` instead of the inputs' gradients.
        """
        chosen = [proxy for proxy, is_chosen in zip(self.results, has_cotangent, strict=True) if is_chosen]
        inputs = {proxy.name: cotangent_of(proxy) for proxy in chosen}
        bsyms, gradients = self.apply_vjps(inputs, cuts)
        requires_grad_inputs: list[Proxy] = [
            proxy for proxy in self.trace.inputs if proxy.name in self.requires_grad_names
        ]
        if ends is not None:
            requires_grad_inputs, gradients = [Proxy(name) for name in ends], self._gradients_at_cuts
        input_gradients = [gradients.get(proxy.name) for proxy in requires_grad_inputs]
        origins = _gradient_labels(
            [*inputs.items(), *((p.name, grad) for p, grad in zip(requires_grad_inputs, input_gradients, strict=True))]
        )
        pairs = zip(requires_grad_inputs, input_gradients, strict=True)
        labels = {proxy.name: gradient.name for proxy, gradient in pairs if gradient is not None}
        return Trace(
            "backward",
            tuple(inputs.values()),
            tuple(bsyms),
            tuple(input_gradients),
            MADE_BY,
            origins,
            cotangents={**self._cotangents, **labels},
        )

    def apply_vjps(
        self, cotangents: Mapping[str, TensorProxy], cuts: Sequence[str] = ()
    ) -> tuple[list[BoundSymbol], dict[str, TensorProxy]]:
        """Return the bound symbols that compute gradients from the results' `cotangents`, and the gradients by tensor.

        At a cut, the sweep stores the computed gradient separately, and continues with the tensor's own cotangent, if
        `cotangents` has one.
        """
        gradients = {name: cotangent for name, cotangent in cotangents.items() if name not in cuts}
        self._cotangents.clear()
        self._gradients_at_cuts.clear()
        bsyms: list[BoundSymbol] = []
        for step in reversed(self.steps):
            for name in [proxy.name for proxy in step.results if proxy.name in cuts]:
                if name in gradients:
                    self._gradients_at_cuts[name] = gradients.pop(name)
                if name in cotangents:
                    gradients[name] = cotangents[name]
            if step.derivation is not None and any(proxy.name in gradients for proxy in step.results):
                self._apply_vjp(step, gradients, bsyms)
        return bsyms, gradients

    def _apply_vjp(self, step: Step, gradients: dict[str, TensorProxy], bsyms: list[BoundSymbol]) -> None:
        """Append the backward of a step to `bsyms`, and accumulate its results in `gradients`."""
        assert step.derivation is not None
        incoming = [gradients.pop(proxy.name, None) for proxy in step.results]
        pairs = zip(step.results, incoming, strict=True)
        self._cotangents |= {proxy.name: cotangent.name for proxy, cotangent in pairs if cotangent is not None}
        accumulated = [gradients.get(proxy.name) for proxy in step.differentiated_inputs]
        require_strided(step.bsym, incoming)
        try:
            vjp, includes_accumulated_each = _vjp_with_accumulation(step.derivation, incoming, accumulated)
        except Underivable as error:
            raise underivable(step.bsym, str(error), error.missing_formula and step.bsym) from error
        names = dict(step.names)
        for old, new in zip((*vjp.cotangents, *vjp.accumulated), (*incoming, *accumulated), strict=True):
            if old is not None and new is not None:
                names[old.name] = new
        fresh: dict[str, Proxy] = {}
        for bsym in (*recomputed_views(step.derivation, vjp), *vjp.bsyms):
            self._assign_names(bsym, fresh, {p.name: p for p in bsym.inputs})
            names |= fresh
            bsyms.append(step.rename(bsym, names, step.bsym))
            step.reads |= {proxy.name for proxy in bsyms[-1].inputs}
        contributions = zip(step.differentiated_inputs, vjp.gradients, includes_accumulated_each, strict=True)
        for proxy, gradient, includes_accumulated in contributions:
            if gradient is not None:
                contribution: Any = names[gradient.name]
                if includes_accumulated:
                    gradients.pop(proxy.name)
                self._accumulate(proxy.name, contribution, gradients, step, bsyms)

    def _accumulate(
        self, name: str, new: TensorProxy, gradients: dict[str, TensorProxy], step: Step, bsyms: list[BoundSymbol]
    ) -> None:
        """Add a new gradient to the gradient of a name, as autograd does: the earlier gradient is the first operand."""
        old = gradients.get(name)
        if old is None:
            gradients[name] = new
            return
        require_strided(step.bsym, (old, new))
        bsym = add_gradients(old, new, next(self._names))
        bsyms.append(step.rename(bsym, {}, step.bsym))
        gradients[name] = bsym.output

    # ---- forward --------------------------------------------------------------------------------------------

    def forward(self, saved: Sequence[TensorProxy]) -> Trace:
        """Return the trace, which also returns the tensors `saved` after its outputs.

        Bound symbols that switch autograd on or off, and calls of `requires_grad_` that have no effect, are left out.
        """
        ids_of_steps = {id(step.bsym) for step in self.steps}
        dropped = {id(bsym) for bsym in self.trace.bound_symbols} - ids_of_steps
        bsyms = [
            bsym for bsym in self.with_exposed_intermediates({proxy.name for proxy in saved}) if id(bsym) not in dropped
        ]
        blocks, kept_operations = dict(self.trace.blocks), dict(self.trace.kept_operations)
        for step in self.steps:
            block = block_of(step.bsym, blocks)
            if block >= 0 and step.derivation is not None:
                names = [proxy.name for bsym in step.bsyms for proxy in bsym.defines]
                blocks |= dict.fromkeys(names, block)
                kept_operations |= dict.fromkeys(names, kept_operation_names(step.bsym, kept_operations))
        marks = {"blocks": blocks, "kept_operations": kept_operations}
        return self.trace.having(bsyms, made_by=MADE_BY, output=(*self.trace.output, *saved), **marks)

    def with_exposed_intermediates(self, intermediates: Set[str]) -> Iterator[BoundSymbol]:
        """Yield the bound symbols of the trace, so that the tensors `intermediates` have names in the trace.

        Intermediates are computed inside calls, and some results of operators exist only while autograd is on. The aten
        operations of such a call replace it. A bound symbol with its own derivative rule stays, and its operations
        follow with fresh names.
        """
        steps = {id(step.bsym): step for step in self.steps if step.derivation is not None}
        for bsym in self.trace.bound_symbols:
            operations = steps[id(bsym)].bsyms if id(bsym) in steps else ()
            inner = {proxy.name for operation in operations for proxy in operation.defines} - {
                proxy.name for proxy in bsym.outputs
            }
            inner |= {p.name for each in operations if each.symbol.target in WITH_UNSIZED_RESULTS for p in each.defines}
            if not intermediates & inner:
                yield bsym
            elif has_derivative_rule(bsym) and not any(
                operation.ordered or operation.mutates for operation in operations
            ):
                # The rule may differ from the derivative of the operations, so the bound symbol stays, and its
                # operations run in addition to compute the intermediates. The condition above ensures that no random
                # numbers are drawn twice.
                yield bsym
                fresh = {proxy.name: replace(proxy, name=next(self._names)) for proxy in bsym.defines}
                yield from (operation.rename(fresh) for operation in operations)
            else:
                yield from operations


def _vjp_with_accumulation(
    derivation: Derivation, incoming: Sequence[TensorProxy | None], accumulated: Sequence[TensorProxy | None]
) -> tuple[VJP, tuple[bool, ...]]:
    """Return the VJP for cotangents, and for each of its gradients whether it includes the accumulated gradient.

    Autograd adds the contributions to a tensor's gradient one after another. If a VJP is itself a sum, as for `x * x`,
    adding the finished sum would round differently, so the summands are added to the accumulated gradient one by one.
    """
    vjp = derivation.vjp(incoming)
    pairs = zip(accumulated, vjp.sums, strict=True)
    old_sums = [
        old if is_sum and old is not None and len(old.stride) == len(old.shape) else None for old, is_sum in pairs
    ]
    if any(old_sums):
        with suppress(Underivable):
            vjp = derivation.vjp(incoming, old_sums)
            return vjp, tuple(old is not None for old in old_sums)
    return vjp, (False,) * len(old_sums)


def cotangent_of(proxy: TensorProxy) -> TensorProxy:
    """Return the proxy of a tensor's cotangent, its incoming gradient, with the strides of `torch.empty_like`.

    Raises `Underivable` for a sparse tensor.
    """
    if len(proxy.stride) != len(proxy.shape):
        raise Underivable(f"the gradient of {proxy.name} is sparse")
    shape, strides = (tuple(map(generic_hint_of, sizes)) for sizes in (proxy.shape, proxy.stride))
    with torch.no_grad():
        like = torch.empty_strided(shape, strides, dtype=proxy.dtype, device="meta")
        stride = tuple(torch.empty_like(like, memory_format=torch.preserve_format).stride())
    stride = sizes_for_trace(symbolic_dense_strides(stride, shape, proxy.shape))
    return TensorProxy(f"grad_{proxy.name}", proxy.shape, stride, proxy.dtype, proxy.device)


def _gradient_labels(gradients: Iterable[tuple[str, Proxy | None]]) -> dict[str, str]:
    """Return a label for each gradient, such as `gradient of x, y` for a gradient of two tensors."""
    labels: dict[str, str] = {}
    for name, gradient in gradients:
        if gradient is not None:
            labels[gradient.name] = (
                f"{labels[gradient.name]}, {name}" if gradient.name in labels else f"gradient of {name}"
            )
    return labels


def _derive(bsym: BoundSymbol, requires_grad_names: set[str]) -> Derivation | None:
    names = frozenset(requires_grad_names)
    try:
        return derive_control_flow(bsym, names, ReverseSweep.of) if bsym.functions else derive(bsym, names)
    except Underivable as error:
        raise underivable(bsym, str(error), error.missing_formula and bsym) from error
