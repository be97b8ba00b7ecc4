"""Calls of compiled functions within a program.

A function with the same settings as the program becomes a part of the program. A call of another function is recorded
as one bound symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.compilation.compiler.settings import CompilerSettings, without_device
from thunder_core.compilation.compiler.transformation import checked_trace
from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import CannotReplay, DataDependent, ThunderError
from thunder_core.frontend.acquire.acquire import build_run, trace_program
from thunder_core.frontend.acquire.assembly import Acquired
from thunder_core.frontend.acquire.handover import COMPILE_TOGETHER, Handover
from thunder_core.frontend.acquire.outside.namespaces import NESTING, values_of
from thunder_core.frontend.acquire.retracing import retrace
from thunder_core.frontend.acquire.run.options import RunOptions
from thunder_core.frontend.acquire.run.run import Run
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.analysis.grad_mode import grad_modes
from thunder_core.tracing.capture.fakes.stand_ins import StandIns
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber, concrete
from thunder_core.tracing.capture.torch_facts.autograd_nodes import tracked_from_call
from thunder_core.tracing.capture.torch_facts.compiled_call import (
    BESIDE,
    OWN_KEYWORDS,
    RETURNED,
    CompiledCall,
    Constant,
    NumberOf,
    Part,
    Same,
    name_of_call_with_effects,
)
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions, without_recording
from thunder_core.tracing.capture.values import Unknowable
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.literal import valid_name
from thunder_core.tracing.ir.program_errors import ProgramRaised
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class NestedCallRecorder:
    """The recorder of calls of compiled functions within a program with these `settings`.

    A function that was compiled with the same settings becomes a part of the program. Another function is called by one
    bound symbol, with its own guards, cache and backward. To find its results, the function is traced on tensors
    without data.
    """

    settings: CompilerSettings

    def records_as_one_bound_symbol(self, compiled: Specializations) -> bool:
        """Whether a call of a compiled function is recorded as one bound symbol.

        It is if the settings of the function differ from the program's, or if the function may have stored values as
        constants. A derivative without settings of its own always becomes a part of the program, because it uses the
        caller's settings.
        """
        if compiled.uses_callers_settings:
            return False
        options = compiled.options
        if options.functional and options.sharp_edges != "error":
            return True
        return bool(without_device(compiled.compiler) != without_device(self.settings))

    def __call__(self, run: TracedRun, compiled: Specializations, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the call of a compiled function as one bound symbol, and return its result."""
        return record_call(run, args, kwargs, partial(NestedCall, run, self.settings, compiled))


def record_call(
    run: TracedRun, args: tuple[Any, ...], kwargs: dict[str, Any], call_with: Callable[..., NestedCall]
) -> Any:
    """Record a call as one bound symbol, and return its result.

    `call_with` makes the `NestedCall` from the arguments, in which plain values replace symbolic numbers.
    """
    try:
        with without_our_functions():
            guard_containers(run, (args, kwargs))
            call = call_with(*concrete((args, kwargs)))
            try:
                return call.record()
            finally:
                call.release()
    except ThunderError as error:
        error.where = error.where or run.location().source
        run.recorder.fail(error)
        raise


def guard_containers(run: TracedRun, arguments: object) -> None:
    """Guard the items of outside containers among the arguments, because the bound symbol contains copies of them."""
    pending, seen = [arguments], set[int]()
    while pending:
        container = pending.pop()
        if issubclass(type(container), NESTING) and id(container) not in seen:
            seen.add(id(container))
            run.outside.expand(container)
            pending += values_of(container)


