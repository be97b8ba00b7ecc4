"""Functions with which epilogues repeat the log messages, warnings and prints of a program.

Messages and warnings have the program's source lines, and printed tensors the names of autograd's nodes.
"""

from __future__ import annotations

import builtins
import logging
import sys
import sysconfig
import types
import warnings
from functools import cache
from typing import Any

import torch

from thunder_core.foundation.caller_frames import caller_frame

STANDARD_LIBRARY = sysconfig.get_path("stdlib")
# The namespaces that `warnings` uses instead of the globals of modules that are not imported.
OWN_REGISTRIES: dict[str, dict[str, Any]] = {}


def log(name: str, level: int, where: tuple[str, int, str], message: object, *arguments: Any) -> None:
    """Log a message with the logger `name`, as if the file, line and function `where` logged it."""
    logger = logging.root if name == "root" else logging.getLogger(name)
    if logger.isEnabledFor(level):
        file, line, function = where
        logger.handle(logger.makeRecord(name, level, file, line, message, arguments, None, function))


def log_by_function(level: int, where: tuple[str, int, str], message: object, *arguments: Any) -> None:
    """Log a message like `logging.info` and similar functions: a root logger without handlers first gets a handler."""
    if not logging.root.handlers:
        logging.basicConfig()
    log("root", level, where, message, *arguments)


def handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    """Return the handlers that receive the messages of a logger."""
    handlers: list[logging.Handler] = []
    current = logger
    while True:
        handlers += current.handlers
        if current.parent is None or not current.propagate:
            return handlers
        current = current.parent


def logs_to_own_code(name: str) -> bool:
    """Whether messages of the logger `name` reach a handler or filter of the user's own code."""
    logger = logging.root if name == "root" else logging.getLogger(name)
    handlers = handlers_of(logger)
    filters = [entry for owner in (logger, *handlers) for entry in owner.filters]
    return any(map(_is_own, (*handlers, *filters)))


def _is_own(value: object) -> bool:
    """Whether a function or the class of an object is neither in the standard library nor in an installed package."""
    owner: Any = value if hasattr(value, "__code__") else type(value)
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return "site-packages" not in str(file) and not str(file).startswith(STANDARD_LIBRARY)


def log_once(name: str, method: str, words: tuple[Any, ...]) -> None:
    """Call a method of the logger `name` that logs a message only once, such as transformers' `warning_once`."""
    getattr(logging.getLogger(name), method)(*words)


def log_with_loguru(
    logger: Any, level: Any, options: Any, where: tuple[str, int, str, Any], words: tuple[Any, ...], named: Any
) -> None:
    """Log a message with a logger of loguru, as if the file, line, function and module `where` logged it."""
    file, line, function, module = where
    code = compile("\n" * (line - 1) + "log()", file, "exec").replace(co_name=function)
    names = {"__name__": module, "log": lambda: logger._log(level, False, options, words[0], words[1:], named)}
    types.FunctionType(code, names)()


def warn(category: str, where: tuple[str, int, str], message: str) -> None:
    """Issue a warning, as if the file, line and module `where` issued it.

    `category` is the name of a built-in class of warnings.
    """
    module = where[2]
    names = vars(sys.modules[module]) if module in sys.modules else OWN_REGISTRIES.setdefault(module, {})
    _issue(category, where, names, message)


def warn_caller(category: str, level: int, message: str) -> None:
    """Issue a warning that refers to a caller of the compiled function; `level` is 1 for the nearest caller."""
    where, names = line_of_caller(level)
    _issue(category, where, names, message)


def _issue(category: str, where: tuple[str, int, str], names: dict[str, Any], message: str) -> None:
    """Issue a warning at the file, line and module `where`; `names` are the globals there."""
    file, line, module = where
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, getattr(builtins, category), file, line, module, registry)


def line_of_caller(level: int) -> tuple[tuple[str, int, str], dict[str, Any]]:
    """Return the file, line and module that call the compiled function, and the globals there."""
    frame = caller_frame(sys._getframe(), level)
    if frame is None:
        return ("sys", 1, "sys"), vars(sys)
    names = frame.f_globals
    return (frame.f_code.co_filename, frame.f_lineno, names.get("__name__") or "<string>"), names


def raises_warning_of_caller(text: str | None, category: type[Warning], level: int) -> bool | None:
    """Return the result of `raises_warning` for a warning that refers to a caller of the compiled function."""
    (_, line, module), _ = line_of_caller(level)
    return raises_warning(text, category, module, line)


def raises_warning(text: str | None, category: type[Warning], module: str, line: int) -> bool | None:
    """Return whether the filters of `warnings` turn a warning at a line of a module into an error.

    `text` is the text of the warning, or None if it is unknown. Returns None if the result depends on an unknown text.
    """
    for action, message, kind, where, lineno in warnings.filters:
        fits = issubclass(category, kind) and (where is None or where.match(module)) and lineno in (0, line)
        if fits and message is not None and text is None:
            return None
        if fits and (message is None or message.match(str(text))):
            return bool(action == "error")
    return bool(vars(warnings)["defaultaction"] == "error")


def text(*parts: str) -> str:
    """Return the concatenation of strings, as the text of a message."""
    return "".join(parts)


def node_name(node: Any) -> str:
    """Return the name of a node of autograd's graph, as `repr(tensor)` shows it."""
    name = type(node).__name__
    return str(node.name()).rpartition("::")[-1] if name == "CppFunction" else name


def tensor_to_print(values: torch.Tensor, kind: type, node: str = "") -> torch.Tensor:
    """Return a tensor with these values for printing: its `repr` shows `requires_grad=True`, or a node of this name.

    `kind` is the class of the tensor.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaf: torch.Tensor = values.detach().clone().as_subclass(kind).requires_grad_()
        shown: torch.Tensor = named_node(node).apply(leaf) if node else leaf
        return shown


@cache
def named_node(name: str) -> Any:
    """Return an autograd function that returns its input; its node in autograd's graph has this name."""

    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    operation: Any = type("Shown", (torch.autograd.Function,), {"forward": staticmethod(forward)})
    operation._backward_cls.__name__ = name
    return operation
