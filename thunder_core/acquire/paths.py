"""Paths: how a value outside the program is reached, step by step, from its arguments and globals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MODULE_TABLES = ("_parameters", "_buffers", "_modules")


class Path:
    """One step from a parent: a root, or an entry of its `__dict__`, an attribute, an item or a closure cell.

    There is one Path for each way, so paths compare by identity. `value` is what was found there while tracing;
    `alias` is a name for it that reads better than the path.
    """

    __slots__ = ("_text", "alias", "children", "key", "parent", "step", "value")

    def __init__(self, parent: Path | None, step: str, key: Any, value: Any) -> None:
        self.parent = parent
        self.step = step
        self.key = key
        self.value = value
        self.alias: str | None = None
        self._text: str | None = None
        self.children: dict[tuple[str, Any], Path] = {}

    def child(self, step: str, key: Any, value: Any) -> Path:
        """The path one step further."""
        label = (step, (type(key), key))
        if label not in self.children:
            self.children[label] = Path(self, step, key, value)
        return self.children[label]

    def entry(self, name: str, value: Any) -> Path:
        """The entry of that name in the `__dict__` of what this path leads to."""
        return self.child("entry", name, value)

    def attribute(self, name: str, value: Any) -> Path:
        """The attribute of that name, by Python's own lookup."""
        return self.child("attribute", name, value)

    def item(self, key: Any, value: Any) -> Path:
        """The item at that key or index."""
        return self.child("item", key, value)

    def keyed(self, key: Path, value: Any) -> Path:
        """The item whose key is an object that another path leads to, such as a tensor."""
        return self.child("keyed item", key, value)

    def lineage(self) -> list[Path]:
        """From the root to this path."""
        steps, step = [self], self.parent
        while step is not None:
            steps.append(step)
            step = step.parent
        return steps[::-1]

    def __str__(self) -> str:
        """As a user would write it: `module.model.layers[0].weight`."""
        if self._text is None:
            self._text = str(self.key) if self.parent is None else STEPS[self.step](self)
        return self._text


def _entry(path: Path) -> str:
    return str(path.parent) if path.key in MODULE_TABLES else f"{path.parent}.{path.key}"


def _item(path: Path) -> str:
    parent = path.parent
    if parent is not None and parent.step == "entry" and parent.key in MODULE_TABLES:
        return f"{parent}[{path.key}]" if str(path.key).isdigit() else f"{parent}.{path.key}"
    if parent is not None and parent.step == "globals":
        return f"global {path.key}" if parent.key == "?" else f"{parent}.{path.key}"
    return f"{parent}[{path.key!r}]"


STEPS: dict[str, Callable[[Path], str]] = {
    "stored item": _item,
    "keyed item": lambda path: f"{path.parent}[{path.key}]",
    "entry": _entry,
    "attribute": lambda path: str(path.parent) if path.key == "cell_contents" else f"{path.parent}.{path.key}",
    "item": _item,
    "closure": lambda path: (
        f"closure {path.key[1]} of {path.parent and getattr(path.parent.value, '__name__', path.parent)}"
    ),
}
