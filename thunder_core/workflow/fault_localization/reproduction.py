"""Reproductions: a folder with a short script and inputs, which reproduces a fault without the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from safetensors.torch import save_file

from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.evidence import Evidence
from thunder_core.workflow.fault_localization.reduction import program_of, reduced_program
from thunder_core.workflow.fault_localization.time_limit import Deadline
from thunder_core.workflow.validation.internal_check import Fault

SCRIPT, INPUTS, FACTS = "reproduce.py", "inputs.safetensors", "fault.json"
SECONDS = 120.0  # the time limit of the reduction


@dataclass(frozen=True)
class Reproduction:
    """The folder that reproduces a fault, the number of operations, and whether the operations reproduce the fault."""

    folder: Path
    operations: int
    reproduces: bool
    """Whether the executor is also wrong when it compiles only these operations."""


def write_reproduction(
    folder: Path, fault: Fault, evidence: Evidence, executors: Sequence[Executor], recipe: str = ""
) -> Reproduction | None:
    """Write the script and the inputs for a fault into a new folder; return None if the operations cannot be written.

    For a line of an executor, the program is made as short as possible. Constants that have no text, such as Python
    objects of the model, cannot be written. If an executor has no registered name, the script uses the recipe `recipe`,
    which has the executor.
    """
    reduced = None
    if fault.kind == "executor" and executors:
        reduced = reduced_program(evidence.operations, evidence.values, executors, Deadline(SECONDS))
    operations = evidence.operations if reduced is None else reduced.trace.bound_symbols
    values = evidence.values if reduced is None else reduced.values
    texts = [
        text_of(kind, lines) for kind, lines in (("computation", operations), ("before", evidence.before)) if lines
    ]
    if any(text is None for text in texts):
        return None
    programs = [program_of(lines) for lines in (operations, evidence.before) if lines]
    inputs = {proxy.name: values[proxy.name] for program in programs for proxy in program.inputs}
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    save_file({name: dense(value) for name, value in tensors.items()}, folder / INPUTS)
    (folder / FACTS).write_text(fault.model_dump_json(indent=2) + "\n", encoding="utf-8")
    numbers = {name: value for name, value in inputs.items() if not isinstance(value, torch.Tensor)}
    script = template().render(
        fault=fault,
        texts=texts,
        kind="transform" if evidence.before else fault.kind,
        strides={name: value.stride() for name, value in tensors.items()},
        numbers=numbers,
        has_non_finite=any(isinstance(value, float) and not math.isfinite(value) for value in numbers.values()),
        parameters=[[proxy.name for proxy in program.inputs] for program in programs],
        results=[[proxy.name for proxy in program.outputs] for program in programs],
        executors=[executor.name for executor in executors],
        recipe="" if all(map(has_name, executors)) else recipe,
        file=INPUTS,
    )
    (folder / SCRIPT).write_text(script, encoding="utf-8")
    return Reproduction(folder, len(operations), fault.kind != "executor" or reduced is not None)


def has_name(executor: Executor) -> bool:
    """Whether another process can find an executor by its name."""
    try:
        return find_executor(executor.name) is executor
    except ThunderError:
        return False


def dense(value: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of a tensor with its own memory."""
    return value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def text_of(name: str, bsyms: Iterable[BoundSymbol]) -> str | None:
    """Return the source of a function that calls bound symbols; None if the source would need unnamed objects."""
    trace = program_of([plain(bsym) for bsym in bsyms])
    source = print_trace(Trace(name, trace.inputs, trace.bound_symbols, trace.output, "debug"), comments=False)
    return None if source.constants else source.text.removeprefix("import torch\n").strip() + "\n"


def plain(bsym: BoundSymbol) -> BoundSymbol:
    """Return a bound symbol as eager PyTorch runs it, without subsymbols."""
    return BoundSymbol(
        bsym.symbol, bsym.args, bsym.kwargs, bsym.output, source=bsym.source, module=bsym.module, mutates=bsym.mutates
    )


def template() -> Any:
    """Return the template of the script."""
    loader = PackageLoader("thunder_core.workflow.fault_localization", "templates")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=select_autoescape(())
    )
    return environment.get_template("reproduce.py.j2")
