"""Names of recipes, executors and transforms as users write them on the command line.

The checks of names neither import PyTorch nor run the code of the named parts.
"""

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
    """Split a text such as `hf-llama+int8-dynamic` into names of recipes; the path of a file is a single name."""
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
    """Return the file of a recipe at `path/to/file.py:Name`, and the name of its class, which may be empty."""
    return file_and_name(location, "a recipe")


def file_and_name(location: str, what: str) -> tuple[Path, str]:
    """Return the file of `path/to/file.py:Name`, and the name after the colon; the name is empty if it is missing.

    Raises `UnknownName` if there is no such file; `what` says what the file should define, such as `a recipe`.
    """
    stem, _, suffix = location.rpartition(FILE_SUFFIX)
    path = Path(stem + FILE_SUFFIX).expanduser()
    fault = fault_of_file(path)
    if fault or (suffix and not suffix.startswith(":")):
        raise UnknownName(
            f"{path} {fault}" if fault else f"there is no file {location} with {what}",
            fix="name a file that exists: path/to/file.py, or path/to/file.py:Name if the file has several",
        )
    return path, suffix.removeprefix(":")


def require_transform_name(text: str) -> None:
    """Raise `BadOption` for a text other than `Name` or `Name(option=value)`, and `UnknownName` for an unknown name."""
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
    """Return the name of the file that defines a transform; `name` is the name of the transform's class or file.

    Raises `UnknownName`, and `AmbiguousName` if files of several packages define a class of this name.
    """
    files = sorted(file for file, class_name in transform_classes() if class_name == name)
    plugins.require_one("transforms", name, files)
    if files:
        return files[0]
    try:
        plugins.source_of("transforms", name)
    except UnknownName:
        transform_names = {class_name for _, class_name in transform_classes()} | {*plugins.names("transforms")}
        raise unknown_name("transform", name, sorted(transform_names)) from None
    return name.replace("_", "-")


def transform_classes() -> Iterator[tuple[str, str]]:
    """Yield for each transform the name of its file and the name of its class."""
    yield from plugins.definitions("transforms", "Transform")
