"""Read the inputs of a transformers class from the source of its module, because an import would take seconds."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import transformers

from thunder_core.foundation import plugins
from thunder_core.workflow.models.inputs.input_names import IDS

ATTRIBUTE = "main_input_name"
DEFAULT = IDS  # the default of `PreTrainedModel`
# Bases from other modules: `PreTrainedModel` defines the attribute, the others do not.
KNOWN_BASES = frozenset(
    {"PreTrainedModel", "GenerationMixin", "ABC", "object", "nn.Module", "GenericForQuestionAnswering"}
    | {"GenericForSequenceClassification", "GenericForTokenClassification"}
)


def main_input_name(name: str) -> str:
    """Return the main input of the transformers class with this name; `input_ids` if there is no such class."""
    module = module_of(name)
    if not module:
        return DEFAULT
    if not plugins.is_loaded(module):
        main_input = main_input_in_source(module, name)
        if main_input is not None:
            return main_input
    return str(getattr(getattr(transformers, name, None), ATTRIBUTE, DEFAULT))


def forward_parameters(name: str) -> frozenset[str]:
    """Return the names of the parameters of the forward of a transformers class; empty if they are not known."""
    module = module_of(name)
    if module and not plugins.is_loaded(module):
        return parameters_in_source(module, name)
    forward = getattr(getattr(transformers, name, None), "forward", None) if module else None
    return frozenset() if forward is None else frozenset(inspect.signature(forward).parameters)


def module_of(name: str) -> str:
    """Return the module of a transformers class; empty if transformers does not list the class."""
    modules: dict[str, str] = vars(transformers).get("_class_to_module", {})
    return f"{transformers.__name__}.{modules[name]}" if name in modules else ""


def main_input_in_source(module: str, name: str) -> str | None:
    """Find the main input of a class in its source; return None if the source does not determine the input."""
    try:
        return next(values_of(name, classes_in(module)), DEFAULT)
    except LookupError:
        return None


def parameters_in_source(module: str, name: str) -> frozenset[str]:
    """Find the parameters of a class's forward in its source; return an empty set if the source has no forward."""
    with suppress(LookupError):
        for node in class_and_bases(name, classes_in(module)):
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef) and statement.name == "forward":
                    arguments = statement.args
                    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
                    return frozenset(argument.arg for argument in every)
    return frozenset()


def classes_in(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes that the source of a module defines, by name; none if there is no source."""
    path = plugins.file_of(module)
    nodes = [] if path is None else ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def class_and_bases(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """Yield a class and its bases; raise LookupError for a base that is unknown."""
    if name in KNOWN_BASES:
        return
    yield classes[name]
    for base in classes[name].bases:
        yield from class_and_bases(ast.unparse(base), classes)


def values_of(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Yield the attribute's values in a class and its bases; raise LookupError for a value or base that is unknown."""
    for node in class_and_bases(name, classes):
        for statement in node.body:
            if ATTRIBUTE in assigned_names(statement):
                value: Any = getattr(statement, "value", None)
                if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                    raise LookupError(name)
                yield value.value


def assigned_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a class body defines by an assignment, a function or a class."""
    if isinstance(statement, ast.Assign):
        return {ast.unparse(target) for target in statement.targets}
    if isinstance(statement, ast.AnnAssign):
        return {ast.unparse(statement.target)}
    return {statement.name} if isinstance(statement, ast.FunctionDef | ast.ClassDef) else set()
