"""Texts that a program makes of values which a trace does not know: read, and guarded, where it looks at them alone."""

from __future__ import annotations

import operator
import string
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import BuiltinMethodType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.format_fields import with_values
from thunder_core.frontend.acquire.lookasides.state.output import CONTAINERS, NotShownError, holds_tensors, shown
from thunder_core.frontend.acquire.outside.reductions import Dressed
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.texts import joined
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText, TextPart, parts_of_text
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.output import dressed

Parts = tuple[str | TextPart, ...]
CONVERSIONS: dict[str | None, Callable[[Any], str]] = {"r": repr, "s": str}
# Functions of C that keep a text, or ask for no more of it than its class.
KEEPING = frozenset({callable, id, isinstance, issubclass, type, operator.is_, operator.is_not})
# Functions that give the items of a container, one by one.
ITERATING = frozenset({enumerate, iter, len, next, reversed, zip})
OPERATORS = operator.add.__self__  # type: ignore[attr-defined]  # the module of C
PRINTING = torch._tensor_str.PRINT_OPTS
APPENDING = frozenset({"append", "insert", "appendleft"})
# Iterables whose items are taken before they are joined.
LISTED = (deque, *(type(getattr({}, name)()) for name in ("keys", "values", "items")), type(iter([])), type(iter(())))
# Words of the errors that C raises where it wants a `str` and gets something else.
TEXTS_IN_ERRORS = (SymbolicText.__name__, "str", " text")


class NeedsTexts(Exception):
    """The program changes how tensors are printed, so that its texts have to be read where they are made."""


