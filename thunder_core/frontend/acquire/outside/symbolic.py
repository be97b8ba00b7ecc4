"""The choice of the numbers and sizes that are symbolic, because they vary between calls of a program."""

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
MONITOR_MODULES = frozenset({"tqdm._monitor"})  # modules of threads that read no objects of the user


@dataclass(frozen=True)
class Symbolic:
    """The choice of symbolic numbers and sizes.

    A number or size is symbolic in the following cases. In the first three, its path must not be in `constant`.

    - Its value differs from the values that were `observed` before.
    - It is in the arguments, and `arguments` is set.
    - Its path is in `named`. Its range is then that of the name.
    - It depends on tensor values (an unbacked size or integer), and `counts` is set, or `arguments` and `sizes` are.

    If `sizes` is set, sizes of tensors can be symbolic, and integers are expressions in symbols. Otherwise, the trace
    refers to numbers only by name. If `in_containers` is set, numbers in lists and dicts that C code reads as a whole
    can be symbolic. `avoid_one_hints` and `real_hints_for` are passed to `capture.symbolic.sizes.SymbolicSizes`. If
    `oblivious` is set, the program is also correct if a symbolic size is 1, and no guard tests for 1
    (`capture.symbolic.all_sizes`). If `decides_ones` is set, the recording decides for each size whether it is 1. If
    `probing` is set, the recording raises `Retrace` at its first symbolic number or size.

    `met_numbers` and `met_sizes` map the paths of symbolic numbers and sizes that a recording has met to their values.
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
        """Whether the user requested symbols: for all arguments, or by a name that is not only a hint."""
        return self.arguments or not all(argument.is_conditional for argument in self.named.values())

    @property
    def is_constant(self) -> bool:
        """Whether a recording met no symbolic number or size."""
        return not self.met_numbers and not self.met_sizes

    @property
    def description(self) -> str:
        """The choice in words."""
        if not (self.may_have_symbols or self.counts):
            return "constant numbers and sizes"
        parts = {
            "numbers in containers are constant": not self.in_containers,
            "traced with sizes other than 1": self.avoid_one_hints,
            f"traced with the call's {', '.join(sorted(self.real_hints_for))}": bool(self.real_hints_for),
            "guards for sizes of 1": self.sizes and not self.oblivious,
            "each size is known to be 1 or not": self.decides_ones,
            "sizes that depend on values of tensors are symbolic": self.counts,
            "to find out whether the program uses any": self.probing,
        }
        kind = "symbolic numbers and sizes" if self.sizes or self.probing else "symbolic numbers"
        return ", ".join([kind, *(text for text, applies in parts.items() if applies)])

    def with_changes(self, **changes: Any) -> Symbolic:
        """Return this choice with some fields changed, for another recording."""
        return replace(self, **changes, met_numbers={}, met_sizes={})

    def is_like(self, other: Symbolic) -> bool:
        """Whether a recording with the choice `other` need not be tried after this one, because it would have no other
        symbols.

        If `other` has no symbolic sizes, this is so if this recording has met no symbolic number. If the choices differ
        only in `avoid_one_hints`, this is so if no symbolic size is one.
        """
        if other.may_have_symbols and not other.sizes:
            return not self.met_numbers
        same = replace(self, avoid_one_hints=False) == other
        return same and self.avoid_one_hints and 1 not in self.met_sizes.values()

    def includes(self, path: Path) -> bool:
        """Whether the number or size at a path is symbolic; if so, record it as met.

        Raises `Retrace` if it is, and the recording is a probe.
        """
        text = str(path)
        chosen = self.name_of(path) is not None or (self.arguments and is_argument(path))
        if text in self.constant or not (chosen or self.observed.differs(text, path.value)):
            return False
        (self.met_sizes if path.step in ("size", "stride") else self.met_numbers)[text] = path.value
        if self.probing:
            raise Retrace(MeetsSymbol())
        return True

    def includes_count(self, text: str, value: int) -> bool:
        """Whether a data-dependent number, such as a number of nonzero elements, is symbolic; record it as met.

        `text` identifies it. Raises `Retrace` if it may be symbolic, and the recording is a probe.
        """
        if not (self.counts or (self.arguments and self.sizes) or self.observed.differs(text, value)):
            return False
        self.met_sizes[text] = value
        if self.probing:
            raise Retrace(MeetsSymbol())
        return self.sizes

    def name_of(self, path: Path) -> SymbolicArgument | None:
        """Return the name of the number or size at a path; None without a name.

        A stride has the name of a size of its tensor, because a slice of a tensor with symbolic sizes, such as a
        cropped KV cache, has varying strides.
        """
        tensor = path.parent
        if path.step != "stride" or not self.named or tensor is None:
            return self.named.get(str(path))
        sizes = (tensor.child("size", *pair) for pair in enumerate(tensor.value.shape))
        names = [self.named.get(str(size)) for size in sizes]
        return next(filter(None, reversed(names)), None)

    def is_new(self, path: Path) -> bool:
        """Whether no program has been traced with a number at a path; if so, record its value as met."""
        is_unseen = type(path.value) in (int, float) and str(path) not in self.observed.first
        if is_unseen:
            self.met_numbers[str(path)] = path.value
        return is_unseen

    def group_of(self, path: Path) -> str | None:
        """Return the name of the group of a number or size, such as the items of a list; None if it has no group."""
        argument = self.name_of(path)
        if argument is None or EachItem() not in argument.path.items:
            return None
        return f"{argument.name}, stride {path.key}" if path.step == "stride" else argument.name

    def range_of(self, path: Path) -> Bounds:
        """Return the range that the user gave for a number or size; `(None, None)` for no range."""
        argument = self.named.get(str(path))
        return (None, None) if argument is None else (argument.lower, argument.upper)


def is_argument(path: Path) -> bool:
    """Whether a path leads to an argument, or to an item, an attribute or a size within an argument."""
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
    """Whether a number or size in the arguments, including nested containers, differs from the observed value."""
    pending: list[tuple[str, Any]] = [("args", args), ("kwargs", kwargs)]
    entered: set[int] = set()  # identities of lists and dicts, which may contain themselves
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
    """Whether this is the only Python thread: another thread could read symbols in the user's objects while tracing."""
    return sum(type(thread).__module__ not in MONITOR_MODULES for thread in threading.enumerate()) == 1
