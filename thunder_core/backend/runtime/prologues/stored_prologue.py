"""The prologue of a program of an artifact, which later tokens of a generation run without the guards on the model.

The prologue of an artifact is text. Its statements are numbered, and the artifact names the statements that depend on
no argument. In the first calls of a generation, the whole prologue also stores the objects of these statements. Later
calls run the settled prologue (`settled_prologue.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from thunder_core.backend.runtime.generate import executable
from thunder_core.backend.runtime.prologues.quick_prologue import runs_library_code
from thunder_core.backend.runtime.prologues.settled_prologue import CURRENT, GENERATION, SettledPrologue
from thunder_core.backend.runtime.prologues.uninterrupted import current_generation
from thunder_core.tracing.analysis.module_reads import ModuleReads, TensorChecks
from thunder_core.tracing.ir.literal import Code
from thunder_core.tracing.ir.printer import Source, print_trace
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.tensor_guards import Free

Prepare = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]
NAME = "settling_prologue"


@dataclass(frozen=True)
class SkippedStatements:
    """The numbers of a prologue's statements that later tokens of a generation skip.

    `without_arguments` are the reads and checks that depend on no argument of the call. `tensor_checks` are the
    statements of `TensorChecks`, which has the other members, too.
    """

    without_arguments: tuple[int, ...]
    tensor_checks: tuple[int, ...]
    passed: str
    tensors: str
    given: tuple[str, ...]
    symbolic_dimensions: Free

    def reads_of(self, bsyms: Sequence[BoundSymbol]) -> ModuleReads:
        """Return the statements of a prologue that calls skip."""
        checks = TensorChecks(
            frozenset(bsyms[number] for number in self.tensor_checks),
            self.passed,
            self.tensors,
            self.given,
            self.symbolic_dimensions,
        )
        without_arguments = frozenset(bsyms[number] for number in self.without_arguments)
        return ModuleReads((), (), {}, frozenset(), checks, runs_user_code=True, without_arguments=without_arguments)


class StoredPrologue:
    """The stored prologue of a program, and the settled prologue for later tokens of a generation."""

    def __init__(self, source: Source, whole: Prepare, skipped: SkippedStatements) -> None:
        self._source, self._whole_prologue, self._skipped = source, whole, skipped

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
        return trace_of_source(self._source)

    @cached_property
    def _settled_prologue(self) -> SettledPrologue:
        reads = self._skipped.reads_of(self._trace.bound_symbols)
        return SettledPrologue(self._trace, reads, self._whole_prologue, self.check_all_guards, is_unwatched)

    @cached_property
    def _settling_prologue(self) -> Prepare:
        """The whole prologue, which also stores objects in the current generation."""
        current = python_statement(f"{CURRENT}()", Proxy(GENERATION))
        bsyms = (current, *self._trace.bound_symbols, self._settled_prologue.last_statement())
        source = print_trace(replace(self._trace, name=NAME, bound_symbols=bsyms, made_by="settling prologue"))
        functions = {**self._settled_prologue.functions, self._trace.name: self._whole_prologue}
        return executable(replace(source, constants={**source.constants, **functions}), NAME)


def is_unwatched(module: object) -> bool:
    """Return False: no memory of a loaded module is watched, so the end of a generation checks the guards again."""
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
        checks.symbolic_dimensions,
    )


def trace_of_source(source: Source) -> Trace:
    """Return the source of a prologue as a trace of Python statements."""
    body = ast.parse(source.text).body
    (function,) = (node for node in body if isinstance(node, ast.FunctionDef))
    *statements, returned = function.body
    assert isinstance(returned, ast.Return)
    assert returned.value is not None
    return Trace(
        name=function.name,
        inputs=tuple(Proxy(argument.arg) for argument in function.args.args),
        bound_symbols=tuple(map(statement_of, statements)),
        output=Code(ast.unparse(returned.value), names_read(returned)),
        imports=frozenset(entry for node in body for entry in imported_entries(node)),
        constants=source.constants,
    )


def statement_of(node: ast.stmt) -> BoundSymbol:
    """Return a statement of Python as a bound symbol, whose output is the variable that it assigns, if it is one."""
    match node:
        case ast.Assign([ast.Name(name)], value):
            return python_statement(ast.unparse(value), Proxy(name), names_read(value))
        case ast.If(condition, [action], []):
            return python_statement(f"if {ast.unparse(condition)}: {ast.unparse(action)}", reads=names_read(node))
    return python_statement(ast.unparse(node), reads=names_read(node))


def names_read(node: ast.AST) -> tuple[Proxy, ...]:
    """Return the names in a part of a stored prologue."""
    return tuple(Proxy(part.id) for part in ast.walk(node) if isinstance(part, ast.Name))


def imported_entries(node: ast.stmt) -> Iterator[str]:
    """Yield the entries of a trace's imports for an import statement (see `import_line`)."""
    match node:
        case ast.Import(aliases):
            yield from (alias.name for alias in aliases)
        case ast.ImportFrom(module, aliases):
            yield from (f"{module}:{alias.name} as {alias.asname or alias.name}" for alias in aliases)
        case ast.Assign([ast.Name(name)], ast.Attribute(ast.Call(_, [ast.Constant(str(module))]), attribute)):
            yield f"{module}:{attribute} as {name}"
