"""Functions that the text of epilogues calls to show values: at the program's line, as autograd knows them."""

from __future__ import annotations

import builtins
import logging
import sys
import warnings
from functools import cache
from typing import Any

import torch

OWN_REGISTRIES: dict[str, dict[str, Any]] = {}  # which warnings were given, of modules that are not imported


def log(name: str, level: int, where: tuple[str, int, str], message: Any, *arguments: Any) -> None:
    """Log a message of the program's, by the logger of that name, as of the file, line and function `where`."""
    logger = logging.root if name == "root" else logging.getLogger(name)
    if logger is logging.root and not logger.handlers:
        logging.basicConfig()
    if logger.isEnabledFor(level):
        file, line, function = where
        logger.handle(logger.makeRecord(name, level, file, line, message, arguments, None, function))


def log_once(name: str, method: str, words: tuple[Any, ...]) -> None:
    """Log a message by a method of loggers that does so at its first call alone, by the logger of that name."""
    getattr(logging.getLogger(name), method)(*words)


def warn(category: str, where: tuple[str, int, str], message: str) -> None:
    """Give a warning of the program's, of a class of Python's own, as of the file, line and module `where`."""
    file, line, module = where
    names = vars(sys.modules[module]) if module in sys.modules else OWN_REGISTRIES.setdefault(module, {})
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, getattr(builtins, category), file, line, module, registry)


def raises_warning(text: str | None, category: type[Warning], module: str, line: int) -> bool | None:
    """Whether the filters make an error of a warning with this text and class, given in this line of a module.

    None where that hangs on a text which is not known.
    """
    for action, message, kind, where, lineno in warnings.filters:
        fits = issubclass(category, kind) and (where is None or where.match(module)) and lineno in (0, line)
        if fits and message is not None and text is None:
            return None
        if fits and (message is None or message.match(str(text))):
            return bool(action == "error")
    return bool(vars(warnings)["defaultaction"] == "error")


def text(*parts: str) -> str:
    """The text of these parts."""
    return "".join(parts)


def node_name(node: Any) -> str:
    """The name of a node of autograd's graph, as the text of a tensor has it."""
    name = type(node).__name__
    return str(node.name()).rpartition("::")[-1] if name == "CppFunction" else name


def dressed(values: torch.Tensor, kind: type, node: str = "") -> torch.Tensor:
    """A tensor of these values that requires a gradient: of this class, and made by a node of this name, if any."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf: torch.Tensor = values.detach().clone().as_subclass(kind).requires_grad_()
        shown: torch.Tensor = named_node(node).apply(leaf) if node else leaf
        return shown


@cache
def named_node(name: str) -> Any:
    """An operation that gives what it is given, whose node in autograd's graph has this name."""

    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    operation: Any = type("Shown", (torch.autograd.Function,), {"forward": staticmethod(forward)})
    operation._backward_cls.__name__ = name
    return operation
