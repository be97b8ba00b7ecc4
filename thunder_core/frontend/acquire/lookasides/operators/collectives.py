"""`torch.distributed`: collectives are recorded, or refused by name if they cannot be recorded.

PyTorch's functions (`torch.distributed.all_reduce`) are interpreted, so they check their arguments with PyTorch's own
messages. They call C methods of a process group. `group_methods` has the methods that can be recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import has_torch_function

from thunder_core.foundation.errors import OperationFailed
from thunder_core.frontend.acquire.group_methods import METHODS, WITHOUT_WORK, Group, parameters_of
from thunder_core.frontend.acquire.lookaside_table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.lookasides.state.world import call_query
from thunder_core.frontend.acquire.outside.native_kinds import NativeState, is_getter, name_of, native_state_of
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.acquire.works import TracedWork
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.library.collectives import registered_group

C10D: Any = getattr(torch._C, "_distributed_c10d", None)  # missing in builds of PyTorch without distributed
COMMUNICATING_CLASSES: tuple[type, ...] = ()  # their methods are recorded, called again at each call, or refused
if dist.is_available():
    COMMUNICATING_CLASSES = (C10D.ProcessGroup, C10D.Backend, C10D.Work)
# The usual classes of objects that functions are bound to: a set lookup is faster than `isinstance`.
NEVER_COMMUNICATE = frozenset({type(None), ModuleType, torch.Tensor, torch.nn.Parameter, FakeTensor, dict, list, str})
# Methods that return an existing object.
GETTERS = frozenset({"get_group_store", "_get_backend", "__eq__", "__ne__", "__hash__", "__repr__", "__str__"})
# Attributes of the options of collectives, such as `AllreduceOptions`.
OPTION_ATTRIBUTES = ("reduceOp", "rootRank", "rootTensor", "device", "device_ids")
# Functions that create groups, send Python objects, or change the process.
REFUSED_NAMES = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list"),
    *("recv_object_list", "init_process_group", "destroy_process_group", "new_group", "new_subgroups", "split_group"),
    *("new_subgroups_by_enumeration", "shrink_group", "init_device_mesh", "rendezvous", "breakpoint", "record_comm"),
    *("register_rendezvous_handler", "set_debug_level", "set_debug_level_from_env", "_broadcast_coalesced"),
    *("_verify_params_across_processes", "_register_comm_hook", "_register_builtin_comm_hook", "_time_estimator"),
    *("_create_process_group_wrapper", "_make_nccl_premul_sum", "_create_store_from_options", "_test_python_store"),
    *("_make_distributed_pdb", "gather_single", "gather_into_tensor", "set_timeout", "get_backend_impl"),
    *("_reconfigure", "_get_reconfigure_handle", "_new_window"),
)
QUERIES = (C10D.get_debug_level,) if dist.is_available() else ()
REFUSED_FUNCTIONS = {getattr(dist, name): name for name in REFUSED_NAMES if hasattr(dist, name)}


def collective_call(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record or refuse a method of a process group, a backend or a work.

    Returns `NOT_TAKEN` for other functions, and for methods that only return existing objects or attributes.
    """
    owner = callable_attribute(function, "__self__")
    kind = type(owner)  # not isinstance, which reads the owner's own `__class__`
    if kind in NEVER_COMMUNICATE or not issubclass(kind, COMMUNICATING_CLASSES) or issubclass(kind, TracedWork):
        return NOT_TAKEN
    name = callable_name(function)
    if name in METHODS and isinstance(owner, C10D.ProcessGroup):
        return record(run, owner, name, args, kwargs)
    if name in GETTERS or is_getter(type(owner), name) or native_state_of(type(owner)) is not NativeState.GETTERS:
        return NOT_TAKEN
    return refuse(run, f"`{name}` of an object of class {name_of(type(owner))}")