class Texts:
    """The texts of one acquisition; `any_symbolic` once there is one with values that the trace does not know.

    Where they are `read_at_once`, there is none.
    """

    def __init__(self, acquisition: TracedRun) -> None:
        self.any_symbolic = False
        self.read_at_once = False
        self._are_refused = False
        self._acquisition = acquisition

    # ---- how texts come about -----------------------------------------------------------------------------------

    def part(self, function: Callable[..., str], value: Any, *rest: Any) -> SymbolicText | None:
        """The text that a function gives of a value which the trace does not know; None of any other value.

        None as well where the function refuses the value, or its text cannot be made anew at a later call.
        """
        if type(value) is SymbolicText:
            return value if function in (format, str) and not any(rest) else None
        if function is ascii or not self.is_unknown(value) or not is_known_format(value, *rest):
            return None
        try:
            kept = shown(self._acquisition, value, {})
        except NotShownError:
            return None
        return self._text((TextPart(function, (kept, *rest)),))

    def joined(self, texts: Iterable[Any]) -> Any:
        """Texts one behind the other."""
        parts: list[Any] = [part for text in texts for part in parts_of_text(text) or (None,)]
        if any(part is None for part in parts):
            return None
        return self._text(tuple(parts)) if any(isinstance(part, TextPart) for part in parts) else "".join(parts)

    def formatted(self, template: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`template.format(*args, **kwargs)`; None where that is left to C."""
        fields = list(string.Formatter().parse(template))
        named = {name for _, name, _, _ in fields}
        names = [str(place) for place, (_, name, _, _) in enumerate(one for one in fields if one[1] is not None)]
        given = {**dict(zip(map(str, range(len(args))), args, strict=False)), **kwargs}
        texts: list[Any] = []
        for before, name, specification, conversion in fields:
            texts.append(before)
            if name is not None:
                key = name or names.pop(0)
                if (name[:1].isdigit() and "" in named) or key not in given or "{" in (specification or ""):
                    return None
                texts.append(self._field(given[key], specification or "", conversion))
        return None if any(text is None for text in texts) else self.joined(texts)

    def interpolated(self, template: str, values: Any) -> Any:
        """`template % values`, of texts alone (`%s`, `%r`, `%%`); None where that is left to C."""
        values = values if type(values) is tuple else (values,)
        pieces = template.replace("%%", "\0").split("%")
        if len(pieces) != len(values) + 1 or any(piece[:1] not in ("s", "r") for piece in pieces[1:]):
            return None
        texts: list[Any] = [pieces[0]]
        for piece, value in zip(pieces[1:], values, strict=True):
            texts += [self._field(value, "", piece[0]), piece[1:]]
        if any(text is None for text in texts):
            return None
        return self.joined(text.replace("\0", "%") if type(text) is str else text for text in texts)

    def _field(self, value: Any, specification: str, conversion: str | None) -> Any:
        """The text of a field of a template; None where that is left to C."""
        machine = self._acquisition.machine
        if conversion is None:
            return machine.call(format, value, specification)
        if conversion not in CONVERSIONS or specification:
            return None
        return machine.call(CONVERSIONS[conversion], value)

    def _text(self, parts: Parts) -> SymbolicText:
        self.any_symbolic = True
        return SymbolicText(parts, lambda part: self._acquisition.machine.entered(self._read, part))

    def is_unknown(self, value: Any) -> bool:
        """Whether the trace does not know what a value's text is, and could make it anew."""
        if self.read_at_once or type(value) is SymbolicText:
            return not self.read_at_once
        if type(value) in (torch.Tensor, FakeTensor):
            return not self._acquisition.recorder.levels.depth
        known = not isinstance(value, SymbolicNumber) and type(value) not in CONTAINERS
        return not known and holds_tensors(value, set()) and not self._acquisition.recorder.levels.depth

    # ---- how texts are read -------------------------------------------------------------------------------------

    def _read(self, part: TextPart) -> str:
        """The text of a part in this call, which is guarded."""
        value, *rest = replace_leaves(part.arguments, lambda leaf: self._value(part.function, leaf))
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return part.function(value, *rest)

    def _value(self, function: Callable[..., str], leaf: Any) -> Any:
        """A value of this call that a text was made of."""
        if isinstance(leaf, SymbolicNumber):
            return leaf.concretize()
        asked = torch.Tensor.__format__ if function is format else torch.Tensor.__repr__
        data = self._acquisition.recorder.data
        if type(leaf) is Dressed:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return dressed(data.values(asked, leaf.values), leaf.kind, leaf.node)
        return data.values(asked, leaf) if isinstance(leaf, torch.Tensor) else leaf

    # ---- what is asked of texts ---------------------------------------------------------------------------------

    def made_by(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """The text that an operation gives, where it is made of what the trace does not know; else None."""
        make = OPERATIONS.get(function)
        return self.part(function, *operands) if make is None else make(self, operands)

    def met_refusal(self, error: TypeError) -> None:
        """Take note of an error of C's that may be about a symbolic text, which is no `str` to C."""
        self._are_refused |= any(word in str(error) for word in TEXTS_IN_ERRORS)

    def require_lasting(self) -> None:
        """Raise `NeedsTexts` where a text may be made anew by other settings than those that it was made by.

        It is raised as well where C has refused one.
        """
        effects = self._acquisition.outside.effects.effects
        if self._are_refused:
            raise NeedsTexts
        if self.any_symbolic and any(effect.owner is not None and effect.owner.value is PRINTING for effect in effects):
            raise NeedsTexts

    def listed(self, iterable: Any) -> list[Any]:
        """The items of an iterable of C's."""
        items: list[Any] = self._acquisition.machine.call(list, iterable)
        return items

    def with_values(self, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A template and the values of its fields, where these lead to attributes or items; else None."""
        return with_values(self._acquisition.machine, template, args, kwargs)

    def see(self, arguments: Any) -> None:
        """Guard the items of containers that C code is about to see."""
        self._acquisition.outside.expand_whole(arguments)

    def natively(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a function of C."""
        return self._acquisition.machine.natively(function, args, kwargs)

    def for_native(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a function of C with the texts of this call; what only keeps them gets them as they are."""
        if function is operator.setitem:
            return (args[0], *known((args[1],)), *args[2:]), kwargs
        if is_keeping(function):
            return args, kwargs
        if is_looking_at_items(function):
            return known(args), kwargs
        return plain(tuple(args), set()), plain(dict(kwargs), set())


def _concatenated(texts: Texts, operands: tuple[Any, ...]) -> Any:
    """Texts one behind the other, of which one is symbolic."""
    return texts.joined(operands) if any(type(operand) is SymbolicText for operand in operands) else None


def _interpolated(texts: Texts, operands: tuple[Any, ...]) -> Any:
    """`template % values`."""
    template, values = operands
    return texts.interpolated(template, values) if type(template) is str else None


# The operations that make a text of others; all others make one of a value.
OPERATIONS: dict[Callable[..., Any], Callable[[Texts, tuple[Any, ...]], Any]] = {
    **dict.fromkeys((operator.add, operator.iadd, joined), _concatenated),
    operator.mod: _interpolated,
}


def _format(texts: Texts, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`template.format(...)`."""
    texts.see((args, kwargs))
    template = function.__self__
    if (read := texts.with_values(template, args, kwargs)) is not None:
        template, args, kwargs = read[0], tuple(read[1]), {}
    arguments = (*args, *kwargs.values())
    text = texts.formatted(template, args, kwargs) if any(map(texts.is_unknown, arguments)) else None
    return texts.natively(template.format, args, kwargs) if text is None else text


def _format_mapping(texts: Texts, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`template.format_map(mapping)`."""
    read = None if kwargs or len(args) != 1 else texts.with_values(function.__self__, (), args[0])
    if read is None:
        return texts.natively(function, args, kwargs)
    return _format(texts, read[0].format, tuple(read[1]), {})


def _join(texts: Texts, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`separator.join(texts)`."""
    texts.see(args)
    if len(args) == 1 and texts.any_symbolic and type(args[0]) in LISTED:
        args = (texts.listed(args[0]),)
    items = args[0] if len(args) == 1 and type(args[0]) in (list, tuple) else ()
    if not any(type(item) is SymbolicText for item in items):
        return texts.natively(function, args, kwargs)
    joined = texts.joined([text for item in items for text in (function.__self__, item)][1:])
    return texts.natively(function, args, kwargs) if joined is None else joined


METHODS: dict[str, Callable[..., Any]] = {"format": _format, "format_map": _format_mapping, "join": _join}


def method_of_text(acquisition: TracedRun, function: Any) -> Callable[..., Any] | None:
    """The stand-in of `format` and `join` of a text; None for all else."""
    if type(function) is not BuiltinMethodType or type(function.__self__) is not str:
        return None
    make = METHODS.get(function.__name__)
    return None if make is None else lambda *args, **kwargs: make(acquisition.texts, function, args, kwargs)


def is_known_format(value: Any, specification: Any = "") -> bool:
    """Whether a value can be formatted by a specification, whatever number it turns out to be."""
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


def kind_of_item(value: Any) -> type | None:
    """The class of the number that a tensor without dimensions holds; None for all else."""
    if not isinstance(value, torch.Tensor) or value.dim():
        return None
    if value.is_complex() or value.is_floating_point():
        return complex if value.is_complex() else float
    return bool if value.dtype is torch.bool else int


def is_keeping(function: Any) -> bool:
    """Whether a function keeps a text, asks for no more than its class, or is one of ours, which knows of texts."""
    if str(getattr(function, "__module__", "")).startswith("thunder_core."):
        return True
    if isinstance(function, type):
        return function is type or issubclass(function, BaseException)
    owner = getattr(function, "__self__", None)
    return is_in(function, KEEPING) or (isinstance(owner, list | deque) and function.__name__ in APPENDING)


def is_looking_at_items(function: Any) -> bool:
    """Whether a function of C takes the items of a container as objects, which it asks by their own methods."""
    owner = getattr(function, "__self__", None)
    return (
        owner is OPERATORS or isinstance(owner, CONTAINERS) or is_in(function, CONTAINERS) or is_in(function, ITERATING)
    )


def is_in(function: Any, functions: Collection[Any]) -> bool:
    """Whether a function is one of these; it may be an object without a hash."""
    return any(function is one for one in functions)


def known(values: Any) -> tuple[Any, ...]:
    """Values with the texts of this call in place of those among them."""
    return tuple(value.handed_over() if type(value) is SymbolicText else value for value in values)


def plain(tree: Any, seen: set[int]) -> Any:
    """A tree with the texts of this call; its lists and dicts stay what they are, and hold these from now on."""
    if type(tree) is SymbolicText:
        return tree.handed_over()
    if type(tree) is tuple:
        items = [plain(item, seen) for item in tree]
        return tree if all(map(operator.is_, items, tree)) else tuple(items)
    if isinstance(tree, BaseException):
        tree.args = plain(tree.args, seen)
    if type(tree) in (list, dict) and id(tree) not in seen:
        seen.add(id(tree))
        for key, item in list(tree.items() if type(tree) is dict else enumerate(tree)):
            if (read := plain(item, seen)) is not item:
                tree[key] = read
    return tree
