"""Functions and modules of TorchScript, which PyTorch's C++ code runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.jit import ScriptModule
from torch.jit._script import RecursiveScriptModule
from torch.nn import Module

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.outside.call_traits import is_fixed
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN

INTERPRET = torch._C._jit_interpret_graph  # type: ignore[attr-defined]
ACCESSES = ("prim::GetAttr", "prim::SetAttr")
MAKES_TENSOR = ("aten::tensor", "aten::as_tensor")
ORIGINAL_MODULE_FIX = "call the original module, which is Python code"


@lookaside(RecursiveScriptModule.__getattr__)
def get_attribute(run: TracedRun, /, *args: Any) -> Any:
    """Read an attribute that C++ code stores. The caller guards the attribute."""
    return run.machine.call_uninterpreted(RecursiveScriptModule.__getattr__, args, {})


def call_script_module(run: TracedRun, module: ScriptModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module of TorchScript. Its parameters become inputs of the trace, and its attributes are guarded.

    Eager PyTorch makes the call if the code of the module writes an attribute.
    """
    method: Any = module.forward
    graph = method.inlined_graph  # owns its nodes
    names = {node.s("name") for kind in ACCESSES for node in graph.findAllNodes(kind)}
    before = [(part, name, value, _contents_to_compare(value)) for part, name, value in _attributes(module, names)]
    path = run.outside.path_of(module) or run.outside.root("script module", type(module).__name__, module)
    _read_state(run, path, module, names)
    run.calls.script_methods.append(method)
    try:
        result = run.machine.call(method, *args, **kwargs)
    finally:
        run.calls.script_methods.pop()
        changes = [
            (part, name, value)
            for part, name, value, contents in before
            if _contents_to_compare(getattr(part, name)) != contents
        ]
        for part, name, value in changes:
            setattr(part, name, value)
    for part, name, _ in changes:
        run.leave_to_eager(
            f"the TorchScript code of a module of class {part.original_name} writes its attribute `{name}`",
            ORIGINAL_MODULE_FIX,
        )
    return result


def call_script(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of TorchScript, or a method of a module that is called as a whole, by interpreting its graph.

    PyTorch would call the graph that it has optimized for the gradients and sizes of earlier calls. Eager PyTorch makes
    the call of any other method, because no guard checks the state of its module, and of code that writes numbers into
    new tensors.
    """
    kind = type(function)
    if kind is torch.ScriptMethod and not any(method is function for method in run.calls.script_methods):
        run.leave_to_eager(
            f"the program calls `{function.name}`, a method of a module of TorchScript", ORIGINAL_MODULE_FIX
        )
    if kind is not torch.ScriptMethod and kind is not torch.jit.ScriptFunction:
        return NOT_TAKEN
    values = _bind_arguments(
        function.schema.arguments, (function.raw_owner, *args) if kind is torch.ScriptMethod else args, kwargs
    )
    if values is None:
        return NOT_TAKEN  # the call raises eager's error
    graph = function.inlined_graph
    if fills_tensors(graph):
        run.leave_to_eager("TorchScript code makes a tensor from a list of numbers", ORIGINAL_MODULE_FIX)
    return run.machine.call_native(INTERPRET, (graph, values), {})


def fills_tensors(graph: Any) -> bool:
    """Whether a graph makes a tensor from a list, also for an index: C++ code would write to the memory of a fake."""
    nodes = (node for kind in MAKES_TENSOR for node in graph.findAllNodes(kind))
    return any(isinstance(next(node.inputs()).type(), torch.ListType) for node in nodes)


def _bind_arguments(arguments: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return the values of all arguments of a schema; None for arguments that do not fit."""
    named = dict(zip((argument.name for argument in arguments), args, strict=False))
    names = {argument.name for argument in arguments}
    if len(args) > len(arguments) or named.keys() & kwargs.keys() or kwargs.keys() - names:
        return None
    given = {**named, **kwargs}
    if any(argument.name not in given and not argument.has_default_value() for argument in arguments):
        return None
    return tuple(given.get(argument.name, argument.default_value) for argument in arguments)


def _read_state(run: TracedRun, path: Path, module: Module, names: set[str]) -> None:
    """Read all parameters, buffers and attributes of a module and its submodules, as the C++ code may read them."""
    for name, value in (*_own_tensors(module), *_own_attributes(module, names)):
        run.outside.read(path.attribute(name, value), value)
        run.outside.expand_whole(value)
    for name, child in module.named_children():
        child_path = path.attribute("_modules", module._modules).item(name, child)
        run.outside.read(child_path, child)
        _read_state(run, child_path, child, names)


def _own_tensors(module: Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _attributes(module: Module, names: set[str]) -> Iterator[tuple[Any, str, Any]]:
    """Yield the attributes of a module and its submodules, with the module and the name."""
    for part in module.modules():
        for name, value in _own_attributes(part, names):
            yield part, name, value


def _own_attributes(module: Module, names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a module's attributes. C++ code makes a new list or dict at each read.

    Those among the `names` that the code reads or writes are included, because a frozen module lists no attributes.
    """
    declared = getattr(module, "_concrete_type", None)
    listed = declared.get_attributes() if declared is not None else {}
    tensors = dict(_own_tensors(module))
    for name in dict.fromkeys(("training", *listed, *sorted(names))):
        if name not in tensors and hasattr(module, name) and not isinstance(value := getattr(module, name), Module):
            yield name, value


def _contents_to_compare(value: Any) -> Any:
    """Return the contents of an attribute, to compare them: tensors and other objects by their identity."""
    if isinstance(value, list | tuple):
        return (type(value), *map(_contents_to_compare, value))
    if isinstance(value, dict):
        return (dict, *((key, _contents_to_compare(item)) for key, item in value.items()))
    return (type(value), repr(value)) if is_fixed(value) else id(value)
