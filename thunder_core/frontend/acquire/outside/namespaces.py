"""Read the stored items of namespaces and built-in containers, and the paths to these items.

The methods of the built-in classes read the items. Methods that a subclass overrides may be the user's code, and do not
run.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.ir.constants import is_constant

NESTING = (dict, list, tuple, set, frozenset, deque)
KEYED = (dict, set, frozenset)  # containers that find their items by hash


def is_loaded_module(name: object, namespace: dict[str, Any]) -> bool:
    """Whether a namespace is the `__dict__` of the imported module of this name."""
    return isinstance(name, str) and getattr(sys.modules.get(name), "__dict__", None) is namespace


def is_namespace(path: Path) -> bool:
    """Whether a path leads to the `__dict__` of a module, an object or a function."""
    return type(path.value) is dict and (path.step == "globals" or path.key == "__dict__")


def item_path(path: Path, key: object, value: object) -> Path:
    """Return the path to an item of the container at a path.

    If the container's class overrides `__getitem__`, the path reads the stored item instead.
    """
    kind = type(path.value)
    if not issubclass(kind, dict | list | tuple | deque):
        return path.item(key, value)
    is_overridden = overridden_base(path.value, "__getitem__") is not None
    return path.child("stored item", key, value) if is_overridden else path.item(key, value)


def is_plain_membership_test(container: object, key: object) -> bool:
    """Whether the container is a set, and `key in container` runs no user code of the key's class."""
    if type(container) not in (set, frozenset):
        return False
    kind = type(key)
    is_plain_class = issubclass(kind, type) and kind.__hash__ is type.__hash__ and kind.__eq__ is type.__eq__
    return is_plain_class or is_constant(key)


def is_index_into(container: object, key: object) -> bool:
    """Whether a key is a valid index of a list or tuple."""
    if not issubclass(type(container), list | tuple) or type(key) is not int:
        return False
    length = length_of(container)
    return -length <= key < length


def stored_class(container: object) -> Any:
    """Return the built-in class that stores a container's items: the container's own class, or a base of it."""
    kind = type(container)  # not isinstance, which reads the container's own `__class__`
    return next(base for base in NESTING if issubclass(kind, base))


def overridden_base(container: object, method: str) -> Any:
    """Return the class that stores a container's items if the container's class overrides the method; else None."""
    base = stored_class(container)
    return None if type_lookup(type(container), method) is getattr(base, method) else base


def items_of(container: object) -> Any:
    """Return an iterator over the stored items of a sequence or set, or the keys of a mapping.

    An `__iter__` of the container's own class does not run.
    """
    return stored_class(container).__iter__(container)


def values_of(container: Any) -> Any:
    """Return the stored values of a mapping, or an iterator over the stored items of another container."""
    return dict.values(container) if issubclass(type(container), dict) else items_of(container)


def length_of(container: object) -> int:
    """Return the number of stored items of a built-in container, bypassing a `__len__` of its own class."""
    length: int = stored_class(container).__len__(container)
    return length


# Modules whose globals are not guarded: PyTorch's own code, which uses some of them to count its active levels.
FUNCTION_TRANSFORMS = frozenset(f"torch._functorch.{name}" for name in ("apis", "eager_transforms", "utils", "vmap"))
