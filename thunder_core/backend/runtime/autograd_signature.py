"""The signature of a program as an operation of autograd, as plain data, which manifests hold."""

from __future__ import annotations

from dataclasses import dataclass

RECORDED = "recorded"  # the trace that autograd records where a backward pass is split at dependent results


@dataclass(frozen=True)
class Strides:
    """The layout of a tensor whose sizes are integers: its strides, in elements."""

    strides: tuple[int, ...]


@dataclass(frozen=True)
class DimensionOrder:
    """The layout of a dense tensor of any size: the order of its dimensions in memory, the slowest first."""

    dimensions: tuple[int, ...]


@dataclass(frozen=True)
class DependentResult:
    """A result of a program that is computed from other results, by which autograd's graph leads from it to these.

    The body returns the result at `place`. `sources` are the places of the program's outputs that the result is
    computed from, and `outputs` the places of the outputs that are the result or its views.
    """

    place: int
    sources: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class AutogradSignature:
    """The results and inputs by which autograd knows a computation that is one of its operations.

    It has `count` results, and behind them what is saved. `results` are the places of those that gradients come in
    for, `layouts` those of these gradients, and `requires_grad_inputs` the places of the inputs that gradients go out
    for. `random` programs draw random numbers, and one that `writes` to its inputs cannot be run a second time.
    `tail_inputs` are the places of the inputs that the tail takes before the results, where there is a tail. With
    `beneath_autocast`, forward and backward hold the casts that autocast makes, and run while it is off. The
    `dependent` results stand behind those that they are computed from.

    Only artifacts of earlier versions have `downstream`, and no `dependent` results: for each of `results`, the
    positions in `results` of those that are computed from the result. A hook of that result would miss the gradient
    that comes back through these.
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

    @property
    def source_places(self) -> tuple[int, ...]:
        """The places of all outputs that other results are computed from, in ascending order."""
        return tuple(sorted({place for result in self.dependent for place in result.sources}))