class NestedCall:
    """A call of a compiled function while a program is traced."""

    def __init__(
        self,
        run: TracedRun,
        settings: CompilerSettings,
        compiled: Specializations,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.run = run
        self.recorder = run.recorder
        self.compiled = compiled
        self.device = settings.device
        self.own_settings: CompilerSettings = compiled.compiler.settings
        self.name = valid_name(getattr(compiled.subject, "__name__", type(compiled.subject).__name__))
        self.args, self.kwargs = args, kwargs
        self.stand_ins = StandIns(self.recorder.tensors, self.device, self.recorder.sizes)
        self.depends_on_values = False
        self.line = run.location().source
        self._probes: list[Run] = []

    def refuse(self, what: str, fix: str = COMPILE_TOGETHER) -> NoReturn:
        """Raise the error for a function that cannot be recorded as one bound symbol."""
        raise CannotReplay(
            f"the compiled function `{self.name}`, whose call is one operation of the calling program, {what}",
            fix=fix,
            where=self.line,
        )

    def release(self) -> None:
        """Release the objects that the traces of the function refer to."""
        for probe in self._probes:
            probe.release()

    def record(self) -> Any:
        """Trace the function, check its reads and writes, record its bound symbol, and return its result."""
        for name in self.kwargs.keys() & OWN_KEYWORDS:
            self.refuse(f"takes a keyword argument `{name}`, a name that Thunder uses itself")
        arguments = self._bound_arguments((self.args, self.kwargs))
        probe, acquired, output = self._probe()
        handover = Handover(self.run.outside, probe.outside, self.line, self.refuse)
        handover.require_no_conflict()
        if not self.own_settings.options.functional:
            handover.guard()
        trace = self._transform(acquired)
        captured, mutates = self._captured_and_mutated(probe, acquired.computation)
        leaves, spec = tree_flatten(output)
        proxies = dict(zip((proxy.name for proxy in acquired.computation.output), trace.output, strict=True))
        parts = [self._part(leaf, probe, proxies) for leaf in leaves]
        call = CompiledCall(
            name=self.name,
            compiled=self.compiled,
            spec=spec,
            parts=tuple(part for part, _ in parts),
            where=self.line,
            depends_on_values=self.depends_on_values,
            has_effects=bool(probe.outside.effects.effects),
        )
        self._require_repeatable(call)
        kwargs = {**arguments[1], **self._own_keywords(call, captured, parts)}
        self.recorder.emit(
            BoundSymbol(
                Symbol("compiled.call", call), arguments[0], kwargs, call.output, (), mutates=mutates, ordered=True
            )
        )
        return tree_unflatten([value for _, value in parts], spec)

    # ---- arguments ----

    def _bound_arguments(self, tree: Any) -> Any:
        """Return the arguments for the bound symbol: proxies, constants, and containers of these."""
        kind = type(tree)
        if isinstance(tree, torch.Tensor):
            return self.recorder.proxy_of(tree)
        if is_constant(tree) or isinstance(tree, BY_IDENTITY):
            return tree
        if self.run.outside.path_of(tree) is not None or isinstance(tree, torch.Generator):
            return self.recorder.tensors.object_proxy(tree)
        if kind in (tuple, list):
            return kind(self._bound_arguments(item) for item in tree)
        if kind is dict and all(map(is_constant, tree)):
            return {key: self._bound_arguments(item) for key, item in tree.items()}
        return self.refuse(f"takes {object_of_class(kind)} that the program makes")

    def _with_stand_ins(self, tree: Any) -> Any:
        """Return the arguments with a stand-in for each tensor."""
        kind = type(tree)
        if isinstance(tree, torch.Tensor):
            return self.stand_ins.of(tree)
        if self.run.outside.path_of(tree) is not None:
            return tree
        if kind in (tuple, list):
            return kind(self._with_stand_ins(item) for item in tree)
        return {key: self._with_stand_ins(item) for key, item in tree.items()} if kind is dict else tree

    # ---- tracing ----

    def _probe(self) -> tuple[Run, Acquired, Any]:
        """Trace the function without data.

        If it reads values of tensors, trace it again on the tensors of this call.
        """
        try:
            return self._trace(evaluates_tensor_values=False)
        except DataDependent:
            if self.own_settings.options.data_dependent == "error" or not self.recorder.data_dependent.allowed:
                raise
            self._give_values()
            self.depends_on_values = True
            return self._trace(evaluates_tensor_values=True)

    def _give_values(self) -> None:
        """Compute the values of the tensors of this call, and give them to the stand-ins."""
        for tensor in tensors_of((self.args, self.kwargs), self.run):
            if isinstance(tensor, FakeTensor):
                try:
                    value = self.recorder.data_dependent.evaluation.value(self.recorder.proxy_of(tensor))
                except Unknowable as reason:
                    self.refuse(f"reads the value of a tensor, and {reason}")
                self.stand_ins.give(tensor, value)

    def _trace(self, *, evaluates_tensor_values: bool) -> tuple[Run, Acquired, Any]:
        args, kwargs = self._with_stand_ins((self.args, self.kwargs))
        options = self.own_settings.options
        with without_recording():
            run_options = RunOptions(
                device=self.device,
                evaluates_tensor_values=evaluates_tensor_values,
                functional=options.functional,
                sharp_edges="error" if options.sharp_edges == "error" else "allow",
                nested=NestedCallRecorder(self.own_settings),
                lookasides=self.own_settings.lookasides,
            )

            def attempt(options: RunOptions) -> tuple[Run, Acquired, Any]:
                run = build_run(self.compiled.subject, args, kwargs, options)
                self._probes.append(run)
                return run, *trace_program(run)

            try:
                return retrace(attempt, run_options, RunOptions.after)
            except ProgramRaised as raised:
                error = raised.error
        handover = Handover(self.run.outside, self._probes[-1].outside, self.line, self.refuse)
        handover.require_no_conflict()
        handover.guard()
        raise error

    def _transform(self, acquired: Acquired) -> Trace:
        """Apply the function's own transforms to its computation."""
        trace = acquired.computation
        with without_recording():
            for transform in self.own_settings.transforms:
                trace = checked_trace(transform, transform(trace))
        self._require_modes_kept(trace)
        return trace

    def _require_modes_kept(self, trace: Trace) -> None:
        enabled = torch.is_grad_enabled()
        if [enabled, *grad_modes(trace.bound_symbols, enabled)][-1] is not enabled:
            self.refuse("changes the grad mode")

    def _captured_and_mutated(self, probe: Run, computation: Trace) -> tuple[tuple[Proxy, ...], tuple[str, ...]]:
        """Return the tensors that the function reads besides its arguments, and the names that it writes to."""
        written = names_written_to(computation)
        captured: list[Proxy] = []
        mutates: list[str] = []
        for tensor, proxy in probe.recorder.inputs.values():
            behind = self.stand_ins.behind(tensor)
            if behind is None:
                if isinstance(tensor, FakeTensor):
                    self.refuse("reads a tensor of the calling program that is not an argument")
                if self.run.outside.path_of(tensor) is None and not self.recorder.is_used(tensor):
                    self._require_unseen(tensor, proxy, written)
                    continue
                behind = tensor
                captured.append(self.recorder.proxy_of(tensor))
            self._require_shape_kept(probe, tensor, proxy)
            if proxy.name in written:
                mutates.append(self.recorder.proxy_of(behind).name)
        return tuple(captured), tuple(mutates)

    def _require_unseen(self, tensor: torch.Tensor, proxy: TensorProxy, written: frozenset[str]) -> None:
        """Raise `CannotReplay` if a tensor without a path from the caller requires a gradient or is written to."""
        if tensor.requires_grad and torch.is_grad_enabled():
            self.refuse("reads a tensor that requires a gradient and that no argument or variable refers to")
        if proxy.name in written:
            self.refuse("writes to a tensor that no argument or variable refers to")

    def _require_shape_kept(self, probe: Run, tensor: torch.Tensor, proxy: TensorProxy) -> None:
        fake = probe.recorder.tensors.fake(tensor)
        with torch._C.DisableTorchFunction():
            now = replace(tensor_proxy(proxy.name, fake), device=proxy.device)
        if now != proxy:
            self.refuse(f"changes the metadata of a tensor of shape {list(proxy.shape)} in place")

    # ---- the result ----

    def _part(self, leaf: object, probe: Run, proxies: dict[str, Proxy]) -> tuple[Part, Any]:
        """Return a part of the result, which the bound symbol checks, and the value that the program gets for it."""
        if isinstance(leaf, torch.Tensor):
            return self._tensor_part(leaf, probe, proxies)
        if isinstance(leaf, SymbolicNumber):
            number = self.recorder.numbers.new(leaf.kind)
            return NumberOf(number.proxy, number.kind), number
        if is_constant(leaf) or isinstance(leaf, BY_IDENTITY):
            return Constant(leaf), leaf
        if self.run.outside.path_of(leaf) is not None:
            return Same(type(leaf)), leaf
        return self.refuse(f"returns {object_of_class(type(leaf))}")

    def _tensor_part(self, leaf: torch.Tensor, probe: Run, proxies: dict[str, Proxy]) -> tuple[Part, Any]:
        real = self.stand_ins.behind(leaf)
        if real is not None:
            return Same(torch.Tensor), real
        if id(leaf) in probe.recorder.inputs or not probe.recorder.is_used(leaf):
            if self.run.outside.path_of(leaf) is None:
                self.refuse("returns a tensor that the function neither computes nor gets from an argument or variable")
            return Same(type(leaf)), leaf
        before = probe.recorder.proxy_of(leaf)
        proxy = proxies[before.name]
        if not isinstance(proxy, TensorProxy) or leaf.layout is not torch.strided:
            self.refuse("returns a tensor that is not dense")
        named = replace(proxy, name=self.recorder.tensors.next_name(), requires_grad=leaf.requires_grad)
        named = self._with_symbolic_sizes(named)
        with torch._C.DisableTorchFunction():
            fake = self.recorder.tensors.new_tensor(named)
            return named, tracked_from_call(fake) if named.requires_grad else fake

    def _own_keywords(
        self, call: CompiledCall, captured: tuple[Proxy, ...], parts: Sequence[tuple[Part, Any]]
    ) -> dict[str, tuple[Proxy, ...]]:
        """Return the keyword arguments that only the bound symbol receives, not the function.

        If the control flow depends on values, another call may return another argument or outside object. The keyword
        arguments contain all objects that a call may return.
        """
        same = [value for part, value in parts if isinstance(part, Same)] if call.depends_on_values else []
        returned = tuple(
            self.recorder.proxy_of(value)
            if isinstance(value, torch.Tensor)
            else self.recorder.tensors.object_proxy(value)
            for value in same
        )
        return {name: proxies for name, proxies in ((BESIDE, captured), (RETURNED, returned)) if proxies}

    def _with_symbolic_sizes(self, proxy: TensorProxy) -> TensorProxy:
        """Return the proxy of a result with symbols for sizes that may vary.

        Subclasses override this; here, none vary.
        """
        return proxy

    def _require_repeatable(self, call: CompiledCall) -> None:
        if call.depends_on_values and (before := name_of_call_with_effects(self.recorder.bound_symbols)):
            self.refuse(f"branches on values, and is called after `{before}`, whose effects cannot be undone")


def tensors_of(tree: object, run: TracedRun) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, including those in containers that the program made."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif run.outside.path_of(tree) is None and isinstance(tree, tuple | list | dict):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_of(item, run)
