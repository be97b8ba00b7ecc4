"""The backward beside autograd: the gradient of each tensor of the forward, and the lines that compute a wrong one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.autodiff.vjp import derive
from thunder_core.claiming.check import RandomStates, Values, copied, perturb
from thunder_core.claiming.comparison import Difference, Exact
from thunder_core.claiming.double_precision import call_in_double, in_float64
from thunder_core.fault_localization.line_faults import line_fault
from thunder_core.fault_localization.recording import Recording, settings_kept
from thunder_core.fault_localization.rounding import rounding_difference
from thunder_core.ir.evaluate import bindings, call_target, evaluate_one
from thunder_core.ir.printer import bound_symbol_text
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.validation.inside import Fault

Cotangents = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class AutogradGradients:
    """The gradients that autograd has of the tensors of a trace, by their names; in its own dtypes and in float64."""

    plain: Values
    exact: Values | None = None
    perturbed: Values | None = None

    def exact_of(self, name: str) -> Exact:
        """The function that gives the gradient of a tensor in float64."""

        def exact(perturbed: bool = False) -> torch.Tensor | None:
            return ((self.perturbed if perturbed else self.exact) or {}).get(name)

        return exact


def autograd_gradients(
    body: Trace, inputs: Values, requires_grad: Sequence[str], cotangents: Cotangents, states: RandomStates
) -> AutogradGradients:
    """The gradients of the tensors of a computation for cotangents of its results, by autograd in eager PyTorch."""
    plain = gradients_of(body, copied(inputs), requires_grad, cotangents, states)
    if not RandomStates.now(inputs).equal(states):
        return AutogradGradients(plain)  # the random numbers of another dtype are others
    wide = {name: in_float64(value) for name, value in cotangents.items()}
    try:
        exact, perturbed = (
            gradients_of(
                body, {k: change(v) for k, v in copied(inputs).items()}, requires_grad, wide, states, in_double=True
            )
            for change in (in_float64, perturb)
        )
    except (RuntimeError, TypeError, ValueError):
        return AutogradGradients(plain)  # an operation that takes no float64
    return AutogradGradients(plain, exact, perturbed)


def gradients_of(
    body: Trace,
    inputs: Values,
    requires_grad: Sequence[str],
    cotangents: Cotangents,
    states: RandomStates,
    *,
    in_double: bool = False,
) -> Values:
    """The gradients of all tensors that autograd follows and that nothing writes to."""
    call = call_in_double if in_double else call_target
    with torch.enable_grad(), settings_kept(body.bound_symbols):
        leaves = {name: inputs[name].requires_grad_() for name in requires_grad}
        values = {**inputs, **{name: leaf.view_as(leaf) for name, leaf in leaves.items()}, **body.constants}
        states.restore()
        for bsym in body.bound_symbols:
            values |= {proxy.name: value for proxy, value in bindings(bsym.output, evaluate_one(bsym, values, call))}
        written = {name for bsym in body.bound_symbols for name in bsym.mutates}
        made = {proxy.name for bsym in body.bound_symbols for proxy in bsym.tensors} - written
        followed = {name: values[name] for name in made if values[name].requires_grad} | leaves
        results = {name: values[name] for name in cotangents if values[name].requires_grad}
        gradients = torch.autograd.grad(
            list(results.values()),
            list(followed.values()),
            [cotangents[name] for name in results],
            allow_unused=True,
        )
    return {name: gradient for name, gradient in zip(followed, gradients, strict=True) if gradient is not None}


def wrong_gradient(backward: Trace, recording: Recording, expected: AutogradGradients) -> tuple[str, Difference] | None:
    """The first tensor of the forward, in the order of the backward, whose gradient is not autograd's."""
    order = {name: place for place, name in enumerate(recording.values)}
    names = sorted(backward.cotangents.items(), key=lambda pair: order.get(pair[1], -1))
    for name, cotangent in names:
        value, reference = recording.values.get(cotangent), expected.plain.get(name)
        if value is None or reference is None:
            continue
        if value.shape != reference.shape or value.dtype != reference.dtype:
            return name, Difference(f"is {describe(value)}, and {describe(reference)} in eager PyTorch")
        measured = rounding_difference(value, reference, expected.exact_of(name))
        if measured.difference is not None:
            return name, measured.difference
    return None


def describe(tensor: torch.Tensor) -> str:
    """The dtype and the shape of a tensor."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def gradient_fault(name: str, difference: Difference, body: Trace, backward: Trace) -> Fault:
    """The fault of a wrong gradient: at the line of the backward that is not what PyTorch derives, or that makes it."""
    cotangent = backward.cotangents[name]
    bsym = next((one for one in backward.bound_symbols if cotangent in {p.name for p in one.defines}), None)
    groups = [group_of(one, backward) for one in body.bound_symbols if name in {p.name for p in one.inputs}]
    other = next((found for group in groups if (found := not_derived(group)) is not None), None)
    told = Difference(f"the gradient of `{name}`, `{cotangent}`, {difference.what}", difference.largest)
    bsym = other or bsym
    if bsym is None:
        return Fault(
            kind="differentiation",
            by=backward.made_by,
            trace=backward.name,
            line="return",
            result=cotangent,
            difference=told.what,
            error=told.largest,
        )
    operations = () if bsym.derives is None else (bsym.derives,)
    return line_fault("differentiation", backward.made_by, backward.name, bsym, cotangent, told, operations)


def group_of(bsym: BoundSymbol, backward: Trace) -> list[BoundSymbol]:
    """The lines of a backward that compute the derivative of a bound symbol of the forward."""
    names = {proxy.name for proxy in bsym.defines}
    return [
        one
        for one in backward.bound_symbols
        if one.derives is not None and names & {proxy.name for proxy in one.derives.defines}
    ]


def not_derived(group: Sequence[BoundSymbol]) -> BoundSymbol | None:
    """The first line of the derivative of a bound symbol whose operation PyTorch's own derivation does not have."""
    if not group or group[0].derives is None:
        return None
    wanted = list(derived_operations(group[0].derives))
    for place, bsym in enumerate(group):
        if place >= len(wanted) or wanted[place] != signature_of(bsym):
            return bsym if wanted else None
    return None


def derived_operations(bsym: BoundSymbol) -> Iterator[tuple[Any, ...]]:
    """The operations, with their constants, that PyTorch derives for the backward of a bound symbol, anew."""
    followed = frozenset(proxy.name for proxy in bsym.inputs if isinstance(proxy, TensorProxy) and proxy.requires_grad)
    try:
        derivation = derive(bsym, followed)
    except Exception:  # whatever keeps it from being derived alone: the line that makes the gradient is named then
        return
    if derivation is None:
        return
    for one in derivation.vjp(list(derivation.results)).bsyms:
        yield signature_of(one)


def signature_of(bsym: BoundSymbol) -> tuple[Any, ...]:
    """The operation of a bound symbol with its constants, without the names that it reads."""
    renamed = {
        proxy.name: proxy.named("x") for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy)
    }
    return (bound_symbol_text(bsym.renamed(renamed)),)


def random_cotangents(results: Mapping[str, Any], names: Iterable[str], seed: int) -> dict[str, torch.Tensor]:
    """A random cotangent for each of these results, laid out as PyTorch lays out gradients."""
    generator = torch.Generator().manual_seed(seed)
    cotangents = {}
    for name in names:
        value = results[name]
        drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype).to(value.device)
        cotangents[name] = torch.empty_like(value).copy_(drawn)
    return cotangents
