"""Programs with a compiled backward: a computation is divided into forward, backward and tail, which are compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain, combinations
from threading import RLock
from typing import Any

import torch

from thunder_core.backend.cache.built_for import model_of_new_entries, record_model
from thunder_core.backend.claiming.claim import claim, claim_before_fusion
from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.free import free_after_last_use, lines_after_freeing, take_single_list
from thunder_core.backend.fusion.prepared_weights import claiming_forward
from thunder_core.backend.parallel.backward_pieces import (
    GradientArrivals,
    Groups,
    cut_into_pieces,
    gradient_arrivals,
    groups_of_gradients,
)
from thunder_core.backend.parallel.buckets import BucketSizes
from thunder_core.backend.parallel.compiling import compiling
from thunder_core.backend.runtime.agreement import start_answering
from thunder_core.backend.runtime.autograd_signature import (
    AutogradSignature,
    DimensionOrder,
    SeparateResults,
    Strides,
)
from thunder_core.backend.runtime.generate import executable_trace
from thunder_core.backend.runtime.program import Stage
from thunder_core.passes.autodiff.applied.value_readers import ValueReader, backward_readers
from thunder_core.passes.autodiff.autograd_node import Backward, Gradients, connect_tail
from thunder_core.passes.autodiff.chained_nodes import ChainedBridge
from thunder_core.passes.autodiff.decompose_autocast import decompose_autocast, runs_under_autocast
from thunder_core.passes.autodiff.dependent_nodes import DependentProgram, SplitBackward
from thunder_core.passes.autodiff.dependent_results import cut_at_sources, find_dependent_results
from thunder_core.passes.autodiff.functionalize_inplace import functionalize_tracked_writes, require_accepted_writes
from thunder_core.passes.autodiff.output_aliases import split_output_aliases, with_number_inputs_of_tail
from thunder_core.passes.autodiff.refusals import require_derivable
from thunder_core.passes.autodiff.reverse_mode import Differentiated, differentiate
from thunder_core.passes.autodiff.reverse_sweep import REQUIRE_GRAD, cotangent_of
from thunder_core.passes.autodiff.rules import with_rules
from thunder_core.passes.autodiff.second_run import written_inputs
from thunder_core.passes.autodiff.separate_results import find_separate_results
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.tracing.analysis.control_flow import transform_nested
from thunder_core.tracing.analysis.grad_mode import SET_GRAD
from thunder_core.tracing.capture.symbolic.shape_env import ConstraintAfterPrologue
from thunder_core.tracing.capture.torch_facts.modes import without_users_dispatch_modes
from thunder_core.tracing.extension.transform import Transform, rewrite_before_claiming
from thunder_core.tracing.ir.check import check_trace
from thunder_core.tracing.ir.dump import NoSink, Sink
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, environment_of
from thunder_core.tracing.ir.sizes import generic_hint_of
from thunder_core.tracing.ir.trace import Trace, numbers_of
from thunder_core.tracing.library.saved_tensors_hooks import without_saved_tensors_hooks

# In an artifact: the number of results with a backward for each selection, at most seven backwards, and the number of
# results with a backward for each single result.
MAX_SELECTED, MAX_SINGLE = 3, 8
ORDERED_WITHOUT_RANDOMNESS = (SET_GRAD, *REQUIRE_GRAD)  # ordered bound symbols that draw no random numbers


@dataclass(eq=False)
class ProgramDerivative:
    """A differentiated computation: its `body`, the body's forward and backward, and the `tail` that makes views.

    `steps` are the intermediate traces of the passes that made the forward from the computation. A backward is compiled
    when it is first needed, and its stages are then written to the `sink`. The `cleanup` transforms simplify each
    backward, and the transforms `before_claiming` rewrite it right before executors claim it. `lent` are the names of
    saved tensors that stay in the memory of the forward's wrappers.
    """

    body: Trace
    tail: Trace | None
    steps: tuple[Trace, ...]
    differentiated: Differentiated
    executors: Sequence[Executor]
    cleanup: Sequence[Transform]
    beneath_autocast: bool = False
    sink: Sink = field(default_factory=NoSink)
    before_claiming: Sequence[Transform] = ()
    model: str = field(default_factory=model_of_new_entries)
    lent: frozenset[str] = frozenset()
    _backwards: list[Stage] = field(default_factory=list)
    _compiled: dict[tuple[bool, ...], Backward | None] = field(default_factory=dict)
    _parts: dict[int | tuple[bool, ...], Backward | None] = field(default_factory=dict)
    _claimed: dict[tuple[bool, ...], Trace] = field(default_factory=dict)
    _groups: dict[BucketSizes, Groups] = field(default_factory=dict)
    _pieces: dict[tuple[tuple[bool, ...], Groups], Sequence[Backward] | None] = field(default_factory=dict)
    _lock: AbstractContextManager[Any] = field(default_factory=RLock)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the tail, of the recorded computation, and of the backwards in order of compilation."""
        tail = () if self.tail is None else (Stage(self.tail, 0.0),)
        recorded = (Stage(self.recorded_trace, 0.0),) if self.signature.dependent else ()
        return (*tail, *recorded, *self._backwards)

    def adopt_inputs(self, inputs: tuple[Proxy, ...]) -> Trace | None:
        """Give the body the inputs of the forward, which may include new symbolic numbers.

        Returns the body if it has changed, and None otherwise. The backward of a program with symbolic numbers is
        compiled at once, because the program's prologue checks the constraints that this compilation adds.
        """
        changed = len(inputs) > len(self.body.inputs)
        if changed:
            self.body = self.body.having(self.body.bound_symbols, made_by="add size inputs", inputs=inputs)
        if environment_of(inputs) is not None:
            self.complete()
        return self.body if changed else None

    @property
    def saved(self) -> Sequence[Proxy]:
        """The proxies that the forward returns after the results of the computation."""
        return self.differentiated.saved

    @cached_property
    def signature(self) -> AutogradSignature:
        """The signature of the computation for its autograd node: its results, inputs, writes and layouts."""
        names = {proxy.name for proxy in self.tail.inputs} if self.tail else set()
        written, kept_indices = written_inputs(self.body, self.differentiated.results)
        return AutogradSignature(
            count=len(self.body.output),
            results=self.differentiated.results,
            layouts=tuple(layout_of(cotangent_of(self.body.output[index])) for index in self.differentiated.results),
            requires_grad_inputs=self.differentiated.requires_grad_inputs,
            random=any(
                bsym.ordered and bsym.symbol.name not in ORDERED_WITHOUT_RANDOMNESS for bsym in self.body.bound_symbols
            ),
            writes=bool(written),
            written=written,
            kept=kept_indices,
            tail_inputs=tuple(index for index, proxy in enumerate(self.body.inputs) if proxy.name in names),
            beneath_autocast=self.beneath_autocast,
            dependent=find_dependent_results(
                self.body, self.tail, self.differentiated.results, self.differentiated.sweep
            ),
        )

    def bridge(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that computes all results of the computation; `forward` is its compiled forward."""
        recorded = executable_trace(with_rules(self.body))
        tail = executable_trace(self.tail) if self.tail else None
        bridge = ChainedBridge(
            self.signature,
            forward,
            self.compile_backward,
            recorded,
            readers=self.readers,
            separate=lambda: self.separate_results,
            pieces=self,
        )
        if not self.signature.dependent:
            return connect_tail(bridge, tail)
        split = SplitBackward(self._compiled_part, lambda: executable_trace(with_rules(self.recorded_trace)))
        return DependentProgram(replace(bridge, split=split), tail)

    @cached_property
    def separate_results(self) -> SeparateResults:
        """The results that can have backward passes of their own."""
        return find_separate_results(self.body, self.differentiated.results, self.differentiated.sweep)

    @cached_property
    def readers(self) -> tuple[ValueReader, ...]:
        """The readers of the values outside of the program that the user's own backwards read."""
        return backward_readers(self.body)

    @cached_property
    def recorded_trace(self) -> Trace:
        """The body as autograd records it, with additional inputs that replace the sources of dependent results."""
        return cut_at_sources(self.body, self._source_names)

    @property
    def _source_names(self) -> tuple[str, ...]:
        outputs = (self.body if self.tail is None else self.tail).output
        return tuple(outputs[index].name for index in self.signature.source_indices)

    def backward_trace(self) -> Trace:
        """Return the derived backward for all results, before transforms and executors."""
        return self.differentiated.backward(self._all_results)

    def complete(self) -> None:
        """Compile the backward for all results if no backward was compiled yet."""
        if not self._backwards:
            self.compile_backward(self._all_results)

    def complete_for_artifact(self) -> None:
        """Compile the backwards that an artifact needs.

        If the program cannot run a second time for autograd to record, an artifact needs a backward for each selection
        of results; with more than `MAX_SELECTED` results, for each single result; with more than `MAX_SINGLE` results,
        only for all together.
        """
        self.complete()
        count = len(self.differentiated.results)
        if self.signature.writes and self.signature.kept is None:
            sizes = range(1, count + 1) if count <= MAX_SELECTED else (1,) if count <= MAX_SINGLE else ()
            for selected in chain.from_iterable(combinations(range(count), size) for size in sizes):
                self.compile_backward(tuple(index in selected for index in range(count)))

    @property
    def _all_results(self) -> tuple[bool, ...]:
        return (True,) * len(self.differentiated.results)

    def _compiled_part(self, key: int | tuple[bool, ...]) -> Backward | None:
        """Return a part of the backward, or None if autograd has to record the part (see `SplitBackward.backward`)."""
        if key not in self._parts:
            with self._lock:
                if key not in self._parts:
                    self._parts[key] = self._compile_part(key)
        return self._parts[key]

    def _compile_part(self, key: int | tuple[bool, ...]) -> Backward | None:
        signature, names = self.signature, self._source_names
        if isinstance(key, tuple):
            has_cotangent, ends = key, None
        else:
            has_cotangent = tuple(index == key for index in signature.results)
            name_of = dict(zip(signature.source_indices, names, strict=True))
            ends = next(
                [name_of[source] for source in item.sources] for item in signature.dependent if item.place == key
            )
        try:
            return self._compile(has_cotangent, names, ends)
        except (Underivable, ConstraintAfterPrologue):
            return None

    def groups(self, buckets: BucketSizes) -> Groups:
        """Return the groups of gradients, one for each piece of the backward (see `BackwardPieces.groups`)."""
        if buckets not in self._groups:
            with self._lock:
                self.compile_backward(self._all_results)
                self._groups[buckets] = self._groups_of(buckets)
        return self._groups[buckets]

    def _groups_of(self, buckets: BucketSizes) -> Groups:
        arrivals = self._arrivals(self._all_results)
        return () if arrivals is None else groups_of_gradients(arrivals, buckets)

    def _arrivals(self, has_cotangent: tuple[bool, ...]) -> GradientArrivals | None:
        """Return the line and the bytes of each gradient in a claimed backward; None if the backward cannot be cut."""
        claimed = self._claimed.get(has_cotangent)
        inputs = [self.body.inputs[index] for index in self.differentiated.requires_grad_inputs]
        returns_input = not {proxy.name for proxy in inputs}.isdisjoint(proxy.name for proxy in self.body.outputs)
        return None if claimed is None or returns_input else gradient_arrivals(claimed, inputs)

    def arrivals(self, has_cotangent: tuple[bool, ...]) -> GradientArrivals | None:
        """Return the line and the bytes of each gradient in the executed backward.

        None if the backward cannot be cut.
        """
        arrivals = self._arrivals(has_cotangent)
        if arrivals is None:
            return None
        claimed = self._claimed[has_cotangent]
        return arrivals.at_lines(lines_after_freeing(claimed, free_after_last_use(take_single_list(claimed))))

    def functions(self, has_cotangent: tuple[bool, ...], groups: Groups) -> Sequence[Backward] | None:
        """Return the compiled pieces of the backward for these cotangents (see `BackwardPieces.functions`)."""
        key = (has_cotangent, groups)
        if key not in self._pieces:
            with self._lock:
                self.compile_backward(has_cotangent)
                claimed = self._claimed.get(has_cotangent)
                pieces = () if claimed is None else cut_into_pieces(claimed, groups)
                traces = (check_trace(free_after_last_use(take_single_list(piece))) for piece in pieces)
                self._pieces[key] = [executable_trace(trace) for trace in traces] or None
        return self._pieces[key]

    def compile_backward(self, has_cotangent: tuple[bool, ...]) -> Backward | None:
        """Return the backward for the results that have cotangents; None if autograd has to record the body."""
        if has_cotangent not in self._compiled:
            with self._lock:
                if has_cotangent not in self._compiled:
                    self._compiled[has_cotangent] = self._compile_or_fall_back(has_cotangent)
        return self._compiled[has_cotangent]

    def _compile_or_fall_back(self, has_cotangent: tuple[bool, ...]) -> Backward | None:
        """Return the backward for these cotangents, or the backward for all results with zeros for missing cotangents.

        Returns None if autograd has to record the body.
        """
        try:
            with compiling(), without_users_dispatch_modes():
                return self._compile(has_cotangent)
        except (Underivable, ConstraintAfterPrologue):
            has_constant_sizes = environment_of(self.body.output) is None
            may_use_zeros = self.signature.writes and has_constant_sizes and not all(has_cotangent)
            return self._with_zeros(has_cotangent) if may_use_zeros else None

    def _with_zeros(self, has_cotangent: tuple[bool, ...]) -> Backward | None:
        """Return a function that calls the backward for all results, with zeros for missing cotangents.

        Returns None if the backward for all results cannot be compiled. The function is used if the body writes to
        inputs: a second run of the body for autograd to record would need copies of these inputs.
        """
        run = self.compile_backward(self._all_results)
        if run is None:
            return None
        results = [cotangent_of(self.body.output[index]) for index in self.differentiated.results]
        reached = self.differentiated.reached_gradients(has_cotangent)

        def backward(saved: list[torch.Tensor]) -> Gradients:
            present = [saved.pop() for _ in range(sum(has_cotangent))]
            pairs = zip(has_cotangent, results, strict=True)
            saved += [present.pop() if is_there else zeros_like(result) for is_there, result in pairs]
            gradients = zip(run(saved), reached, strict=True)
            return [gradient if is_reached else None for gradient, is_reached in gradients]

        return backward

    def _compile(
        self, has_cotangent: tuple[bool, ...], cuts: Sequence[str] = (), ends: Sequence[str] | None = None
    ) -> Backward:
        """Return the compiled backward for these cotangents; `cuts` and `ends` are those of `Differentiated.backward`.

        Raises `Underivable` or `ConstraintAfterPrologue` if autograd has to record the body instead.
        """
        before = time.perf_counter()
        stages: list[Stage] = []

        def note(trace: Trace) -> Trace:
            nonlocal before
            now = time.perf_counter()
            stages.append(Stage(trace, now - before, has_cotangent))
            self.sink.write(trace)
            before = time.perf_counter()
            return trace

        with without_saved_tensors_hooks():
            trace = self.differentiated.backward(has_cotangent, cuts, ends)
            lent = self.lent & {proxy.name for proxy in trace.inputs}
            trace = note(check_trace(replace(trace, lent=lent)))
        for transform in self.cleanup:
            trace = note(check_trace(transform_nested(trace, transform)))
        trace = rewrite_before_claiming(trace, self.before_claiming, lambda _, changed: note(check_trace(changed)))
        start_answering(trace)
        with torch.no_grad(), torch._C._DisableAutocast(), record_model(self.model):
            trace = note(claim(trace, self.executors))
        if numbers_of(trace):
            raise Underivable("the compiled backward reads a symbolic size that the forward does not save")
        if not cuts:
            self._claimed[has_cotangent] = trace
        trace = note(check_trace(free_after_last_use(take_single_list(trace))))
        self._backwards += [] if cuts else stages
        return executable_trace(trace)


def differentiate_program(
    trace: Trace,
    executors: Sequence[Executor],
    cleanup: Sequence[Transform],
    budget: float = 1.0,
    sink: Sink = NoSink(),  # noqa: B008 - a NoSink has no state
    transforms: Sequence[Transform] = (),
) -> ProgramDerivative:
    """Divide the trace into forward and backward; raise `Underivable` if autograd has to record it instead.

    Under autocast, the trace is first decomposed into autocast's operations. If bound symbols write to tensors that
    autograd tracks, the trace is functionalized. `budget` bounds the bytes that the forward saves: up to 1.0, a
    fraction of the bytes that it saves without a budget; above 1, a number of bytes. The `cleanup` transforms simplify
    each backward, and the `transforms` rewrite it right before executors claim it.
    """
    require_derivable(trace)
    steps: list[Trace] = []
    is_under_autocast = runs_under_autocast(trace.bound_symbols)
    if is_under_autocast:
        trace = trace.having(decompose_autocast(trace.bound_symbols), made_by="decompose autocast")
        steps.append(trace)

    def divide(computation: Trace) -> ProgramDerivative:
        body, tail, stages, differentiated = _divide(computation, executors, budget)
        return ProgramDerivative(
            body,
            tail,
            (*steps, *stages),
            differentiated,
            executors,
            cleanup,
            is_under_autocast,
            sink,
            before_claiming=transforms,
        )

    try:
        derivative = divide(trace)
        require_accepted_writes(trace)
        return derivative
    except Underivable as reason:
        functional = functionalize_tracked_writes(trace)
        if functional is None:
            raise
        functional = reduce(transform_nested, cleanup, functional)
        steps.append(functional)
        try:
            return divide(functional)
        except Underivable as remaining:
            raise remaining from reason


def _divide(
    computation: Trace, executors: Sequence[Executor], budget: float
) -> tuple[Trace, Trace | None, tuple[Trace, ...], Differentiated]:
    """Return the body and the tail of a computation, the stages that lead to its forward, and its derivative."""
    body, tail = with_number_inputs_of_tail(*split_output_aliases(computation))
    claimed = claim_before_fusion(body, executors)
    may_recompute = any(executor.fuses_regions for executor in executors)
    differentiated = differentiate(claimed, recompute=may_recompute, budget=budget)
    stages = [after for after, before in ((body, computation), (claimed, body)) if after is not before]
    return body, tail, (*stages, differentiated.forward), differentiated


def claim_forward(derivative: ProgramDerivative, forward: Trace) -> Trace:
    """Return the forward with an executor on every bound symbol, and note the saved tensors that its wrappers lend."""
    with torch.no_grad(), torch._C._DisableAutocast(), claiming_forward():
        claimed = claim(forward, derivative.executors, derivative.body)
    derivative.lent = claimed.lent
    return claimed


def layout_of(proxy: TensorProxy) -> Strides | DimensionOrder:
    """Return the layout of a dense tensor: its strides, or its dimension order in memory if a size is symbolic."""
    if all(type(size) is int for size in (*proxy.shape, *proxy.stride)):
        return Strides(proxy.stride)
    examples = [generic_hint_of(stride) for stride in proxy.stride]
    return DimensionOrder(tuple(sorted(range(len(examples)), key=lambda index: (-examples[index], index))))


def zeros_like(proxy: TensorProxy) -> torch.Tensor:
    """Return a tensor of zeros with the metadata of a proxy."""
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device).zero_()


def is_differentiable(trace: Trace) -> bool:
    """Whether autograd would record any operation of a trace in this thread's grad mode."""
    return torch.is_grad_enabled() and any(
        isinstance(proxy, TensorProxy) and proxy.requires_grad for proxy in trace.inputs
    )


__all__ = ["ProgramDerivative", "Underivable", "claim_forward", "differentiate_program", "is_differentiable"]
