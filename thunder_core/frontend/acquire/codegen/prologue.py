"""The prologue, which checks the guards, and fetches the inputs of the computation and the epilogue."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import torch

from thunder_core.frontend.acquire.codegen.module_paths import ModulePaths, is_quiet, may_run_user_code
from thunder_core.frontend.acquire.codegen.stated_guards import stated_guard_of
from thunder_core.frontend.acquire.codegen.variables import Variables, without_torch_function
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.module_hooks import OfNamespace
from thunder_core.frontend.acquire.outside.guards.tensors import TensorMetadata
from thunder_core.frontend.acquire.outside.paths import (
    Path,
    PrologueCall,
    PrologueConstant,
    depends_on,
    leads_from_draw,
)
from thunder_core.tracing.analysis.module_reads import ModuleReads, TensorChecks
from thunder_core.tracing.ir.constants import bind_constant
from thunder_core.tracing.ir.guard import GuardCheck, check_statement
from thunder_core.tracing.ir.literal import Code, LibraryFunction, keyword_argument, literal, sizes_before_counts
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.requirement import StatedGuard
from thunder_core.tracing.ir.sizes import SymbolicSize
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.changes.tensor_class import Replaced
from thunder_core.tracing.library.overlap import Overlaps, overlaps
from thunder_core.tracing.library.tensor_guards import BASE_TENSOR_CLASSES, Free

LIBRARY = "thunder_core.tracing.library"
REFUSE = LibraryFunction(f"{LIBRARY}.objects", "refuse")
TENSORS_MATCH = LibraryFunction(f"{LIBRARY}.tensor_guards", "tensors_match")
REMEMBER = LibraryFunction(f"{LIBRARY}.tensor_guards", "remember")
OVERLAP = LibraryFunction(f"{LIBRARY}.overlap", "overlap_as")
REPLACED_ENTRIES = LibraryFunction(f"{LIBRARY}.changes.tensor_class", "replaced_entries")
TRACER = LibraryFunction(f"{LIBRARY}.tracers", "active_tracer")
WARNS = LibraryFunction(f"{LIBRARY}.output", "raises_warning")
WARNS_CALLER = LibraryFunction(f"{LIBRARY}.output", "raises_warning_of_caller")
LOGS_TO_OWN_CODE = LibraryFunction(f"{LIBRARY}.output", "logs_to_own_code")
DECIMALS = LibraryFunction(f"{LIBRARY}.states", "decimal_settings")
NUMPY = LibraryFunction(f"{LIBRARY}.states", "numpy_settings")
GROUP_FACTS = LibraryFunction(f"{LIBRARY}.collectives", "group_facts")
BEGIN_DRAWS = LibraryFunction(f"{LIBRARY}.draws", "begin_draws")
NO_TRACER = StatedGuard("tracers and transforms of PyTorch", "none was active")
NAME = "prologue"
DRAWS = "draws"
RESERVED_NAMES = frozenset({NAME, DRAWS})  # names in the text of a prologue, which no other variable may have
MODULES_OF_QUERIES = ("logging", "gc", "sys", "abc")  # modules whose functions the expressions of `state` may call
FUNCTIONS_OF_QUERIES = (NUMPY, WARNS, WARNS_CALLER, LOGS_TO_OWN_CODE, DECIMALS, GROUP_FACTS)
# The import that an expression of `state` needs, by the beginning of the expression.
IMPORTS_OF_QUERIES = {
    **{f"{module}.": module for module in MODULES_OF_QUERIES},
    **{f"{function.name}(": str(function) for function in FUNCTIONS_OF_QUERIES},
}


MIN_SKIPPED_STATEMENTS = 200  # to skip fewer statements takes as long as to run them
STEPS_FROM_TENSORS = ("count", "expression", "size", "stride")  # steps of paths to numbers that tensors determine
NO_SYMBOLS: Mapping[str, Path] = {}
Reads = tuple[Proxy, ...]  # the variables that a statement reads


class Prologue:
    """Builds the prologue, which reads the value at each path once, owners before their members, and checks the guards.

    `roots` are the paths to the callable and its arguments, and `names` are given names of variables. `state` maps
    Python expressions about the process, such as `gc.isenabled()`, to their values while tracing. If `writes` is set,
    the program writes to its inputs, so their overlaps in memory are guarded. `symbols` maps the names of symbols to
    paths, and `draws` are the paths to the results of the prologue's calls: random draws, queries and computations.
    `replaced_entries` are the attributes of `torch.Tensor` that were replaced while tracing.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        state: Mapping[str, object],
        names: Mapping[Path, str],
        writes: bool = False,
        symbols: Mapping[str, Path] = NO_SYMBOLS,
        draws: Sequence[Path] = (),
        replaced_entries: Replaced = (),
    ) -> None:
        self._roots = roots
        self._draws = draws
        self._writes = writes
        self._replaced_entries = replaced_entries
        self._counts = [path for path in symbols.values() if path.step == "count"]
        self._sizes_and_numbers = [path for path in symbols.values() if path.step != "count"]
        self._tensor_sources_of_draws = [
            source for path in draws for source in path.key.sources if source.step in STEPS_FROM_TENSORS
        ]
        of_counts = {
            name
            for path in (*self._counts, *self._tensor_sources_of_draws)
            if path.step == "count"
            for name in path.key.names
        }
        given_names = {**names, **{path: name for name, path in symbols.items()}}
        self._variables = Variables(roots, given_names, RESERVED_NAMES | of_counts)
        self._scope, self._statements = self._variables.scope, self._variables.statements
        self._number_of_checks = 0
        self._module_paths = ModulePaths(roots[0])
        self._guarded: dict[BoundSymbol, Guard] = {}  # the guards that statements check
        self._tensor_checks = TensorChecks()
        # The number of statements at the end that compute counts (integers in the data of tensors) or fetch outputs.
        self.num_count_statements = 0
        for expression, value in state.items():
            imports = {module for prefix, module in IMPORTS_OF_QUERIES.items() if expression.startswith(prefix)}
            self._scope.imports |= imports
            comparison = "is" if isinstance(value, bool | torch.dtype) else "=="
            condition = f"{expression} {comparison} {literal(value, self._scope)}"
            self._check(condition, StatedGuard(expression, f"was {value}"), expression)

    def trace(self, guards: Sequence[Guard], output_groups: tuple[Sequence[Path], ...]) -> Trace:
        """Return the prologue's trace, whose outputs are a tuple of values for each group of `output_groups`."""
        namespaces = [guard.subject for guard in guards if isinstance(guard, OfNamespace)]
        used = [*(guard.path for guard in guards), *namespaces, *itertools.chain(*output_groups)]
        for path in (*used, *self._sizes_and_numbers, *self._counts, *self._draws):
            self._variables.count_use(path)
        tensors, tensor_paths = self._check_guards(guards)
        num_checks = len(self._statements)
        for path in self._counts:
            self._variables.variable(path)
        outputs = [
            Code(tensors, (Proxy(tensors),))
            if group and list(group) == tensor_paths
            else tuple(Code(self._variables.variable(path), self._variables.read_by(path)) for path in group)
            for group in output_groups
        ]
        self.num_count_statements = len(self._statements) - num_checks if self._counts else 0
        return Trace(
            name=NAME,
            inputs=tuple(Proxy(str(root.key)) for root in self._roots),
            bound_symbols=tuple(self._statements),
            output=tuple(outputs),
            imports=frozenset(self._scope.imports),
            constants=dict(self._scope.constants),
        )

    def _check_guards(self, guards: Sequence[Guard]) -> tuple[str, list[Path]]:
        """Append the checks of the guards, and the draws before the guards that depend on them.

        The checks of plain tensors come last, unless the arguments of draws are computed from tensors: then the draws
        follow the checks of the tensors. Returns the name of the tuple of plain tensors, and the paths of its members.
        """
        drawn_guards = [guard for guard in guards if self._draws and is_drawn(guard)]
        drawn = frozenset(drawn_guards)  # as a set, because a program may compare thousands of drawn numbers
        plain_guards = [guard for guard in guards if guards_plain_tensor(guard) and guard not in drawn]
        for guard in guards:
            if not guards_plain_tensor(guard) and guard not in drawn:
                self._check_guard(guard)
        tensors = self._check_tensors(plain_guards) if self._tensor_sources_of_draws else None
        self._draw()
        for guard in drawn_guards:
            for path in self._sizes_and_numbers:
                if path.parent is guard.path:
                    self._variables.variable(path)
            self._check_guard(guard)
        if tensors is None:
            tensors = self._check_tensors(plain_guards)
        return tensors, [guard.path for guard in plain_guards]

    def _draw(self) -> None:
        """Append the prologue's calls, in the program's order: draws, queries and computations."""
        if self._draws:
            begin = f"{self._scope.function(BEGIN_DRAWS)}({self._roots[0].key})"
            self._variables.assign(DRAWS, begin, self._variables.read_by(self._roots[0]))
        for path in self._draws:
            self._variables.assign_to(path, self._call_text(path.key), Proxy(DRAWS))

    def _call_text(self, call: PrologueCall) -> str:
        """Return a call of a method of `Draws`, with variables and constants as arguments."""
        first = [] if call.owner is None else [self._owner_of_draw(call.owner)]
        called = [] if call.runtime_method == "shuffle_copy" else [self._argument(call.called)]
        arguments = [self._argument(argument) for argument in call.args]
        arguments += [keyword_argument(key, self._argument(argument)) for key, argument in call.kwargs.items()]
        return f"{DRAWS}.{call.runtime_method}({', '.join([*first, *called, *arguments])})"

    def _owner_of_draw(self, owner: Path | str) -> str:
        """Return the expression of the generator or array whose method is called: a variable or a dotted name."""
        if isinstance(owner, Path):
            return self._variables.variable(owner)
        return self._scope.importing(owner, owner.rpartition(".")[0])

    def _argument(self, value: Any) -> str:
        """Return the expression of a draw's argument: a variable, a constant, or a container of arguments."""
        if isinstance(value, Path):
            return self._variables.variable(value)
        if isinstance(value, PrologueConstant):
            return self._scope.constant(value.value, "kept")
        if type(value) is slice:
            return f"slice({', '.join(map(self._argument, (value.start, value.stop, value.step)))})"
        if type(value) is dict:
            return (
                "{" + ", ".join(f"{self._argument(key)}: {self._argument(item)}" for key, item in value.items()) + "}"
            )
        if type(value) in (list, tuple):
            inner = ", ".join(map(self._argument, value))
            return f"[{inner}]" if type(value) is list else f"({inner}{',' if len(value) == 1 else ''})"
        return bind_constant(value, self._scope)

    # ---- guards ---------------------------------------------------------------------------------------------

    def _check_tensors(self, guards: Sequence[TensorMetadata]) -> str:
        """Append the checks of plain tensors; return the name of the tuple of these tensors.

        One C++ call compares the metadata of the tensors, and PyTorch's dispatch state, with those of an earlier call
        that passed the checks. If they match, the checks of tensors, of tracers and of `torch.Tensor` are skipped.
        Calls under a tracer or transform of PyTorch are never remembered.
        """
        tracer = f"{self._scope.function(TRACER)}()"
        if not guards:
            self._check(f"{tracer} is None", NO_TRACER, tracer)
            self._check_tensor_class("")
            return ""
        match, remember = map(self._scope.function, (TENSORS_MATCH, REMEMBER))
        members = tuple(Proxy(self._variables.variable(guard.path)) for guard in guards)
        for path in self._sizes_and_numbers:
            if not self._tensor_sources_of_draws or not leads_from_draw(path):
                self._variables.variable(path)
        # The names of the variables `tensors` and `passed` in the text of the prologue.
        tensors = self._variables.assign(self._variables.new_name("tensors"), literal(members, self._scope), members)
        matching = f"{match}({NAME}, {tensors})"
        passed = self._variables.assign(self._variables.new_name("passed"), matching, (Proxy(tensors),))
        first_check = len(self._statements)
        self._check(f"{tracer} is None", NO_TRACER, tracer, unless=passed)
        self._check_tensor_class(passed)
        for guard in guards:
            self._check_guard(guard, unless=passed)
        checks = self._statements[first_check:]
        self._check_symbolic_strides(guards)
        self._check_overlaps(guards, tensors)
        remembering = f"if not {passed}: {remember}({NAME}, {tensors}{self._symbolic_dimensions(guards)})"
        self._statements.append(python_statement(remembering, reads=(Proxy(passed), Proxy(tensors))))
        given = [guard for guard in guards if self._module_paths.index(guard.path) is None]
        arguments = tuple(self._variables.variable(guard.path) for guard in given)
        self._tensor_checks = TensorChecks(
            frozenset((*checks, self._statements[-1])), passed, tensors, arguments, symbolic_dimensions(given)
        )
        return tensors

    def _check_tensor_class(self, unless: str) -> None:
        """Append the check that the same attributes of `torch.Tensor` are replaced as while tracing.

        The check is skipped if the variable `unless` is true; an empty name stands for no variable.
        """
        replaced = f"{self._scope.function(REPLACED_ENTRIES)}()"
        entries = self._replaced_entries
        expected_entries = self._scope.constant(entries, "replaced_entries") if entries else "()"
        names = ", ".join(f"{kind}.{name}" for kind, name, _ in entries)
        guard = StatedGuard("replaced attributes of torch.Tensor", f"were {names}" if names else "there were none")
        self._check(f"{replaced} == {expected_entries}", guard, replaced, unless=unless)

    def _check_symbolic_strides(self, guards: Sequence[TensorMetadata]) -> None:
        """Append the checks of strides that are expressions in symbolic sizes. They are not skipped at any call."""
        for guard in guards:
            if symbolic_indices(guard.proxy.stride):
                subject = self._variables.variable(guard.path)
                strides = literal(sizes_before_counts(guard.proxy.stride), self._scope)
                stated_guard = StatedGuard(str(guard.path), f"had the strides {strides}")
                reads = (*self._variables.read_by(guard.path), *symbols_read(guard.proxy.stride))
                self._check(f"{subject}.stride() == {strides}", stated_guard, subject, reads)

    def _symbolic_dimensions(self, guards: Sequence[TensorMetadata]) -> str:
        """Return the indices of the symbolic sizes and strides of each tensor, as an argument of `remember`."""
        dimensions_by_tensor = symbolic_dimensions(guards)
        return f", {literal(dimensions_by_tensor, self._scope)}" if dimensions_by_tensor else ""

    def _check_overlaps(self, guards: Sequence[TensorMetadata], tensors: str) -> None:
        """Append the check that the tensors overlap in memory as while tracing, if the program writes to its inputs."""
        if len(guards) > 1 and self._writes:
            overlapping = overlaps(tuple(guard.path.value for guard in guards))
            stated_guard = StatedGuard("the tensors that the program uses", describe_overlaps(overlapping, guards))
            layouts = ((*guard.proxy.shape, *guard.proxy.stride) for guard in guards)
            symbolic = tuple(index for index, extents in enumerate(layouts) if symbolic_indices(extents))
            arguments = [NAME, tensors, literal(overlapping, self._scope)]
            if symbolic:
                arguments.append(literal(symbolic, self._scope))
            condition = f"{self._scope.function(OVERLAP)}({', '.join(arguments)})"
            self._check(condition, stated_guard, tensors, (Proxy(tensors),))

    def _check_guard(self, guard: Guard, unless: str = "") -> None:
        """Append the check of a guard, which is skipped if the variable `unless` is true."""
        subject = self._variables.operand(guard.path)
        for path in guard.other_paths:
            self._variables.variable(path)
        is_of_path = guard.subject is guard.path
        condition = guard.condition(subject if is_of_path else self._variables.operand(guard.subject), self._scope)
        if condition.count(subject) > 1:
            subject = self._variables.variable(guard.path)
            condition = guard.condition(subject if is_of_path else self._variables.operand(guard.subject), self._scope)
        reads = self._variables.read_by(guard.path, *(() if is_of_path else (guard.subject,)), *guard.other_paths)
        if isinstance(guard, TensorMetadata):
            reads += symbols_read((*guard.proxy.shape, *guard.proxy.stride))
        condition = without_torch_function(guard.path, condition, self._scope)
        self._check(condition, stated_guard_of(guard), subject, reads, unless)
        self._guarded[self._statements[-1]] = guard

    def _check(self, condition: str, guard: StatedGuard, subject: str, reads: Reads = (), unless: str = "") -> None:
        """Append a statement that refuses the call if the condition is false, with the value of `subject`.

        The condition is skipped if the variable `unless` is true.
        """
        self._scope.function(REFUSE)
        if unless:
            condition, reads = f"{unless} or {condition}", (Proxy(unless), *reads)
        check = GuardCheck(condition, reads, number=self._number_of_checks, requirement=guard, subject=subject)
        self._statements.append(check_statement(check))
        self._number_of_checks += 1

    def module_reads(self, changes_only_arguments: bool = False) -> ModuleReads | None:
        """Return the reads and checks that later calls skip while the module is unchanged.

        `changes_only_arguments` states whether all objects that the epilogue changes are arguments, or parts of them.
        Returns None if later calls skip nothing: the traced callable is no module, the prologue makes calls, or fewer
        than `MIN_SKIPPED_STATEMENTS` statements can be skipped.
        """
        if self._draws or not isinstance(self._roots[0].value, torch.nn.Module):
            return None
        index = self._module_paths.index
        reads = {bsym: path for bsym, path in self._variables.reads.items() if index(path) is not None}
        checks = {bsym for bsym, guard in self._guarded.items() if self._module_paths.covers(guard)}
        statements = frozenset((*reads, *checks))
        if len(statements) < MIN_SKIPPED_STATEMENTS:
            return None
        other_guards = (guard for bsym, guard in self._guarded.items() if bsym not in checks)
        other_paths = (path for bsym, path in self._variables.reads.items() if bsym not in reads)
        return ModuleReads(
            tuple(self._module_paths.steps),
            tuple(self._module_paths.roots),
            {bsym.output.name: position for bsym, path in reads.items() if (position := index(path)) is not None},
            statements,
            self._tensor_checks,
            any(map(may_run_user_code, other_guards)) or not all(map(is_quiet, other_paths)),
            self._statements_without_arguments() if changes_only_arguments else frozenset(),
        )

    def _statements_without_arguments(self) -> frozenset[BoundSymbol]:
        """Return the reads of objects and the checks of guards that depend on no argument of the call."""
        arguments = frozenset(self._roots[1:])
        known: dict[Path, bool] = {}
        reads = (bsym for bsym, path in self._variables.reads.items() if not depends_on(path, arguments, known))
        checks = (
            bsym
            for bsym, guard in self._guarded.items()
            if not any(depends_on(path, arguments, known) for path in (guard.subject, guard.path, *guard.other_paths))
        )
        return frozenset((*reads, *checks))


