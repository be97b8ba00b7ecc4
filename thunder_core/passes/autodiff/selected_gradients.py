"""The gradient of a reduction that selects elements (`max` of a whole tensor), as in PyTorch's CPU kernels.

PyTorch's `evenly_distribute_backward` (FunctionsManual.cpp) gives each selected element an equal share of the gradient.
On the CPU, PyTorch writes the share into the selected elements. On CUDA, and on the tensors without data with which
derivatives are recorded, PyTorch multiplies the share by the mask of selected elements. The results differ if the
gradient is NaN or infinite: then the product is NaN for unselected elements, which should be zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol

aten = torch.ops.aten


def fill_selected_on_cpu(bsyms: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the bound symbols of a backward, with `where` in place of the product of a mask and an equal share."""
    makers: dict[str, BoundSymbol] = {}
    for bsym in bsyms:
        filled = replace(bsym, symbol=symbol_of(aten.where.ScalarOther), args=(*bsym.args, 0))
        yield filled if _is_product(bsym, makers) else bsym
        makers |= {proxy.name: bsym for proxy in bsym.defines}


def _is_product(bsym: BoundSymbol, makers: Mapping[str, BoundSymbol]) -> bool:
    """Whether a bound symbol multiplies a mask on the CPU by a gradient over the number of elements of the mask."""
    if bsym.symbol.target is not aten.mul.Tensor:
        return False
    mask, share = bsym.args
    if not all(isinstance(operand, TensorProxy) for operand in (mask, share)) or mask.device.type != "cpu":
        return False
    division = _maker_of(aten.div.Tensor, share, makers)
    count = None if division is None else _maker_of(aten.sum.default, division.args[1], makers)
    return _maker_of(aten.logical_or.default, mask, makers) is not None and count is not None and count.args[0] == mask


def _maker_of(operation: object, value: object, makers: Mapping[str, BoundSymbol]) -> BoundSymbol | None:
    """Return the bound symbol that made a tensor if it calls the operation; None otherwise."""
    bsym = makers.get(value.name) if isinstance(value, TensorProxy) else None
    return bsym if bsym is not None and bsym.symbol.target is operation else None
