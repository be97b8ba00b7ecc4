"""The signature of a program that is one operation of autograd's graph, as plain data that manifests store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

RECORDED = "recorded"  # the name of the trace that autograd records if the backward is split at dependent results


@dataclass(frozen=True)
class Strides:
    """The layout of a tensor with integer sizes: its strides, in elements."""

    strides: tuple[int, ...]


@dataclass(frozen=True)
class DimensionOrder:
    """The layout of a dense tensor of any size: the order of its dimensions in memory, slowest first."""

    dimensions: tuple[int, ...]


@dataclass(frozen=True)
class DependentResult:
    """A result of a program that is computed from other results, so that autograd's graph leads from it to them.

    `place` is the index of the result among the outputs of the body, which is the computation without the tail.
    `sources` are the indices of the program's outputs that the result is computed from, and `outputs` are the indices
    of the program's outputs that are the result or its views.
    """

    place: int
    sources: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class AutogradSignature:
    """The inputs and results of a program that is one operation of autograd's graph.

    The first `count` outputs of the forward are the program's results; the tensors saved for the backward follow.
    `results` are the indices of the results that receive gradients, and `layouts` are the layouts of these gradients.
    `requires_grad_inputs` are the indices of the inputs whose gradients are computed. `random` is True if the program
    draws random numbers. The tail takes the inputs at the `tail_inputs` indices, followed by the results. If
    `beneath_autocast` is True, forward and backward contain the casts of autocast, and autocast is off while they run.
    Each of the `dependent` results comes after the results that it is computed from.

    `writes` is True if the program writes to inputs, and `written` are the indices of these inputs. Derivatives without
    a compiled backward run the program a second time, on copies of the written inputs. For this second run, each call
    copies the inputs at the `kept` indices before the writes. `kept` is None if the program cannot run twice.

    Artifacts of earlier versions have `downstream` instead of `dependent` results: for each of `results`, the positions
    in `results` of the results that are computed from it. These dependencies are not in autograd's graph, so a hook of
    a result would not see the gradients that its dependent results contribute.
    """

    count: int
    results: tuple[int, ...]
    layouts: tuple[Strides | DimensionOrder, ...]
    requires_grad_inputs: tuple[int, ...]
    random: bool = False
    writes: bool = False
    tail_inputs: tuple[int, ...] = ()
    beneath_autocast: bool = False
    downstream: tuple[tuple[int, ...], ...] = ()
    dependent: tuple[DependentResult, ...] = ()
    written: tuple[int, ...] = ()
    kept: tuple[int, ...] | None = None

    @property
    def copied_inputs(self) -> tuple[int, ...]:
        """The indices of the inputs that are copied for a second run; empty if the program cannot run twice."""
        return () if self.kept is None else self.written

    @property
    def source_indices(self) -> tuple[int, ...]:
        """The indices of all outputs that dependent results are computed from, in ascending order."""
        return tuple(sorted({index for result in self.dependent for index in result.sources}))


@dataclass(frozen=True)
class SeparateResults:
    """The results of a body that share differentiated operations, and the inputs that each result depends on.

    All numbers are positions among the results that receive gradients, or indices of inputs. `sharing[n]` are the
    results whose gradients pass through an operation that the gradient of result n passes through. They include n,
    unless the gradient of result n passes through no operation. `inputs[n]` are the inputs that the value of result n
    depends on.
    """

    sharing: tuple[frozenset[int], ...]
    inputs: tuple[frozenset[int], ...]

    def after(self, received: Collection[int], remaining: Collection[int] | None) -> frozenset[int]:
        """Return the results that can still have a backward pass after a pass for the `received` results.

        `remaining` are the results that could have a backward pass before this pass; None stands for all results.
        """
        freed = frozenset[int]().union(*(self.sharing[position] for position in received))
        candidates = range(len(self.sharing)) if remaining is None else remaining
        return frozenset(
            position
            for position in candidates
            if position not in received and self.sharing[position] and position not in freed
        )

    def inputs_of(self, positions: Collection[int]) -> frozenset[int]:
        """Return the indices of the inputs that the values of these results depend on."""
        return frozenset[int]().union(*(self.inputs[position] for position in positions))
