"""A transform for the inference of convolutional networks on a CPU: images get the memory format `channels_last`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.foundation.errors import DataDependent
from thunder_core.passes.recipe import Transform
from thunder_core.passes.replay import Replay
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.analysis.grad_mode import may_be_recorded, tracked_by_autograd
from thunder_core.tracing.capture.torch_facts.switches import switches_autocast
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import expressions
from thunder_core.tracing.ir.symbol import BoundSymbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import replace_leaves

CONVOLUTION = "torch.nn.functional.conv2d"
# Functions whose values do not depend on the memory format of their operands. PyTorch supports `channels_last` for
# them.
FUNCTIONS = (
    *("conv2d", "batch_norm", "group_norm", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate", "pad"),
    *("relu", "relu6", "hardtanh", "leaky_relu", "elu", "silu", "gelu", "mish", "hardswish", "hardsigmoid"),
    *("sigmoid", "tanh", "clamp", "dropout", "dropout2d", "add", "sub", "mul", "div", "mean", "sum", "amax", "cat"),
)
FORMAT_INDEPENDENT = frozenset(
    f"{prefix}.{name}{suffix}"
    for prefix in ("torch", "torch.Tensor", "torch.nn.functional")
    for name in FUNCTIONS
    for suffix in ("", "_")
)
CONVOLUTIONS_PER_COPY = 2  # the fewest convolutions for which one copy between formats is worthwhile


@dataclass(frozen=True)
class ChannelsLast(Transform):
    """Compute consecutive 2-d convolutions, and operations between them, in the memory format `torch.channels_last`.

    Each bound symbol runs again on tensors without data, so PyTorch decides the memory format of each result. The input
    of the first convolution is copied to this format. A tensor is copied back before an operation that may depend on
    its strides, and before the program returns it, so that results have the same strides as in eager PyTorch. A program
    is unchanged if it would need more than one copy for two convolutions, if autograd records a convolution, or if
    operations that depend on strides read a tensor that the program writes to.
    """

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace unchanged; `before_claiming` changes it, right before executors claim it."""
        return trace

    def before_claiming(self, trace: Trace) -> Trace:
        """Return the trace with its convolutions in `channels_last`, or unchanged if it would need too many copies."""
        convolutions = sum(map(is_convolution, trace.bound_symbols))
        if convolutions < CONVOLUTIONS_PER_COPY or not can_change(trace):
            return trace
        try:
            changed, copies = _Replay(trace).change_format()
        except (DataDependent, OtherStrides):
            return trace
        return changed if 0 < copies * CONVOLUTIONS_PER_COPY <= convolutions else trace


class OtherStrides(Exception):
    """Raised if a copy to the contiguous format does not restore the strides of a tensor."""


