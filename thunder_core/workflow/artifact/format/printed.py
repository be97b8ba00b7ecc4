"""Stages of programs as stored on disk: their text, the metadata of their lines, and their constants."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from thunder_core.backend.runtime.autograd_signature import RECORDED
from thunder_core.backend.runtime.program import Program, Stage
from thunder_core.foundation.errors import SourceLine
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative
from thunder_core.tracing.analysis.collectives import Collective, collectives_of
from thunder_core.tracing.ir.listing import Listing
from thunder_core.tracing.ir.printer import list_trace, print_trace
from thunder_core.workflow.artifact.format.backward_pieces import statements_of
from thunder_core.workflow.artifact.format.constants import ConstantConverter
from thunder_core.workflow.artifact.format.listing_check import LISTINGS
from thunder_core.workflow.artifact.format.program_facts import TRACES, CollectiveFacts, StageFacts


@dataclass(frozen=True)
class PrintedStage:
    """A stage before it is stored: its facts without the constants, its source and lines, and its constants.

    `needed` are the constants that the source needs to run; empty if the stage does not run. `named` are the constants
    of all lines and of the lines inside them.
    """

    facts: StageFacts
    text: str
    listing: Listing
    needed: Mapping[str, object]
    named: Mapping[str, object]


def printed_stages(program: Program, number: int) -> Iterator[PrintedStage]:
    """Yield every stage of every trace of a program as text, in the order in which the stages were made."""
    for name in (*TRACES, RECORDED):
        stages = program.stages_of(name)
        before: Counter[str] | None = None
        for index, stage in enumerate(stages):
            first = index == 0 or stage.has_cotangent != stages[index - 1].has_cotangent
            last = index == len(stages) - 1 or stage.has_cotangent != stages[index + 1].has_cotangent
            executed = last or is_body(stage, program)
            folder = f"traces/{number}"
            printed = printed_stage(stage, folder, index, None if first else before, runs=last, is_executed=executed)
            before = lines_of(printed.listing)
            if name == "backward" and last:
                printed = with_arrivals(printed, program)
            yield printed if executed else replace(printed, needed={})


def printed_stage(
    stage: Stage, folder: str, index: int, before: Counter[str] | None, *, runs: bool, is_executed: bool
) -> PrintedStage:
    """Return a stage as text; `before` are the lines of the previous stage.

    A stage that runs is executed, and so is the stage that autograd records.
    """
    trace = stage.trace
    source = print_trace(trace)
    listing, named = list_trace(trace, parts=True)
    lines = lines_of(listing)
    stem = f"{folder}/{trace.name}-{index:02}-{slug(trace.made_by)}"
    facts = StageFacts(
        trace=trace.name,
        number=index,
        name=slug(trace.made_by),
        made_by=trace.made_by,
        file=f"{stem}.py",
        lines_file=f"{stem}.json",
        lines=len(listing.lines),
        seconds=round(stage.seconds, 6),
        added=0 if before is None else (lines - before).total(),
        removed=0 if before is None else (before - lines).total(),
        runs=runs,
        has_cotangent=stage.has_cotangent,
        collectives=tuple(map(collective_facts, collectives_of(trace))) if is_executed else (),
    )
    return PrintedStage(facts, source.text, listing, source.constants, named)


def collective_facts(collective: Collective) -> CollectiveFacts:
    """Return a collective as plain data."""
    where = collective.source or SourceLine("", 0)
    return CollectiveFacts(
        kind=collective.kind,
        group=collective.group,
        facts=collective.facts,
        bytes=collective.bytes,
        file=where.filename,
        line=where.lineno,
        function=where.function,
    )


def with_arrivals(stage: PrintedStage, program: Program) -> PrintedStage:
    """Return the stage of a backward that runs, with the lines after which its gradients are final."""
    derivative = program.derivative
    arrivals = derivative.arrivals(stage.facts.has_cotangent) if isinstance(derivative, ProgramDerivative) else None
    if arrivals is None or len(statements_of(stage.text)) != stage.facts.lines + 1:
        return stage
    update = {"gradient_lines": arrivals.lines, "gradient_bytes": arrivals.bytes}
    return replace(stage, facts=stage.facts.model_copy(update=update))


def lines_of(listing: Listing) -> Counter[str]:
    """Return the statements of a listing, with counts."""
    return Counter(line.text for line in listing.lines)


def is_body(stage: Stage, program: Program) -> bool:
    """Whether a stage is the computation that is differentiated."""
    return program.derivative is not None and stage.trace is program.derivative.body


def slug(text: str) -> str:
    """Return a step's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "step"


def with_constants(stage: PrintedStage, converter: ConstantConverter, *, strict: bool = True) -> StageFacts:
    """Return the facts of a stage with all constants; if `strict` is set, running text needs its constants."""
    executed_names = stage.needed if strict else ()
    constants = {
        name: converter.facts(name, value, required=name in executed_names) for name, value in stage.named.items()
    }
    return stage.facts.model_copy(update={"constants": constants})


def write_stage(folder: Path, stage: PrintedStage, facts: StageFacts) -> None:
    """Write a stage's Python text and its lines' metadata."""
    path = folder / facts.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(stage.text, encoding="utf-8")
    (folder / facts.lines_file).write_bytes(LISTINGS.dump_json(stage.listing, exclude_defaults=True))
