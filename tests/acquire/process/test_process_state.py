"""State of the process that C code or native Python code reads: after a change, the result matches eager."""

from __future__ import annotations

import colorsys
import contextvars
import csv
import ctypes
import decimal
import faulthandler
import functools
import gc
import inspect
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from tests.uncompiled import leave_inductor_out
from thunder_core.foundation.errors import RecompileWarning, SharpEdgeError, SharpEdgeWarning
from thunder_core.frontend.acquire.outside.native_functions import CFunctionKind, function_kind_of

X = torch.ones(1)
Act = Callable[[], object]
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=1)
OTHER: contextvars.ContextVar[int] = contextvars.ContextVar("other", default=10)
LOCAL = threading.local()


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs in eager operations; guards do not depend on the executor."""
    leave_inductor_out(monkeypatch)


class Base:
    """A class that gets subclasses."""


@functools.lru_cache
def cached(number: int) -> int:
    return number


class Waiting:
    """A thread that waits until it is stopped."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._end.wait)

    def start(self) -> None:
        """Start waiting."""
        self._thread.start()

    def end(self) -> None:
        """Stop the thread."""
        self._end.set()
        self._thread.join()


def time_zone(name: str | None) -> None:
    os.environ.pop("TZ", None)
    if name is not None:
        os.environ["TZ"] = name
    time.tzset()


