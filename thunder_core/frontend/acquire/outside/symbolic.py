"""The choice of the numbers and sizes that are symbolic in a program, because they vary between calls."""

from __future__ import annotations

import threading
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core.backend.runtime.observed_values import Number, ObservedValues
from thunder_core.foundation.options.symbolic_arguments import Bounds, EachItem, SymbolicArgument
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.retrace import MeetsSymbol, Retrace

ARGUMENTS = ("args", "kwargs")
CONSTANT_OWNERS = (torch.nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType)
MODULE_TENSORS = ("_parameters", "_buffers")
MONITORS = frozenset({"tqdm._monitor"})  # modules whose threads read no objects of the user


@dataclass(frozen=True)
class Symbolic:
    """The choice of symbolic numbers and sizes.

    Values that differ from those `observed` before are symbolic. If `arguments` is set, all arguments are. Numbers and
    sizes at the paths of `named` are symbolic too, within their ranges. Numbers and sizes at the paths of `constant`
    are never symbolic. `met_numbers` and `met_sizes` map the paths of symbolic numbers and sizes that a recording met
    to their values in its call.

    If `sizes` is set, sizes of tensors can be symbolic, and integers are expressions in symbols. Otherwise, the trace
    refers to numbers only by name. If `in_containers` is set, numbers in lists and dicts that are passed as a whole can
    be symbolic. `avoid_one_hints` and `real_hints_for` are as in `capture.sizes.SymbolicSizes`. An `oblivious`
    recording is correct for sizes of one without checking for them (`capture.all_sizes`). A recording that
    `decides_ones` checks for each size whether it is one. A `probing` recording is for constants, and ends with
    `Retrace` if anything is symbolic. If `counts` is set, all sizes and integers that are values of tensors are
    symbolic.
    """

    observed: ObservedValues = field(default_factory=ObservedValues)
    named: Mapping[str, SymbolicArgument] = field(default_factory=dict)
    constant: frozenset[str] = frozenset()
    arguments: bool = False
    sizes: bool = False
    avoid_one_hints: bool = False
    real_hints_for: frozenset[str] = frozenset()
    oblivious: bool = True
    decides_ones: bool = False
    in_containers: bool = True
    probing: bool = False
    counts: bool = False
    met_numbers: dict[str, Number] = field(default_factory=dict, compare=False)
    met_sizes: dict[str, Number] = field(default_factory=dict, compare=False)

    @property
    def may_have_symbols(self) -> bool:
        """Whether any number or size may be symbolic."""
        return self.arguments or self.observed.has_observations or bool(self.named)

    @property
    def is_requested(self) -> bool:
        """Whether the user asked for symbols, for all arguments or by names that are more than hints."""
        return self.arguments or not all(argument.is_conditional for argument in self.named.values())

    @property
    def is_constant(self) -> bool:
        """Whether a recording met no symbolic number or size."""
        return not self.met_numbers and not self.met_sizes

    def with_changes(self, **changes: Any) -> Symbolic:
        """Return the same choice for another recording, with these fields changed."""
        return replace(self, **changes, met_numbers={}, met_sizes={})

    def is_like(self, other: Symbolic) -> bool:
        """Whether another recording would use the same symbols and hints as this one.

        If only numbers are symbolic in the other recording, it is the same unless this recording met symbolic numbers.
        If only this recording avoids hints of one, the other recording is the same unless a size is one.
        """
        if other.may_have_symbols and not other.sizes:
            return not self.met_numbers
        same = replace(self, avoid_one_hints=False) == other
        return same and self.avoid_one_hints and 1 not in self.met_sizes.values()

    def includes(self, path: Path) -> bool:
        """Whether the number or size at a path is symbolic."""
        text = str(path)
        chosen = self.name_of(path) is not None or (self.arguments and is_argument(path))
        if text in self.constant or not (chosen or self.observed.differs(text, path.value)):
            return False
        (self.met_sizes if path.step in ("size", "stride") else self.met_numbers)[text] = path.value
        if self.probing:
            raise Retrace(MeetsSymbol())
        return True

    def includes_count(self, text: str, value: int) -> bool:
        """Whether a count of elements, which is a size in the program, is symbolic."""
        if not (self.counts or (self.arguments and self.sizes) or self.observed.differs(text, value)):
            return False
        self.met_sizes[text] = value
        if self.probing:
            raise Retrace(MeetsSymbol())
        return self.sizes

    def name_of(self, path: Path) -> SymbolicArgument | None:
        """Return the name of the number or size at a path. A stride with gaps has the name of a size of its tensor.

        Slices of a tensor with symbolic sizes have varying strides, such as a cropped KV cache.
        """
        tensor = path.parent
        if path.step != "stride" or not self.named or tensor is None:
            return self.named.get(str(path))
        sizes = (tensor.child("size", *pair) for pair in enumerate(tensor.value.shape))
        names = [self.named.get(str(size)) for size in sizes]
        return next(filter(None, reversed(names)), None)

    def is_new(self, path: Path) -> bool:
        """Whether the value at a path is a number that no program has been traced with."""
        is_unseen = type(path.value) in (int, float) and str(path) not in self.observed.first
        if is_unseen:
            self.met_numbers[str(path)] = path.value
        return is_unseen

    def group_of(self, path: Path) -> str | None:
        """Return the name that a number or size shares with others (such as all items of a list); otherwise None."""
        argument = self.name_of(path)
        if argument is None or EachItem() not in argument.path.items:
            return None
        return f"{argument.name}, stride {path.key}" if path.step == "stride" else argument.name

    def range_of(self, path: Path) -> Bounds:
        """Return the range that the user gave for a number or size."""
        argument = self.named.get(str(path))
        return (None, None) if argument is None else (argument.lower, argument.upper)


