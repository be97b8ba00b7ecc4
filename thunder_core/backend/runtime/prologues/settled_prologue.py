"""A prologue for the later tokens of a generation, without the guards on the model.

The first call of a program within an uninterrupted generation (`uninterrupted.py`) checks all guards, and stores the
objects that it has found outside of the arguments. Later calls run the statements that depend on the arguments, and the
checks of the process. When the generation ends, the guards on the model are checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from thunder_core.backend.runtime.generate import executable
from thunder_core.backend.runtime.prologues.uninterrupted import Generation, current_generation
from thunder_core.tracing.analysis.module_reads import ModuleReads
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, proxies_in, python_statement
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.tensor_guards import remember, tensors_match

Prepare = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]
NAME, CHECKS_NAME = "settled_prologue", "guards_on_the_model"
# Names in the text of the prologues.
GENERATION, SETTLED = "_generation", "_settled_objects"
CURRENT, OBJECTS_OF, SETTLE, PREPARE = "_current_generation", "_objects_of", "_settle", "_settled_prologue"
OTHERWISE, MATCH, METADATA = "_check_all_guards", "_tensors_match", "_metadata"


class SettledPrologue:
    """The settled prologue of a program, and the statements with which the quick prologue uses it.

    `check_all` is the quick prologue, and `unchanged` states whether the watched words of a module are unchanged.
    """

    def __init__(
        self,
        trace: Trace,
        reads: ModuleReads,
        whole_prologue: Prepare,
        check_all: Prepare,
        unchanged: Callable[[Any], bool],
    ) -> None:
        self._trace, self._reads = trace, reads
        self._whole_prologue, self._check_all, self._unchanged = whole_prologue, check_all, unchanged
        self._remaining = tuple(
            bsym
            for bsym in trace.bound_symbols
            if bsym not in reads.without_arguments
            and bsym not in reads.statements
            and bsym not in reads.tensor_checks.statements
        )
        self._names = self._settled_names()
        self._metadata = SimpleNamespace()  # of the tensors that were passed
        self._prepare: Callable[..., Any] | None = None
        self._guards_on_model: Callable[..., Any] | None = None

    # The statements of the quick prologue.

    def first_statements(self, arguments: str) -> list[BoundSymbol]:
        """Return the statements that run the settled prologue, if a call of this generation has checked all guards."""
        module = self._trace.inputs[0].name
        found = f"None if {GENERATION} is None else {OBJECTS_OF}({GENERATION}, {module})"
        return [
            python_statement(f"{CURRENT}()", Proxy(GENERATION)),
            python_statement(found, Proxy(SETTLED)),
            python_statement(f"if {SETTLED} is not None: return {PREPARE}({arguments}, {SETTLED})"),
        ]

    def last_statement(self) -> BoundSymbol:
        """Return the statement that stores the objects of a call that has checked all guards."""
        checks = self._reads.tensor_checks
        module = self._trace.inputs[0].name
        stored = (as_tuple(self._names), as_tuple(checks.given), checks.tensors or "()")
        return python_statement(f"if {GENERATION} is not None: {SETTLE}({GENERATION}, {module}, {', '.join(stored)})")

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions that these statements call, by name."""
        return {CURRENT: current_generation, OBJECTS_OF: self.objects_of, SETTLE: self.settle, PREPARE: self.run}

    def run(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], objects: tuple[Any, ...]) -> Any:
        """Run the settled prologue."""
        if self._prepare is None:
            self._prepare = self._make_prologue()
        return self._prepare(module, args, kwargs, objects)

    def objects_of(self, generation: Generation, module: Any) -> Any:
        """Return the stored objects; None if no call of the generation has checked all guards."""
        return generation.objects_of(self, module)

    def settle(
        self,
        generation: Generation,
        module: Any,
        objects: tuple[Any, ...],
        given: tuple[Any, ...],
        tensors: tuple[Any, ...],
    ) -> None:
        """Store the objects of a call that has checked all guards, and the metadata of the tensors that were passed."""
        if given and not tensors_match(self._metadata, given):
            remember(self._metadata, given, self._reads.tensor_checks.symbolic_dimensions)
        generation.settle(self, module, objects, tensors)

    # The settled prologue.

    def check_all_guards(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Check all guards of a call whose tensors differ from those of the settled call."""
        generation = current_generation()
        if generation is not None:
            generation.unsettle(self)
        return self._check_all(module, args, kwargs)

    def _settled_names(self) -> tuple[str, ...]:
        """Return the variables with objects outside of the arguments that the settled prologue uses."""
        skipped = self._reads.without_arguments | self._reads.statements
        outputs = [bsym.output for bsym in self._trace.bound_symbols if bsym in skipped]
        assigned = [output.name for output in outputs if isinstance(output, Proxy)]
        used = used_names(self._remaining, self._trace)
        return tuple(name for name in assigned if name in used)

    def _make_prologue(self) -> Callable[..., Any]:
        inputs = (*self._trace.inputs, Proxy(SETTLED))
        arguments = ", ".join(proxy.name for proxy in self._trace.inputs)
        bsyms = [python_statement(f"{as_tuple(self._names)} = {SETTLED}")] if self._names else []
        checks = self._reads.tensor_checks
        for bsym in self._remaining:
            if checks.sets_passed(bsym):
                if checks.given:
                    condition = f"{MATCH}({METADATA}, {as_tuple(checks.given)})"
                    bsyms.append(python_statement(f"if not {condition}: return {OTHERWISE}({arguments})"))
            else:
                bsyms.append(bsym)
        trace = replace(self._trace, name=NAME, inputs=inputs, bound_symbols=tuple(bsyms), made_by="settled prologue")
        functions = {
            MATCH: tensors_match,
            METADATA: self._metadata,
            OTHERWISE: self.check_all_guards,
            self._trace.name: self._whole_prologue,
        }
        source = print_trace(trace)
        return executable(replace(source, constants={**source.constants, **functions}), NAME)

    # The end of a generation.

    def holds(self, module: Any, objects: tuple[Any, ...], tensors: tuple[Any, ...]) -> bool:
        """Whether the guards on the model hold, and lead to the weights among the `objects` of the settled call.

        `tensors` are all tensors of that call.
        """
        if self._unchanged(module) and (not tensors or tensors_match(self._whole_prologue, tensors)):
            return True
        if self._guards_on_model is None:
            self._guards_on_model = self._make_guards_on_model()
        try:
            found = self._guards_on_model(module, (), {})
        except Exception:  # a guard that fails, or a path that leads to no object
            return False
        return all(now is before for now, before in zip(found, objects, strict=True) if isinstance(now, torch.Tensor))

    def _make_guards_on_model(self) -> Callable[..., Any]:
        """Return a function of the statements that depend on no argument, which returns the objects that are stored."""
        reads, passed = self._reads, self._reads.tensor_checks.passed
        bsyms = [python_statement("False", Proxy(passed))] if passed else []
        bsyms += [bsym for bsym in self._trace.bound_symbols if bsym in reads.without_arguments | reads.statements]
        output = tuple(Proxy(name) for name in self._names)
        trace = replace(self._trace, name=CHECKS_NAME, bound_symbols=tuple(bsyms), output=output, made_by="guards")
        return executable(print_trace(trace), CHECKS_NAME)


def used_names(bsyms: Iterable[BoundSymbol], trace: Trace) -> set[str]:
    """Return the names of the variables that statements of a prologue and its output read."""
    return {proxy.name for proxies in (proxies_in(trace.output), *(bsym.inputs for bsym in bsyms)) for proxy in proxies}


def as_tuple(names: Sequence[str]) -> str:
    """Return the text of a tuple of variables."""
    return f"({', '.join(names)},)" if names else "()"
