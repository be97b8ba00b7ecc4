"""Names that the text of earlier artifacts has for modules and functions of Thunder, and their names today."""

from __future__ import annotations

import re

LIBRARY = "thunder_core.tracing.library"
MOVED = ("objects", "output", "overlap", "states", "tracers")  # modules that are in another room by the same name
MODULES = {
    "thunder_core.tracing.ir.known": f"{LIBRARY}.tensor_guards",
    "thunder_core.tracing.ir.spent": f"{LIBRARY}.freed_graph",
    **{f"thunder_core.tracing.ir.{name}": f"{LIBRARY}.{name}" for name in MOVED},
}
FUNCTIONS = {
    "thunder_core.tracing.ir.known:known": "tensors_match",
    "thunder_core.tracing.ir.spent:spent": "with_freed_graph",
}
_MODULE = "|".join(map(re.escape, MODULES))
_NAMED = re.compile(rf"(?<![\w.])({_MODULE})(?:( import |:)(\w+))?(?!\w)")


def in_current_names(text: str) -> str:
    """The text of a trace or of its lines, by the names that this version has; what it calls itself stays as it is.

    >>> in_current_names("from thunder_core.tracing.ir.known import known")
    'from thunder_core.tracing.library.tensor_guards import tensors_match as known'
    """
    return _NAMED.sub(_as_named_before, text)


def _as_named_before(found: re.Match[str]) -> str:
    module, separator, name = found.groups()
    if separator is None:
        return MODULES[module]
    current = FUNCTIONS.get(f"{module}:{name}")
    return f"{MODULES[module]}{separator}{name if current is None else f'{current} as {name}'}"


def current_path(path: str) -> str:
    """The path `module:qualname` of an object by the names that this version has.

    >>> current_path("thunder_core.tracing.ir.objects:fill")
    'thunder_core.tracing.library.objects:fill'
    """
    module, colon, qualname = path.partition(":")
    return f"{MODULES.get(module, module)}{colon}{FUNCTIONS.get(path, qualname)}"
