"""Strings that depend on values unknown in the trace.

A string is evaluated and guarded only if the program reads it.
"""

from __future__ import annotations

import operator
import re
import string
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import BuiltinMethodType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.format_fields import with_values
from thunder_core.frontend.acquire.outside.reductions import TensorToPrint
from thunder_core.frontend.acquire.run.output_copies import CONTAINERS, NotShownError, contains_tensors, copy_for_output
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.frontend.interpreter.texts import concatenate
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText, TextPart, parts_of_text
from thunder_core.tracing.ir.retrace import NeedsTexts, Retrace
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.output import tensor_to_print

Parts = tuple[str | TextPart, ...]
CONVERSIONS: dict[str | None, Callable[[Any], str]] = {"r": repr, "s": str}
# C functions that store a text, or that read only its class or identity.
STORING_FUNCTIONS = frozenset({callable, id, isinstance, issubclass, type, operator.is_, operator.is_not})
# Functions that return the items of a container one by one.
ITERATING_FUNCTIONS = frozenset({enumerate, iter, len, next, reversed, zip})
OPERATORS = operator.add.__self__  # type: ignore[attr-defined]  # the C module
PRINT_OPTIONS = torch._tensor_str.PRINT_OPTS
APPENDING_METHODS = frozenset({"append", "insert", "appendleft"})
# Classes of iterables whose items are put into a list before they are joined.
COLLECTED_ITERABLES = (
    deque,
    *(type(getattr({}, name)()) for name in ("keys", "values", "items")),
    type(iter([])),
    type(iter(())),
)
# Parts of the messages of errors that C code raises if it receives a symbolic text in place of a `str`.
TEXTS_IN_ERRORS = (SymbolicText.__name__, "str", " text")


