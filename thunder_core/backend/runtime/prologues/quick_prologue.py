"""A prologue that skips its reads of the module while the module has not changed.

A prologue reads and checks each module and weight of a model. For a model of many modules, most of that time is waiting
for memory. From the third call on, a program runs a shorter function: it compares the words of memory that change when
the module changes, and then runs the other statements of the prologue with the objects of an earlier call. If anything
has changed, the whole prologue runs. Between the tokens of a generation, a still shorter function can run
(`settled_prologue.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from thunder_core.backend.runtime.generate import executable
from thunder_core.backend.runtime.prologues.settled_prologue import Prepare, SettledPrologue, as_tuple, used_names
from thunder_core.tracing.analysis.module_reads import ModuleReads
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.changes.module_state import CannotWatch, ModuleState
from thunder_core.tracing.library.tensor_guards import tensors_match

NAME = "quick_prologue"
MAX_WHOLE_RUNS = 16  # runs of the whole prologue after which the quick prologue is no longer tried
NAMESPACES = ("aten", "prims", "prim", "thunder")  # of the operators of PyTorch and Thunder
# Names in the text of a quick prologue. The variables of a prologue do not begin with underscores and letters.
OBJECTS, UNCHANGED, IS_UNCHANGED = "_objects", "_unchanged_objects", "_is_unchanged"
WHOLE, DIFFERS = "_whole_prologue", "_for_other_tensors"


class QuickPrologue:
    """The prologues of a program: the whole prologue, and the quick prologue, once the module's state is known.

    The state of the module is recorded from the second call on.
    """

    def __init__(self, program: Any, whole: Prepare, trace: Trace, reads: ModuleReads) -> None:
        self._program = weakref.ref(program)  # the program refers to this object
        self._whole_prologue = whole
        self._trace, self._reads = trace, reads
        self._skipped = skipped_variables(trace, reads)
        self._state: ModuleState | None = None
        self._quick_prologue: Prepare = whole
        self._whole_runs = 0  # the runs of the whole prologue that accepted the call

    def first_call(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Run the whole prologue, and from the next call on keep the module's state."""
        prepared = self._whole_prologue(module, args, kwargs)
        self._install(self.run_whole_prologue)
        return prepared

    def run_whole_prologue(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Run the whole prologue, and keep the module's state for the next call."""
        self._state = None
        state = self._observe_module(module)
        prepared = self._whole_prologue(module, args, kwargs)
        if state is not None and state.is_unchanged(module):  # the prologue has checked this state
            self._state = state
        if self._whole_runs == 0:
            self._install(self._make_quick_prologue(can_generate=callable(getattr(type(module), "generate", None))))
        self._note_whole_run()
        return prepared

    def _observe_module(self, module: Any) -> ModuleState | None:
        """Return the state of the module; None if the module lacks an object that the prologue reads, or its memory
        cannot be watched.
        """
        try:
            return ModuleState(
                module, self._reads.steps, self._reads.roots, [self._reads.variables[name] for name in self._skipped]
            )
        except CannotWatch:
            self._whole_runs = MAX_WHOLE_RUNS
        except (AttributeError, LookupError):  # the module has changed; the prologue raises the error for the change
            pass
        return None

    def for_other_tensors(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Run the whole prologue for tensors whose metadata has not been seen before."""
        prepared = self._whole_prologue(module, args, kwargs)
        self._note_whole_run()
        return prepared

    def unchanged_objects(self, module: Any) -> Sequence[Any] | None:
        """Return the objects that the quick prologue needs; None if the module may have changed."""
        state = self._state
        return None if state is None else state.values(module)

    def is_unchanged(self, module: Any) -> bool:
        """Whether the module is unchanged after the statements that may run the user's code."""
        state = self._state
        return state is not None and state.is_unchanged(module)

    def _note_whole_run(self) -> None:
        """Count a run of the whole prologue; after `MAX_WHOLE_RUNS`, no longer try the quick prologue."""
        self._whole_runs += 1
        if self._whole_runs > MAX_WHOLE_RUNS:
            self._state = None
            self._install(self._whole_prologue)

    def _install(self, prepare: Prepare) -> None:
        program = self._program()
        if program is not None:
            program.replace_prologue(prepare)

    def _make_quick_prologue(self, *, can_generate: bool) -> Prepare:
        """Return the quick prologue as a function."""
        settled = None
        if can_generate and self._reads.without_arguments and runs_library_code(self._program()):
            settled = SettledPrologue(
                self._trace, self._reads, self._whole_prologue, self.check_all_guards, self.is_unchanged
            )
        trace = quick_trace(self._trace, self._reads, self._skipped, settled)
        source = print_trace(trace)
        functions = {
            **({} if settled is None else settled.functions),
            UNCHANGED: self.unchanged_objects,
            IS_UNCHANGED: self.is_unchanged,
            WHOLE: self.run_whole_prologue,
            DIFFERS: self.for_other_tensors,
            self._trace.name: self._whole_prologue,
        }
        self._quick_prologue = executable(replace(source, constants={**source.constants, **functions}), NAME)
        return self._quick_prologue

    def check_all_guards(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Run the quick prologue, which checks all guards unless a call of this generation has checked them."""
        return self._quick_prologue(module, args, kwargs)


def quick_prologue_of(program: Any, whole_prologue: Prepare, trace: Trace, reads: ModuleReads) -> Prepare:
    """Return a prologue of a program that skips the reads from the module while the module is unchanged."""
    return QuickPrologue(program, whole_prologue, trace, reads).first_call


def quick_trace(
    trace: Trace, reads: ModuleReads, skipped: tuple[str, ...], settled: SettledPrologue | None = None
) -> Trace:
    """Return the prologue without its reads of the module.

    The `skipped` variables get the objects of an earlier call. If the metadata of a tensor has not been seen before,
    the whole prologue runs. With `settled`, later tokens of a generation run the settled prologue.
    """
    module, *_ = names = [proxy.name for proxy in trace.inputs]
    arguments = f"({', '.join(names)})"
    run_whole = f"return {WHOLE}{arguments}"
    bsyms = [] if settled is None else settled.first_statements(", ".join(names))
    bsyms += [
        python_statement(f"{UNCHANGED}({module})", Proxy(OBJECTS)),
        python_statement(f"if {OBJECTS} is None: {run_whole}"),
    ]
    if skipped:
        bsyms.append(python_statement(f"({', '.join(skipped)},) = {OBJECTS}"))
    checks = reads.tensor_checks
    for bsym in remaining_statements(trace, reads):
        if checks.sets_passed(bsym):
            match = f"{tensors_match.__name__}({trace.name}, {checks.tensors}, {as_tuple(checks.given)})"
            bsyms.append(python_statement(f"if not {match}: return {DIFFERS}{arguments}"))
        else:
            bsyms.append(bsym)
    if reads.runs_user_code:  # user code may have changed the module after the objects were read
        bsyms.append(python_statement(f"if not {IS_UNCHANGED}({module}): {run_whole}"))
    if settled is not None:
        bsyms.append(settled.last_statement())
    return replace(trace, name=NAME, bound_symbols=tuple(bsyms), made_by="quick prologue")


def remaining_statements(trace: Trace, reads: ModuleReads) -> Iterator[BoundSymbol]:
    """Yield the statements of a prologue that a call with an unchanged module runs."""
    skipped = reads.statements | reads.tensor_checks.statements
    return (bsym for bsym in trace.bound_symbols if bsym not in skipped)


def skipped_variables(trace: Trace, reads: ModuleReads) -> tuple[str, ...]:
    """Return the variables with objects of the module that the remaining statements use."""
    used = used_names(remaining_statements(trace, reads), trace)
    return tuple(name for name in reads.variables if name in used)


def runs_library_code(program: Any) -> bool:
    """Whether all operations of a program are PyTorch's or Thunder's: the body of another one may be the user's."""
    bsyms = () if program is None else program.traces("computation")[0].bound_symbols
    return program is not None and all(is_library_operation(bsym.symbol.name) for bsym in bsyms)


def is_library_operation(operation: str) -> bool:
    """Whether the name of an operation is a name of PyTorch or Thunder."""
    package, _, rest = operation.partition(".")
    if rest.startswith("ops."):
        return rest.split(".")[1] in NAMESPACES
    return package in ("torch", "thunder_core")
