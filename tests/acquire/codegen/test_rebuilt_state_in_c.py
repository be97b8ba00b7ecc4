"""Objects that an epilogue builds again with state in C: exceptions and deques of a subclass."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

import thunder_core as thunder


class Slotted(Exception):
    __slots__ = ("code",)


class Window(deque[Any]):
    """A deque of a subclass."""


def errors(x: torch.Tensor) -> list[BaseException]:
    found: list[BaseException] = [FileNotFoundError(2, "No such file", "a.txt"), OSError(1, "a", "b", None, "c")]
    found.append(ImportError("a", name="b", path="c"))
    for action in (lambda: x.missing, lambda: undefined, lambda: __import__("no_such_module")):  # type: ignore[attr-defined, name-defined] # noqa: F821
        try:
            action()
        except Exception as error:
            found.append(error)
    slotted = Slotted("a")
    slotted.code = 5
    return [*found, slotted]


def test_exceptions_keep_their_attributes() -> None:
    names = ("filename", "filename2", "errno", "name", "path", "code")

    def described(error: BaseException) -> Any:
        return type(error), str(error), [getattr(error, name, None) for name in names]

    compiled, x = thunder.jit(errors), torch.ones(2)
    for _ in range(2):
        assert list(map(described, compiled(x))) == list(map(described, errors(x)))


def test_deque_of_subclass_keeps_maximum_length() -> None:
    compiled = thunder.jit(lambda x: Window([x, 1], maxlen=2))
    for _ in range(2):
        window = compiled(torch.ones(2))
        window.append(2)
        assert type(window) is Window
        assert (window.maxlen, list(window)) == (2, [1, 2])