class Texts:
    """The texts of one run.

    `has_symbolic` is set if the program has made a symbolic text. If `read_at_once` is set, strings are evaluated when
    they are made, and no text is symbolic.
    """

    def __init__(self, run: TracedRun, *, read_at_once: bool) -> None:
        self.has_symbolic = False
        self.read_at_once = read_at_once
        self._has_refused_text = False
        self._run = run

    # ---- creation of texts -------------------------------------------------------------------------------------------

    def part(self, function: Callable[..., str], value: object, *rest: Any) -> SymbolicText | None:
        """Return the symbolic text of `function(value, *rest)`, such as `str(tensor)` or `format(number, ".2f")`.

        Return None if the value is known, if the format may be invalid for it, or if a later call cannot recompute the
        text.
        """
        if type(value) is SymbolicText:
            return value if function in (format, str) and not any(rest) else None
        if function is ascii or not self.is_unknown(value) or not is_known_format(value, *rest):
            return None
        try:
            copy = copy_for_output(self._run, value, {})
        except NotShownError:
            return None
        return self._make_text((TextPart(function, (copy, *rest)),))

    def join(self, texts: Iterable[Any]) -> SymbolicText | str | None:
        """Return the concatenation of texts; None if an item is not a text."""
        parts: list[Any] = [part for text in texts for part in parts_of_text(text) or (None,)]
        if any(part is None for part in parts):
            return None
        return self._make_text(tuple(parts)) if any(isinstance(part, TextPart) for part in parts) else "".join(parts)

    def format(self, template: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return `template.format(*args, **kwargs)`; None if C code must format the template."""
        fields = list(string.Formatter().parse(template))
        named = {name for _, name, _, _ in fields}
        names = [str(index) for index in range(sum(name is not None for _, name, _, _ in fields))]
        arguments = {**dict(zip(map(str, range(len(args))), args, strict=False)), **kwargs}
        texts: list[Any] = []
        for before, name, specification, conversion in fields:
            texts.append(before)
            if name is not None:
                key = name or names.pop(0)
                if (name[:1].isdigit() and "" in named) or key not in arguments or "{" in (specification or ""):
                    return None
                texts.append(self._text_of_field(arguments[key], specification or "", conversion))
        return None if any(text is None for text in texts) else self.join(texts)

    def interpolate(self, template: str, values: object) -> Any:
        """Return `template % values` if all fields are `%s`, `%r` or `%%`; None if C code must format the template."""
        values = values if type(values) is tuple else (values,)
        pieces = re.split("%([%sr])", template)
        plain, conversions = pieces[::2], pieces[1::2]
        if any("%" in text for text in plain) or len(conversions) - conversions.count("%") != len(values):
            return None
        remaining = iter(values)
        fields = ["%" if kind == "%" else self._text_of_field(next(remaining), "", kind) for kind in conversions]
        texts = [text for pair in zip(plain, (*fields, ""), strict=True) for text in pair]
        return None if any(text is None for text in texts) else self.join(texts)

    def _text_of_field(self, value: object, specification: str, conversion: str | None) -> Any:
        """Return the text of a template's field; None if C code must format the field."""
        machine = self._run.machine
        if conversion is None:
            return machine.call(format, value, specification)
        if conversion not in CONVERSIONS or specification:
            return None
        return machine.call(CONVERSIONS[conversion], value)

    def _make_text(self, parts: Parts) -> SymbolicText:
        self.has_symbolic = True
        return SymbolicText(parts, lambda part: self._run.machine.call_from_c(self._guarded_text, part))

    def is_unknown(self, value: object) -> bool:
        """Whether the text of a value is unknown in the trace, and can be recomputed at each call."""
        if self.read_at_once or type(value) is SymbolicText:
            return not self.read_at_once
        if type(value) in (torch.Tensor, FakeTensor):
            return not self._run.recorder.levels.depth
        with_strings = not issubclass(type(value), SymbolicNumber) and type(value) not in CONTAINERS
        return not with_strings and contains_tensors(value, set()) and not self._run.recorder.levels.depth

    # ---- values of texts ------------------------------------------------------------------------------------------

    def _guarded_text(self, part: TextPart) -> str:
        """Return the text of a part in this call, and guard it."""
        value, *rest = replace_leaves(part.arguments, lambda leaf: self._guarded_value(part.function, leaf))
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return part.function(value, *rest)

    def _guarded_value(self, function: Callable[..., str], leaf: object) -> Any:
        """Return the value of a text's argument in this call. The value is guarded."""
        if isinstance(leaf, SymbolicNumber):
            return leaf.concretize()
        method = torch.Tensor.__format__ if function is format else torch.Tensor.__repr__
        data = self._run.recorder.data
        if type(leaf) is TensorToPrint:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return tensor_to_print(data.values(method, leaf.values), leaf.kind, leaf.node)
        return data.values(method, leaf) if isinstance(leaf, torch.Tensor) else leaf

    # ---- operations on texts ------------------------------------------------------------------------------------

    def text_of_call(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return the symbolic text that an operation returns; None for other operations and values."""
        make = OPERATIONS.get(function)
        return self.part(function, *operands) if make is None else make(self, operands)

    def note_refusal(self, error: TypeError) -> None:
        """Note an error that C code may have raised because it received a symbolic text in place of a `str`."""
        self._has_refused_text |= any(word in str(error) for word in TEXTS_IN_ERRORS)

    def require_reusable_texts(self) -> None:
        """Raise `Retrace` if texts must be evaluated when they are made.

        That is so if C code has refused a symbolic text, or if the program makes symbolic texts and changes the print
        options of PyTorch: a later evaluation may find other options.
        """
        effects = self._run.outside.effects.effects
        if self._has_refused_text:
            raise Retrace(NeedsTexts())
        if self.has_symbolic and any(
            effect.owner is not None and effect.owner.value is PRINT_OPTIONS for effect in effects
        ):
            raise Retrace(NeedsTexts())

    def items_of(self, iterable: object) -> list[Any]:
        """Return the items of an iterable."""
        items: list[Any] = self._run.machine.call(list, iterable)
        return items

    def with_values(self, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a template and the values of its fields, if fields read attributes or items; otherwise None."""
        return with_values(self._run.machine, template, args, kwargs)

    def guard_contents(self, arguments: object) -> None:
        """Guard the items of containers that C code is about to read."""
        self._run.outside.expand_whole(arguments)

    def call_natively(self, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a C function."""
        return self._run.machine.call_unreported(function, args, kwargs)

    def arguments_for_c(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of a C function with the texts of this call.

        Functions that only store texts receive the symbolic texts.
        """
        if function is operator.setitem:
            return (args[0], *with_strings((args[1],)), *args[2:]), kwargs
        if accepts_text(function):
            return args, kwargs
        if accepts_items(function):
            return with_strings(args), kwargs
        return with_plain_strings(tuple(args), set()), with_plain_strings(dict(kwargs), set())


def _concatenate(texts: Texts, operands: tuple[Any, ...]) -> Any:
    """Return the concatenation of texts; None if no text is symbolic."""
    return texts.join(operands) if SymbolicText in map(type, operands) else None


def _interpolate(texts: Texts, operands: tuple[Any, ...]) -> Any:
    """Return `template % values`."""
    template, values = operands
    return texts.interpolate(template, values) if type(template) is str else None


# Operations on several operands. All other operations make a text from one value.
OPERATIONS: dict[Callable[..., Any], Callable[[Texts, tuple[Any, ...]], Any]] = {
    **dict.fromkeys((operator.add, operator.iadd, concatenate), _concatenate),
    operator.mod: _interpolate,
}


def _format(texts: Texts, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `template.format(...)`."""
    texts.guard_contents((args, kwargs))
    template = function.__self__
    if (read := texts.with_values(template, args, kwargs)) is not None:
        template, args, kwargs = read[0], tuple(read[1]), {}
    arguments = (*args, *kwargs.values())
    text = texts.format(template, args, kwargs) if any(map(texts.is_unknown, arguments)) else None
    return texts.call_natively(template.format, args, kwargs) if text is None else text


def _format_mapping(texts: Texts, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `template.format_map(mapping)`."""
    read = None if kwargs or len(args) != 1 else texts.with_values(function.__self__, (), args[0])
    if read is None:
        return texts.call_natively(function, args, kwargs)
    return _format(texts, read[0].format, tuple(read[1]), {})


def _join(texts: Texts, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `separator.join(texts)`."""
    texts.guard_contents(args)
    if len(args) == 1 and texts.has_symbolic and type(args[0]) in COLLECTED_ITERABLES:
        args = (texts.items_of(args[0]),)
    items = args[0] if len(args) == 1 and type(args[0]) in (list, tuple) else ()
    if not any(type(item) is SymbolicText for item in items):
        return texts.call_natively(function, args, kwargs)
    joined = texts.join([text for item in items for text in (function.__self__, item)][1:])
    return texts.call_natively(function, args, kwargs) if joined is None else joined


METHODS: dict[str, Callable[..., Any]] = {"format": _format, "format_map": _format_mapping, "join": _join}


def method_of_text(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `format`, `format_map` and `join` of a string."""
    if type(function) is not BuiltinMethodType or type(function.__self__) is not str:
        return NOT_TAKEN
    make = METHODS.get(function.__name__)
    return NOT_TAKEN if make is None else make(run.texts, function, args, kwargs)


def is_known_format(value: object, specification: object = "") -> bool:
    """Whether a format specification is valid for each possible value of a symbolic number or a 0-d tensor."""
    if not specification:
        return True
    kind = value.kind if isinstance(value, SymbolicNumber) else kind_of_item(value)
    if kind is None or type(specification) is not str or specification[-1] in "cn":
        return False
    try:
        format(kind(), specification)
    except (ValueError, TypeError):
        return False
    return True


def kind_of_item(value: object) -> type | None:
    """Return the class of the number in a zero-dimensional tensor; None for other values."""
    if not isinstance(value, torch.Tensor) or value.dim():
        return None
    if value.is_complex() or value.is_floating_point():
        return complex if value.is_complex() else float
    return bool if value.dtype is torch.bool else int


def accepts_text(function: Any) -> bool:
    """Whether a function accepts symbolic texts: it only stores texts or reads their class, or belongs to Thunder."""
    if str(callable_attribute(function, "__module__", "")).startswith("thunder_core."):
        return True
    if isinstance(function, type):
        return function is type or issubclass(function, BaseException)
    owner = callable_attribute(function, "__self__")
    return is_in(function, STORING_FUNCTIONS) or (
        isinstance(owner, list | deque) and function.__name__ in APPENDING_METHODS
    )


def accepts_items(function: object) -> bool:
    """Whether a C function accepts containers of symbolic texts, because it only calls methods of the items."""
    owner = callable_attribute(function, "__self__")
    return (
        owner is OPERATORS
        or isinstance(owner, CONTAINERS)
        or is_in(function, CONTAINERS)
        or is_in(function, ITERATING_FUNCTIONS)
    )


def is_in(function: object, functions: Collection[Any]) -> bool:
    """Whether a function is one of these, compared by identity because it may be unhashable."""
    return any(function is known_function for known_function in functions)


def with_strings(values: Any) -> tuple[Any, ...]:
    """Return values with symbolic texts replaced by strings."""
    return tuple(value.text_for_c() if type(value) is SymbolicText else value for value in values)


def with_plain_strings(tree: Any, seen: set[int]) -> Any:
    """Return a tree with symbolic texts replaced by strings. Lists, dicts and exceptions are changed in place."""
    if type(tree) is SymbolicText:
        return tree.text_for_c()
    if type(tree) is tuple:
        items = [with_plain_strings(item, seen) for item in tree]
        return tree if all(map(operator.is_, items, tree)) else tuple(items)
    if isinstance(tree, BaseException):
        tree.args = with_plain_strings(tree.args, seen)
    if type(tree) in (list, dict) and id(tree) not in seen:
        seen.add(id(tree))
        for key, item in list(tree.items() if type(tree) is dict else enumerate(tree)):
            if (read := with_plain_strings(item, seen)) is not item:
                tree[key] = read
    return tree
