"""The places of a graph that Dynamo captured: the user's line and module that each line of its code comes from."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.capture.place import GENERATED_PLACES, Place

FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_\d+$")  # how Dynamo calls what follows a split
MODULE = re.compile(r"^[LG]\['[^']*'\]\.?")  # begins the path of a module: the variable that holds the whole one
TORCH_FOLDER = torch.__path__[0]


def note_places(module: torch.fx.GraphModule) -> SourceLine | None:
    """Note that what is traced of a graph, and of graphs within it, comes from the user's lines; return the first."""
    first, *_ = [note_places_of(inner) for inner in module.modules() if isinstance(inner, torch.fx.GraphModule)]
    return first


def note_places_of(module: torch.fx.GraphModule) -> SourceLine | None:
    """Note that what is traced of a graph's code comes from the user's lines; return that of its first operation."""
    _ = module.code  # it is generated when it is first asked for, and the lines with it
    nodes = list(module.graph.nodes)
    lines: dict[int, int | None] = getattr(module, "_lineno_map", None) or {}
    start: int = getattr(module, "_prologue_start", 0)
    places = {start + line: place_of(nodes[node]) for line, node in lines.items() if node is not None}
    filename = type(module).forward.__code__.co_filename
    GENERATED_PLACES[filename] = {line: place for line, place in places.items() if place != Place()}
    weakref.finalize(module, GENERATED_PLACES.pop, filename, None).atexit = False
    operations = (place_of(node) for node in nodes if node.op not in ("placeholder", "output"))
    return next((place.source for place in operations if place.source is not None), None)


def place_of(node: torch.fx.Node) -> Place:
    """The user's line and module of a node."""
    frames = FRAME.finditer(node.meta.get("stack_trace") or "")
    lines = [SourceLine(one["file"], int(one["line"]), function_name(one["function"])) for one in frames]
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    return Place(users_line(lines), MODULE.sub("", modules[-1][0]) if modules else "")


def users_line(lines: Iterable[SourceLine]) -> SourceLine | None:
    """The innermost of lines, the outermost first, that is not PyTorch's own."""
    return next((line for line in reversed([*lines]) if not line.filename.startswith(TORCH_FOLDER)), None)


def line_of_stack(stack: Iterable[Any]) -> SourceLine | None:
    """The user's line of a stack of frames as `traceback` has them."""
    return users_line(SourceLine(one.filename, one.lineno or 0, function_name(one.name)) for one in stack)


def function_name(name: str) -> str:
    """The name of the user's function that a function is, or the rest of, behind a split."""
    while (resumed := RESUMED.match(name)) is not None:
        name = resumed["function"]
    return name
