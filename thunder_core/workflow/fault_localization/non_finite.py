"""Values that are not finite: the line at which NaN or an infinity first appears, in eager PyTorch and in Thunder."""

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
from thunder_core.workflow.validation.internal_check import NonFiniteLine

KINDS = {"NaN": torch.isnan, "infinity": torch.isinf}


def non_finite_lines(trace: Trace, inputs: Values, states: RandomStates, run_by: str) -> Iterator[NonFiniteLine]:
    """Yield the first line that creates NaN from finite inputs, and the first that creates an infinity, or the inputs
    that contain them.
    """
    recording = record(trace, inputs, states)
    values = {**inputs, **recording.values}
    for kind, is_kind in KINDS.items():
        name = next((name for name, value in inputs.items() if count_of(value, is_kind)), None)
        line = next((bsym for bsym in trace.bound_symbols if makes(bsym, values, is_kind)), None)
        if line is not None:
            yield non_finite_line(kind, run_by, *first_part(line, values, is_kind), is_kind)
        elif name is not None:
            yield NonFiniteLine(
                kind=kind, run_by=run_by, line=f"the input {name}", count=count_of(inputs[name], is_kind)
            )


def first_part(bsym: BoundSymbol, values: Values, is_kind: object) -> tuple[BoundSymbol, Values]:
    """Return the first operation of a region that creates NaN, or infinities, in eager PyTorch, with its values.

    Return the region's own line if there is no such operation.
    """
    input_values = {proxy.name: values[proxy.name] for proxy in bsym.inputs if proxy.name in values}
    try:
        with torch.no_grad():
            for part in bsym.subsymbols if bsym.executor and not bsym.mutates else ():
                evaluate((part,), input_values)
                if makes(part, input_values, is_kind):
                    return part, input_values
    except (RuntimeError, TypeError, ValueError, KeyError):
        pass  # an operation that does not run alone
    return bsym, values


def makes(bsym: BoundSymbol, values: Values, is_kind: object) -> bool:
    """Whether a line creates NaN, or infinities, from inputs without them."""
    read = any(count_of(values.get(proxy.name), is_kind) for proxy in bsym.inputs)
    return not read and any(count_of(values.get(proxy.name), is_kind) for proxy in bsym.tensors)


def count_of(value: object, is_kind: Any) -> int:
    """Return the number of NaN elements, or of infinite elements, of a floating tensor; 0 for other values."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return 0
    return int(is_kind(value).sum())


def non_finite_line(kind: str, run_by: str, bsym: BoundSymbol, values: Values, is_kind: object) -> NonFiniteLine:
    """Return the line as plain data, with the number of NaN or infinite elements in its result."""
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