def symbolic_dimensions(guards: Iterable[TensorMetadata]) -> Free:
    """Return the dimensions of tensors with symbolic sizes and strides, by the position of the tensor."""
    dimensions = ((symbolic_indices(guard.proxy.shape), symbolic_indices(guard.proxy.stride)) for guard in guards)
    return {number: pair for number, pair in enumerate(dimensions) if any(pair)}


def symbolic_indices(extents: Iterable[object]) -> tuple[int, ...]:
    """Return the indices of symbolic sizes or strides."""
    return tuple(index for index, extent in enumerate(extents) if isinstance(extent, SymbolicSize))


def symbols_read(extents: Sequence[object]) -> tuple[Proxy, ...]:
    """Return the variables of symbols in the sizes and strides of an input, as guards compare them."""
    sizes = sizes_before_counts([extent for extent in extents if type(extent) is not int])
    codes = (Code.of(size.node.expr) if isinstance(size, torch.SymInt) else size for size in sizes)
    return tuple(proxy for code in codes if isinstance(code, Code) for proxy in code.reads)


def describe_overlaps(overlapping: Overlaps, guards: Sequence[Guard]) -> str:
    """Return a description of the guarded tensors that overlap, such as `args[0] and args[1] overlapped in memory`."""
    groups = [" and ".join(str(guards[index].path) for index, _ in group) for group in overlapping]
    return f"{'; '.join(groups) or 'none'} overlapped in memory"


def guards_plain_tensor(guard: Guard) -> TypeGuard[TensorMetadata]:
    """Whether a guard is on the metadata of a tensor whose class has no Python code that could change the metadata."""
    return type(guard) is TensorMetadata and guard.kind in BASE_TENSOR_CLASSES


def is_drawn(guard: Guard) -> bool:
    """Whether a guard is on the result of a draw of the prologue, or on a value computed from a draw."""
    return any(map(leads_from_draw, (guard.path, *guard.other_paths)))
