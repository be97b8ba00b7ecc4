"""Recordings: the values of all names of a trace in one evaluation by eager PyTorch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.double_precision import call_in_double, in_float64
from thunder_core.backend.claiming.free import last_uses
from thunder_core.tracing.capture.torch_facts.settings import settings_of
from thunder_core.tracing.ir.default_dtype import default_dtype
from thunder_core.tracing.ir.evaluate import bindings, call_target, evaluate_bound_symbol
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.workflow.fault_localization.input_copies import convert_inputs, copy_inputs
from thunder_core.workflow.fault_localization.time_limit import require_time

AFTER_WRITE = " after write "  # in the name of a value after a write
AT_END_SUFFIX = " at the end"


@dataclass
class RecordedValues:
    """The values of names when they are defined, after each write (`x after write 1`), and of inputs at the end.

    An input's value at the end has the name `x at the end`. `final` has the values of all names at the end, and
    `outputs` are the values that the trace returns.
    """

    values: Values = field(default_factory=dict)
    final: Values = field(default_factory=dict)
    outputs: tuple[Any, ...] = ()


def name_after_write(name: str, count: int) -> str:
    """Return the name of the value that a tensor has after a number of writes."""
    return f"{name}{AFTER_WRITE}{count}"


def record(
    trace: Trace,
    inputs: Values,
    states: RandomStates,
    *,
    in_double: bool = False,
    names_to_keep: Container[str] | None = None,
) -> RecordedValues:
    """Evaluate a trace on copies of inputs, from these random states, and record all values.

    With `names_to_keep`, the values of all other names are dropped after their last use. `in_double` evaluates the
    trace in float64. Raises the errors of the calls, and `OutOfTime`.
    """
    values = copy_inputs(inputs, trace)
    if in_double:
        values = convert_inputs(values, in_float64, trace)
    values |= {name: in_float64(value) if in_double else value for name, value in trace.constants.items()}
    call = call_in_double if in_double else call_target
    recording, writes = RecordedValues(), dict[str, int]()
    keeps_copies = any(bsym.mutates for bsym in trace.bound_symbols)
    wide = default_dtype(torch.float64 if in_double else None)
    with torch.no_grad(), preserve_settings(trace.bound_symbols), wide:
        states.restore()
        for bsym, dying in zip(trace.bound_symbols, _names_to_drop(trace, names_to_keep), strict=True):
            require_time()
            result = evaluate_bound_symbol(bsym, values, call)
            for proxy, value in bindings(bsym.output, result):
                values[proxy.name] = value
            for proxy in bsym.defines:
                if names_to_keep is None or proxy.name in names_to_keep:
                    recording.values[proxy.name] = _copy_if_requested(values[proxy.name], keeps_copies)
            for name in bsym.mutates:
                writes[name] = writes.get(name, 0) + 1
                recording.values[name_after_write(name, writes[name])] = _copy_if_requested(values[name], keeps_copies)
            for name in dying:
                values.pop(name, None)
    recording.values |= {f"{name}{AT_END_SUFFIX}": values[name] for name in inputs}
    recording.final = values
    returned = replace_leaves(trace.output, lambda leaf: values.get(leaf.name) if isinstance(leaf, Proxy) else leaf)
    recording.outputs = tuple(leaves(returned))
    return recording


def _names_to_drop(trace: Trace, names_to_keep: Container[str] | None) -> list[list[str]]:
    """Return for each line the names to drop after it: no later line reads these names, and they are not kept."""
    if names_to_keep is None:
        return [[] for _ in trace.bound_symbols]
    dying = last_uses(replace(trace, output=()))
    return [[proxy.name for proxy in proxies if proxy.name not in names_to_keep] for proxies in dying]


def _copy_if_requested(value: object, as_copy: bool) -> Any:
    return value.clone() if as_copy and isinstance(value, torch.Tensor) and value.layout is torch.strided else value


@contextmanager
def preserve_settings(bsyms: Iterable[BoundSymbol]) -> Iterator[None]:
    """After the block, restore the settings of PyTorch that bound symbols change."""
    restores = [setting.keep() for setting in settings_of(bsyms)]
    try:
        yield
    finally:
        for restore in restores:
            restore()


def inputs_by_name(trace: Trace, inputs: Iterable[Any]) -> Values:
    """Return the values of a trace's inputs by name."""
    return {proxy.name: value for proxy, value in zip(trace.inputs, inputs, strict=False)}


def record_in_double(
    trace: Trace, inputs: Values, states: RandomStates, names_to_keep: Container[str] | None = None
) -> RecordedValues | None:
    """Return the recording of a trace in float64; None if an operation does not support float64."""
    try:
        return record(trace, inputs, states, in_double=True, names_to_keep=names_to_keep)
    except (RuntimeError, TypeError, ValueError):
        return None
