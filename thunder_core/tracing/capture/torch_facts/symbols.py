"""Symbols of PyTorch's functions: their printed names, and the kinds of their effects."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.overrides import get_testing_overrides, resolve_name

from thunder_core.tracing.capture.torch_facts.writes import written_values
from thunder_core.tracing.ir.literal import follow_path
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.tree import leaves
from thunder_core.tracing.library import backward_hooks, saved_tensors_hooks

ORDERED_NAMES = frozenset(
    {
        "torch._C._set_grad_enabled",
        "thunder_core.tracing.library.objects.with_data",
        "torch.manual_seed",
        "torch.Tensor.requires_grad_",
        "torch.Tensor.detach_",
        "torch.detach_",
        "torch.Tensor.retain_grad",
        "torch.Tensor.register_hook",
        "torch.Tensor.register_post_accumulate_grad_hook",
        *backward_hooks.NAMES,
        *saved_tensors_hooks.NAMES,
    }
)


FOLDER = f"{Path(torch.__file__).parent}{os.sep}"
DISTRIBUTED = f"{FOLDER}distributed{os.sep}"
# Queries whose answers depend on more than the metadata in the call cache's keys.
QUERIES_OF_STATE: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.Tensor._is_view,
        torch.Tensor.is_inference,
        torch.Tensor.untyped_storage,
        torch.Tensor.storage,
        torch.is_inference,
        *(
            getattr(torch.Tensor, name).__get__
            for name in (
                "_base",
                "_version",
                "grad",
                "_grad",
                "grad_fn",
                "is_leaf",
                "requires_grad",
                "retains_grad",
                "output_nr",
                "_backward_hooks",
            )
        ),
    }
)
# Classes of Python's own callables. A lookup here is faster than `isinstance` with an abstract class.
PLAIN_CALLABLES = frozenset(
    {
        *(types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, type),
        *(types.MethodType, types.MethodWrapperType, types.WrapperDescriptorType),
    }
)
VERSION = torch.Tensor._version.__get__  # type: ignore[attr-defined]
OUTPUT_NUMBER = torch.Tensor.output_nr.__get__  # type: ignore[attr-defined]
BASE = torch.Tensor._base.__get__  # type: ignore[union-attr]
# Queries that are answered with the outside tensor itself, and the expression that a guard evaluates at each call.
QUERY_EXPRESSIONS: dict[Callable[..., Any], str] = {
    torch.Tensor._is_view: "_is_view()",
    torch.Tensor.is_inference: "is_inference()",
    torch.Tensor.storage_offset: "storage_offset()",
    torch.Tensor.is_leaf.__get__: "is_leaf",  # type: ignore[attr-defined]
    torch.Tensor.is_shared: "is_shared()",
    OUTPUT_NUMBER: "output_nr",
    torch.Tensor.retains_grad.__get__: "retains_grad",  # type: ignore[attr-defined]
    VERSION: "_version",
}
# Attributes of outside tensors that are guarded if they are None, and that cannot be read otherwise.
REFERENCES: dict[Callable[..., Any], str] = {
    getattr(torch.Tensor, name).__get__: name for name in ("_base", "_backward_hooks")
}
CONSTANT_QUERIES = frozenset({"_is_view()", "is_inference()"})  # no operation changes these
LASTING_QUERIES = frozenset({"is_shared()", "retains_grad"})  # once true, they stay true
REPLACES_MEMORY = frozenset({torch.Tensor.set_, torch.ops.aten.set_})

LIFTS = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})
VARIABLE_FUNCTIONS = "_VariableFunctionsClass"  # the class in `torch` of functions such as `torch._foreach_add`
# Functions that read a tensor's data; `apply_` and its relatives call a Python function for each element.
VALUE_READERS = frozenset(
    getattr(torch.Tensor, name)
    for name in (
        *("tolist", "numpy", "__array__", "data_ptr", "const_data_ptr", "is_set_to", "__dlpack__"),
        *("apply_", "map_", "map2_"),
    )
    if hasattr(torch.Tensor, name)
)


SPARSE_AXES = ("crow", "col", "ccol", "row")
# Functions that return parts of a sparse tensor, which fakes do not have.
SPARSE_PARTS = frozenset(
    getattr(torch.Tensor, name)
    for name in ("values", "indices", "_values", "_indices", "_nnz", *(f"{axis}_indices" for axis in SPARSE_AXES))
)


def is_higher_order(function: object) -> bool:
    """Whether a function is a higher-order operator of PyTorch, which `torch.cond` and `scan` call."""
    return type(function) not in PLAIN_CALLABLES and isinstance(function, HigherOrderOperator)


@cache
def symbol_of(function: Callable[..., Any]) -> Symbol:
    """Return the symbol of a torch function, method, property accessor or aten operator."""
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return Symbol(f"torch.ops.{function}", function)
    name = resolve_name(function) or _dotted_name(function)
    return Symbol(name.replace(f"{VARIABLE_FUNCTIONS}.", ""), function)


def _dotted_name(function: Callable[..., Any]) -> str:
    """Return the dotted name that leads from a function's module to the function, or its qualified name."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    reached = f"{module}.{name}"
    return reached if follow_path(reached) is function else f"{module}.{getattr(function, '__qualname__', name)}"


