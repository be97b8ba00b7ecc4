"""Reverse mode while a program is being traced: the recorded bound symbols of a function are differentiated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from thunder_core.backend.functionalization.local import functionalize_local
from thunder_core.compilation.gradients.trees import differentiable_leaves, require_same, with_arguments
from thunder_core.foundation.errors import NotDifferentiable
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.passes.autodiff.decompose_autocast import decompose_autocast, runs_under_autocast, with_autocast_off
from thunder_core.passes.autodiff.refusals import require_no_compiled_call, require_unwritten
from thunder_core.passes.autodiff.reverse_sweep import ReverseSweep
from thunder_core.passes.autodiff.segment import RecordedSegment, without_recorder
from thunder_core.passes.autodiff.step import Step
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.retrace import UsesTorchFunc

ALIAS = torch.ops.aten.alias.default
FIX = "use operations that PyTorch can differentiate, or register a rule for this operation"


@dataclass(eq=False)
class Reverse:
    """A recorded function that is differentiated with respect to `primals`, which are aliases of its `arguments`.

    If the function reads the same tensor by another path, such as a global variable, it does not read the alias.
    Therefore, this read is not differentiated.
    """

    run: TracedRun
    name: str
    arguments: tuple[Any, ...]
    primals: tuple[Any, ...] = field(init=False)
    _starts: list[torch.Tensor] = field(init=False, repr=False)
    _structure: TreeSpec = field(init=False, repr=False)
    _segment: RecordedSegment = field(init=False, repr=False)
    _results: tuple[TensorProxy, ...] = ()
    _sweep: ReverseSweep | None = None
    _read: set[str] = field(default_factory=set, repr=False)
    _under_autocast: bool = False
    _has_writes: bool = False

    def __post_init__(self) -> None:
        self.run.outside.expand_whole(self.arguments)
        leaves, self._structure = differentiable_leaves(self.arguments, self.name)
        self._starts = [ALIAS(leaf) for leaf in leaves]
        self.primals = tree_unflatten(self._starts, self._structure)

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call the function and record its bound symbols, with autograd on in every grad mode of the program."""
        with torch.enable_grad():
            self._segment = RecordedSegment(self.run.recorder)
            output = self.run.machine.call(function, *args, **kwargs)
            self._segment.close()
        self._has_writes = self._segment.writes
        return output

    def with_arguments(self, output: Any) -> Any:
        """Return a result with the arguments in place of their aliases: `torch.func` returns the arguments, too."""
        return with_arguments(output, self._starts, tree_leaves(self.arguments))

    def derive(self, results: Sequence[torch.Tensor]) -> None:
        """Derive the bound symbols that compute these results."""
        proxy = self.run.recorder.proxy_of
        self._results = tuple(proxy(result) for result in results)
        starts = tuple(with_requires_grad(proxy(start)) for start in self._starts)
        with refuse_underivable(self.run, self.name, self._has_writes), without_recorder():
            self._sweep = self._derive(starts)

    def _derive(self, starts: tuple[TensorProxy, ...]) -> ReverseSweep:
        """Return the sweep over the bound symbols; if they write to tracked tensors, functionalize them first."""
        segment = self._segment
        require_no_compiled_call(segment.bsyms)
        if runs_under_autocast(segment.bsyms):
            self._under_autocast = True
            segment.replace_with(decompose_autocast(segment.bsyms))
        try:
            return ReverseSweep.of(segment.trace(starts, self._results), segment.names())
        except Underivable:
            if not segment.writes:
                raise
            segment.replace_with(functionalize_local(segment.bsyms, segment.names()))
            return ReverseSweep.of(segment.trace(starts, self._results), segment.names())

    def gradients(self, cotangents: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return the gradients of the primals for cotangents of the results.

        The gradient of a primal that no result depends on is zero.
        """
        sweep, recorder = self._sweep, self.run.recorder
        if recorder.levels.depth:
            raise self.run.retrace(UsesTorchFunc("a pullback is called inside a function transform"))
        assert sweep is not None
        cotangents_taken: dict[str, torch.Tensor] = {}
        for proxy, cotangent in zip(self._results, cotangents, strict=True):
            earlier = cotangents_taken.get(proxy.name)
            cotangents_taken[proxy.name] = cotangent if earlier is None else earlier + cotangent
        incoming = {
            name: recorder.proxy_of(total)
            for name, total in cotangents_taken.items()
            if name in sweep.requires_grad_names
        }
        with refuse_underivable(self.run, self.name, self._has_writes), without_recorder():
            bsyms, cotangents_by_name = sweep.apply_vjps(incoming)
            self._read |= {proxy.name for bsym in bsyms for proxy in bsym.inputs}
            steps = [*sweep.steps, *map(Step, self._segment.after)]
            require_unwritten(steps, self._read, self._segment.aliases_before(step.bsym for step in steps))
            exposed = list(sweep.with_exposed_intermediates(self._read))
            self._segment.replace_with(with_autocast_off(exposed) if self._under_autocast else exposed)
            self._segment.append(with_autocast_off(bsyms) if self._under_autocast else bsyms)
        proxies = [cotangents_by_name.get(recorder.proxy_of(start).name) for start in self._starts]
        leaves = [
            torch.zeros_like(start) if proxy is None else self._segment.tensor(proxy)
            for proxy, start in zip(proxies, self._starts, strict=True)
        ]
        answer: tuple[Any, ...] = tree_unflatten(leaves, self._structure)
        return answer


@dataclass(frozen=True, eq=False)
class Pullback:
    """The pullback that `vjp` returns while tracing: it maps cotangents of the results to cotangents of the primals."""

    reverse: Reverse
    output: Any

    def __call__(self, cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> tuple[Any, ...]:  # noqa: ARG002
        """Return the cotangents of the primals; the flags have no effect, because there is no autograd graph."""
        cotangents_taken = require_same(cotangents, self.output, ("the cotangents", "the outputs"), "vjp")
        return self.reverse.gradients(cotangents_taken)


def with_requires_grad(proxy: TensorProxy) -> TensorProxy:
    """Return a copy of a proxy that requires a gradient."""
    return replace(proxy, requires_grad=True)


@contextmanager
def refuse_underivable(run: TracedRun, name: str, has_writes: bool) -> Iterator[None]:
    """Convert an `Underivable` of the block into `NotDifferentiable` with the source line of the bound symbol.

    If the function has writes, the program is traced again instead, with the function transforms of `torch.func`.
    """
    try:
        yield
    except Underivable as error:
        if has_writes:
            raise run.retrace(UsesTorchFunc(str(error))) from error
        raise NotDifferentiable(f"{name}: {error}", fix=FIX, where=error.where) from error
