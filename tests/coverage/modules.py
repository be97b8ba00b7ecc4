"""One module of PyTorch's database, in training and in evaluation mode, compiled and in eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

from tests.coverage.compiled import Compiled
from tests.coverage.finding import Finding
from tests.coverage.outcome import Outcome, difference, gradients, outcome, seed, tensors_of, twice

MODULES = {info.name: info for info in module_db}
SAMPLES = 6
TWICE = 1  # number of samples that are differentiated twice
DTYPES = (torch.float32, torch.complex64)


def examine(name: str) -> Iterator[Finding]:
    """Compare results, gradients and states of the module after a call, in both modes."""
    info = MODULES[name]
    for dtype in DTYPES:
        if dtype in info.supported_dtypes("cpu"):
            for training in (True, False):
                yield from in_mode(info, dtype, training, SAMPLES)
    yield from errors(info)


def in_mode(info: Any, dtype: torch.dtype, training: bool, count: int) -> Iterator[Finding]:
    """Yield the findings on the samples of one mode."""
    mode = "training" if training else "evaluation"
    for number, pair in enumerate(zip(*(list(built(info, dtype, training, count)) for _ in range(2)), strict=True)):
        (module, given), (twin, same) = pair
        program = Compiled(twin)
        again = number < TWICE and info.supports_gradgrad
        eager, compiled = used(module, module, given, again), used(program, twin, same, again)
        for direction in ("forward", "backward", "second")[: 3 if again else 2]:
            one, other, exact = part(eager, direction), part(compiled, direction), direction == "forward"
            yield Finding(direction, str(dtype), mode, number, difference(one, other, exact=exact), program.guarded)


def built(info: Any, dtype: torch.dtype, training: bool, count: int) -> Iterator[tuple[torch.nn.Module, Any]]:
    """Yield modules with their arguments, the same at each call."""
    seed()
    inputs = list(info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training))
    for sample in inputs[:: max(1, len(inputs) // count)][:count]:
        seed()
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        module = module.train(training) if info.is_lazy else module.to(dtype).train(training)
        yield module, (sample.forward_input.args, sample.forward_input.kwargs)


def errors(info: Any) -> Iterator[Finding]:
    """Compare the exceptions for arguments that a module refuses when it is called."""
    if info.module_error_inputs_func is None:
        return
    for training in (True, False):
        copies = []
        for _ in range(2):
            seed()
            copies.append(list(info.module_error_inputs_func(info, "cpu", DTYPES[0], False, training)))
        for number, pair in enumerate(zip(*copies, strict=True)):
            if pair[0].error_on is ModuleErrorEnum.FORWARD_ERROR:
                (module, given), (twin, same) = (made(info, item.module_error_input, training) for item in pair)
                program = Compiled(twin)
                eager, found = outcome(module, *given.args, **given.kwargs), outcome(program, *same.args, **same.kwargs)
                mode = "training" if training else "evaluation"
                yield Finding("errors", "", mode, number, difference(eager, found), program.guarded)


def made(info: Any, sample: Any, training: bool) -> tuple[torch.nn.Module, Any]:
    """Return a module for a sample, and the arguments of its call."""
    seed()
    module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
    return module.train(training), sample.forward_input


def used(call: Any, module: torch.nn.Module, given: Any, again: bool) -> dict[str, Outcome]:
    """Call the module twice, so that its state matters, and differentiate once, or twice if `again` is set."""
    args, kwargs = given
    first = outcome(lambda: (call(*args, **kwargs), call(*args, **kwargs)))
    state = Outcome(result=dict(module.state_dict()))
    if first.raised is not None:
        return {"forward": first, "state": state, "backward": first, "second": first}
    inputs = [*tensors_of(given), *module.parameters()]
    back = outcome(lambda: gradients(first.result, inputs))
    second = outcome(lambda: twice(call(*args, **kwargs), inputs)) if again else back
    return {"forward": first, "state": state, "backward": back, "second": second}


def part(found: dict[str, Outcome], direction: str) -> Outcome:
    """Return the outcome that is compared for a direction."""
    if direction != "forward" or found["forward"].raised is not None:
        return found[direction]
    return Outcome(result=(found["forward"].result, found["state"].result))
