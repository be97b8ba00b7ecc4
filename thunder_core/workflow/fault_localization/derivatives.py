"""Compare the backward with autograd: the gradient of each tensor of the forward, and the lines that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates, no_exact_value, perturb
from thunder_core.backend.claiming.comparison import Difference, Float64Computation
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.double_precision import call_in_double, in_float64
from thunder_core.passes.autodiff.derivation import Derivation
from thunder_core.passes.autodiff.step import Step
from thunder_core.tracing.ir.default_dtype import default_dtype
from thunder_core.tracing.ir.evaluate import bindings, call_target, evaluate, evaluate_bound_symbol
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.input_copies import convert_inputs, copy_inputs
from thunder_core.workflow.fault_localization.line_faults import line_fault
from thunder_core.workflow.fault_localization.recording import RecordedValues, preserve_settings
from thunder_core.workflow.fault_localization.rounding import ROUNDING, Allowance, rounding_difference
from thunder_core.workflow.fault_localization.stages import difference_in_double, is_equal, noise_in_double
from thunder_core.workflow.fault_localization.time_limit import require_time
from thunder_core.workflow.validation.internal_check import Fault

Cotangents = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class AutogradGradients:
    """Autograd's gradients of the tensors of a trace by name, in their own dtypes and in float64."""

    plain: Values
    compute: Callable[[bool], Values | None] = lambda perturbed: None

    @cached_property
    def in_double(self) -> Values | None:
        """The gradients in float64; None if an operation does not support float64."""
        return self.compute(False)

    @cached_property
    def perturbed(self) -> Values | None:
        """The gradients in float64 from inputs that are changed by one unit in the last place; None without float64."""
        return self.compute(True)

    def reference_of(self, name: str) -> Float64Computation:
        """Return a function that returns the gradient of a tensor in float64."""

        def reference(perturbed: bool = False) -> torch.Tensor | None:
            return ((self.perturbed if perturbed else self.in_double) or {}).get(name)

        return reference


def autograd_gradients(
    body: Trace,
    inputs: Values,
    requires_grad: Sequence[str],
    cotangents: Cotangents,
    states: RandomStates,
    names: Container[str] | None = None,
) -> AutogradGradients:
    """Return autograd's gradients of a computation's tensors in eager PyTorch, for cotangents of its results.

    If `names` is passed, only the gradients of these tensors are returned.
    """
    plain = gradients_of(body, copy_inputs(inputs, body), requires_grad, cotangents, states, names=names)
    if not RandomStates.now(inputs).equal(states):
        return AutogradGradients(plain)  # another dtype has other random numbers
    wide = {name: in_float64(value) for name, value in cotangents.items()}

    def compute(perturbed: bool) -> Values | None:
        change = perturb if perturbed else in_float64
        own = convert_inputs(copy_inputs(inputs, body), change, body)
        try:
            return gradients_of(body, own, requires_grad, wide, states, in_double=True, names=names)
        except (RuntimeError, TypeError, ValueError):
            return None  # an operation does not support float64

    return AutogradGradients(plain, compute)


def gradients_of(
    body: Trace,
    inputs: Values,
    requires_grad: Sequence[str],
    cotangents: Cotangents,
    states: RandomStates,
    *,
    in_double: bool = False,
    names: Container[str] | None = None,
) -> Values:
    """Return the gradients of the tensors, all or only `names`, that require gradients and are not written to."""
    call = call_in_double if in_double else call_target
    wide = default_dtype(torch.float64 if in_double else None)
    with torch.enable_grad(), preserve_settings(body.bound_symbols), wide:
        leaves = {name: inputs[name].requires_grad_() for name in requires_grad}
        constants = {name: in_float64(value) if in_double else value for name, value in body.constants.items()}
        values = {**inputs, **{name: leaf.view_as(leaf) for name, leaf in leaves.items()}, **constants}
        states.restore()
        for bsym in body.bound_symbols:
            require_time()
            values |= {
                proxy.name: value for proxy, value in bindings(bsym.output, evaluate_bound_symbol(bsym, values, call))
            }
        written = {name for bsym in body.bound_symbols for name in bsym.mutates}
        defined = {proxy.name for bsym in body.bound_symbols for proxy in bsym.tensors} - written
        tracked = {name: values[name] for name in defined if values[name].requires_grad} | leaves
        tracked = {name: value for name, value in tracked.items() if names is None or name in names}
        results = {name: values[name] for name in cotangents if values[name].requires_grad}
        gradients = torch.autograd.grad(
            list(results.values()),
            list(tracked.values()),
            [cotangents[name] for name in results],
            allow_unused=True,
        )
    return {name: gradient for name, gradient in zip(tracked, gradients, strict=True) if gradient is not None}


