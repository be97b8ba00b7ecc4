"""A prologue that skips its reads of the module while the module has not changed.

A prologue reads and checks each module and weight of a model. For a model of many modules, most of that time is waiting
for memory. From the third call on, a program runs a shorter function: it compares the words of memory that change when
the module changes, and then runs the other statements of the prologue with the objects of an earlier call. If anything
has changed, the whole prologue runs.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from thunder_core.backend.runtime.generate import executable
from thunder_core.tracing.analysis.module_reads import ModuleReads
from thunder_core.tracing.ir.literal import Scope, literal
from thunder_core.tracing.ir.printer import print_trace, statement
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.changes.module_state import CannotWatch, ModuleState

Prepare = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]
NAME = "quick_prologue"
IDENTIFIERS = re.compile(r"[^\W\d]\w*")
MAX_WHOLE_RUNS = 16  # runs of the whole prologue after which the quick prologue is no longer tried
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
            self._install(self._make_quick_prologue())
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
            object.__setattr__(program, "prepare", prepare)

    def _make_quick_prologue(self) -> Prepare:
        """Return the quick prologue as a function."""
        trace = quick_trace(self._trace, self._reads, self._skipped)
        source = print_trace(trace)
        functions = {
            UNCHANGED: self.unchanged_objects,
            IS_UNCHANGED: self.is_unchanged,
            WHOLE: self.run_whole_prologue,
            DIFFERS: self.for_other_tensors,
            self._trace.name: self._whole_prologue,
        }
        return executable(replace(source, constants={**source.constants, **functions}), NAME)


def install_quick_prologue(program: Any, trace: Trace, reads: ModuleReads) -> None:
    """Let a program skip the reads of its prologue from the module while the module is unchanged."""
    object.__setattr__(program, "prepare", QuickPrologue(program, program.prepare, trace, reads).first_call)


def quick_trace(trace: Trace, reads: ModuleReads, skipped: tuple[str, ...]) -> Trace:
    """Return the prologue without its reads of the module.

    The `skipped` variables get the objects of an earlier call. If the metadata of a tensor has not been seen before,
    the whole prologue runs.
    """
    module, *_ = (proxy.name for proxy in trace.inputs)
    arguments = f"({', '.join(proxy.name for proxy in trace.inputs)})"
    run_whole = f"return {WHOLE}{arguments}"
    read = python_statement(f"{UNCHANGED}({module})", Proxy(OBJECTS))
    bsyms = [read, python_statement(f"if {OBJECTS} is None: {run_whole}")]
    if skipped:
        bsyms.append(python_statement(f"({', '.join(skipped)},) = {OBJECTS}"))
    checks = reads.tensor_checks
    for bsym in remaining_statements(trace, reads):
        if checks.passed and isinstance(bsym.output, Proxy) and bsym.output.name == checks.passed:
            tuple_text = f"({', '.join(checks.given)},)" if checks.given else "()"
            call = statement(replace(bsym, output=None), Scope())
            bsyms.append(python_statement(f"if not {call[:-1]}, {tuple_text}): return {DIFFERS}{arguments}"))
        else:
            bsyms.append(bsym)
    if reads.runs_user_code:  # user code may have changed the module after the objects were read
        bsyms.append(python_statement(f"if not {IS_UNCHANGED}({module}): {run_whole}"))
    return replace(trace, name=NAME, bound_symbols=tuple(bsyms), made_by="quick prologue")


def remaining_statements(trace: Trace, reads: ModuleReads) -> Iterator[BoundSymbol]:
    """Yield the statements of a prologue that a call with an unchanged module runs."""
    skipped = reads.statements | reads.tensor_checks.statements
    return (bsym for bsym in trace.bound_symbols if bsym not in skipped)


def skipped_variables(trace: Trace, reads: ModuleReads) -> tuple[str, ...]:
    """Return the variables with objects of the module that the remaining statements use."""
    texts = [statement(bsym, Scope()) for bsym in remaining_statements(trace, reads)]
    used = {name for text in (*texts, literal(trace.output, Scope())) for name in IDENTIFIERS.findall(text)}
    return tuple(name for name in reads.variables if name in used)
