"""The result of `thunder debug`: the wrong lines, lines that produce NaN, and the paths of reproductions."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from thunder_cli.views.quantity import count_noun, magnitude
from thunder_cli.views.table import BAD, DIM, GOOD, HEAD, space_out
from thunder_core.workflow.pipeline.debug import Diagnosis, ReproductionFacts
from thunder_core.workflow.validation.internal_check import Fault, NonFiniteLine, TensorFacts

SHOWN_INPUTS = 8


def diagnosis_view(diagnosis: Diagnosis) -> RenderableType:
    """Return all results, the first wrong line first."""
    parts = [
        verdict(diagnosis),
        *(fault_view(number, fault) for number, fault in enumerate(diagnosis.faults)),
        *(non_finite_view(line) for line in diagnosis.non_finite),
        *(reproduction_view(reproduction) for reproduction in diagnosis.reproductions),
    ]
    return Group(*space_out(parts))


def verdict(diagnosis: Diagnosis) -> Text:
    """Return the number of wrong lines, a summary of the comparison, and the parts that were not compared."""
    wrong = len(diagnosis.faults)
    result = (count_noun(wrong, "wrong line"), BAD) if wrong else ("no wrong line", GOOD)
    name = f"{diagnosis.subject} with {diagnosis.recipe}"
    text = Text.assemble((name, HEAD), "  ", result, "\n", (diagnosis.internal_check.summary, DIM))
    for omission in diagnosis.internal_check.not_compared:
        text.append(f"\nnot compared: {omission.what} ({omission.count}), because {omission.reason}", DIM)
    return text


def fault_view(number: int, fault: Fault) -> Text:
    """Return a wrong line: its text, module, source line, inputs and difference, and the option that leaves it out."""
    text = Text.assemble((f"{number + 1}. {fault.reason}", BAD))
    rows = {
        "line": fault.line,
        "trace": fault.trace,
        "module": fault.module,
        "source": fault.source,
        "reads": f"\n{'':<10}".join(map(tensor_in_words, fault.inputs[:SHOWN_INPUTS])),
        "differs": fault.difference,
        "try": f"--without {fault.by}{f':{fault.module}' if fault.module else ''}" if fault.kind == "executor" else "",
    }
    for name, value in rows.items():
        if value:
            text.append(f"\n  {name:<8}").append(value)
    return text


def tensor_in_words(tensor: TensorFacts) -> str:
    """Return a tensor that a line reads: `t4 float32[1, 8, 64], strides (512, 64, 1)`."""
    return f"{tensor.name} {tensor.dtype}{list(tensor.shape)}, strides {tensor.stride}"


def non_finite_view(line: NonFiniteLine) -> Text:
    """Return a line that computes NaN or an infinity from finite values."""
    text = Text.assemble((f"{line.kind} first appears, run by {line.run_by}", BAD), f"\n  line    {line.line}")
    for name, value in (("count", str(line.count)), ("module", line.module), ("source", line.source)):
        if value:
            text.append(f"\n  {name:<8}{value}")
    ranked = sorted(line.largest.items(), key=lambda pair: -pair[1])
    for name, largest in ranked[:SHOWN_INPUTS]:
        text.append(f"\n  reads   {name} (largest magnitude {magnitude(largest)})")
    return text


def reproduction_view(facts: ReproductionFacts) -> Text:
    """Return the script that reproduces a fault, and its number of operations."""
    alone = "" if facts.reproduces else "; correct when compiled alone, so the error depends on the rest of the region"
    return Text.assemble(
        (f"reproduction of {facts.fault + 1}", HEAD),
        f"  python {facts.folder / 'reproduce.py'}  ({count_noun(facts.operations, 'operation')}{alone})",
    )