def is_convolution(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol is a convolution of a batch of images on the CPU."""
    return (
        bsym.symbol.name == CONVOLUTION
        and isinstance(bsym.output, TensorProxy)
        and bsym.output.device.type == "cpu"
        and len(bsym.output.shape) == 4
    )


def can_change(trace: Trace) -> bool:
    """Whether the results of a trace stay the same if its convolutions use another memory format.

    This is so if autograd records no convolution, the program does not switch autocast or write to inputs and
    constants, and only `FORMAT_INDEPENDENT` operations read memory that the program writes to. All other operations may
    read a copy, and a view of a copy does not share memory with the original tensor.
    """
    recorded = may_be_recorded(trace, tracked_by_autograd(trace))
    if any(recorded[index] for index, bsym in enumerate(trace.bound_symbols) if is_convolution(bsym)):
        return False
    if any(switches_autocast(bsym) or not bsym.is_resolved for bsym in trace.bound_symbols):
        return False
    written = names_written_to(trace)
    if written & {proxy.name for proxy in trace.inputs} or written & trace.constants.keys():
        return False
    readers = (bsym for bsym in trace.bound_symbols if written & {proxy.name for proxy in bsym.inputs})
    return all(bsym.symbol.name in FORMAT_INDEPENDENT for bsym in readers)


class _Replay(Replay):
    """Runs the bound symbols of a trace again, with the inputs of convolutions in the format `channels_last`."""

    title = "Another memory format"

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._copies = 0
        self._written = names_written_to(trace)
        self._copies_by_name: dict[Hashable, torch.Tensor] = {}

    def change_format(self) -> tuple[Trace, int]:
        """Return the trace with convolutions in the format `channels_last`, and its number of copies."""
        with self._recorder.recording():
            self._run_all()
            output = replace_leaves(self.trace.output, self._restore_exactly)
            proxies = self._proxies_of(output)
            names = self._former_names()
        bsyms = [bsym.rename(names) for bsym in self.bsyms]
        result = renamed_proxies(proxies, names)
        return self.trace.having(bsyms, made_by="channels last", output=result), self._copies

    def _run(self, bsym: BoundSymbol) -> None:
        """Run a bound symbol. Its operands get their former strides unless its function is in `FORMAT_INDEPENDENT`.

        They also get their former strides if the bound symbol draws random numbers, such as a dropout in training mode,
        because random numbers are drawn in the order of memory.
        """
        if bsym.functions or not bsym.subsymbols:
            self._append_with_restored_operands(bsym)
            return
        is_independent = bsym.symbol.name in FORMAT_INDEPENDENT and not bsym.ordered
        value = self._value if is_independent else self._restore
        args, kwargs = replace_leaves((bsym.args, dict(bsym.kwargs)), value)
        if is_convolution(bsym):
            args, kwargs = self._with_channels_last(args, kwargs)
        output, bsyms = self._record(bsym.symbol.target, args, kwargs)
        self._bind(bsym.output, output)
        self.bsyms += bsyms

    def _with_channels_last(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the arguments of a convolution with its input in the format `channels_last`."""
        x = args[0] if args else kwargs["input"]
        if not self._recorder.proxy_of(x).is_channels_last:
            x = self._copy(x, may_change=bool(self._written), memory_format=torch.channels_last)
        return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "input": x})

    def _copy(self, value: torch.Tensor, *, may_change: bool, **options: Any) -> torch.Tensor:
        """Return a copy of a tensor in another format; reuse an earlier copy unless the tensor may have changed.

        Views of a tensor that the program returns next to the tensor share memory with the same copy.
        """
        key = (self._recorder.proxy_of(value).name, *options.values())
        if key not in self._copies_by_name or may_change:
            self._copies += 1
            self._copies_by_name[key], bsyms = self._record(torch.Tensor.contiguous, (value,), options)
            self.bsyms += bsyms
        return self._copies_by_name[key]

    def _restore(self, leaf: object) -> Any:
        """Return the value of a proxy with the proxy's strides, except those of dimensions of size 1."""
        value = self._value(leaf)
        if not isinstance(leaf, TensorProxy) or has_strides_of(self._recorder.proxy_of(value), leaf):
            return value
        value = self._copy(value, may_change=leaf.name in self._written)
        if not has_strides_of(self._recorder.proxy_of(value), leaf):
            raise OtherStrides
        return value

    def _restore_exactly(self, leaf: object) -> Any:
        """Return the value of a proxy with exactly the proxy's strides."""
        value = self._restore(leaf)
        if not isinstance(leaf, TensorProxy):
            return value
        if expressions(self._recorder.proxy_of(value).stride) != expressions(leaf.stride):
            value, bsyms = self._record(torch.as_strided, (value, leaf.shape, leaf.stride), {})
            self.bsyms += bsyms
        return value


def has_strides_of(proxy: Proxy, reference: TensorProxy) -> bool:
    """Whether a tensor has the strides of `reference`, a tensor of the same shape, ignoring dimensions of size 1."""
    if not isinstance(proxy, TensorProxy):
        return False
    pairs = zip(expressions(reference.shape), expressions(proxy.stride), expressions(reference.stride), strict=True)
    return all(size == 1 or stride == former for size, stride, former in pairs)
