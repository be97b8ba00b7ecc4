"""The check of the epilogue: it must return, and store as state, the values that the computation returned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.backend.claiming.comparison import blocks_of, largest_difference
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.proxy import dtype_name
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.validation.internal_check import Fault
from thunder_core.workflow.validation.leaves import ROOT, Leaves, leaves_of
from thunder_core.workflow.validation.report import AFTER_CALL

DIFFERENT_VALUE = "`{path}` is `{actual}`, but eager PyTorch has the value of `{right}` there"
DIFFERENT = "`{path}` is {actual}, but {expected} in eager PyTorch"
OTHER_VALUES = "`{}` has other values than in eager PyTorch"
OLD_TENSOR = "`{path}` is the tensor from before the call, but a new tensor in eager PyTorch"
INPUT = "input "  # the prefix of paths in inputs after a call
ATTRIBUTE = "attribute "  # the prefix of paths in the attributes of a returned dict
NEARER_FACTOR = 10.0  # a result fits a path if it is this many times nearer to eager's value than the path's value
Child = tuple[str, Any]


@dataclass(frozen=True)
class EpilogueOutput:
    """An epilogue's output and variables, the objects it may have written to, and the computation's results."""

    output: object
    subject: object
    arguments: Mapping[str, Any]
    results: Mapping[str, Any]
    variables: Mapping[str, Any]

    def at(self, path: str) -> Any:
        """Return the object at a path of the output, or of the state after the call; None if there is none."""
        root, keys = self.output, path.removesuffix(AFTER_CALL)
        if path.endswith(AFTER_CALL):
            root = self.arguments if path.startswith(INPUT) else self.subject
        if path.startswith(ATTRIBUTE):
            root = vars(self.output)
        return follow(root, without_prefix(keys).split(".") if keys not in ("", ROOT) else [])

    def owner(self, path: str) -> Any:
        """Return the object that contains the object at a path."""
        end = AFTER_CALL if path.endswith(AFTER_CALL) else ""
        parent, dot, _ = path.removesuffix(AFTER_CALL).rpartition(".")
        if end and not dot:
            return self.arguments if path.startswith(INPUT) else self.subject
        if path.startswith(ATTRIBUTE) and not dot:
            return self.output
        return self.at(parent + end)

    def name_of(self, value: object) -> str:
        """Return the name of the computation's result with this value; empty if there is none."""
        return next((name for name, result in self.results.items() if is_same(result, value)), "")

    def variables_of(self, value: object) -> list[str]:
        """Return the names of the epilogue's variables that refer to an object."""
        return [name for name, variable in self.variables.items() if value is not None and variable is value]


def without_prefix(path: str) -> str:
    """Return the keys of a path without its prefix."""
    return path.removeprefix(INPUT).removeprefix(ATTRIBUTE)


def returned_leaves(output: object) -> Leaves:
    """Return the leaves of an output, and of its attributes that are not items."""
    leaves = leaves_of(output)
    if isinstance(output, Mapping) and hasattr(output, "__dict__"):
        attributes = leaves_of(vars(output))
        leaves.tensors |= {f"{ATTRIBUTE}{path}": tensor for path, tensor in attributes.tensors.items()}
        leaves.structure |= {f"{ATTRIBUTE}{path}": text for path, text in attributes.structure.items() if path}
    return leaves


def follow(root: object, keys: Sequence[str]) -> Any:
    """Return the object that keys lead to from a root; None if there is none."""
    for key in keys:
        root = next((value for name, value in children(root) if name == key), None)
    return root


def children(value: object) -> Iterator[Child]:
    """Yield the items and attributes of an object, by their names in paths."""
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        names = getattr(value, "_fields", range(len(value)))
        yield from ((str(name), item) for name, item in zip(names, value, strict=True))
    if isinstance(value, torch.nn.Module):
        yield from (*value._modules.items(), *value._buffers.items())
    yield from getattr(value, "__dict__", {}).items()


def misplaced_result(
    epilogue: Trace, epilogue_output: EpilogueOutput, actual: Leaves, expected: Leaves, unwritten: Iterable[str] = ()
) -> Fault | None:
    """Return the fault of an epilogue at the first path where a value differs from eager PyTorch's, or None.

    `actual` and `expected` are the returned values and the state after the call, of the program and of eager PyTorch. A
    wrong tensor is the epilogue's fault if the computation has the right value among its results; otherwise the
    computation is wrong. At the `unwritten` paths, eager PyTorch has a new tensor, but the program has the old one.
    """
    mine, right = describe(actual), describe(expected)
    for path in dict.fromkeys((*right, *mine)):
        if mine.get(path) != right.get(path):
            here, there = mine.get(path, "missing"), right.get(path, "missing")
            phrase = DIFFERENT.format(path=path or ROOT, actual=here, expected=there)
            return epilogue_fault(epilogue, epilogue_output, path, phrase)
        value = expected.tensors.get(path)
        if value is None or is_close(actual.tensors[path], value):
            continue
        fitting = fitting_result(epilogue_output.results, actual.tensors[path], value)
        if fitting is not None:
            name = epilogue_output.name_of(epilogue_output.at(path))
            phrase = DIFFERENT_VALUE.format(path=path, actual=name or "another value", right=fitting)
            return epilogue_fault(epilogue, epilogue_output, path, phrase)
    faults = (epilogue_fault(epilogue, epilogue_output, path, OLD_TENSOR.format(path=path)) for path in unwritten)
    return next(faults, None)