def record(
    run: TracedRun, process_group: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TracedWork | None:
    """Record a method of a process group, and return a work, whose `wait` is recorded when the program calls it.

    For the methods in `WITHOUT_WORK`, the wait is recorded at once, and the result is None.
    """
    full_name = f"torch.distributed.ProcessGroup.{name}"
    if run.recorder.levels.depth:
        refuse(run, f"`{full_name}` within a transform of torch.func", runs_in_eager=False)
    group, function = guarded_group(run, process_group), METHODS[name]
    kwargs = parameters_of(function, kwargs)
    for options in (*args, *kwargs.values()):
        guard_options(run, options)
    try:
        inspect.signature(function).bind(group, *args, **kwargs)
        finish = function(group, *args, **kwargs)
    except (TypeError, ValueError) as error:
        refuse(run, f"`{full_name}` with {error}")
    work = TracedWork(full_name, run.location().source, finish, partial(refuse_action, run))
    run.calls.works.append(work)
    if name not in WITHOUT_WORK:
        return work
    work.wait()
    return None


def guarded_group(run: TracedRun, group: object) -> Group:
    """Return the recorded form of a process group, and guard the group's name, rank and size."""
    name = name_of_group(group)
    if registered_group(name) is not group:
        refuse(run, f"a process group ({name!r}) that is not registered in torch.distributed by this name")
    path = run.outside.path_of(group)
    if path is not None:
        run.outside.read(path.attribute("group_name", name), name)
    run.settings.answers[f"group_facts({name!r})"] = (group.rank(), group.size())
    return Group(name, group.size(), type(group) is not C10D.ProcessGroup)


def name_of_group(group: Any) -> str:
    """Return the name of a process group, or an empty string if it has no name."""
    try:
        return str(group.group_name)
    except RuntimeError:
        return ""


def guard_options(run: TracedRun, options: object) -> None:
    """Guard the attributes of a collective's options if the options object is from outside of the program.

    C code reads these attributes, so the interpreter does not see the reads.
    """
    if run.outside.path_of(options) is not None and type(options).__name__.endswith("Options"):
        for name in OPTION_ATTRIBUTES:
            if hasattr(options, name):
                run.machine.load_attr(options, name)


def refuse(run: TracedRun, operation: str, *, runs_in_eager: bool = True) -> NoReturn:
    """Raise the error for an operation that cannot be traced, and store it in case the program swallows the error.

    Within a transform of torch.func, `runs_in_eager` is False: eager PyTorch does not wait for the collective, so its
    result is not defined.
    """
    fix = "call it outside the compiled program"
    refuse_action(run, f"uses {operation}, which is not traced", fix, runs_in_eager=runs_in_eager)


def refuse_action(run: TracedRun, action: str, fix: str, *, runs_in_eager: bool = True) -> NoReturn:
    """Raise the error for an action that cannot be traced, and store it in case the program swallows the error."""
    where = run.location().source
    failure = run.recorder.fail(OperationFailed(f"the program {action}", fix=fix, where=where))
    failure.runs_in_eager = runs_in_eager
    raise failure


@lookaside(has_torch_function)
def is_overridden(run: TracedRun, /, *args: Any) -> bool | NotTaken:
    """Return `has_torch_function` without the tracer's own mode, for calls in modules of `torch.distributed`.

    Otherwise, these functions would dispatch to the tracer's mode instead of running their Python code.
    """
    frame = run.machine.frame
    if frame is None or not str(frame.globals.get("__name__")).startswith("torch.distributed."):
        return NOT_TAKEN
    with without_our_functions():
        return has_torch_function(*args)


@lookaside_of_each(*QUERIES)
def query_setting(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Record a C function that returns a setting of the process, so that each call of the program calls it again."""
    return call_query(run, function, args, kwargs)


@lookaside_of_each(*REFUSED_FUNCTIONS)
def refuse_function(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> NoReturn:
    """Refuse a function that makes groups, sends Python objects, or changes the process."""
    refuse(run, f"`torch.distributed.{REFUSED_FUNCTIONS[function]}`")
