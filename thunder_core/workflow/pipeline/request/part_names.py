"""Names of parts of recipes in the notation of users, resolved without PyTorch and without running their code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption, UnknownName
from thunder_core.foundation.similar_names import unknown_name
from thunder_core.foundation.storage.plain_file import fault_of_file

AUTO = "auto"  # the name that selects a recipe automatically
FILE_SUFFIX = ".py"  # the suffix of a recipe in a file, which is named by its path
FORMAT_FIX = "write a name, or a name with options: Autocast(dtype=torch.float16)"


def recipe_names(text: str) -> tuple[str, ...]:
    """Return the names of recipes that are joined by `+`; the path of a file is one name."""
    return (text,) if FILE_SUFFIX in text else tuple(name.strip() for name in text.split("+"))


def require_recipe_name(text: str) -> None:
    """Raise the errors of `plugins.require` for the names in a text, and `UnknownName` for a missing file."""
    for name in recipe_names(text):
        if FILE_SUFFIX in name:
            recipe_file(name)
        elif name != AUTO:
            plugins.require("recipes", name)


def require_executor_name(name: str) -> None:
    """Raise `UnknownName` for an executor that does not exist, and for a missing file."""
    if FILE_SUFFIX in name:
        file_and_name(name, "an executor")
    else:
        plugins.source_of("executors", name)


def recipe_file(location: str) -> tuple[Path, str]:
    """Return the file of `path/to/file.py:Name`, and the name of the class, or an empty name."""
    return file_and_name(location, "a recipe")


def file_and_name(location: str, what: str) -> tuple[Path, str]:
    """Return the file of `path/to/file.py:Name`, and the name in it, which may be empty; raise `UnknownName`."""
    stem, _, kind = location.rpartition(FILE_SUFFIX)
    path = Path(stem + FILE_SUFFIX).expanduser()
    fault = fault_of_file(path)
    if fault or (kind and not kind.startswith(":")):
        raise UnknownName(
            f"{path} {fault}" if fault else f"there is no file {location} with {what}",
            fix="name a file that exists: path/to/file.py, or path/to/file.py:Name if the file has several",
        )
    return path, kind.removeprefix(":")


def require_transform_name(text: str) -> None:
    """Raise `BadOption` for a text that names no transform, and `UnknownName` for a name that does not exist."""
    name, _ = parse_call(text)
    module_of_transform(name)


def parse_call(text: str) -> tuple[str, Mapping[str, ast.expr]]:
    """Return the name and the options of `Name` or `Name(option=value)`; raise `BadOption` for anything else."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        node = ast.Constant(None)
    called = node.func if isinstance(node, ast.Call) else node
    keywords = node.keywords if isinstance(node, ast.Call) else []
    positional = node.args if isinstance(node, ast.Call) else []
    named = {keyword.arg: keyword.value for keyword in keywords if keyword.arg is not None}
    if not isinstance(called, ast.Name) or positional or len(named) < len(keywords):
        raise BadOption(f"{text!r:.80} is not the name of a transform", fix=FORMAT_FIX)
    return called.id, named


def module_of_transform(name: str) -> str:
    """Return the name of the file that defines a transform, given by its class or its file.

    Raises `UnknownName`, and `AmbiguousName` if files of several packages define a class of this name.
    """
    files = sorted(file for file, kind in transform_classes() if kind == name)
    plugins.require_one("transforms", name, files)
    if files:
        return files[0]
    try:
        plugins.source_of("transforms", name)
    except UnknownName:
        transform_names = {kind for _, kind in transform_classes()} | {*plugins.names("transforms")}
        raise unknown_name("transform", name, sorted(transform_names)) from None
    return name.replace("_", "-")


def transform_classes() -> Iterator[tuple[str, str]]:
    """Yield the names of the file and of the class of each transform."""
    yield from plugins.definitions("transforms", "Transform")
