"""The assembly of a run's traces: prologue from its reads, computation, and epilogue from its writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thunder_core.foundation.errors import OperationFailed, SourceLine
from thunder_core.foundation.printable import printable
from thunder_core.frontend.acquire.codegen.ahead import move_checks_ahead, require_checks_before_collectives
from thunder_core.frontend.acquire.codegen.constraints import (
    with_constraint_checks,
    with_number_outputs,
    with_numbers_passed,
)
from thunder_core.frontend.acquire.codegen.created_classes import FIX, classes_with_state
from thunder_core.frontend.acquire.codegen.dead_references import without_dead_references
from thunder_core.frontend.acquire.codegen.epilogue import Epilogue
from thunder_core.frontend.acquire.codegen.merged_guards import with_merged_items
from thunder_core.frontend.acquire.codegen.prologue import Prologue
from thunder_core.frontend.acquire.gradients import expose_intermediates, without_autograd
from thunder_core.frontend.acquire.observed import observed_values
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.tensors import SparseTensorMetadata, TensorMetadata
from thunder_core.frontend.acquire.outside.guards.values import OfType
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.sharp import SharpEdge
from thunder_core.frontend.acquire.outside.writes.effect import Effect
from thunder_core.frontend.acquire.run.run import Run
from thunder_core.frontend.acquire.settings import with_chosen_attention
from thunder_core.tracing.analysis.aliasing import writes_to_inputs
from thunder_core.tracing.analysis.module_reads import ModuleReads
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.ir.guard import requirements_of
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.requirement import Requirement
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.overlap import overlaps


@dataclass(frozen=True)
class Acquired:
    """The three traces of a program.

    `observed` maps paths to the values that numbers and sizes from outside have in this call. `sizes` are the symbolic
    sizes and numbers, or None. The last `num_count_statements` statements of the prologue compute counts. At
    `caught_lines`, operations may raise errors that depend on values and that the program catches. `module_reads` are
    the statements of the prologue that a call can skip if the module is unchanged.
    """

    prologue: Trace
    computation: Trace
    epilogue: Trace
    sharp_edges: tuple[SharpEdge, ...]
    observed: Mapping[str, int | float]
    sizes: SymbolicSizes | None = None
    num_count_statements: int = 0
    module_reads: ModuleReads | None = None
    caught_lines: frozenset[SourceLine] = frozenset()

    @property
    def guards(self) -> tuple[Requirement, ...]:
        """The guards and constraints that the prologue checks: `guards[n]` is the requirement of check number n."""
        return requirements_of(self.prologue.bound_symbols)


def inputs_of(run: Run) -> list[tuple[torch.Tensor, TensorProxy, Path | None]]:
    """Return the tensors from outside that operations used, each with its proxy and its path, if it has one."""
    return [(tensor, proxy, run.outside.path_of(tensor)) for tensor, proxy in run.recorder.inputs.values()]


def assemble(run: Run, state: Mapping[str, object], output: object, edges: tuple[SharpEdge, ...]) -> Acquired:
    """Return the traces of a run whose program has returned this output, for this state of the process."""
    run.outside.effects.log_state_changes()
    inputs = inputs_of(run)
    results = results_of(run)
    run.recorder.data.require_unwritten(run.outside.effects.watched_objects())
    epilogue = Epilogue(run.outside.path_of, results, run.has_freed_graph, run.recorder)
    effects = without_dead_references(run.outside.effects.effects, run.outside.effects.items_at_start)
    epilogue_trace = epilogue.trace(effects, output, settles_draws=bool(run.draws.paths))
    require_constant_classes(run, epilogue_trace)
    overlapping = overlaps(tuple(tensor for tensor, _, _ in inputs))
    aliases = tuple(tuple(inputs[index][1].name for index, _ in group) for group in overlapping)
    next_name = run.recorder.tensors.next_name
    bsyms = move_checks_ahead(bound_symbols_of(run, epilogue), [proxy for _, proxy, _ in inputs], aliases, next_name)
    require_checks_before_collectives(bsyms)
    require_defined(run, bsyms)
    guard_tensors(run, inputs)
    run.classes.guard_special_methods()
    computation, paths = computation_of(run, bsyms, inputs, aliases, tuple(epilogue.computed_inputs.values()))
    symbols = paths_of_symbols(run.recorder.sizes)
    names = {path: proxy.name for proxy, path in zip(computation.inputs, paths, strict=True)}
    prologue = Prologue(
        run.inputs.roots,
        state,
        names,
        writes_to_inputs(computation),
        symbols,
        run.draws.paths,
        run.process_before.replaced_entries,
    )
    prologue_trace = prologue.trace(
        with_merged_items(guards_of_later_calls(run)), (paths, list(epilogue.outside_inputs))
    )
    computation, prologue_trace = with_numbers_passed(computation, prologue_trace)
    return Acquired(
        prologue_trace,
        computation,
        epilogue_trace,
        sharp_edges=edges,
        observed=run.counts.observed | observed_values(guards_of_later_calls(run), run.outside.symbolic),
        sizes=run.recorder.sizes if symbols else None,
        num_count_statements=prologue.num_count_statements,
        module_reads=prologue.module_reads(changes_only(effects, run.inputs.roots[1:])),
        caught_lines=frozenset(run.recorder.caught_errors.lines),
    )


def require_constant_classes(run: Run, epilogue: Trace) -> None:
    """Leave a call to eager PyTorch if it returns or stores a class that the program creates with state of the call."""
    for kind in classes_with_state(epilogue.constants.values(), run.outside.is_created_by_program):
        name = printable(type.__dict__["__qualname__"].__get__(kind))
        run.leave_to_eager(f"the program returns or stores the class `{name}`, which it creates anew at each call", FIX)


def changes_only(effects: Iterable[Effect], roots: Sequence[Path]) -> bool:
    """Whether all effects change objects at some roots, or parts of these objects."""
    return all(effect.owner is not None and effect.owner.lineage()[0] in roots for effect in effects)


def computation_of(
    run: Run,
    bsyms: Sequence[BoundSymbol],
    inputs: Sequence[tuple[torch.Tensor, TensorProxy, Path | None]],
    aliases: tuple[tuple[str, ...], ...],
    output: tuple[Proxy, ...],
) -> tuple[Trace, list[Path]]:
    """Return the trace of a run's operations, and the paths to its inputs: tensors, other objects, and numbers.

    Tensors and objects without a path are constants of the trace.
    """
    objects = [(value, proxy, run.outside.path_of(value)) for value, proxy in run.recorder.tensors.objects.values()]
    sources: list[tuple[Proxy, Path]] = [(proxy, path) for _, proxy, path in (*inputs, *objects) if path is not None]
    names_read = {proxy.name for bsym in bsyms for proxy in bsym.inputs}
    numbers = run.recorder.numbers.from_outside
    sources += [(number.proxy, number.source) for name, number in numbers.items() if name in names_read]
    computation = Trace(
        name="computation",
        inputs=tuple(proxy for proxy, _ in sources),
        bound_symbols=tuple(bsyms),
        output=output,
        origins={proxy.name: str(path) for proxy, path in sources},
        constants={proxy.name: value for value, proxy, path in (*inputs, *objects) if path is None},
        aliases=aliases,
        blocks=blocks_of(run),
        kept_operations=run.notes.kept_operations,
        attentions=run.notes.attentions,
    )
    return computation, [path for _, path in sources]


def add_constraints(acquired: Acquired, inputs: Sequence[Proxy]) -> Acquired:
    """Return the traces with a prologue that checks all constraints, and that passes all symbolic numbers.

    `inputs` are the inputs of the computation after the passes, which may have added symbolic numbers and constraints.
    """
    if acquired.sizes is None:
        return acquired
    prologue = with_number_outputs(acquired.prologue, inputs[len(acquired.computation.inputs) :])
    return replace(acquired, prologue=with_constraint_checks(prologue, acquired.num_count_statements, acquired.sizes))


def prologue_of_guards(run: Run, state: Mapping[str, object]) -> Trace:
    """Return a prologue without outputs, which checks the guards and constraints of a run that has failed."""
    guard_tensors(run, inputs_of(run))
    run.classes.guard_special_methods()
    sizes = run.recorder.sizes
    prologue = Prologue(
        run.inputs.roots,
        state,
        {},
        symbols=paths_of_symbols(sizes),
        draws=run.draws.paths,
        replaced_entries=run.process_before.replaced_entries,
    )
    trace = prologue.trace(with_merged_items(guards_of_later_calls(run)), ((), ()))
    return trace if sizes is None else with_constraint_checks(trace, prologue.num_count_statements, sizes)


def paths_of_symbols(sizes: SymbolicSizes | None) -> dict[str, Path]:
    """Return the paths to the values of a recording's symbols, by the symbols' names."""
    return {} if sizes is None else {str(symbol): path for symbol, path in sizes.sources.items()}


def blocks_of(run: Run) -> dict[str, int]:
    """Map each name that a call of a checkpointed function defines to the number of the outermost such call."""
    blocks: dict[str, int] = {}
    for number, indices in enumerate(run.notes.checkpointed_ranges):
        bsyms = run.recorder.bound_symbols[indices.start : indices.stop]
        blocks |= {proxy.name: number for bsym in bsyms for proxy in bsym.defines}
    return blocks


def bound_symbols_of(run: Run, epilogue: Epilogue) -> tuple[BoundSymbol, ...]:
    """Return the bound symbols of the computation.

    Autograd is off for all bound symbols if the program itself runs backward passes, and if these have freed the graphs
    of all inputs and results.
    """
    bsyms = expose_intermediates(with_chosen_attention(run.recorder.bound_symbols), epilogue.computed_inputs.values())
    inputs_with_graph = [
        tensor for tensor, _ in run.recorder.inputs.values() if run.recorder.tensors.fake(tensor).grad_fn
    ]
    if not run.recorder.gradients.passes or not all(
        map(run.has_freed_graph, (*inputs_with_graph, *epilogue.with_grad_fn))
    ):
        return bsyms
    return without_autograd(bsyms, torch.is_grad_enabled())


def require_defined(run: Run, bsyms: Iterable[BoundSymbol]) -> None:
    """Raise `OperationFailed` if a bound symbol reads a hidden tensor, which no recorded operation returned.

    Higher-order operators create hidden tensors, because they run their function arguments under their own modes.
    """
    defined = {proxy.name for _, proxy in (*run.recorder.inputs.values(), *run.recorder.tensors.objects.values())}
    defined |= run.recorder.numbers.from_outside.keys()
    for bsym in bsyms:
        if not all(proxy.name in defined or isinstance(proxy, NumberProxy) for proxy in bsym.inputs):
            raise OperationFailed(
                "the program uses an operation that cannot be traced (a higher-order operator, or code that is already "
                "compiled)",
                fix="leave this part uncompiled, or write it with ordinary operations",
                where=bsym.source,
            )
        defined |= {proxy.name for proxy in bsym.outputs}


def guards_of_later_calls(run: Run) -> Iterator[Guard]:
    """Yield the guards that are checked at each call.

    For a functional program, these are the guards on its arguments.
    """
    for guard in run.outside.guards.values():
        if not run.outside.is_functional or guard.path.lineage()[0] in run.inputs.roots[1:]:
            yield guard


def results_of(run: Run) -> Callable[[torch.Tensor], TensorProxy | None]:
    """Return a function that maps a tensor to its proxy if the computation returns it, and to None otherwise."""

    def result(tensor: torch.Tensor) -> TensorProxy | None:
        if id(tensor) in run.recorder.inputs:
            return None if run.outside.path_of(tensor) is not None else run.recorder.inputs[id(tensor)][1]
        return run.recorder.proxy_of(tensor) if run.recorder.is_used(tensor) else None

    return result


def guard_tensors(run: Run, inputs: list[tuple[torch.Tensor, TensorProxy, Path | None]]) -> None:
    """Guard the metadata of outside tensors that operations use, and the class of other outside tensors."""
    used: Mapping[int, Any] = run.recorder.inputs
    for tensor, proxy, path in inputs:
        if path is not None:
            guard = TensorMetadata if tensor.layout is torch.strided else SparseTensorMetadata
            run.outside.guard(guard(path, type(tensor), proxy, tensor.layout))
    for path in list(run.outside.paths.values()):
        if issubclass(type(path.value), torch.Tensor) and id(path.value) not in used:
            run.outside.guard(OfType(path, type(path.value)))
