"""Backwards from an artifact: they connect a stored program to autograd's graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thunder_core.backend.parallel.backward_pieces import GradientArrivals, Groups, groups_of_gradients
from thunder_core.backend.parallel.buckets import BucketSizes
from thunder_core.backend.runtime.agreement import compare_collectives_first
from thunder_core.backend.runtime.autograd_signature import RECORDED, AutogradSignature, SeparateResults
from thunder_core.backend.runtime.generate import executable, executable_at_first_call
from thunder_core.backend.runtime.program import Stage
from thunder_core.foundation.errors import NotDifferentiable
from thunder_core.passes.autodiff.applied.value_readers import ValueReader
from thunder_core.passes.autodiff.autograd_node import Backward, connect_tail
from thunder_core.passes.autodiff.chained_nodes import ChainedBridge
from thunder_core.passes.autodiff.dependent_nodes import DependentProgram, SplitBackward
from thunder_core.tracing.analysis.collectives import Collective
from thunder_core.tracing.ir.printer import Source
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.artifact.format.backward_pieces import functions_of_pieces
from thunder_core.workflow.artifact.format.program_facts import results_in_words


@dataclass(frozen=True, eq=False)
class StoredDerivative:
    """The derivative of a stored program: the source of its tail, of each backward, and of the computation.

    If no backward was saved for the results that have gradients, autograd records the source `recorded` and
    differentiates it; with `strict`, `NotDifferentiable` is raised instead. For gradients of results with respect to
    other results, autograd records the source `cut`. Inside `DistributedDataParallel`, a backward with `arrivals` is
    split into pieces. `separate_results` is None in artifacts of earlier versions. `collectives` are those of the
    backwards, and `other_collectives` those of the tail and of the sources that autograd records.
    """

    signature: AutogradSignature
    separate_results: SeparateResults | None
    body: Trace
    stages: tuple[Stage, ...]
    recorded: Source
    tail: Source | None
    cut: Source | None
    rules: tuple[str, ...]
    readers: tuple[ValueReader, ...]
    backwards: Mapping[tuple[bool, ...], Source]
    arrivals: Mapping[tuple[bool, ...], GradientArrivals]
    collectives: Mapping[tuple[bool, ...], Sequence[Collective]]
    other_collectives: Mapping[str, Sequence[Collective]]
    folder: Path
    strict: bool
    _functions: dict[tuple[bool, ...], Backward] = field(default_factory=dict, repr=False)
    _pieces: dict[tuple[tuple[bool, ...], Groups], Sequence[Backward]] = field(default_factory=dict, repr=False)

    def bridge(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that computes all results; `forward` is the compiled forward."""
        tail = self._executable(self.tail, "tail") if self.tail else None
        recorded = self._recorded_by_autograd(self.recorded, self.body.name)
        separate = self.separate_results
        bridge = ChainedBridge(
            self.signature,
            forward,
            self.backward_for,
            recorded,
            readers=self.readers,
            separate=None if separate is None else lambda: separate,
            pieces=self,
        )
        if self.cut is None:
            return connect_tail(bridge, tail)
        cut = self._recorded_by_autograd(self.cut, RECORDED)
        return DependentProgram(replace(bridge, split=SplitBackward(self.part, lambda: cut)), tail)

    def _recorded_by_autograd(self, source: Source, name: str) -> Callable[..., Any]:
        """Return the function of a source, which autograd records, or a function that raises `NotDifferentiable`.

        The latter is returned if the user registered derivatives (`rules`), because autograd would not use them.
        """
        return self._refuse_to_record if self.rules else self._executable(source, name)

    def _executable(self, source: Source, name: str) -> Callable[..., Any]:
        """Return the function of a source. Before its first call, the ranks compare its collectives."""
        collectives = self.other_collectives.get(name, ())
        return compare_collectives_first(executable_at_first_call(source, name), collectives)

    def _refuse_to_record(self, *_: Any) -> Any:
        raise NotDifferentiable(
            f"{self.folder} does not contain the derivatives that were registered for {', '.join(self.rules)}, which a "
            "derivative of a derivative, or one between results, needs",
            fix="compile the model in this process, or save it after a backward for the same results",
        )

    def part(self, key: int | tuple[bool, ...]) -> None:  # noqa: ARG002
        """Leave a part of a split backward pass to autograd; raise `NotDifferentiable` if `strict` is set."""
        if self.strict:
            raise NotDifferentiable(
                f"{self.folder} does not contain a backward for gradients of results with respect to other results",
                fix="load it without strict=True: autograd then runs the program again and differentiates it",
            )

    def backward_for(self, has_cotangent: tuple[bool, ...]) -> Backward | None:
        """Return the backward for the results marked in `has_cotangent`; None if autograd computes these gradients."""
        if has_cotangent in self.backwards and has_cotangent not in self._functions:
            function = executable(self.backwards[has_cotangent], "backward")
            collectives = self.collectives.get(has_cotangent, ())
            self._functions[has_cotangent] = compare_collectives_first(function, collectives)
        if has_cotangent not in self.backwards and self.strict:
            raise self.error_for_unknown(has_cotangent)
        return self._functions.get(has_cotangent)

    def groups(self, buckets: BucketSizes) -> Groups:
        """Implement `BackwardPieces.groups` for the backward for all results, or for the last backward."""
        masks = sorted(self.arrivals, key=all)
        return groups_of_gradients(self.arrivals[masks[-1]], buckets) if masks else ()

    def functions(self, has_cotangent: tuple[bool, ...], groups: Groups) -> Sequence[Backward] | None:
        """Implement `BackwardPieces.functions`: return the pieces of a stored backward."""
        key = (has_cotangent, groups)
        if has_cotangent in self.arrivals and key not in self._pieces:
            lines = self.arrivals[has_cotangent].lines
            self._pieces[key] = functions_of_pieces(self.backwards[has_cotangent], lines, groups)
        return self._pieces.get(key)

    def error_for_unknown(self, has_cotangent: tuple[bool, ...]) -> NotDifferentiable:
        """Return the error for gradients that no backward was saved for."""
        compiled_masks = "; ".join(results_in_words(results) for results in self.backwards) or "none"
        return NotDifferentiable(
            f"{self.folder} has no backward for gradients of {results_in_words(has_cotangent)}; it has a backward for: "
            f"{compiled_masks}",
            fix="save the artifact again after such a backward, or load it without strict=True: autograd then "
            "runs the program again and differentiates it",
        )

    def backward_trace(self) -> Trace:
        """Return the backward that was saved last."""
        return self.stages[-1].trace

    def complete(self) -> None:
        """Do nothing, because a stored derivative cannot compile further backwards."""

    def complete_for_artifact(self) -> None:
        """Do nothing, like `complete`."""
