"""The prologue of a program that was loaded from an artifact, and the statements that later tokens may skip.

An artifact stores the statements of its prologue as data, and lists the statements that depend on no argument. The
first call of a program in a generation runs the settling prologue: the whole prologue, which then also stores the
objects that these statements read. Later calls run the settled prologue (`settled_prologue.py`), which skips these
statements, and so does not check the guards on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from thunder_core.backend.runtime.generate import executable
from thunder_core.backend.runtime.prologues.quick_prologue import runs_library_code
from thunder_core.backend.runtime.prologues.settled_prologue import CURRENT, GENERATION, Prepare, SettledPrologue
from thunder_core.backend.runtime.prologues.uninterrupted import current_generation
from thunder_core.tracing.analysis.module_reads import ModuleReads, TensorChecks
from thunder_core.tracing.analysis.skipped_statements import SkippedStatements
from thunder_core.tracing.ir.listing import Listing, Statement
from thunder_core.tracing.ir.literal import Code
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement
from thunder_core.tracing.ir.trace import Trace

NAME = "settling_prologue"


def module_reads_of(skipped: SkippedStatements, bsyms: Sequence[BoundSymbol]) -> ModuleReads:
    """Return the `ModuleReads` of a stored prologue: the bound symbols for the numbers of the skipped statements."""
    checks = TensorChecks(
        frozenset(bsyms[number] for number in skipped.tensor_checks),
        skipped.passed,
        skipped.tensors,
        skipped.given,
        {tensor: (sizes, strides) for tensor, sizes, strides in skipped.symbolic_dimensions},
    )
    without_arguments = frozenset(bsyms[number] for number in skipped.without_arguments)
    return ModuleReads(
        steps=(),
        roots=(),
        variables={},
        statements=frozenset(),
        tensor_checks=checks,
        runs_user_code=True,
        without_arguments=without_arguments,
    )


class StoredPrologue:
    """The stored prologue of a program, and the settled prologue for later tokens of a generation.

    `read_trace()` returns the trace of the prologue, and `whole_prologue` is its function.
    """

    def __init__(self, read_trace: Callable[[], Trace], whole_prologue: Prepare, skipped: SkippedStatements) -> None:
        self._read_trace, self._whole_prologue, self._skipped = read_trace, whole_prologue, skipped

    def prepare(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Check the guards that no call of this generation has checked, and return the inputs of the computation."""
        generation = current_generation()
        if generation is None:
            return self._whole_prologue(module, args, kwargs)
        objects = self._settled_prologue.objects_of(generation, module)
        if objects is None:
            return self.check_all_guards(module, args, kwargs)
        prepared: tuple[Any, Any] = self._settled_prologue.run(module, args, kwargs, objects)
        return prepared

    def check_all_guards(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Check all guards of a call of a generation, and store the objects that do not depend on its arguments."""
        return self._settling_prologue(module, args, kwargs)

    @cached_property
    def _trace(self) -> Trace:
        return self._read_trace()

    @cached_property
    def _settled_prologue(self) -> SettledPrologue:
        reads = module_reads_of(self._skipped, self._trace.bound_symbols)
        return SettledPrologue(self._trace, reads, self._whole_prologue, self.check_all_guards, is_known_unchanged)

    @cached_property
    def _settling_prologue(self) -> Prepare:
        """The whole prologue, followed by a statement that stores objects in the current generation."""
        current = python_statement(f"{CURRENT}()", Proxy(GENERATION))
        bsyms = (current, *self._trace.bound_symbols, self._settled_prologue.last_statement())
        source = print_trace(replace(self._trace, name=NAME, bound_symbols=bsyms, made_by="settling prologue"))
        functions = {**self._settled_prologue.functions, self._trace.name: self._whole_prologue}
        return executable(replace(source, constants={**source.constants, **functions}), NAME)


def is_known_unchanged(module: object) -> bool:
    """Return False, because a loaded module is not watched: when a generation ends, its guards are checked again."""
    return False


def skipped_statements(program: Any) -> SkippedStatements | None:
    """Return the statements that later tokens of a generation skip; None if there are none."""
    reads: ModuleReads | None = program.module_reads
    if reads is None or not reads.without_arguments or not runs_library_code(program):
        return None
    bsyms = program.last("prologue").bound_symbols
    checks, skipped = reads.tensor_checks, reads.without_arguments | reads.statements
    return SkippedStatements(
        tuple(number for number, bsym in enumerate(bsyms) if bsym in skipped),
        tuple(number for number, bsym in enumerate(bsyms) if bsym in checks.statements),
        checks.passed,
        checks.tensors,
        checks.given,
        tuple((tensor, *dimensions) for tensor, dimensions in checks.symbolic_dimensions.items()),
    )


def trace_of_listing(listing: Listing, constants: Mapping[str, object]) -> Trace:
    """Return a stored prologue as a trace of Python statements. `constants` are the objects that they name."""
    return Trace(
        name=listing.name,
        inputs=tuple(Proxy(value.name) for value in listing.inputs),
        bound_symbols=tuple(map(statement_of, listing.lines)),
        output=Code(listing.returns, tuple(Proxy(value.name) for value in listing.results)),
        imports=frozenset(listing.imports),
        constants=constants,
        made_by=listing.made_by,
    )


def statement_of(line: Statement) -> BoundSymbol:
    """Return a stored line as a bound symbol. A line that assigns exactly one variable has it as its output."""
    reads = tuple(map(Proxy, line.reads))
    if len(line.makes) == 1 and line.text.startswith(assigning := f"{line.makes[0].name} = "):
        return python_statement(line.text.removeprefix(assigning), Proxy(line.makes[0].name), reads)
    return python_statement(line.text, reads=reads)
