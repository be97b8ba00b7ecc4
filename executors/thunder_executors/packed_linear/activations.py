"""Activations that the kernel computes while it stores a product, if no other operation reads the product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch.nn import functional

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class Activation:
    """An activation: its number in the kernel, its title, and PyTorch's function."""

    number: int
    title: str
    function: Callable[[torch.Tensor], torch.Tensor]


RELU = Activation(1, "relu", functional.relu)
SILU = Activation(2, "silu", functional.silu)
GELU = Activation(3, "gelu", functional.gelu)
GELU_TANH = Activation(4, "gelu by tanh", partial(functional.gelu, approximate="tanh"))
# The activation of each operation if its options have their defaults. `OPTIONS` has the activations for other options.
ACTIVATIONS = {
    "torch.relu": RELU,
    "torch.Tensor.relu": RELU,
    "torch.nn.functional.relu": RELU,
    "torch.nn.functional.silu": SILU,
    "torch.nn.functional.gelu": GELU,
}
DEFAULTS = {"inplace": False, "approximate": "none"}
OPTIONS = {("torch.nn.functional.gelu", ("approximate", "tanh")): GELU_TANH}


def activation_of(bsym: BoundSymbol) -> Activation | None:
    """Return the activation that an unclaimed bound symbol computes from its only tensor; None if there is none."""
    name = bsym.symbol.name
    if bsym.executor or bsym.mutates or not bsym.is_resolved or name not in ACTIVATIONS:
        return None
    if len(bsym.args) + ("input" in bsym.kwargs) != 1 or not isinstance(bsym.output, TensorProxy):
        return None
    options = {key: value for key, value in bsym.kwargs.items() if key != "input"}
    changed = [item for item in options.items() if item[0] not in DEFAULTS or item[1] != DEFAULTS[item[0]]]
    if not changed:
        return ACTIVATIONS[name]
    return OPTIONS.get((name, changed[0])) if len(changed) == 1 else None


def activations_in(trace: Trace, products: Iterable[int]) -> dict[int, int]:
    """Return the index of an activation for each product whose result only this activation reads, by index."""
    bsyms = trace.bound_symbols
    reads = Counter(proxy.name for proxy in chain(*(bsym.inputs for bsym in bsyms), trace.outputs))
    by_result = {bsyms[index].output.name: index for index in products}
    read_once = {name for name in by_result if reads[name] == 1}
    return {
        by_result[bsym.inputs[0].name]: index
        for index, bsym in enumerate(bsyms)
        if len(bsym.inputs) == 1 and bsym.inputs[0].name in read_once and activation_of(bsym) is not None
    }
