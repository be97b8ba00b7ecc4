"""The epilogue: whether what a program returns and writes is what its computation has given it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thunder_core.ir.printer import bound_symbol_text
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.validation.inside import Fault

ANOTHER = "`{path}` is {ours}, and `{right}` has the value that eager PyTorch has there"
NOTHING = "nothing is written to `{path}`, which eager PyTorch writes to"


def misplaced_results(
    epilogue: Trace, results: Mapping[str, Any], ours: Mapping[str, torch.Tensor], eager: Mapping[str, torch.Tensor]
) -> Fault | None:
    """The fault of an epilogue that hands out another result of the computation than eager PyTorch has at a path.

    `results` are those of the computation by name; `ours` and `eager` the tensors that are returned, or that state
    holds behind the call, by path.
    """
    for path, theirs in eager.items():
        mine = ours.get(path)
        if mine is not None and is_close(mine, theirs):
            continue
        right = next((name for name, value in results.items() if is_close(value, theirs)), None)
        if right is not None:
            handed_out = next((name for name, value in results.items() if is_same(value, mine)), "")
            return epilogue_fault(epilogue, path, handed_out, right)
    return None


def epilogue_fault(epilogue: Trace, path: str, handed_out: str, right: str) -> Fault:
    """The fault at the line that uses the wrong result, or, where none does, at the last one."""
    last = path.replace(" after the call", "").rpartition(".")[2]
    ranked = sorted(epilogue.bound_symbols, key=lambda bsym: -score(bsym, last, handed_out))
    told = f"`{handed_out}`" if handed_out else "something else"
    return Fault(
        kind="epilogue",
        by=epilogue.made_by,
        trace=epilogue.name,
        line=bound_symbol_text(ranked[0]) if ranked else str(epilogue).splitlines()[-1].strip(),
        result=path,
        difference=ANOTHER.format(path=path, ours=told, right=right),
    )


def score(bsym: BoundSymbol, key: str, name: str) -> int:
    """The rank of a line by how much it has to do with a key and a name."""
    text = bound_symbol_text(bsym)
    return 2 * (f"'{key}'" in text or f".{key}" in text) + (bool(name) and name in {p.name for p in bsym.inputs})


def is_close(one: object, other: object) -> bool:
    """Whether two tensors of one shape and dtype have the same values but for rounding."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bound = 1e-4 if one.dtype in (torch.float32, torch.float64) else 3e-2
    left, right = (t.detach().to(torch.complex128 if t.is_complex() else torch.float64) for t in (one, other))
    scale = right.abs().nan_to_num().max() if right.numel() else 0.0
    return bool(torch.allclose(left, right, rtol=0.0, atol=float(bound * scale) + 1e-12, equal_nan=True))


def is_same(one: object, other: object) -> bool:
    """Whether two tensors lie in the same memory."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return one is other or (one.data_ptr() == other.data_ptr() and one.shape == other.shape)


def names_of_results(computation: Trace, results: Sequence[Any]) -> dict[str, Any]:
    """The results of a computation by the names that it returns."""
    return {getattr(proxy, "name", ""): value for proxy, value in zip(computation.output, results, strict=False)}
