"""Values that are not finite: the line at which NaN or an infinity first appears, in eager PyTorch and in ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.copies import Values
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.line_faults import tensor_facts
from thunder_core.workflow.fault_localization.recording import record
from thunder_core.workflow.validation.inside import NonFiniteLine

KINDS = {"NaN": torch.isnan, "infinity": torch.isinf}


def non_finite_lines(trace: Trace, inputs: Values, states: RandomStates, run_by: str) -> Iterator[NonFiniteLine]:
    """For NaN and for infinities the first line that makes one of what has none, and where it comes from an input."""
    recording = record(trace, inputs, states)
    values = {**inputs, **recording.values}
    for kind, is_kind in KINDS.items():
        given = next((name for name, value in inputs.items() if count_of(value, is_kind)), None)
        line = next((one for one in trace.bound_symbols if makes(one, values, is_kind)), None)
        if line is not None:
            yield non_finite_line(kind, run_by, *first_part(line, values, is_kind), is_kind)
        elif given is not None:
            yield NonFiniteLine(
                kind=kind, run_by=run_by, line=f"the input {given}", count=count_of(inputs[given], is_kind)
            )


def first_part(bsym: BoundSymbol, values: Values, is_kind: Any) -> tuple[BoundSymbol, Values]:
    """The first operation of a region that makes such values in eager PyTorch, and its values; else the line itself."""
    known = {proxy.name: values[proxy.name] for proxy in bsym.inputs if proxy.name in values}
    try:
        with torch.no_grad():
            for part in bsym.subsymbols if bsym.executor and not bsym.mutates else ():
                evaluate((part,), known)
                if makes(part, known, is_kind):
                    return part, known
    except (RuntimeError, TypeError, ValueError, KeyError):
        pass  # an operation that does not run by itself
    return bsym, values


def makes(bsym: BoundSymbol, values: Values, is_kind: Any) -> bool:
    """Whether a line makes such values of inputs that have none."""
    read = any(count_of(values.get(proxy.name), is_kind) for proxy in bsym.inputs)
    return not read and any(count_of(values.get(proxy.name), is_kind) for proxy in bsym.tensors)


def count_of(value: object, is_kind: Any) -> int:
    """The number of such elements of a floating-point tensor; 0 for other values."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return 0
    return int(is_kind(value).sum())


def non_finite_line(kind: str, run_by: str, bsym: BoundSymbol, values: Values, is_kind: Any) -> NonFiniteLine:
    """The line as plain data, with how many such values its result has."""
    return NonFiniteLine(
        kind=kind,
        run_by=run_by,
        line=bound_symbol_text(bsym),
        count=max(count_of(values.get(proxy.name), is_kind) for proxy in bsym.tensors),
        module=bsym.module,
        source=str(bsym.source or ""),
        inputs=tuple(tensor_facts(proxy) for proxy in bsym.inputs if isinstance(proxy, TensorProxy)),
        largest={
            proxy.name: float(values[proxy.name].abs().max())
            for proxy in bsym.inputs
            if isinstance(values.get(proxy.name), torch.Tensor)
            and values[proxy.name].is_floating_point()
            and values[proxy.name].numel()
        },
    )