def is_argument(path: Path) -> bool:
    """Whether a path leads to an argument, to an item or an attribute of an argument, or to a size of its tensor."""
    root, *steps = path.lineage()
    return root.step == "root" and root.key in ARGUMENTS and all(map(_is_data, steps))


def _is_data(step: Path) -> bool:
    """Whether a step leads to data of an object: an item, a size, or an attribute of the object itself.

    Attributes of modules, classes, functions and tensors, except sizes, describe the object and are constant.
    """
    if step.step in ("item", "size"):
        return True
    owner = None if step.parent is None else step.parent.value
    if isinstance(owner, CONSTANT_OWNERS):
        return False
    is_slot = isinstance(getattr(type(owner), str(step.key), None), types.MemberDescriptorType)
    return step.step == "entry" or (step.step == "attribute" and is_slot)


def arguments_differ(observed: ObservedValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a number or size in the arguments, within Python's own containers, differs from the observed value."""
    pending: list[tuple[str, Any]] = [("args", args), ("kwargs", kwargs)]
    entered: set[int] = set()  # lists and dicts, which may contain themselves
    while pending:
        path, value = pending.pop()
        kind = type(value)
        if kind in (list, dict):
            if id(value) in entered:
                continue
            entered.add(id(value))
        if kind in (tuple, list, torch.Size):
            pending += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        elif kind is dict:
            pending += [(f"{path}[{key!r}]", item) for key, item in value.items() if type(key) is str]
        elif kind in (int, float) and observed.differs(path, value):
            return True
        elif kind is torch.Tensor:
            pending += [(f"{path}.size({dimension})", size) for dimension, size in enumerate(value.shape)]
    return False


def is_parameter(path: Path) -> bool:
    """Whether a path leads to a parameter or buffer of a module, whose sizes are constants."""
    tables = [step for step in path.lineage() if step.step == "entry" and step.key in MODULE_TENSORS]
    return bool(tables) or isinstance(path.value, torch.nn.Parameter)


CONSTANT = Symbolic()  # nothing is symbolic


def is_only_thread() -> bool:
    """Whether no other Python thread runs, which could see symbols in the user's objects during tracing."""
    return sum(type(thread).__module__ not in MONITORS for thread in threading.enumerate()) == 1
