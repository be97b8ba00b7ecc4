"""One operator of PyTorch's database: its samples under `jit` and in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

from tests.coverage.compiled import Compiled
from tests.coverage.finding import Finding
from tests.coverage.outcome import Outcome, difference, gradients, outcome, seed, tensors_of, twice

# PyTorch's databases forbid setting flags of backends in the whole process; other tests of the process set them.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

# The databases search every frame of the stack for PyTorch's own test, for each sample; there is none here.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

OPERATORS = {op.full_name: op for op in op_db}
FAMILIES: dict[str, tuple[torch.dtype, ...]] = {
    "float": (torch.float32, torch.float64, torch.bfloat16),
    "integer": (torch.int64, torch.int32, torch.bool),
    "complex": (torch.complex64, torch.complex128),
}
SAMPLES = {"function": 6, "method": 2, "in place": 2, "backward": 4, "second": 2}
UNDEFINED = ("empty", "new_empty", "resize_")  # operators whose results have shapes and dtypes, but undefined contents


def dtypes_of(op: Any, supported: Any) -> list[torch.dtype]:
    """Return one dtype of each family that the operator supports."""
    found = (next((dtype for dtype in family if dtype in supported), None) for family in FAMILIES.values())
    return [dtype for dtype in found if dtype is not None]


def samples(op: Any, dtype: torch.dtype, requires_grad: bool = False) -> list[tuple[Any, Any]]:
    """Return two equal copies of each sample of the database."""
    copies = []
    for _ in range(2):
        seed()
        copies.append(list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad)))
    return list(zip(*copies, strict=True))


def some(pairs: list[tuple[Any, Any]], variant: str, count: int) -> list[tuple[Any, Any]]:
    """Return this number of the samples that the variant accepts, evenly spaced."""
    fitting = [pair for pair in pairs if variant == "function" or isinstance(pair[0].input, torch.Tensor)]
    return fitting[:: max(1, len(fitting) // count)][:count]


def caller(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return a program that calls the target."""

    def program(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return program


def in_place(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return a program in which the target writes to a copy of the first argument."""

    def program(first: Any, *args: Any, **kwargs: Any) -> Any:
        copy = first.clone()
        result = target(copy, *args, **kwargs)
        return result, copy

    return program


def variants(op: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return the ways to call the operator, each as a program."""
    yield "function", caller(op.op)
    if op.method_variant is not None:
        yield "method", caller(op.method_variant)
    if op.inplace_variant is not None:
        yield "in place", in_place(op.inplace_variant)


def examine(name: str) -> Iterator[Finding]:
    """Yield all findings on an operator."""
    op = OPERATORS[name]
    backward = op.supported_backward_dtypes("cpu") if op.supports_autograd else ()
    for dtype in dtypes_of(op, op.supported_dtypes("cpu")):
        pairs = samples(op, dtype)
        for variant, program in variants(op):
            yield from forward(op, dtype, variant, program, some(pairs, variant, SAMPLES[variant]))
    for dtype in dtypes_of(op, backward):
        pairs = samples(op, dtype, requires_grad=True)
        for variant, program in variants(op):
            if variant != "method":
                yield from backward_of(dtype, variant, program, some(pairs, variant, SAMPLES["backward"]))
    if op.supports_gradgrad:
        for dtype in dtypes_of(op, backward)[:1]:
            pairs = samples(op, dtype, requires_grad=True)
            yield from backward_of(dtype, "function", caller(op.op), some(pairs, "function", SAMPLES["second"]), twice)
    yield from errors(op)


def forward(op: Any, dtype: torch.dtype, variant: str, program: Any, pairs: Any) -> Iterator[Finding]:
    """Compare the results on samples without gradients."""
    compiled = Compiled(program)
    defined = not op.name.startswith(UNDEFINED)
    for number, (eager_sample, sample) in enumerate(pairs):
        eager = outcome(program, eager_sample.input, *eager_sample.args, **eager_sample.kwargs)
        found = outcome(compiled, sample.input, *sample.args, **sample.kwargs)
        yield Finding(
            "forward", str(dtype), variant, number, difference(eager, found, defined=defined), compiled.guarded
        )


DIRECTION = {gradients: "backward", twice: "second"}


def backward_of(
    dtype: torch.dtype, variant: str, program: Any, pairs: Any, derive: Any = gradients
) -> Iterator[Finding]:
    """Compare the gradients on samples that require gradients."""
    compiled = Compiled(program)
    for number, (eager_sample, sample) in enumerate(pairs):
        eager, found = differentiated(program, eager_sample, derive), differentiated(compiled, sample, derive)
        failure = difference(eager, found, exact=False)
        yield Finding(DIRECTION[derive], str(dtype), variant, number, failure, compiled.guarded)


def differentiated(program: Any, sample: Any, derive: Any) -> Outcome:
    """Return the gradients for every tensor of the sample that requires a gradient."""

    def run() -> Any:
        output = program(sample.input, *sample.args, **sample.kwargs)
        inputs = list(tensors_of((sample.input, sample.args, sample.kwargs)))
        return derive(sample.output_process_fn_grad(output), inputs)

    return outcome(run)


def errors(op: Any) -> Iterator[Finding]:
    """Compare the exceptions for arguments that the operator refuses."""
    if op.error_inputs_func is None:
        return
    program = caller(op.op)
    compiled = Compiled(program)
    copies = []
    for _ in range(2):
        seed()
        copies.append(list(op.error_inputs("cpu")))
    for number, (eager_sample, sample) in enumerate(zip(*copies, strict=True)):
        eager_sample, sample = eager_sample.sample_input, sample.sample_input
        eager = outcome(program, eager_sample.input, *eager_sample.args, **eager_sample.kwargs)
        found = outcome(compiled, sample.input, *sample.args, **sample.kwargs)
        yield Finding("errors", "", "function", number, difference(eager, found), compiled.guarded)