def wrong_gradient(
    backward: Trace,
    recording: RecordedValues,
    record_in_double: Callable[[], RecordedValues | None],
    expected: AutogradGradients,
    allowance: Allowance = ROUNDING,
) -> tuple[str, Difference] | None:
    """Return the forward's first tensor, in the backward's order, whose gradient differs from autograd's, or None.

    `record_in_double()` returns the backward's recording in float64, or None if float64 is not possible.
    """
    order = {name: index for index, name in enumerate(recording.values)}
    names = sorted(backward.cotangents.items(), key=lambda pair: order.get(pair[1], -1))
    pairs = ((recording.values.get(cotangent), expected.plain.get(name)) for name, cotangent in names)
    if all(None in pair or is_equal(*pair) for pair in pairs):
        return None
    in_double = record_in_double()
    for name, cotangent in names:
        value, expected_value = recording.values.get(cotangent), expected.plain.get(name)
        if value is None or expected_value is None:
            continue
        if value.shape != expected_value.shape or value.dtype != expected_value.dtype:
            return name, Difference(f"is {describe(value)}, but {describe(expected_value)} in eager PyTorch")
        if allowance.is_strict and in_double is not None and name in (doubles := expected.in_double or {}):
            noise = noise_in_double(expected_value, doubles[name])
            difference = difference_in_double(doubles[name], in_double.values[cotangent], noise)
            if difference is not None:
                return name, difference
        measured = rounding_difference(value, expected_value, expected.reference_of(name), allowance)
        if measured.difference is not None:
            return name, measured.difference
    return None


def describe(tensor: torch.Tensor) -> str:
    """Return the dtype and the shape of a tensor as text."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def gradient_fault(
    name: str,
    difference: Difference,
    steps: Sequence[Step],
    backward: Trace,
    values: Values,
    expected: AutogradGradients,
) -> Fault:
    """Return the fault of a wrong gradient: at a forward line with a wrong derivative, or else at the backward's line
    that sums the gradient.
    """
    cotangent = backward.cotangents[name]
    phrase = Difference(f"the gradient of `{name}`, `{cotangent}`, {difference.what}", difference.largest)
    consumers = [step for step in steps if name in {proxy.name for proxy in step.differentiated_inputs}]
    wrong = next((step for step in consumers if is_wrongly_derived(step, values, expected)), None)
    makers = [bsym for bsym in backward.bound_symbols if cotangent in {proxy.name for proxy in bsym.defines}]
    bsym = makers[0] if wrong is None and makers else (wrong or consumers[-1]).bsym
    operations = () if bsym.derives is None else (bsym.derives,)
    return line_fault("differentiation", backward.made_by, backward.name, bsym, cotangent, phrase, operations)


def is_wrongly_derived(step: Step, values: Values, expected: AutogradGradients) -> bool:
    """Whether the derivative of one forward line differs from autograd's, given autograd's gradients of its results."""
    derivation, bsym = step.derivation, step.bsym
    if derivation is None or any(proxy.name not in expected.plain for proxy in step.results):
        return False
    cotangents = [expected.plain[proxy.name] for proxy in step.results]
    inputs = {proxy.name: values[proxy.name] for proxy in bsym.inputs}
    names = [proxy.name for proxy in step.differentiated_inputs]
    try:
        eager_gradients = local_gradients(bsym, inputs, names, [proxy.name for proxy in step.results], cotangents)
        own_gradients = derived_gradients(
            derivation, {old: inputs[new.name] for old, new in step.names.items() if new.name in inputs}, cotangents
        )
    except (RuntimeError, TypeError, ValueError, KeyError):
        return False  # the line cannot be differentiated alone; the fault names the line that sums the gradient
    return any(
        our_gradient is not None
        and eager_gradient is not None
        and rounding_difference(our_gradient, eager_gradient, no_exact_value).difference is not None
        for our_gradient, eager_gradient in zip(own_gradients, eager_gradients, strict=True)
    )


def local_gradients(
    bsym: BoundSymbol, inputs: Values, names: Sequence[str], results: Sequence[str], cotangents: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Return the gradients of a line's inputs by autograd, for cotangents of its results."""
    with torch.enable_grad():
        leaves = {name: inputs[name].detach().clone().requires_grad_() for name in names}
        values = {**inputs, **{name: leaf.view_as(leaf) for name, leaf in leaves.items()}}
        outputs = {proxy.name: value for proxy, value in bindings(bsym.output, evaluate_bound_symbol(bsym, values))}
        return list(
            torch.autograd.grad(
                [outputs[name] for name in results], list(leaves.values()), cotangents, allow_unused=True
            )
        )


def derived_gradients(
    derivation: Derivation, values: Values, cotangents: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Return the gradients of a line's inputs by the derivation of its derivative."""
    vjp = derivation.vjp(list(derivation.results))
    all_values = dict(values)
    with torch.no_grad():
        evaluate(derivation.bsyms, all_values)
        all_values |= {
            proxy.name: value for proxy, value in zip(vjp.cotangents, cotangents, strict=True) if proxy is not None
        }
        evaluate(vjp.bsyms, all_values)
    return [None if proxy is None else all_values[proxy.name] for proxy in vjp.gradients]


def random_cotangents(results: Mapping[str, Any], names: Iterable[str], seed: int) -> dict[str, torch.Tensor]:
    """Return a random cotangent for each of these results, with the layout that PyTorch gives gradients."""
    generator = torch.Generator().manual_seed(seed)
    cotangents = {}
    for name in names:
        value = results[name]
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype).to(value.device)
        cotangents[name] = torch.empty_like(value).copy_(noise)
    return cotangents