def place_of(function: Callable[..., Any]) -> tuple[types.ModuleType, str] | None:
    """Return the module and the name by which generated code calls a function of PyTorch; None for other callables."""
    is_builtin = type(function) is types.BuiltinFunctionType
    is_method = is_builtin and not isinstance(getattr(function, "__self__", None), types.ModuleType | types.NoneType)
    return None if is_method or not (is_builtin or function in operations()) else _place_of(function)


@cache
def _place_of(function: Callable[..., Any]) -> tuple[types.ModuleType, str] | None:
    parent, _, name = symbol_of(function).name.rpartition(".")
    module = follow_path(parent) if parent.partition(".")[0] == "torch" else None
    return (module, name) if isinstance(module, types.ModuleType) else None


@cache
def is_ordered(symbol: Symbol) -> bool:
    """Whether a call changes the state of the process or of a tensor that no operator's schema shows."""
    return symbol.name in ORDERED_NAMES or symbol.short_name in ("__set__", "__delete__")


SET_GRAD = torch._C._set_grad_enabled
SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
DATA_OPERATOR = torch.ops.aten.data.default
GETS_DATA = (torch.Tensor.data.__get__, torch.ops.aten.data, DATA_OPERATOR)  # type: ignore[attr-defined]
SET_REQUIRES_GRAD = torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]


