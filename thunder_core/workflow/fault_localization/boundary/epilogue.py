"""The epilogue: whether what a program returns, and leaves behind, is what its computation has given it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.backend.claiming.comparison import largest_difference
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.validation.inside import Fault
from thunder_core.workflow.validation.leaves import ROOT, Leaves, dtype_name, leaves_of
from thunder_core.workflow.validation.report import AFTER_CALL

ANOTHER = "`{path}` is `{ours}`, but eager PyTorch has the value of `{right}` there"
DIFFERENT = "`{path}` is {ours}, but {theirs} in eager PyTorch"
OTHER_VALUES = "`{}` has other values than in eager PyTorch"
UNWRITTEN = "`{path}` is the tensor from before the call, but a new tensor in eager PyTorch"
INPUT = "input "  # begins the paths of what inputs hold behind a call
ATTRIBUTE = "attribute "  # begins the paths of what a returned dict has among its attributes
MUCH_NEARER = 10.0  # times nearer is the result that belongs to a path, however much a program amplifies rounding
Child = tuple[str, Any]


@dataclass(frozen=True)
class HandedOut:
    """The output of an epilogue, what it may have written to, the computation's results, and its variables, by name."""

    output: object
    subject: object
    arguments: Mapping[str, Any]
    results: Mapping[str, Any]
    variables: Mapping[str, Any]

    def at(self, path: str) -> Any:
        """The object at a path of the output, or of the state behind the call; None where there is none."""
        root, keys = self.output, path.removesuffix(AFTER_CALL)
        if path.endswith(AFTER_CALL):
            root = self.arguments if path.startswith(INPUT) else self.subject
        if path.startswith(ATTRIBUTE):
            root = vars(self.output)
        return follow(root, without_prefix(keys).split(".") if keys not in ("", ROOT) else [])

    def owner(self, path: str) -> Any:
        """The object that holds what is at a path."""
        end = AFTER_CALL if path.endswith(AFTER_CALL) else ""
        parent, dot, _ = path.removesuffix(AFTER_CALL).rpartition(".")
        if end and not dot:
            return self.arguments if path.startswith(INPUT) else self.subject
        if path.startswith(ATTRIBUTE) and not dot:
            return self.output
        return self.at(parent + end)

    def name_of(self, value: object) -> str:
        """The name of the result that a value is; empty for none."""
        return next((name for name, result in self.results.items() if is_same(result, value)), "")

    def variables_of(self, value: object) -> list[str]:
        """The epilogue's variables that are an object."""
        return [name for name, one in self.variables.items() if value is not None and one is value]


def without_prefix(path: str) -> str:
    """The keys of a path, without the word that says where they begin."""
    return path.removeprefix(INPUT).removeprefix(ATTRIBUTE)


def returned_leaves(output: object) -> Leaves:
    """The leaves of what is returned, and of the attributes that it has besides its items."""
    found = leaves_of(output)
    if isinstance(output, Mapping) and hasattr(output, "__dict__"):
        attributes = leaves_of(vars(output))
        found.tensors |= {f"{ATTRIBUTE}{path}": tensor for path, tensor in attributes.tensors.items()}
        found.structure |= {f"{ATTRIBUTE}{path}": text for path, text in attributes.structure.items() if path}
    return found


def follow(root: Any, keys: Sequence[str]) -> Any:
    """The object at the end of a way through items and attributes; None where it leads nowhere."""
    for key in keys:
        root = next((value for name, value in children(root) if name == key), None)
    return root


def children(value: Any) -> Iterator[Child]:
    """The items and attributes of an object, by their names in paths."""
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        names = getattr(value, "_fields", range(len(value)))
        yield from ((str(name), item) for name, item in zip(names, value, strict=True))
    if isinstance(value, torch.nn.Module):
        yield from (*value._modules.items(), *value._buffers.items())
    yield from getattr(value, "__dict__", {}).items()


def misplaced_result(
    epilogue: Trace, handed_out: HandedOut, ours: Leaves, theirs: Leaves, unwritten: Iterable[str] = ()
) -> Fault | None:
    """The fault of an epilogue that hands out something else than eager PyTorch, at the first path where it does.

    `ours` and `theirs` are what is returned and left behind a call. Another value of a tensor is the epilogue's fault
    where the computation has the right one among its results; else it was computed wrongly. At the `unwritten` paths
    only eager PyTorch leaves another tensor than before.
    """
    mine, right = described(ours), described(theirs)
    for path in dict.fromkeys((*right, *mine)):
        if mine.get(path) != right.get(path):
            told = DIFFERENT.format(
                path=path or ROOT, ours=mine.get(path, "not there"), theirs=right.get(path, "not there")
            )
            return epilogue_fault(epilogue, handed_out, path, told)
        value = theirs.tensors.get(path)
        if value is None or is_close(ours.tensors[path], value):
            continue
        fitting = fitting_result(handed_out.results, ours.tensors[path], value)
        if fitting is not None:
            name = handed_out.name_of(handed_out.at(path))
            told = ANOTHER.format(path=path, ours=name or "something else", right=fitting)
            return epilogue_fault(epilogue, handed_out, path, told)
    faults = (epilogue_fault(epilogue, handed_out, path, UNWRITTEN.format(path=path)) for path in unwritten)
    return next(faults, None)


