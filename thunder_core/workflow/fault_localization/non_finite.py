"""Find the line at which NaN or an infinity first appears, in eager PyTorch and in Thunder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.free import last_uses
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.input_copies import copy_inputs, values_read
from thunder_core.workflow.fault_localization.line_faults import tensor_facts
from thunder_core.workflow.fault_localization.recording import preserve_settings
from thunder_core.workflow.fault_localization.time_limit import require_time
from thunder_core.workflow.validation.internal_check import NonFiniteLine

IsKind = Callable[[torch.Tensor], torch.Tensor]
KINDS: Mapping[str, IsKind] = {"NaN": torch.isnan, "infinity": torch.isinf}


def non_finite_lines(trace: Trace, inputs: Values, states: RandomStates, run_by: str) -> Iterator[NonFiniteLine]:
    """Yield the first line that creates NaN from inputs without NaN, and the first that creates an infinity.

    If no line creates them, yield the first input that contains them. Raises the errors of the calls.
    """
    lines = first_lines(trace, inputs, states, run_by)
    for kind, is_kind in KINDS.items():
        name = next((name for name, value in inputs.items() if count_of(value, is_kind)), None)
        if kind in lines:
            yield lines[kind]
        elif name is not None:
            yield NonFiniteLine(
                kind=kind, run_by=run_by, line=f"the input {name}", count=count_of(inputs[name], is_kind)
            )


def first_lines(trace: Trace, inputs: Values, states: RandomStates, run_by: str) -> dict[str, NonFiniteLine]:
    """Evaluate a trace on copies of inputs, and return the first line that creates each kind of value, by kind."""
    lines: dict[str, NonFiniteLine] = {}
    values = {**copy_inputs(inputs, trace), **trace.constants}
    with torch.no_grad(), preserve_settings(trace.bound_symbols):
        states.restore()
        for bsym, dying in zip(trace.bound_symbols, last_uses(trace), strict=True):
            require_time()
            before = values_read(bsym, values)
            evaluate((bsym,), values)
            after = {name: values[name] for name in names_of_results(bsym)}
            for kind, is_kind in KINDS.items():
                if kind not in lines and makes(bsym, before, after, is_kind):
                    lines[kind] = non_finite_line(kind, run_by, *first_part(bsym, before, after, is_kind))
            for proxy in dying:
                values.pop(proxy.name, None)
    return lines


def first_part(bsym: BoundSymbol, before: Values, after: Values, is_kind: IsKind) -> tuple[BoundSymbol, Values, Values]:
    """Run the operations of a region in eager PyTorch; return the first operation that creates NaN (or an infinity).

    The operation is returned with the values before and after it. If there is no such operation, return the region.
    """
    values = dict(before)
    try:
        with torch.no_grad():
            for part in bsym.subsymbols if bsym.executor and not bsym.mutates else ():
                evaluate((part,), values)
                if makes(part, values, values, is_kind):
                    return part, values, values
    except (RuntimeError, TypeError, ValueError, KeyError):
        pass  # an operation that cannot run alone
    return bsym, before, after


def names_of_results(bsym: BoundSymbol) -> list[str]:
    """Return the names of the tensors that a line defines, or writes to."""
    return [*(proxy.name for proxy in bsym.tensors), *bsym.mutates]


def makes(bsym: BoundSymbol, before: Values, after: Values, is_kind: IsKind) -> bool:
    """Whether a line creates NaN, or infinities, from inputs without them."""
    read = any(count_of(before.get(proxy.name), is_kind) for proxy in bsym.inputs)
    return not read and any(count_of(after.get(name), is_kind) for name in names_of_results(bsym))


def count_of(value: object, is_kind: IsKind) -> int:
    """Return the number of NaN elements, or of infinite elements, of a floating tensor; 0 for other values."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return 0
    return int(is_kind(value).sum())


def non_finite_line(kind: str, run_by: str, bsym: BoundSymbol, before: Values, after: Values) -> NonFiniteLine:
    """Return the line as plain data, with the number of NaN or infinite elements in its result."""
    return NonFiniteLine(
        kind=kind,
        run_by=run_by,
        line=bound_symbol_text(bsym),
        count=max(count_of(after.get(name), KINDS[kind]) for name in names_of_results(bsym)),
        module=bsym.module,
        source=str(bsym.source or ""),
        inputs=tuple(tensor_facts(proxy) for proxy in bsym.inputs if isinstance(proxy, TensorProxy)),
        largest={
            proxy.name: float(before[proxy.name].abs().max())
            for proxy in bsym.inputs
            if isinstance(before.get(proxy.name), torch.Tensor)
            and before[proxy.name].is_floating_point()
            and before[proxy.name].numel()
        },
    )