def is_same_data(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    """Whether a tensor already has the data that is assigned to it, as when `module.to(dtype)` changes nothing."""
    if tensor is data or torch.strided != tensor.layout or data.layout != tensor.layout:
        return tensor is data
    return _memory_key(tensor) == _memory_key(data)


def _memory_key(tensor: torch.Tensor) -> tuple[object, ...]:
    storage = tensor.untyped_storage()._cdata
    return (storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


# Setters of a state, and the check whether the state already has the value.
IDLE: dict[Callable[..., Any], Callable[..., bool]] = {
    SET_GRAD: lambda enabled: bool(enabled == torch.is_grad_enabled()),
    torch.Tensor.requires_grad_: lambda tensor, required=True: bool(tensor.requires_grad == required),
    SET_REQUIRES_GRAD: lambda tensor, required: bool(tensor.requires_grad == required),
    SET_DATA: is_same_data,
}


def is_idle(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call sets a state to its present value."""
    return function in IDLE and IDLE[function](*args, **kwargs)


def replaces_memory(function: Callable[..., Any]) -> bool:
    """Whether a function sets the memory of a tensor without an update of the tensor's views."""
    return getattr(function, "overloadpacket", function) in REPLACES_MEMORY


def is_data_assignment(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `x.set_(y)` does what `x.data = y` does: for a tensor of the same dtype that autograd does not track."""
    if kwargs or len(args) != 2 or not isinstance(args[1], torch.Tensor):
        return False
    tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in args)
    return not tracked and args[0].dtype == args[1].dtype and args[0].device == args[1].device


@cache
def _randomness(operator: torch._ops.OpOverload) -> tuple[bool, int | None]:
    """Return whether the operator may draw random numbers, and the position of its dropout probability or None."""
    names = [argument.name for argument in operator._schema.arguments]
    return torch.Tag.nondeterministic_seeded in operator.tags, names.index(
        "dropout_p"
    ) if "dropout_p" in names else None


def is_random(operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws random numbers; attention without dropout does not."""
    seeded, position = _randomness(operator)
    if not seeded or position is None:
        return seeded
    return bool(args[position] if position < len(args) else kwargs.get("dropout_p", 0.0))


def as_bound_symbol(part: BoundSymbol, whole: BoundSymbol) -> BoundSymbol:
    """Return an aten operation of a bound symbol as a separate bound symbol."""
    target, args, kwargs = part.symbol.target, part.args, part.kwargs
    if not isinstance(target, torch._ops.OpOverload):
        return replace(part, source=whole.source, module=whole.module)
    written = [*written_values(target, args, kwargs)]
    return replace(
        part,
        source=whole.source,
        module=whole.module,
        mutates=tuple(leaf.name for leaf in leaves(written) if isinstance(leaf, Proxy)),
        ordered=is_random(target, args, kwargs),
    )


def parts_of(function: Callable[..., Any], parts: Sequence[BoundSymbol]) -> tuple[BoundSymbol, ...]:
    """Return the operations of a call, given the dispatched ones.

    PyTorch dispatches `.data` as `detach`. The result of `detach` shares the version counter of its input, and the
    result of `.data` does not.
    """
    if function not in GETS_DATA:
        return tuple(parts)
    return tuple(replace(part, symbol=symbol_of(DATA_OPERATOR)) for part in parts)


@cache
def is_process_group_method(operator: torch._ops.OpOverload) -> bool:
    """Whether an operator is a method of a process group, which returns a work that a trace cannot hold."""
    return operator._schema.name.startswith("c10d::")


@cache
def operations() -> frozenset[Callable[..., Any]]:
    """Return every Python-level function of PyTorch that PyTorch passes to torch function modes as one operation.

    Functions that communicate are excluded, and so are a library's replacements of PyTorch's functions.
    """
    return frozenset(
        function
        for function in get_testing_overrides()
        if hasattr(function, "__code__") and is_pytorchs_code(function.__code__) and not communicates(function.__code__)
    )


def is_pytorchs_code(code: types.CodeType) -> bool:
    """Whether code is in a file of PyTorch."""
    return code.co_filename.startswith(FOLDER)


def communicates(code: types.CodeType) -> bool:
    """Whether code is in a file of `torch.distributed`: it calls a process group, whose methods are recorded."""
    return code.co_filename.startswith(DISTRIBUTED)


def passing_operation(function: Callable[..., Any], passed_by: types.FrameType | None) -> Callable[..., Any]:
    """Return the torch function that a mode receives from `handle_torch_function`, whose frame is `passed_by`.

    This is `function`, or PyTorch's operation that a library has replaced by `function` (`own_operation`).
    """
    operation = None if passed_by is None else passed_by.f_back
    return function if operation is None else own_operation(function, operation.f_code, operation.f_globals)


def own_operation(
    function: Callable[..., Any], code: types.CodeType, namespace: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return PyTorch's operation with this code if `function` is a library's replacement of it; otherwise, return
    `function`.

    An operation of PyTorch looks up its own name in its module, and passes the result to modes. A library may have
    replaced the function under that name.
    """
    if type(function) is not types.FunctionType or is_pytorchs_code(function.__code__):
        return function
    return _operation_with_code(code, namespace["__name__"]) if is_operations_code(code) else function


def is_operations_code(code: types.CodeType) -> bool:
    """Whether code belongs to a function of PyTorch without a closure, so that a function can be created from it."""
    return is_pytorchs_code(code) and not code.co_freevars


@cache
def _operation_with_code(code: types.CodeType, module: str) -> Callable[..., Any]:
    """Return PyTorch's operation with this code; if a library has replaced it, create it again from its code."""
    operation = next((operation for operation in operations() if operation.__code__ is code), None)
    return operation or types.FunctionType(code, vars(sys.modules[module]), code.co_name)