ANOTHER_THREAD, YET_ANOTHER = Waiting(), Waiting()
PROFILE = torch.autograd.profiler.profile()
# A query of the process, a change of its answer, and a function that restores it.
QUESTIONS: dict[str, tuple[Callable[[], Any], Act, Act]] = {
    "sys.getrecursionlimit": (
        sys.getrecursionlimit,
        lambda: sys.setrecursionlimit(7000),
        lambda: sys.setrecursionlimit(1000),
    ),
    "sys.getswitchinterval": (
        sys.getswitchinterval,
        lambda: sys.setswitchinterval(0.01),
        lambda: sys.setswitchinterval(0.005),
    ),
    "torch.autograd._profiler_enabled": (
        torch.autograd._profiler_enabled,
        PROFILE.__enter__,
        lambda: PROFILE.__exit__(None, None, None),
    ),
    "sys.get_coroutine_origin_tracking_depth": (
        sys.get_coroutine_origin_tracking_depth,
        lambda: sys.set_coroutine_origin_tracking_depth(2),
        lambda: sys.set_coroutine_origin_tracking_depth(0),
    ),
    "sys.excepthook": (
        lambda: sys.excepthook is sys.__excepthook__,
        lambda: setattr(sys, "excepthook", print),
        lambda: setattr(sys, "excepthook", sys.__excepthook__),
    ),
    "gc.isenabled": (gc.isenabled, gc.disable, gc.enable),
    "gc.get_threshold": (
        lambda: gc.get_threshold()[0],
        lambda: gc.set_threshold(701),
        lambda: gc.set_threshold(700),
    ),
    "thread's name": (
        lambda: len(threading.current_thread().name),
        lambda: setattr(threading.current_thread(), "name", "zz"),
        lambda: setattr(threading.current_thread(), "name", "MainThread"),
    ),
    "threading.active_count": (threading.active_count, ANOTHER_THREAD.start, ANOTHER_THREAD.end),
    "threading.enumerate": (lambda: len(threading.enumerate()), YET_ANOTHER.start, YET_ANOTHER.end),
    "threading.getprofile": (
        lambda: threading.getprofile() is None,
        lambda: threading.setprofile(print),
        lambda: threading.setprofile(None),  # type: ignore[arg-type]
    ),
    "thread local": (lambda: getattr(LOCAL, "k", 0), lambda: setattr(LOCAL, "k", 3), lambda: delattr(LOCAL, "k")),
    "tracemalloc": (tracemalloc.is_tracing, tracemalloc.start, tracemalloc.stop),
    "faulthandler": (faulthandler.is_enabled, faulthandler.disable, faulthandler.enable),
    "ctypes.get_errno": (lambda: ctypes.get_errno(), lambda: ctypes.set_errno(2), lambda: ctypes.set_errno(0)),
    "socket's timeout": (
        lambda: socket.getdefaulttimeout() or 0,
        lambda: socket.setdefaulttimeout(3),
        lambda: socket.setdefaulttimeout(None),
    ),
    "csv.field_size_limit": (
        csv.field_size_limit,
        lambda: csv.field_size_limit(1000),
        lambda: csv.field_size_limit(131072),
    ),
    "csv.list_dialects": (
        lambda: len(csv.list_dialects()),
        lambda: csv.register_dialect("thunder_test"),
        lambda: csv.unregister_dialect("thunder_test"),
    ),
    "signal.getsignal": (
        lambda: signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN,
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_DFL),
    ),
    "logging.disable": (
        lambda: logging.root.manager.disable,
        lambda: logging.disable(10),
        lambda: logging.disable(logging.NOTSET),
    ),
    "level of a logger by its name": (
        lambda: logging.getLogger("thunder_test_state").level,
        lambda: logging.getLogger("thunder_test_state").setLevel(15),
        lambda: logging.getLogger("thunder_test_state").setLevel(0),
    ),
    "warnings.filters": (
        lambda: len(warnings.filters),
        lambda: warnings.filterwarnings("ignore", message="thunder_test"),
        lambda: warnings.filters.pop(0),  # type: ignore[attr-defined]
    ),
    "decimal context": (
        lambda: decimal.getcontext().prec,
        lambda: setattr(decimal.getcontext(), "prec", 9),
        lambda: setattr(decimal.getcontext(), "prec", 28),
    ),
    "numpy.geterr": (
        lambda: len(np.geterr()["divide"]),
        lambda: np.seterr(divide="ignore"),
        lambda: np.seterr(divide="warn"),
    ),
    "numpy.getbufsize": (np.getbufsize, lambda: np.setbufsize(16000), lambda: np.setbufsize(8192)),
    "text of an array": (
        lambda: len(repr(np.array([1 / 3]))),
        lambda: np.set_printoptions(precision=3),
        lambda: np.set_printoptions(precision=8),
    ),
    "text of an array in a format": (
        lambda: len(f"{np.array([1 / 3])}"),
        lambda: np.set_printoptions(precision=3),
        lambda: np.set_printoptions(precision=8),
    ),
    "autocast's dtype": (
        lambda: torch.get_autocast_dtype("cpu") is torch.float16,
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.set_autocast_dtype("cpu", torch.bfloat16),
    ),
    "autocast's cache": (
        torch.is_autocast_cache_enabled,
        lambda: torch.set_autocast_cache_enabled(False),
        lambda: torch.set_autocast_cache_enabled(True),
    ),
    "autograd's threads": (
        torch._C._is_multithreading_enabled,
        lambda: torch._C._set_multithreading_enabled(False),
        lambda: torch._C._set_multithreading_enabled(True),
    ),
    "torch.get_num_threads": (
        torch.get_num_threads,
        lambda: torch.set_num_threads(2),
        lambda: torch.set_num_threads(1),
    ),
    "time zone": (lambda: time.localtime(0).tm_hour, lambda: time_zone("ABC5"), lambda: time_zone(None)),
    "function of a module": (
        lambda: math.floor(1.5),
        lambda: setattr(math, "floor", lambda number: 7),
        lambda: setattr(math, "floor", FLOOR),
    ),
    "copied context": (
        lambda: contextvars.copy_context().run(VARIABLE.get),
        lambda: VARIABLE.set(7),
        lambda: VARIABLE.set(1),
    ),
    "item of a copied context": (
        lambda: contextvars.copy_context()[VARIABLE],
        lambda: VARIABLE.set(7),
        lambda: VARIABLE.set(1),
    ),
    "cache_info": (lambda: cached.cache_info().currsize, lambda: cached(3), cached.cache_clear),
}
FLOOR = math.floor
KEPT: list[type] = []


@pytest.mark.parametrize("name", QUESTIONS)
def test_result_for_a_changed_state_of_the_process_matches_eager(name: str) -> None:
    ask, change, put_back = QUESTIONS[name]
    put_back_at_once = name not in ("threading.active_count", "threading.enumerate", "thread local", "warnings.filters")
    if put_back_at_once and name not in ("tracemalloc", "csv.list_dialects"):
        put_back()

    def program(x: Tensor) -> Tensor:
        return x * ask()

    compiled = thunder.jit(program)
    first, wanted = compiled(X), program(X)
    try:
        change()
        second, wanted_then = compiled(X), program(X)
    finally:
        put_back()
    assert not torch.equal(wanted, wanted_then)
    assert torch.equal(first, wanted)
    assert torch.equal(second, wanted_then)
    assert torch.equal(compiled(X), program(X))


