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
from torch.utils._pytree import tree_leaves

from thunder_core.foundation.errors import OperationFailed
from thunder_core.frontend.acquire.group_methods import METHODS, WITHOUT_WORK, Group, parameters_of
from thunder_core.frontend.acquire.lookasides.state.world import asked
from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.native_kinds import NativeAnswer, answer_of, name_of, only_asks
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.acquire.works import WAIT_FIRST, TracedWork
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.library.collectives import registered_group

C10D: Any = getattr(torch._C, "_distributed_c10d", None)  # missing in builds of PyTorch without distributed
CLASSES: tuple[type, ...] = ()  # their methods are recorded, called again at each call, or refused
if dist.is_available():
    CLASSES = (C10D.ProcessGroup, C10D.Backend, C10D.Work)
# The usual classes of objects that functions are bound to: a set lookup is faster than `isinstance`.
NEVER_COMMUNICATE = frozenset({type(None), ModuleType, torch.Tensor, torch.nn.Parameter, FakeTensor, dict, list, str})
# Methods that return an existing object.
GETTERS = frozenset({"get_group_store", "_get_backend", "__eq__", "__ne__", "__hash__", "__repr__", "__str__"})
OPTIONS = ("reduceOp", "rootRank", "rootTensor", "device", "device_ids")  # attributes of the options of methods
# Functions that make groups, send Python objects, or change the process.
REFUSED = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list"),
    *("recv_object_list", "init_process_group", "destroy_process_group", "new_group", "new_subgroups", "split_group"),
    *("new_subgroups_by_enumeration", "shrink_group", "init_device_mesh", "rendezvous", "breakpoint", "record_comm"),
    *("register_rendezvous_handler", "set_debug_level", "set_debug_level_from_env", "_broadcast_coalesced"),
    *("_verify_params_across_processes", "_register_comm_hook", "_register_builtin_comm_hook", "_time_estimator"),
    *("_create_process_group_wrapper", "_make_nccl_premul_sum", "_create_store_from_options", "_test_python_store"),
    "_make_distributed_pdb",
)
ASKED_FUNCTIONS = (C10D.get_debug_level,) if dist.is_available() else ()
REFUSED_FUNCTIONS = {getattr(dist, name): name for name in REFUSED if hasattr(dist, name)}


def collective_call(acquisition: TracedRun, function: Any) -> Callable[..., Any] | None:
    """Return the replacement of a method of a process group, a backend or a work; None for other functions."""
    owner = getattr(function, "__self__", None)
    if type(owner) in NEVER_COMMUNICATE:
        return None
    if not isinstance(owner, CLASSES) or isinstance(owner, TracedWork):
        return None
    name = getattr(function, "__name__", "")
    if name in METHODS and isinstance(owner, C10D.ProcessGroup):
        return partial(record, acquisition, owner, name)
    if name in GETTERS or only_asks(type(owner), name) or answer_of(type(owner)) is not NativeAnswer.ASKED:
        return None
    return partial(refuse, acquisition, f"`{name}` of a {name_of(type(owner))}")


def record(acquisition: TracedRun, process_group: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Record a method of a process group. The work that the program receives records its `wait`."""
    called = f"torch.distributed.ProcessGroup.{name}"
    if acquisition.recorder.levels.depth:
        refuse(acquisition, f"`{called}` within a transform of torch.func")
    group, function = guarded_group(acquisition, process_group), METHODS[name]
    kwargs = parameters_of(function, kwargs)
    for options in (*args, *kwargs.values()):
        guard_options(acquisition, options)
    try:
        inspect.signature(function).bind(group, *args, **kwargs)
        finish = function(group, *args, **kwargs)
    except (TypeError, ValueError) as error:
        refuse(acquisition, f"`{called}` with {error}")
    work = TracedWork(called, acquisition.place().source, finish, partial(refuse_question, acquisition))
    acquisition.works.append(work)
    if name not in WITHOUT_WORK:
        return work
    work.wait()
    return None


def guarded_group(acquisition: TracedRun, group: Any) -> Group:
    """Return a process group of the program. The prologue compares its name, rank and size."""
    name = name_of_group(group)
    if registered_group(name) is not group:
        refuse(acquisition, f"a process group ({name!r}) that is not registered in torch.distributed by this name")
    path = acquisition.outside.path_of(group)
    if path is not None:
        acquisition.outside.read(path.attribute("group_name", name), name)
    acquisition.settings.asked[f"group_facts({name!r})"] = (group.rank(), group.size())
    return Group(name, group.size(), type(group) is not C10D.ProcessGroup)


def name_of_group(group: Any) -> str:
    """Return the name of a process group, or an empty string if it has no name."""
    try:
        return str(group.group_name)
    except RuntimeError:
        return ""


def guard_options(acquisition: TracedRun, options: Any) -> None:
    """Guard the attributes of a collective's options from outside, which C code reads."""
    if acquisition.outside.path_of(options) is not None and type(options).__name__.endswith("Options"):
        for name in OPTIONS:
            if hasattr(options, name):
                acquisition.machine.load_attr(options, name)


def refuse(acquisition: TracedRun, operation: str, *_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise the error for an operation that cannot be traced, and store it in case the program swallows the error."""
    refuse_question(acquisition, f"uses {operation}, which is not traced", "call it outside the compiled program")


def refuse_question(acquisition: TracedRun, action: str, fix: str) -> NoReturn:
    """Raise the error for a question that a work cannot answer while a program is traced, and store it."""
    where = acquisition.place().source
    acquisition.recorder.failure = OperationFailed(f"the program {action}", fix=fix, where=where)
    raise acquisition.recorder.failure


def finish_works(acquisition: TracedRun, output: Any) -> None:
    """Record that the program waits, at its end, for all unfinished works. Refuse to return a work."""
    for work in acquisition.works:
        work.wait()
    returned = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, TracedWork)), None)
    if returned is not None:
        acquisition.recorder.failure = OperationFailed(
            f"the program returns the work of `{returned.name}`", fix=WAIT_FIRST, where=returned.where
        )


@lookaside(has_torch_function)
def is_overridden(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Ignore the tracer's own mode for functions of `torch.distributed`, so that they are interpreted."""
    frame = acquisition.machine.frame
    if frame is None or not str(frame.globals.get("__name__")).startswith("torch.distributed."):
        return None

    def ask(*args: Any) -> bool:
        with without_our_functions():
            return function(*args)  # type: ignore[no-any-return]

    return ask


@lookaside(*ASKED_FUNCTIONS)
def ask_again(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Call a C function that returns a setting of the process again at each call."""
    return asked(acquisition, function)


@lookaside(*REFUSED_FUNCTIONS)
def refuse_function(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Refuse a function that makes groups, sends Python objects, or changes the process."""
    return partial(refuse, acquisition, f"`torch.distributed.{REFUSED_FUNCTIONS[function]}`")
