"""The result of `thunder debug`: the wrong lines, lines that produce NaN, and the paths of reproductions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import inf, isnan

from rich.console import Group, RenderableType
from rich.text import Text

from thunder_cli.views.quantity import count_noun, format_magnitude
from thunder_cli.views.table import BAD, DIM, GOOD, HEAD, space_out
from thunder_core.workflow.pipeline.debug import Diagnosis, ReproductionFacts
from thunder_core.workflow.validation.internal_check import Fault, NonFiniteLine, TensorFacts

SHOWN_INPUTS = 8
NO_NON_FINITE = "no line computes NaN or an infinity, in eager PyTorch or in thunder"


def diagnosis_view(diagnosis: Diagnosis) -> RenderableType:
    """Return all results: the verdict, the wrong lines in order, the lines that compute NaN, and the reproductions."""
    parts = [
        verdict(diagnosis),
        *(fault_view(number, fault) for number, fault in enumerate(diagnosis.faults)),
        *(non_finite_view(line) for line in diagnosis.non_finite),
        *([Text(NO_NON_FINITE, GOOD)] if diagnosis.searches_non_finite and not diagnosis.non_finite else []),
        *(reproduction_view(reproduction) for reproduction in diagnosis.reproductions),
    ]
    return Group(*space_out(parts))


def verdict(diagnosis: Diagnosis) -> Text:
    """Return the number of wrong lines, a summary of the comparison, and the parts that were not compared."""
    wrong = len(diagnosis.faults)
    if not wrong and not diagnosis.internal_check.compared:
        is_eager = not diagnosis.internal_check.not_compared
        result = (f"no line was compared{', because eager PyTorch runs every line' if is_eager else ''}", BAD)
    else:
        result = (count_noun(wrong, "wrong line"), BAD) if wrong else ("no wrong line", GOOD)
    name = f"{diagnosis.subject} with {diagnosis.recipe}"
    text = Text.assemble((name, HEAD), "  ", result, "\n", (diagnosis.internal_check.summary, DIM))
    for omission in diagnosis.internal_check.not_compared:
        text.append(f"\nnot compared: {omission.what} ({omission.count}), because {omission.reason}", DIM)
    return text


def fault_view(number: int, fault: Fault) -> Text:
    """Return the facts about a wrong line: the reason, its text, trace, module, source line, inputs and difference.

    For an executor's fault, the last row is the option that disables the executor.
    """
    text = Text.assemble((f"{number + 1}. {fault.reason}", BAD))
    rows = {
        "line": fault.line,
        "trace": fault.trace,
        "module": fault.module,
        "source": fault.source,
        "inputs": f"\n{'':<10}".join(shown_inputs(list(map(describe_tensor, fault.inputs)))),
        "differs": fault.difference,
        "try": f"--without {fault.by}{f':{fault.module}' if fault.module else ''}" if fault.kind == "executor" else "",
    }
    for name, value in rows.items():
        if value:
            text.append(f"\n  {name:<8}").append(value)
    return text


def shown_inputs(texts: Sequence[str]) -> list[str]:
    """Return the texts of the first inputs, and the number of the others."""
    left_out = len(texts) - SHOWN_INPUTS
    return [*texts[:SHOWN_INPUTS], *([f"and {left_out} more"] if left_out > 0 else [])]


def describe_tensor(tensor: TensorFacts) -> str:
    """Return a tensor that a line reads: `t4 float32[1, 8, 64], strides (512, 64, 1)`."""
    return f"{tensor.name} {tensor.dtype}{list(tensor.shape)}, strides {tensor.stride}"


def non_finite_view(line: NonFiniteLine) -> Text:
    """Return the first line that computes NaN or an infinity from inputs without this kind of value."""
    text = Text.assemble((f"first {line.kind} in a line run by {line.run_by}", BAD), f"\n  line    {line.line}")
    for name, value in (("count", str(line.count)), ("module", line.module), ("source", line.source)):
        if value:
            text.append(f"\n  {name:<8}{value}")
    ranked = sorted(line.largest.items(), key=lambda pair: -inf if isnan(pair[1]) else -pair[1])
    for shown in shown_inputs([f"{name} (largest magnitude {format_magnitude(largest)})" for name, largest in ranked]):
        text.append(f"\n  inputs  {shown}")
    return text


def reproduction_view(facts: ReproductionFacts) -> Text:
    """Return the command of the script for a fault, its number of operations, and whether it reproduces the fault."""
    alone = "" if facts.reproduces else "; alone, they are correct, so the error depends on the rest of the region"
    command = f"python {shlex.quote(str(facts.folder / 'reproduce.py'))}"
    operations = count_noun(facts.operations, "operation")
    return Text.assemble((f"reproduction of {facts.fault + 1}", HEAD), f"  {command}  ({operations}{alone})")