def test_new_subclass_is_listed() -> None:
    compiled = thunder.jit(lambda x: x * len(Base.__subclasses__()))
    for count in range(3):
        assert compiled(X).item() == count
        KEPT.append(type("Derived", (Base,), {}))


def test_recursion_limit_that_the_program_sets_is_set_at_each_call() -> None:
    def program(x: Tensor) -> Tensor:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(before + 1)
        return x * sys.getrecursionlimit() - before

    compiled, limit = thunder.jit(program), sys.getrecursionlimit()
    try:
        for call in range(1, 4):
            assert compiled(X).item() == 1
            assert sys.getrecursionlimit() == limit + call
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "act",
    [
        lambda: sys.getrefcount(Base),
        lambda: len(gc.get_stats()),
        lambda: csv.field_size_limit(131072),
        lambda: threading.stack_size(),
        lambda: np.seterr(divide="warn"),
        lambda: logging.getLogger("thunder_test_state").setLevel(0),
        lambda: len(contextvars.copy_context()),
        lambda: list(contextvars.copy_context().items()),
    ],
)
def test_query_that_can_be_neither_repeated_nor_replayed_is_warned(act: Act) -> None:
    def program(x: Tensor) -> Tensor:
        act()
        return x + 1

    empty = contextvars.Context()  # without the variables that the test run has set, which would take long to guard
    with pytest.warns(SharpEdgeWarning):
        empty.run(thunder.jit(program), X)
    with pytest.raises(SharpEdgeError):
        empty.run(thunder.jit(program, sharp_edges="error"), X)


# ---- contexts that the program copies -------------------------------------------------------------------------------


def set_in_a_copy(x: Tensor) -> Tensor:
    context = contextvars.copy_context()
    context.run(VARIABLE.set, 50)
    return x * VARIABLE.get() + context[VARIABLE]


def read_and_set_in_a_copy(x: Tensor) -> Tensor:
    context = contextvars.copy_context()

    def inner() -> int:
        VARIABLE.set(VARIABLE.get() + 3)
        OTHER.set(99)
        return VARIABLE.get()

    numbers = (context.run(inner), context.run(VARIABLE.get), VARIABLE.get(), OTHER.get(), context[OTHER])
    return x * torch.tensor(numbers)


def copy_within_a_copy(x: Tensor) -> Tensor:
    def inner() -> int:
        second = contextvars.copy_context()
        VARIABLE.set(7)
        return second.run(VARIABLE.get) * 100 + VARIABLE.get()

    return x * contextvars.copy_context().run(inner) + VARIABLE.get()


def set_before_and_behind_a_copy(x: Tensor) -> Tensor:
    VARIABLE.set(VARIABLE.get() * 2)
    context = contextvars.copy_context()
    VARIABLE.set(1000)
    return x * context.run(VARIABLE.get)


def reset_in_a_copy(x: Tensor) -> Tensor:
    def inner() -> int:
        token = VARIABLE.set(9)
        number = VARIABLE.get()
        VARIABLE.reset(token)
        return number * 100 + VARIABLE.get()

    return x * contextvars.copy_context().run(inner)


def raise_in_a_copy(x: Tensor) -> Tensor:
    context = contextvars.copy_context()

    def inner() -> None:
        VARIABLE.set(4)
        raise ValueError

    try:
        context.run(inner)
    except ValueError:
        return x * (VARIABLE.get() * 100 + context.run(VARIABLE.get))
    return x


def copy_of_a_copy(x: Tensor) -> Tensor:
    first = contextvars.copy_context()
    first.run(VARIABLE.set, 8)
    second = first.copy()
    second.run(VARIABLE.set, 12)
    return x * torch.tensor([first.run(VARIABLE.get), second.run(VARIABLE.get), VARIABLE.get()])


def new_context(x: Tensor) -> Tensor:
    context = contextvars.Context()
    context.run(OTHER.set, 4)
    numbers = (context.run(VARIABLE.get), context[OTHER], VARIABLE in context, context.copy().run(VARIABLE.get))
    return x * torch.tensor((*numbers, VARIABLE.get(), OTHER.get()))


