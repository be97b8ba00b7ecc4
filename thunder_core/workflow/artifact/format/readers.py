"""Readers of values outside of a program, as plain data."""

from __future__ import annotations

from collections.abc import Iterator

from thunder_core.passes.autodiff.applied.value_readers import ValueReader
from thunder_core.workflow.artifact.format.constants import ConstantConverter, ConstantFinder
from thunder_core.workflow.artifact.format.program_facts import ReaderFacts

ROOT, KEY = "object that a backward reads", "key that a backward reads"  # the names of the constants in errors


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


def stored_reader(facts: ReaderFacts, finder: ConstantFinder) -> ValueReader:
    """Return the reader of a value outside of a stored program; raise the errors of `finder.value`."""
    root = finder.subject if facts.root is None else finder.value(ROOT, facts.root)
    return ValueReader(root, tuple((kind, finder.value(KEY, key)) for kind, key in facts.steps))
