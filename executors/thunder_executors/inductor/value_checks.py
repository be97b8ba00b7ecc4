"""The value checks that Inductor drops: a region also computes whether eager PyTorch would raise an error.

Inductor accepts indices that count from the end where PyTorch does not, checks only the indices that it reads, and
checks no probabilities. A region therefore replaces invalid elements of the operands of these operations, and returns
one more result: whether any element was invalid. If so, the operations that the check needs run in eager PyTorch, which
raises its error. `RULES` has a function for each operation, which yields the operands that PyTorch checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch

from thunder_core.backend.fusion.region import Region
from thunder_core.backend.runtime.blame import operation_comment
from thunder_core.tracing.analysis.data_errors import divides_integers, second_argument
from thunder_core.tracing.analysis.named_arguments import named_arguments
from thunder_core.tracing.ir.literal import Code, Scope
from thunder_core.tracing.ir.printer import statement
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import text_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.operators import assignment
from thunder_executors.inductor.sizes import text_of_sizes

CPU = torch.device("cpu")
FLAG = TensorProxy("refused", (), (), torch.bool, CPU)  # the additional result: whether eager PyTorch would raise
CHECK = "raise_as_eager"  # the function that a region calls if the flag is set
CONTRADICTION = "a region refused tensor values that eager PyTorch accepts; please report this with the program"
Named = Mapping[str, Any]  # the arguments of a call by the names of the operator's schema


@dataclass(frozen=True)
class Operand:
    """An operand whose values PyTorch checks: the argument `name`, or its item at `position`.

    `valid` says for each element whether PyTorch accepts it, and `substitute` replaces invalid elements.
    """

    name: str
    valid: torch.Tensor
    substitute: int | None = 0
    position: int | None = None


Rule = Callable[[Named], Iterator[Operand]]


def is_in_range(low: Any, index: torch.Tensor, end: Any) -> torch.Tensor:
    """Return a mask of the elements of an index that are at least `low` and below `end`."""
    inside: torch.Tensor = (index >= low) & (index < end)
    return inside


def index_along_dimension(named: Named) -> Iterator[Operand]:
    """Yield the index along a dimension; negative elements are not valid."""
    yield Operand("index", is_in_range(0, named["index"], dimension_size(named)))


def index_along_dimension_from_both_ends(named: Named) -> Iterator[Operand]:
    """Yield the index along a dimension; negative elements count from the end."""
    size = dimension_size(named)
    yield Operand("index", is_in_range(-size, named["index"], size))


def dimension_size(named: Named) -> Any:
    """Return the size of the indexed dimension; a tensor without dimensions has one element."""
    tensor = named["self"]
    return tensor.shape[named["dim"]] if tensor.dim() else 1


def index_among_elements(named: Named) -> Iterator[Operand]:
    """Yield the index into the flattened tensor; negative elements count from the end."""
    count = named["self"].numel()
    yield Operand("index", is_in_range(-count, named["index"], count))


def indices_of_dimensions(named: Named) -> Iterator[Operand]:
    """Yield the indices of `x[i, j, ...]`, one for each dimension; negative elements count from the end."""
    dimension = 0
    for position, index in enumerate(named["indices"]):
        if index is not None and index.dtype in (torch.int64, torch.int32):
            size = named["self"].shape[dimension]
            yield Operand("indices", is_in_range(-size, index, size), position=position)
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        dimension += index.dim() if is_mask else 1


def row_indices(named: Named) -> Iterator[Operand]:
    """Yield the row indices of an embedding table."""
    yield Operand("indices", is_in_range(0, named["indices"], named["weight"].shape[0]))


def class_indices(named: Named) -> Iterator[Operand]:
    """Yield the target of a loss: each element is the number of a class, or `ignore_index`."""
    target, scores = named["target"], named["self"]
    count = scores.shape[1 if scores.dim() > 1 else 0]
    yield Operand("target", is_in_range(0, target, count) | (target == named["ignore_index"]))


def class_numbers(named: Named) -> Iterator[Operand]:
    """Yield the target of a loss: each element is the number of a class."""
    yield Operand("target", is_in_range(0, named["target"], named["self"].shape[-1]))


def output_positions(named: Named) -> Iterator[Operand]:
    """Yield the positions in the flattened output of an unpooling."""
    count = reduce(lambda left, right: left * right, named["output_size"], 1)
    yield Operand("indices", is_in_range(0, named["indices"], count))


def probabilities(named: Named) -> Iterator[Operand]:
    """Yield the input and the target of a loss of probabilities, which must be from 0 to 1, and not NaN."""
    for name in ("self", "target"):
        yield Operand(name, (named[name] >= 0) & (named[name] <= 1), substitute=None)


def divisors(named: Named) -> Iterator[Operand]:
    """Yield the divisor of integers, which must not be zero."""
    yield Operand("other", named["other"] != 0, substitute=1)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("index_select", "index_add", "index_copy", "gather"), index_along_dimension),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), index_along_dimension),
    "index_fill": index_along_dimension_from_both_ends,
    **dict.fromkeys(("take", "put"), index_among_elements),
    **dict.fromkeys(("index", "index_put"), indices_of_dimensions),
    "embedding": row_indices,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), class_indices),
    "multi_margin_loss": class_numbers,
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), output_positions),
    "binary_cross_entropy": probabilities,
    **dict.fromkeys(("div", "floor_divide", "remainder", "fmod"), divisors),
}
CHECKED: dict[Rule, tuple[str, ...]] = {
    **dict.fromkeys((index_along_dimension, index_along_dimension_from_both_ends, index_among_elements), ("index",)),
    **dict.fromkeys((indices_of_dimensions, row_indices, output_positions), ("indices",)),
    **dict.fromkeys((class_indices, class_numbers), ("target",)),
    probabilities: ("self", "target"),
    divisors: ("other",),
}  # the arguments that a rule checks
DIVISIONS = frozenset(name for name, rule in RULES.items() if rule is divisors)
# Operations that raise errors for some values of their tensors, while Inductor computes silently. They have no rule.
UNCHECKED = frozenset({"repeat_interleave"})
ASSIGNMENT = assignment.OPERATOR  # an operator that raises for NaN, and that a region would not make faster


def name_of(operation: BoundSymbol) -> str:
    """Return the name of an aten operator without its overload; empty for anything else."""
    target = operation.symbol.target
    name = target._schema.name if isinstance(target, torch._ops.OpOverload) else ""
    return name.removeprefix("aten::").removesuffix("_") if name.startswith("aten::") else ""


def rule_of(operation: BoundSymbol) -> Rule | None:
    """Return the rule of an operation that may refuse values of its tensors; None for other operations."""
    name = name_of(operation)
    rule = RULES.get(name)
    if rule is None or (name in DIVISIONS and not divides_integers(operation)):
        return None
    return rule if any(isinstance(leaf, TensorProxy) for leaf in checked_leaves(operation, rule)) else None


def is_checked(operation: BoundSymbol) -> bool:
    """Whether a region raises an error for all values for which an operation would.

    On CUDA, kernels check only the indices that they read.
    """
    name = name_of(operation)
    if name in UNCHECKED or operation.symbol.target is ASSIGNMENT:
        return False
    if name not in DIVISIONS or not divides_integers(operation):
        return name != "binary_cross_entropy" or all(proxy.device == CPU for proxy in operation.tensors)
    divisor = second_argument(operation)
    if isinstance(divisor, NumberProxy):
        return bool(divisor.value.node.expr.is_positive)
    return isinstance(divisor, TensorProxy)


def checked_leaves(operation: BoundSymbol, rule: Rule) -> Iterator[Any]:
    """Return the leaves of the arguments that a rule checks."""
    named = named_arguments(operation.symbol.target, operation.args, operation.kwargs)
    return leaves([named[name] for name in CHECKED[rule]])


def with_flag(region: Region) -> Region:
    """Return the region with the flag as a result, if it is on the CPU and has an operation that may refuse values."""
    is_on_cpu = all(proxy.device == CPU for proxy in (*region.inputs, *region.outputs))
    if not is_on_cpu or not any(map(rule_of, region.operations)):
        return region
    return replace(region, outputs=(*region.outputs, FLAG))


def has_flag(region: Region) -> bool:
    """Whether a region returns the flag."""
    return FLAG in region.outputs


@dataclass
class ValueChecks:
    """The checks of one run through a region's operations."""

    refused: list[torch.Tensor] = field(default_factory=list)

    def settle(self, operation: BoundSymbol, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return arguments that the operation cannot refuse, and record which elements it would have refused."""
        rule = rule_of(operation)
        if rule is None:
            return args, kwargs
        named = named_arguments(operation.symbol.target, args, kwargs)
        safe = dict(named)
        for operand in rule(named):
            self.refused.append(operand.valid.logical_not().any())
            if operand.substitute is not None:
                safe[operand.name] = substitute_invalid(safe[operand.name], operand, operand.substitute)
        target: Any = operation.symbol.target
        declared = [argument.name for argument in target._schema.arguments]
        return tuple(safe[name] for name in declared[: len(args)]), {name: safe[name] for name in kwargs}

    def flag(self) -> torch.Tensor:
        """Return a tensor: whether any element was invalid."""
        return reduce(torch.logical_or, self.refused) if self.refused else torch.zeros((), dtype=torch.bool)


def substitute_invalid(argument: Any, operand: Operand, substitute: int) -> Any:
    """Return an argument with invalid elements substituted."""
    if operand.position is None:
        return torch.where(operand.valid, argument, substitute)
    items = list(argument)
    items[operand.position] = torch.where(operand.valid, items[operand.position], substitute)
    return items


# ---- the source that raises eager's error -------------------------------------------------------------------------


@dataclass(frozen=True)
class EagerCheck:
    """The source of the function that raises eager's error, and the names of its arguments in the region."""

    text: str
    inputs: tuple[str, ...]


def eager_check(region: Region) -> EagerCheck:
    """Return the check: it runs in eager PyTorch the operations that may raise, and their dependencies.

    Tensors whose values do not matter are replaced by tensors of the same metadata with arbitrary values.
    """
    lines, inputs = list[str](), dict[str, None]()
    region_inputs = {proxy.name for proxy in (*region.inputs, *region.numbers)}
    scope = Scope()
    for index, operation in _needed_operations(region.operations):
        lines.append(f"{statement(_with_sizes(operation), scope)}  {operation_comment(index)}")
        inputs.update((proxy.name, None) for proxy in operation.inputs if proxy.name in region_inputs)
    if any(rule_of(operation) not in (None, probabilities) for operation in region.operations):
        lines.append(f"raise AssertionError({CONTRADICTION!r})")
    names = (*inputs, *(proxy.name for proxy in region.symbols))
    body = [f"    {line}" for line in lines]
    return EagerCheck("\n".join([f"def {CHECK}({', '.join(names)}):", *body]), names)


def _needed_operations(operations: Sequence[BoundSymbol]) -> list[tuple[int, BoundSymbol]]:
    """Return the operations of a check, with their indices.

    If the results of an operation are not needed, its unchecked arguments become stand-ins.
    """
    read, needed = set[str](), list[tuple[int, BoundSymbol]]()
    for index, operation in reversed([*enumerate(operations)]):
        rule = rule_of(operation)
        is_whole = any(proxy.name in read for proxy in operation.defines)
        if is_whole:
            read.update(proxy.name for proxy in operation.inputs)
        elif rule is not None:
            read.update(leaf.name for leaf in checked_leaves(operation, rule) if isinstance(leaf, Proxy))
        if is_whole or rule is not None:
            needed.append((index, operation if is_whole else _with_stand_ins(operation)))
    return needed[::-1]


def _with_stand_ins(operation: BoundSymbol) -> BoundSymbol:
    """Return the operation with stand-ins for all tensors whose values do not matter."""
    rule = rule_of(operation)
    assert rule is not None
    checked_names = {leaf.name for leaf in checked_leaves(operation, rule) if isinstance(leaf, Proxy)}

    def change(leaf: Any) -> Any:
        return stand_in(leaf) if isinstance(leaf, TensorProxy) and leaf.name not in checked_names else leaf

    args, kwargs = replace_leaves((operation.args, dict(operation.kwargs)), change)
    return replace(operation, args=args, kwargs=kwargs)


def stand_in(proxy: TensorProxy) -> Code:
    """Return an expression for a tensor with the same metadata; the metadata decides which kernel of PyTorch raises."""
    layout = f"{text_of_sizes(proxy.shape)}, {text_of_sizes(proxy.stride)}"
    return Code(f"torch.empty_strided({layout}, dtype={proxy.dtype})")


def _with_sizes(operation: BoundSymbol) -> BoundSymbol:
    """Return the operation with its symbolic numbers replaced by their expressions."""

    def size(leaf: Any) -> Any:
        return Code(text_of(leaf.value.node.expr)) if isinstance(leaf, NumberProxy) else leaf

    args, kwargs = replace_leaves((operation.args, dict(operation.kwargs)), size)
    return replace(operation, args=args, kwargs=kwargs)