def fitting_result(results: Mapping[str, Any], actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Return the result of the computation that is much nearer to `expected` than `actual` is, or None."""
    distances = {name: distance(result, expected) for name, result in results.items()}
    nearest = min(distances, key=lambda name: distances[name], default="")
    least = distances.get(nearest, math.inf)
    return nearest if math.isfinite(least) and least * NEARER_FACTOR <= distance(actual, expected) else None


def describe(leaves: Leaves) -> dict[str, str]:
    """Return the types and constants by path, and the metadata of tensors."""
    tensors = {path: f"{dtype_name(tensor.dtype)}{list(tensor.shape)}" for path, tensor in leaves.tensors.items()}
    return leaves.structure | tensors


def epilogue_fault(epilogue: Trace, epilogue_output: EpilogueOutput, path: str, difference: str) -> Fault:
    """Return the fault at the line that sets the value at a path, or at the last line if no line does."""
    return Fault(
        kind="epilogue",
        by=epilogue.made_by,
        trace=epilogue.name,
        line=line_of(epilogue, epilogue_output, path),
        result=path or ROOT,
        difference=difference,
    )


def line_of(epilogue: Trace, epilogue_output: EpilogueOutput, path: str) -> str:
    """Return the epilogue's line that sets the value at a path, or the innermost object that contains the value."""
    lines = [bound_symbol_text(bsym) for bsym in epilogue.bound_symbols]
    end = AFTER_CALL if path.endswith(AFTER_CALL) else ""
    inner = path.removesuffix(AFTER_CALL)
    while True:
        owners = epilogue_output.variables_of(epilogue_output.owner(inner + end))
        own = epilogue_output.variables_of(epilogue_output.at(inner + end))
        line = writing_line(lines, owners, own, without_prefix(inner).rpartition(".")[2])
        if line or "." not in inner:
            return line or (lines[-1] if lines else str(epilogue).splitlines()[-1].strip())
        inner = inner.rpartition(".")[0]


def writing_line(lines: Sequence[str], owners: Sequence[str], own: Sequence[str], key: str) -> str:
    """Return the line that sets a key of one of the `owners`, or one of the variables `own`; empty if there is none."""
    starts = (
        [start for owner in owners for start in assignment_prefixes(owner, key)],
        [f"fill({name}, " for name in (*owners, *own)],
        [f"{name} = " for name in (*own, *owners)],
    )
    for group in starts:
        fitting = [line for line in lines if line.startswith(tuple(group))]
        if fitting:
            return next((line for line in fitting if f"'{key}': " in line), fitting[-1])
    return ""


def assignment_prefixes(owner: str, key: str) -> Iterator[str]:
    """Yield the possible beginnings of a line that sets a key of an owner, such as `owner.key = `."""
    yield f"{owner}.{key} = "
    for text in (key, repr(key)):
        yield from (f"{owner}[{text}] = ", f"{owner}.__setitem__({text}, ")


def are_alike(first: object, second: object) -> bool:
    """Whether two values are tensors of the same shape and dtype."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    return first.shape == second.shape and first.dtype == second.dtype


def distance(value: Any, tensor: torch.Tensor) -> float:
    """Return the largest difference of a value from a tensor; infinite if the shape or the dtype differs."""
    return largest_difference(value, tensor) if are_alike(value, tensor) else math.inf


def is_close(first: Any, second: Any) -> bool:
    """Whether two tensors of the same shape and dtype have the same values except for rounding."""
    if not are_alike(first, second):
        return False
    if not (first.is_floating_point() or first.is_complex()):
        return torch.equal(first, second)
    if torch.equal(first, second):
        return True
    bound = 1e-4 if first.dtype in (torch.float32, torch.float64) else 3e-2
    scale = max((float(block.abs().nan_to_num().max()) for (block,) in blocks_of(second)), default=0.0)
    return all(
        torch.allclose(left, right, rtol=0.0, atol=bound * scale + 1e-12, equal_nan=True)
        for left, right in blocks_of(first, second)
        if left.numel()
    )


def is_same(first: object, second: object) -> bool:
    """Whether two tensors have the same memory and shape."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    return first is second or (first.data_ptr() == second.data_ptr() and first.shape == second.shape)
