"""The signature of a program as an operation of autograd, as plain data that manifests store."""

from __future__ import annotations

from dataclasses import dataclass

RECORDED = "recorded"  # the trace that autograd records if the backward pass is split at dependent results


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

    The body returns the result at the index `place`. `sources` are the indices of the program outputs that the result
    is computed from, and `outputs` are the indices of the outputs that are the result or its views.
    """

    place: int
    sources: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class AutogradSignature:
    """The results and inputs that autograd sees of a computation that is one operation of its graph.

    The first `count` outputs are results; the tensors saved for the backward follow. `results` are the indices of the
    results that receive gradients, `layouts` are the layouts of these gradients, and `requires_grad_inputs` are the
    indices of the inputs whose gradients are computed. `random` programs draw random numbers. `tail_inputs` are the
    indices of the inputs that the tail takes before the results, if there is a tail. If `beneath_autocast` is set,
    forward and backward contain the casts of autocast, and run while autocast is off. Each of the `dependent` results
    comes after the results that it is computed from.

    A program that `writes` to its inputs writes to those at the `written` indices. It can be run a second time, on
    copies of these inputs, unless `kept` is None. Each call copies the inputs at the `kept` indices before the writes,
    because the second run needs their values.

    Only artifacts of earlier versions have `downstream`, and they have no `dependent` results: for each of `results`,
    the positions in `results` of the results that are computed from it. A hook of that result would miss the gradient
    that flows back through these.
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
    def copied(self) -> tuple[int, ...]:
        """The indices of the inputs that a second run has copies of."""
        return () if self.kept is None else self.written

    @property
    def source_indices(self) -> tuple[int, ...]:
        """The indices of all outputs that dependent results are computed from, in ascending order."""
        return tuple(sorted({index for result in self.dependent for index in result.sources}))