def fitting_result(results: Mapping[str, Any], ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    """The name of the result of the computation that is much nearer to a value of eager PyTorch than ours is."""
    distances = {name: distance(result, theirs) for name, result in results.items()}
    nearest = min(distances, key=lambda name: distances[name], default="")
    least = distances.get(nearest, math.inf)
    return nearest if math.isfinite(least) and least * MUCH_NEARER <= distance(ours, theirs) else None


def described(leaves: Leaves) -> dict[str, str]:
    """The types and constants by path, and the metadata of tensors."""
    tensors = {path: f"{dtype_name(tensor.dtype)}{list(tensor.shape)}" for path, tensor in leaves.tensors.items()}
    return leaves.structure | tensors


def epilogue_fault(epilogue: Trace, handed_out: HandedOut, path: str, told: str) -> Fault:
    """The fault at the line that gives a path its value, or, where none does, at the last one."""
    return Fault(
        kind="epilogue",
        by=epilogue.made_by,
        trace=epilogue.name,
        line=line_of(epilogue, handed_out, path),
        result=path or ROOT,
        difference=told,
    )


def line_of(epilogue: Trace, handed_out: HandedOut, path: str) -> str:
    """The line of an epilogue that gives a path its value: of what holds it, or else of what holds that, and so on."""
    lines = [bound_symbol_text(bsym) for bsym in epilogue.bound_symbols]
    end = AFTER_CALL if path.endswith(AFTER_CALL) else ""
    inner = path.removesuffix(AFTER_CALL)
    while True:
        owners = handed_out.variables_of(handed_out.owner(inner + end))
        own = handed_out.variables_of(handed_out.at(inner + end))
        line = writing_line(lines, owners, own, without_prefix(inner).rpartition(".")[2])
        if line or "." not in inner:
            return line or (lines[-1] if lines else str(epilogue).splitlines()[-1].strip())
        inner = inner.rpartition(".")[0]


def writing_line(lines: Sequence[str], owners: Sequence[str], own: Sequence[str], key: str) -> str:
    """The line that gives one of the owners, or what is there itself, its value under a key; empty where none does."""
    starts = (
        [start for owner in owners for start in written_as(owner, key)],
        [f"fill({name}, " for name in (*owners, *own)],
        [f"{name} = " for name in (*own, *owners)],
    )
    for group in starts:
        fitting = [line for line in lines if line.startswith(tuple(group))]
        if fitting:
            return next((line for line in fitting if f"'{key}': " in line), fitting[-1])
    return ""


def written_as(owner: str, key: str) -> Iterator[str]:
    """The beginnings of lines that write to what holds something under a key."""
    yield f"{owner}.{key} = "
    for text in (key, repr(key)):
        yield from (f"{owner}[{text}] = ", f"{owner}.__setitem__({text}, ")


def are_alike(one: object, other: object) -> bool:
    """Whether two values are tensors of one shape and dtype."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return one.shape == other.shape and one.dtype == other.dtype


def distance(one: Any, other: torch.Tensor) -> float:
    """The largest difference of a value from a tensor; infinite where the value is no tensor of its shape and dtype."""
    return largest_difference(one, other) if are_alike(one, other) else math.inf


def is_close(one: Any, other: Any) -> bool:
    """Whether two tensors of one shape and dtype have the same values but for rounding."""
    if not are_alike(one, other):
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    bound = 1e-4 if one.dtype in (torch.float32, torch.float64) else 3e-2
    left, right = (t.detach().to(torch.complex128 if t.is_complex() else torch.float64) for t in (one, other))
    scale = right.abs().nan_to_num().max() if right.numel() else 0.0
    return bool(torch.allclose(left, right, rtol=0.0, atol=float(bound * scale) + 1e-12, equal_nan=True))


def is_same(one: object, other: object) -> bool:
    """Whether two tensors lie in the same memory."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return one is other or (one.data_ptr() == other.data_ptr() and one.shape == other.shape)