@pytest.mark.parametrize(
    "program",
    [
        *(set_in_a_copy, read_and_set_in_a_copy, copy_within_a_copy, set_before_and_behind_a_copy),
        *(reset_in_a_copy, raise_in_a_copy, copy_of_a_copy, new_context),
    ],
)
def test_context_that_a_program_copies_matches_eager(program: Callable[[Tensor], Tensor]) -> None:
    compiled = thunder.jit(program, sharp_edges="error")
    for number in (1, 2, 2, 5):
        VARIABLE.set(number)
        found = compiled(X), VARIABLE.get(), OTHER.get()
        VARIABLE.set(number)
        wanted = program(X), VARIABLE.get(), OTHER.get()
        assert torch.equal(found[0], wanted[0])
        assert found[1:] == wanted[1:]


# ---- C code of other packages ---------------------------------------------------------------------------------------


def test_functions_of_known_packages_are_classified_by_package() -> None:
    safetensors = pytest.importorskip("safetensors._safetensors_rust")
    core = pytest.importorskip("pydantic_core")
    assert function_kind_of(safetensors.serialize) is CFunctionKind.UNKNOWN
    assert function_kind_of(core.to_json) is CFunctionKind.DEEP
    assert function_kind_of(np.frombuffer) is CFunctionKind.ARGUMENTS
    assert function_kind_of(torch._C._get_default_device) is CFunctionKind.ARGUMENTS
    assert function_kind_of(math.sin) is CFunctionKind.ARGUMENTS


@pytest.mark.parametrize("hold", [lambda k: Holder(k), lambda k: [Holder(k)], lambda k: {"a": Holder(k)}])
def test_attributes_that_c_code_of_another_package_reads_are_guarded(hold: Callable[[str], Any]) -> None:
    core = pytest.importorskip("pydantic_core")

    def program(held: Any, x: Tensor) -> Tensor:
        return x * len(core.to_json(held, fallback=vars))

    compiled = thunder.jit(program)
    for text in ("a", "a longer text", "b"):
        assert torch.equal(compiled(hold(text), X), program(hold(text), X))


def test_function_of_an_unknown_package_is_warned() -> None:
    serialize = pytest.importorskip("safetensors._safetensors_rust").serialize
    with pytest.warns(SharpEdgeWarning, match="whose reads are not known: safetensors"):
        thunder.jit(lambda x: x * len(serialize({}, {})))(X)


class Holder:
    """An object with a text."""

    def __init__(self, text: str) -> None:
        self.text = text


# ---- methods of pybind11's objects -----------------------------------------------------------------------------------

c10d = pytest.importorskip("torch._C._distributed_c10d", reason="torch was built without distributed")


@pytest.mark.parametrize("ask", [lambda a: a.rank(), lambda a: a.size(), lambda a: getattr(a, "rank")() + a.size()])  # noqa: B009
def test_getter_of_a_process_group_is_called_at_each_call(ask: Callable[[Any], int]) -> None:
    compiled = thunder.jit(lambda group, x: x * ask(group), sharp_edges="error")
    for rank, size in ((0, 2), (1, 4), (3, 5)):
        group = c10d.ProcessGroup(c10d.HashStore(), rank, size)
        assert compiled(group, X).item() == ask(group)


def test_number_of_keys_of_a_store_is_read_at_each_call() -> None:
    store = c10d.HashStore()
    compiled = thunder.jit(lambda x: x * store.num_keys())
    for count in range(3):
        assert compiled(X).item() == count
        store.set(f"key {count}", "")


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda: store_with("k"), lambda store: len(store.get("k"))),
        (torch.futures.Future, lambda future: future.done()),
        (lambda: torch._C.ScriptDict({"a": 1}), lambda held: held["a"]),
    ],
)
def test_unknown_method_of_a_pybind11_object_warns(make: Act, read: Callable[[Any], Any]) -> None:
    compiled = thunder.jit(lambda owner, x: x * read(owner))
    with pytest.warns(SharpEdgeWarning, match="whose reads are not known"):
        compiled(make(), X)


def store_with(key: str) -> Any:
    store = c10d.HashStore()
    store.set(key, "value")
    return store


def lists_modules(x: Tensor) -> tuple[Tensor, bool]:
    return x + 1, any(name == "colorsys" for name in sys.modules)


def goes_through_modules(x: Tensor) -> tuple[Tensor, bool]:
    import colorsys  # noqa: F401 (tracing imports modules, too)

    return x + 1, any(getattr(module, "rgb_to_hls", None) for module in list(sys.modules.values()))


