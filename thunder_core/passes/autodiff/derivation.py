"""Derivations: bound symbols with their vector-Jacobian products (VJPs)."""

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

    For y = f(x), the product maps a cotangent of y to the cotangent of x. The cotangent of a tensor is the gradient of
    a loss with respect to the tensor. `bsyms` read the `cotangents` (one for each result that autograd tracks, or
    None), tensors of the forward, and each other's results. `gradients` are the cotangents of the differentiated
    inputs. None stands for a gradient of zero. The `gradients` include the gradients that were `accumulated` before
    (one for each differentiated input, or None).
    """

    cotangents: tuple[TensorProxy | None, ...]
    bsyms: tuple[BoundSymbol, ...]
    gradients: tuple[TensorProxy | None, ...]
    accumulated: tuple[TensorProxy | None, ...] = ()

    @cached_property
    def sums(self) -> tuple[bool, ...]:
        """For each gradient, whether it is a sum. Autograd adds the summands to an earlier gradient one by one."""
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
    """A bound symbol that autograd tracks, with its backward.

    `bsyms` are the forward, `differentiated_inputs` the inputs that gradients are computed for, and `results` the
    outputs of the bound symbol that autograd tracks. All names are names of `bsym`. Equal bound symbols share the
    derivation, although their values have other names.
    """

    bsym: BoundSymbol
    differentiated_inputs: tuple[TensorProxy, ...]
    results: tuple[TensorProxy, ...]
    bsyms: tuple[BoundSymbol, ...]
    _vjps: dict[Hashable, VJP] = field(default_factory=dict, repr=False, init=False)

    def vjp(
        self, cotangents: Sequence[TensorProxy | None], accumulated: Sequence[TensorProxy | None] | None = None
    ) -> VJP:
        """Return the VJP for cotangents with this metadata. `cotangents` has one proxy, or None, for each of `results`.

        PyTorch's formulas choose their kernels by the metadata of cotangents, so there is one VJP for each metadata.
        The `cotangents` of the returned VJP have new names. If gradients of the differentiated inputs are already
        `accumulated`, the summands are added to them one by one, and each sum is rounded, as in autograd's buffers.
        """
        accumulated = accumulated or [None] * len(self.differentiated_inputs)
        key = tuple(proxy and metadata(proxy) for proxy in (*cotangents, *accumulated))
        if key not in self._vjps:
            with torch.inference_mode(False):
                self._vjps[key] = self._differentiate(cotangents, accumulated)
        return self._vjps[key]

    @abstractmethod
    def _differentiate(
        self, cotangents: Sequence[TensorProxy | None], accumulated: Sequence[TensorProxy | None]
    ) -> VJP:
        """Derive the VJP for these cotangents and accumulated gradients."""


def fresh_names(trace: Trace) -> Iterator[str]:
    """Yield names for new values (`v0`, `v1`, and so on) that the trace does not have."""
    names = {p.name for bsym in trace.bound_symbols for p in bsym.outputs} | {p.name for p in trace.inputs}
    names |= {p.name for bsym in trace.at_level("aten") for p in bsym.outputs}
    return (name for number in itertools.count() if (name := f"v{number}") not in names)
