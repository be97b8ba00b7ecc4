"""Replace output classes of transformers in a stored epilogue by Thunder's `ModelOutput`.

A `ModelOutput` has the same fields and methods for reading, so the artifact does not need the library for its outputs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from thunder_core.foundation import plugins
from thunder_core.tracing.library.model_output import ModelOutput
from thunder_core.workflow.artifact.format.packages import PRESENT_PACKAGES, imports_of, package_of

NEW_FUNCTION = "new"  # the function that epilogues call to create objects
BASE_CLASS = "transformers.utils.generic:ModelOutput"
OUTPUT_NAME = ModelOutput.__name__
OUTPUT_IMPORT = f"from {ModelOutput.__module__} import {OUTPUT_NAME}"
# The names that `dataclass` and Python add to a class; a class with more names may behave differently when read.
GENERATED_NAMES = frozenset(
    {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__"}
    | {"__annotations_cache__", "__dataclass_params__", "__dataclass_fields__", "__init__", "__repr__", "__eq__"}
    | {"__replace__", "__hash__", "__match_args__", "__firstlineno__", "__static_attributes__", "__parameters__"}
)


@dataclass
class ReplacedOutputs(ast.NodeTransformer):
    """Replaces the classes of new objects in an epilogue by `ModelOutput`, and collects the paths of these classes."""

    modules: frozenset[str]
    classes: set[str] = field(default_factory=set)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace the class of a new object if the class comes from one of the library's modules."""
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.Attribute() as kind], keywords=[]) if name == NEW_FUNCTION:
                path = self.path_of(ast.unparse(kind))
                if path is not None:
                    self.classes.add(path)
                    node.args = [ast.copy_location(ast.Name(OUTPUT_NAME, ast.Load()), kind)]
        return node

    def path_of(self, name: str) -> str | None:
        """Return `module:qualname` for a dotted name in one of the library's modules; None for other names."""
        containing_modules = [module for module in self.modules if name.startswith(f"{module}.")]
        if not containing_modules:
            return None
        module = max(containing_modules, key=len)
        return f"{module}:{name.removeprefix(f'{module}.')}"


def replace_outputs(text: str) -> tuple[str, frozenset[str]]:
    """Return an epilogue with `ModelOutput` in place of libraries' classes, and the paths of these classes.

    The text is unchanged if it has no class of a library, or if it also uses a library for another purpose.
    """
    tree = ast.parse(text)
    library_imports = [
        node for node in tree.body for module, _ in imports_of(node) if package_of(module) not in PRESENT_PACKAGES
    ]
    modules = frozenset(module for node in library_imports for module, _ in imports_of(node))
    replaced = ReplacedOutputs(modules)
    tree = replaced.visit(tree)
    tree.body = [*ast.parse(OUTPUT_IMPORT).body, *(node for node in tree.body if node not in library_imports)]
    bound = {name for node in library_imports for _, name in imports_of(node)}
    if not replaced.classes or bound & {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}:
        return text, frozenset()
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", frozenset(replaced.classes)


def is_read_alike(path: str) -> bool:
    """Import an output class of transformers, and return whether reading it works like reading a `ModelOutput`."""
    base, kind = plugins.import_object(BASE_CLASS), plugins.import_object(path)
    if not isinstance(base, type) or not isinstance(kind, type) or not issubclass(kind, base):
        return False
    output_classes = [parent for parent in kind.__mro__ if issubclass(parent, base) and parent is not base]
    return all(
        vars(parent).keys() <= GENERATED_NAMES | getattr(kind, "__dataclass_fields__", {}).keys()
        for parent in output_classes
    )
