"""The kernels that a trace launches, compiled for a GPU that this machine may lack, or taken from the cache."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from thunder_core.backend.cache import REGION, Entry, Key, Store
from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.fusion.wrapping import unwrap
from thunder_core.backend.patterns.outcome import trace_without_data
from thunder_core.foundation import plugins
from thunder_core.tracing.ir.proxy import NumberProxy, with_sizes
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_executors.triton.cubin import VERSION, Cubin, compile_for
from thunder_executors.triton.launch import Launch, Specialization, recorded_launches

IMAGE, FACTS = "kernel.cubin", "facts.json"


def device_code(trace: Trace, executor: str, target: str) -> tuple[DeviceCode, ...]:
    """Return the machine code of every kernel that the executor's bound symbols launch, each once, in order."""
    specializations = dict.fromkeys(launch.specialization for launch in launches_of(trace, executor))
    return tuple(load_or_compile(specializations, executor, target))


def launches_of(trace: Trace, executor: str) -> Iterator[Launch]:
    """Yield the launches of the executor's bound symbols, found by running them on tensors without data."""
    for bsym in unwrap(trace.bound_symbols):
        if bsym.executor == executor:
            yield from launches(bsym)


def launches(bsym: BoundSymbol) -> tuple[Launch, ...]:
    """Return the launches when a bound symbol runs with grad mode off, except those with an empty grid.

    Symbolic sizes have the values seen while tracing.
    """
    arguments = replace_leaves((bsym.args, dict(bsym.kwargs)), at_hint)
    with recorded_launches() as recorded:
        trace_without_data(lambda args, kwargs: bsym.symbol.target(*args, **kwargs), None, arguments, False)
    return tuple(launch for launch in recorded if 0 not in launch.grid)


def at_hint(leaf: Any) -> Any:
    """Return an argument with integers, the values seen while tracing, in place of symbolic sizes."""
    return hint_of(leaf.value) if isinstance(leaf, NumberProxy) else with_sizes(leaf, hint_of)


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
