"""CUDA graphs: record the CUDA operations of other executors once, and launch all of them by one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from thunder_core.backend.fusion.wrapping import WrappingExecutor
from thunder_core.tracing.extension.requirement import Cuda
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol

# Operations that make the host wait, or read host memory, cannot be recorded.
WAITING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
INDEXING = frozenset(f"torch.ops.aten.{name}" for name in ("index", "_unsafe_index", "index_put", "index_put_"))
ON_HOST = frozenset({"torch.tensor", "torch.as_tensor", "torch.from_numpy"})


@dataclass(frozen=True)
class CudaGraphs(WrappingExecutor):
    """Wraps bound symbols whose tensors are all on one GPU, whichever executor claims them."""

    after: ClassVar[tuple[str, ...]] = ("sdpa", "triton", "nvfuser", "inductor")
    symbolic_sizes: ClassVar[bool] = True
    lends: ClassVar[bool] = True
    name: str = "cudagraphs"
    wrapper: str = "thunder_executors.cudagraphs.graph.captured"
    short_name: str = "graph"

    @property
    def claims(self) -> str:
        """The operations that the executor wraps."""
        return "the operations of the other executors on CUDA, recorded as CUDA graphs: one launch for many kernels"

    def missing(self) -> str | None:
        """Return the reason why this machine cannot record graphs (it has no GPU); None if it can."""
        return Cuda().missing()

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return None: graphs are recorded where the program will run."""
        return None

    def wraps(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol runs on one GPU and does not make the host wait."""
        proxies = (*bsym.inputs, *bsym.outputs)
        devices = {proxy.device for proxy in proxies if isinstance(proxy, TensorProxy)}
        if len(devices) != 1 or next(iter(devices)).type != "cuda" or bsym.symbol.name in ON_HOST:
            return False
        return not any(map(cannot_be_recorded, bsym.at_level("aten")))


def cannot_be_recorded(operation: BoundSymbol) -> bool:
    """Whether an aten operation makes the host wait: it reads values, counts a mask, or communicates with processes."""
    if operation.communicates or (is_indexing(operation) and any(map(is_mask, operation.inputs[1:]))):
        return True
    # PyTorch tags `index`, whose result has a dynamic shape if an index is a mask.
    is_counting = any(tag in getattr(operation.symbol.target, "tags", ()) for tag in WAITING)
    return is_counting and operation.symbol.packet_name not in INDEXING


def is_indexing(operation: BoundSymbol) -> bool:
    """Whether an operation selects elements by an index tensor, or is a function without known aten operations."""
    name = operation.symbol.name
    is_opaque = name.startswith("torch.") and not name.startswith("torch.ops.")
    return operation.symbol.packet_name in INDEXING or is_opaque


def is_mask(proxy: Proxy) -> bool:
    """Whether an index tensor is a mask, whose elements are counted on the host."""
    return isinstance(proxy, TensorProxy) and proxy.dtype in (torch.bool, torch.uint8)


EXECUTOR = CudaGraphs()
