"""Readers of values outside of a program, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder_core.backend.runtime.program import Program
from thunder_core.passes.autodiff.applied.value_readers import ValueReader
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative
from thunder_core.workflow.artifact.format.constants import ConstantConverter
from thunder_core.workflow.artifact.format.manifest import ReaderFacts

ROOT, KEY = "object that a backward reads", "key that a backward reads"  # the names of the constants in errors


def readers_of(program: Program) -> Sequence[ValueReader]:
    """Return the readers of the values outside of a program that the backwards of its functions read."""
    return program.derivative.readers if isinstance(program.derivative, ProgramDerivative) else ()


def constants_of(reader: ValueReader) -> Iterator[object]:
    """Yield the objects that a reader refers to."""
    yield reader.root
    yield from (key for _, key in reader.steps)


def reader_facts(reader: ValueReader, converter: ConstantConverter) -> ReaderFacts:
    """Return a reader as plain data; raise `CannotReplay` if its root or a key cannot be saved."""
    is_subject = reader.root is converter.subject
    root = None if is_subject else converter.facts(ROOT, reader.root, required=True)
    steps = ((kind, converter.facts(KEY, key, required=True)) for kind, key in reader.steps)
    return ReaderFacts(root=root, steps=tuple(steps))
