"""Words for objects in messages."""

from __future__ import annotations


def object_of_class(kind: type) -> str:
    """Return the description of an object by its class: `an object of class Linear`."""
    return f"an object of class {kind.__name__}"
