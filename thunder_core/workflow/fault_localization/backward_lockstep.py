"""Run a backward in lockstep with autograd: each gradient is compared when both have computed it, then dropped."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.free import last_uses
from thunder_core.tracing.ir.evaluate import bindings, evaluate_bound_symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.derivatives import Cotangents
from thunder_core.workflow.fault_localization.input_copies import copy_inputs
from thunder_core.workflow.fault_localization.lockstep import LineByLine, runs_in_lockstep
from thunder_core.workflow.fault_localization.stages import is_equal
from thunder_core.workflow.fault_localization.time_limit import require_time
from thunder_core.workflow.validation.gradients import on_gradient

NO_GRADIENTS: Sequence[Any] = ()


def names_unlike_autograd(
    body: Trace,
    backward: Trace,
    inputs: Values,
    saved: Values,
    requires_grad: Sequence[str],
    cotangents: Cotangents,
    states: RandomStates,
) -> list[str] | None:
    """Return the names of tensors whose gradients differ in any bit from autograd's, in autograd's order.

    `saved` are the values that the backward reads. Returns None if a trace writes to tensors or changes settings,
    because such traces cannot run in lockstep.
    """
    if not (runs_in_lockstep(body) and runs_in_lockstep(backward)):
        return None
    gradients = GradientsInTurn(backward, saved, states)
    unlike: list[str] = []

    def compare(name: str, expected: torch.Tensor) -> None:
        require_time()
        actual = gradients.of(name)
        if actual is not None and not is_equal(actual, expected):
            unlike.append(name)

    run_autograd(body, copy_inputs(inputs, body), requires_grad, cotangents, states, backward.cotangents, compare)
    return unlike


class GradientsInTurn:
    """The gradients of a backward, computed on request: its lines run until the requested gradient exists."""

    def __init__(self, backward: Trace, saved: Values, states: RandomStates) -> None:
        self._lines = LineByLine(backward, saved, states, outputs=NO_GRADIENTS).lines()
        self._cotangents, self._states = backward.cotangents, states
        self._defined = {proxy.name for bsym in backward.bound_symbols for proxy in bsym.defines}
        self._awaited = set(self._cotangents.values()) & self._defined
        self._waiting: Values = {}

    def of(self, name: str) -> Any:
        """Return the gradient of a tensor, once; None if the backward does not compute it."""
        cotangent = self._cotangents[name]
        if cotangent not in self._awaited:
            return None
        before = self._states.current_states()
        with torch.no_grad():
            while cotangent not in self._waiting:
                self._waiting |= {defined: value for defined, value in next(self._lines) if defined in self._awaited}
        before.restore()
        self._awaited.discard(cotangent)
        return self._waiting.pop(cotangent)


def run_autograd(
    body: Trace,
    inputs: Values,
    requires_grad: Sequence[str],
    cotangents: Cotangents,
    states: RandomStates,
    watched: Container[str],
    take: Callable[[str, torch.Tensor], None],
) -> None:
    """Differentiate a computation by autograd in eager PyTorch; call `take` with each gradient of a watched tensor."""
    with torch.enable_grad():
        leaves = {name: inputs[name].requires_grad_() for name in requires_grad}
        values = {**inputs, **leaves, **body.constants}
        watch(leaves, watched, take)
        states.restore()
        for bsym, dying in zip(body.bound_symbols, last_uses(body), strict=True):
            require_time()
            outputs = {proxy.name: value for proxy, value in bindings(bsym.output, evaluate_bound_symbol(bsym, values))}
            watch(outputs, watched, take)
            values |= outputs
            for proxy in dying:
                values.pop(proxy.name, None)
        results = {name: values[name] for name in cotangents if values[name].requires_grad}
        values.clear()
        torch.autograd.backward(list(results.values()), [cotangents[name] for name in results])


def watch(values: Values, watched: Container[str], take: Callable[[str, torch.Tensor], None]) -> None:
    """Let autograd pass the gradients of watched tensors to `take`; leaves do not accumulate gradients."""
    for name, value in values.items():
        if not (isinstance(value, torch.Tensor) and value.requires_grad):
            continue
        if value.is_leaf:
            on_gradient(value, partial(_pass_and_drop, name if name in watched else "", take))
        elif name in watched:
            value.register_hook(partial(_pass_gradient, name, take))  # type: ignore[no-untyped-call]


def _pass_gradient(name: str, take: Callable[[str, torch.Tensor], None], gradient: torch.Tensor | None) -> None:
    if gradient is not None:
        take(name, gradient)


def _pass_and_drop(name: str, take: Callable[[str, torch.Tensor], None], gradient: torch.Tensor) -> bool:
    if name:
        take(name, gradient)
    return True
