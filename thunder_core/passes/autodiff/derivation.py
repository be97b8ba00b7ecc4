"""Derivations: bound symbols whose vector-Jacobian products can be had, whatever these are derived from."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from thunder_core.tracing.capture.fakes.memo import metadata
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class VJP:
    """The vector-Jacobian product of a bound symbol: its backward, as bound symbols.

    For y = f(x) it is the map from a cotangent of y, the gradient of some loss with respect to y, to that of x. `bsyms`
    read the `cotangents`, one for each result that autograd follows and None for one without, tensors of the forward,
    and each other. `gradients` are the cotangents of the differentiated inputs: proxies with the metadata of these, or
    None where autograd has none, which means zero. They contain the gradients `accumulated` before, one for each
    differentiated input and None for one without.
    """

    cotangents: tuple[TensorProxy | None, ...]
    bsyms: tuple[BoundSymbol, ...]
    gradients: tuple[TensorProxy | None, ...]
    accumulated: tuple[TensorProxy | None, ...] = ()

    @cached_property
    def sums(self) -> tuple[bool, ...]:
        """For each gradient whether it is a sum, to which autograd may add more than one summand after another."""
        adds = {bsym.output.name for bsym in self.bsyms if bsym.symbol.target is torch.ops.aten.add.Tensor}
        return tuple(gradient is not None and gradient.name in adds for gradient in self.gradients)

    @property
    def reads(self) -> dict[str, TensorProxy]:
        """The tensors of the forward that the product reads, by name."""
        defined = {proxy.name for bsym in self.bsyms for proxy in bsym.defines}
        defined |= {proxy.name for proxy in (*self.cotangents, *self.accumulated) if proxy is not None}
        read = (proxy for bsym in self.bsyms for proxy in bsym.inputs if isinstance(proxy, TensorProxy))
        return {proxy.name: proxy for proxy in read if proxy.name not in defined}


@dataclass(eq=False)
class Derivation(ABC):
    """A bound symbol that autograd follows, with its backward.

    `bsyms` are the forward, `differentiated_inputs` the inputs that gradients are for, and `results` the outputs of the
    bound symbol that autograd follows. All names are those of the bound symbol that it was derived from.
    """

    bsym: BoundSymbol
    differentiated_inputs: tuple[TensorProxy, ...]
    results: tuple[TensorProxy, ...]
    bsyms: tuple[BoundSymbol, ...]
    _vjps: dict[Hashable, VJP] = field(default_factory=dict, repr=False, init=False)

    def vjp(
        self, cotangents: Sequence[TensorProxy | None], accumulated: Sequence[TensorProxy | None] | None = None
    ) -> VJP:
        """The product for cotangents of this metadata, one for each of `results`, None where there is no cotangent.

        Formulas choose their kernels by the metadata of cotangents, so there is one product for each metadata. Its own
        `cotangents` have names of the tape's. Where gradients of the differentiated inputs are `accumulated` already,
        summands are added to those, as autograd's buffers do: their sum is rounded after each summand.
        """
        accumulated = accumulated or [None] * len(self.differentiated_inputs)
        key = tuple(proxy and metadata(proxy) for proxy in (*cotangents, *accumulated))
        if key not in self._vjps:
            with torch.inference_mode(False):
                self._vjps[key] = self._differentiated(cotangents, accumulated)
        return self._vjps[key]

    @abstractmethod
    def _differentiated(
        self, cotangents: Sequence[TensorProxy | None], accumulated: Sequence[TensorProxy | None]
    ) -> VJP:
        """Derive the product for such cotangents and accumulated gradients."""


def fresh_names(trace: Trace) -> Iterator[str]:
    """Yield names for new values: `v0`, `v1`, and so on, without those that the trace has."""
    taken = {p.name for bsym in trace.bound_symbols for p in bsym.outputs} | {p.name for p in trace.inputs}
    taken |= {p.name for bsym in trace.at_level("aten") for p in bsym.outputs}
    return (name for number in itertools.count() if (name := f"v{number}") not in taken)
