"""The kernels that a trace launches, compiled for a GPU that this machine may lack, or taken from the cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from thunder_core.backend.cache import REGION, Entry, Key, Store
from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.fusion.wrapping import unwrap
from thunder_core.backend.patterns.outcome import trace_without_data
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.ir.proxy import NumberProxy, symbolic_sizes_of, with_sizes
from thunder_core.tracing.ir.sizes import generic_hint_of, hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_executors.triton.cubin import VERSION, Cubin, compile_for
from thunder_executors.triton.launch import Launch, Specialization, recorded_launches

IMAGE, FACTS = "kernel.cubin", "facts.json"


def device_code(trace: Trace, executor: str, target: str) -> tuple[DeviceCode, ...]:
    """Return the machine code of every kernel that the executor's bound symbols launch, each once, in order."""
    return tuple(load_or_compile(specializations_of(trace, executor), executor, target))


def specializations_of(trace: Trace, executor: str) -> tuple[Specialization, ...]:
    """Return the specializations that the executor's bound symbols launch, each once, in order.

    If an argument is a multiple of 16 only for the sizes seen while tracing, a second specialization serves all sizes.
    If a kernel has variants for other values of symbolic sizes, these are included.
    """
    found: dict[Specialization, None] = {}
    for bsym in bsyms_of(trace, executor):
        traced = [launch.specialization for launch in launches(bsym, variants=True)]
        found |= dict.fromkeys((*traced, *for_all_sizes(bsym, traced)))
    return tuple(found)


def for_all_sizes(bsym: BoundSymbol, traced: Iterable[Specialization]) -> Iterator[Specialization]:
    """Yield the traced specializations with no more alignment than they have for odd sizes."""
    if next(symbolic_sizes_of((*bsym.inputs, *bsym.outputs)), None) is None:
        return
    try:
        others = launches(bsym, odd_value, variants=True)
    except (RuntimeError, ValueError, ThunderError):  # the program has no odd sizes
        return
    for specialization, launch in zip(traced, others, strict=False):
        common = tuple(name for name in specialization.divisible if name in launch.specialization.divisible)
        if launch.specialization.with_alignment(common) == specialization.with_alignment(common):
            yield specialization.with_alignment(common)


def odd_value(size: Any) -> int:
    """Return the value of a size for odd values of its symbols, near those seen while tracing."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    hints = size.node.shape_env.backed_var_to_val
    return generic_hint_of(size, {symbol: max(3, int(hints[symbol]) | 1) for symbol in size.node.expr.free_symbols})


def bsyms_of(trace: Trace, executor: str) -> Iterator[BoundSymbol]:
    """Yield the executor's bound symbols, also those within wrappers."""
    yield from (bsym for bsym in unwrap(trace.bound_symbols) if bsym.executor == executor)


def launches(
    bsym: BoundSymbol, value_of: Callable[[Any], int] = hint_of, *, variants: bool = False
) -> tuple[Launch, ...]:
    """Return the launches when a bound symbol runs with grad mode off, except those with an empty grid.

    `value_of` returns the value of a symbolic size; by default, this is the value seen while tracing. With `variants`,
    the result includes the launches that a kernel for all sizes has for other values.
    """
    arguments = replace_leaves((bsym.args, dict(bsym.kwargs)), partial(at_value, value_of))
    with recorded_launches(variants=variants) as recorded:
        trace_without_data(lambda args, kwargs: bsym.symbol.target(*args, **kwargs), None, arguments, False)
    return tuple(launch for launch in recorded if 0 not in launch.grid)


def at_value(value_of: Callable[[Any], int], leaf: Any) -> Any:
    """Return an argument with integers in place of symbolic sizes."""
    return value_of(leaf.value) if isinstance(leaf, NumberProxy) else with_sizes(leaf, value_of)


def load_or_compile(specializations: Iterable[Specialization], executor: str, target: str) -> Iterator[DeviceCode]:
    """Yield the machine code of each specialization, compiled once for all processes."""
    store = Store()
    for specialization in specializations:
        entry = store.get_or_build(
            key_of(specialization, target), writer(specialization, target), label(specialization)
        )
        yield DeviceCode(executor, entry.read(IMAGE), facts_of(entry))


def key_of(specialization: Specialization, target: str) -> Key:
    """Return the cache key of machine code.

    The field `REGION` identifies the specialization, and `thunder cache why` finds its other entries by this field.
    `source` is Triton's digest of the kernel and of all functions that it calls.
    """
    kernel: Any = plugins.import_object(specialization.kernel)
    fields = {
        REGION: sha256(json.dumps(specialization.as_dict(), sort_keys=True).encode()).hexdigest(),
        "source": str(getattr(kernel, "cache_key", "")),
        "compiler": VERSION,
        "target": target,
    }
    return Key("triton", fields)


def label(specialization: Specialization) -> str:
    """Return a short description of a kernel."""
    element_types = sorted({kind.removeprefix("*") for _, kind in specialization.types if kind.startswith("*")})
    return f"{specialization.kernel.partition(':')[2]} of {', '.join(element_types)}"


def writer(specialization: Specialization, target: str) -> Any:
    """Return a function that compiles the specialization into a folder."""

    def write(folder: Path) -> None:
        cubin = compile_for(specialization, target)
        (folder / IMAGE).write_bytes(cubin.image)
        (folder / FACTS).write_text(json.dumps(cubin.metadata()), encoding="utf-8")

    return write


def facts_of(entry: Entry) -> dict[str, Any]:
    """Return the facts of an entry's machine code that a launch needs."""
    facts: dict[str, Any] = json.loads(entry.read(FACTS))
    return facts


def cubins(kernels: Iterable[DeviceCode]) -> Iterator[Cubin]:
    """Yield stored machine code as cubins."""
    for code in kernels:
        yield Cubin.from_metadata(code.facts, code.image)