@pytest.mark.parametrize("program", [lists_modules, goes_through_modules])
def test_eager_makes_calls_that_list_all_imported_modules(
    program: Callable[[Tensor], tuple[Tensor, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    fast, expected = thunder.jit(program, executors=("torch",)), program is goes_through_modules
    with pytest.warns(RecompileWarning, match="reads the names of all imported modules"):
        assert fast(X)[1] is expected
    monkeypatch.setitem(sys.modules, "colorsys", colorsys)
    assert fast(X)[1]


def name_of_caller() -> str:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_code.co_name


def names_of_callers() -> list[str]:
    return [info.function for info in inspect.stack()][:3]


def names_of_outer_frames() -> list[str]:
    return [info.function for info in inspect.getouterframes(sys._getframe())][:3]


def names_in_the_stack() -> list[str]:
    return [entry.name for entry in traceback.extract_stack()][-3:]


def lines_of_the_stack() -> str:
    return traceback.format_stack()[-2].split(" in ")[1]


def names_of_frames_behind() -> list[str]:
    frame, names = inspect.currentframe(), []
    while frame is not None and len(names) < 3:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def name_of_deep_frame() -> str:
    depth = 0
    while sys._getframe(depth).f_code.co_name != "called":
        depth += 1
    return sys._getframe(depth).f_code.co_name


STACK_READERS = [
    names_of_frames_behind,
    name_of_deep_frame,
    names_of_callers,
    names_of_outer_frames,
    names_in_the_stack,
    lines_of_the_stack,
]


def test_current_frame_is_a_frame_of_the_program() -> None:
    fast = thunder.jit(lambda x: (x + 1, name_of_caller()), executors=("torch",))
    assert [fast(X)[1] for _ in range(2)] == ["<lambda>"] * 2
    assert thunder.cache_misses(fast) == 1


@pytest.mark.parametrize("reader", STACK_READERS)
def test_eager_makes_calls_that_read_the_frames_of_callers(reader: Callable[[], Any]) -> None:
    def program(x: Tensor) -> Any:
        return x + 1, reader()

    def called(function: Callable[[Tensor], Any]) -> Any:
        return function(X)[1]

    fast = thunder.jit(program, executors=("torch",))
    with pytest.warns(RecompileWarning, match="reads the frames of its callers"):
        results = [called(fast)]
    results.append(called(fast))
    # Thunder's own frames are between the program and its caller.
    expected = called(program)
    own = [name for name in expected if name != "called"] if isinstance(expected, list) else expected
    assert all(list(filter(own.__contains__, result)) == own for result in results if isinstance(result, list))
    assert all(result == own for result in results if isinstance(result, str))


def test_the_old_value_of_a_token_is_read_in_eager_pytorch() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    def program(x: torch.Tensor) -> torch.Tensor:
        old = variable.set(5).old_value
        return x * (2 if old is contextvars.Token.MISSING else old)

    compiled, x = thunder.jit(program), torch.ones(2)
    with pytest.warns(UserWarning, match="old value"):
        assert torch.equal(compiled(x), x * 2)
    assert torch.equal(compiled(x), x * 5)


UNSET: contextvars.ContextVar[int] = contextvars.ContextVar("unset")


def item_of_a_copy(x: Tensor) -> Tensor:
    try:
        return x * contextvars.copy_context()[UNSET]
    except KeyError:
        return x * 100


@pytest.mark.parametrize("program", [item_of_a_copy, lambda x: x * (2 if UNSET in contextvars.copy_context() else 3)])
def test_variable_without_a_value_in_a_copied_context_is_guarded(program: Callable[[Tensor], Tensor]) -> None:
    compiled, context = thunder.jit(program), contextvars.Context()
    for number in range(3):
        assert torch.equal(context.run(compiled, X), context.run(program, X))
        context.run(UNSET.set, number + 5)


@pytest.mark.parametrize("read", [lambda c: c.run(VARIABLE.get), lambda c: c[VARIABLE], lambda c: VARIABLE in c])
def test_context_from_outside_is_read_in_eager_pytorch(read: Callable[[contextvars.Context], int]) -> None:
    context = contextvars.Context()
    context.run(VARIABLE.set, 2)
    compiled = thunder.jit(lambda x: x * read(context))
    with pytest.warns(UserWarning, match="a context from outside"):
        assert torch.equal(compiled(X), X * read(context))
    context.run(VARIABLE.set, 3)
    assert torch.equal(compiled(X), X * read(context))
