"""The locations of a graph that Dynamo captured: the source line and the module of each line of its code."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.capture.location import GENERATED_LOCATIONS, Location

FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
RESUMED_NAME = re.compile(
    r"^torch_dynamo_resume_in_(?P<function>.+)_at_\d+$"
)  # Dynamo's name for the code after a split
MODULE = re.compile(r"^[LG]\['[^']*'\]\.?")  # the beginning of a module's path: the variable of the outermost module
TORCH_FOLDER = torch.__path__[0]


def note_source_lines(module: torch.fx.GraphModule) -> SourceLine | None:
    """Record the source lines and modules of a graph's code, and of graphs within it; return the first source line."""
    first, *_ = [note_lines_of(inner) for inner in module.modules() if isinstance(inner, torch.fx.GraphModule)]
    return first


def note_lines_of(module: torch.fx.GraphModule) -> SourceLine | None:
    """Record the source lines and modules of a graph's code; return the line of its first operation."""
    _ = module.code  # generates the code and the line numbers
    nodes = list(module.graph.nodes)
    lines: dict[int, int | None] = getattr(module, "_lineno_map", None) or {}
    start: int = getattr(module, "_prologue_start", 0)
    locations = {start + line: location_of(nodes[node]) for line, node in lines.items() if node is not None}
    filename = type(module).forward.__code__.co_filename
    GENERATED_LOCATIONS[filename] = {line: location for line, location in locations.items() if location != Location()}
    weakref.finalize(module, GENERATED_LOCATIONS.pop, filename, None).atexit = False
    operations = (location_of(node) for node in nodes if node.op not in ("placeholder", "output"))
    return next((location.source for location in operations if location.source is not None), None)


def location_of(node: torch.fx.Node) -> Location:
    """Return the source line and the module of a node."""
    frames = FRAME.finditer(node.meta.get("stack_trace") or "")
    lines = [SourceLine(frame["file"], int(frame["line"]), function_name(frame["function"])) for frame in frames]
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    return Location(users_line(lines), MODULE.sub("", modules[-1][0]) if modules else "")


def users_line(lines: Iterable[SourceLine]) -> SourceLine | None:
    """Return the innermost line that is not in PyTorch, given lines with the outermost first."""
    return next((line for line in reversed([*lines]) if not line.filename.startswith(TORCH_FOLDER)), None)


def line_of_stack(stack: Iterable[Any]) -> SourceLine | None:
    """Return the innermost line that is not in PyTorch from a stack of `traceback` frames."""
    return users_line(SourceLine(frame.filename, frame.lineno or 0, function_name(frame.name)) for frame in stack)


def function_name(name: str) -> str:
    """Return the name of a function; for Dynamo's code after a split, the name of the function that was split."""
    while (resumed := RESUMED_NAME.match(name)) is not None:
        name = resumed["function"]
    return name
