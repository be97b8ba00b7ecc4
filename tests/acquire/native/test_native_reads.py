"""Reads of outside objects by C functions are guarded: after a change of the object, the result matches eager."""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import copy
import dataclasses
import decimal
import functools
import hashlib
import importlib
import inspect
import io
import logging
import operator
import os
import pickle
import queue
import re
import struct
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from tests.uncompiled import leave_inductor_out
from thunder_core.foundation.errors import CannotReplay, SharpEdgeError, SharpEdgeWarning
from thunder_core.frontend.acquire.outside.native_kinds import NativeState, listed_native_state, native_state_of

X = torch.ones(2)
Change = Callable[[Any], object]
Read = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs in eager operations; guards do not depend on the executor."""
    leave_inductor_out(monkeypatch)


class Plain:
    """An object with an attribute."""

    def __init__(self) -> None:
        self.k: Any = 1

    def __repr__(self) -> str:
        return f"Plain({self.k})"


class Slotted:
    """An object without a `__dict__`."""

    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 1


@dataclasses.dataclass
class Data:
    """A dataclass."""

    k: int = 1


class Stateful(Plain):
    """An object with `__getstate__`."""

    def __getstate__(self) -> dict[str, int]:
        return {"k": self.k * 2}


class Reduced:
    """An object with `__reduce__`."""

    def __init__(self, k: int = 1) -> None:
        self.k = k

    def __reduce__(self) -> Any:
        return Reduced, (self.k,)


class Items(list[int]):
    """A list with an attribute."""

    k = 1


class Refused(ValueError):
    """An exception with an attribute."""

    k = 1


class Holder:
    """An object that holds another object."""

    def __init__(self) -> None:
        self.inner = Plain()


def set_k(owner: Any) -> None:
    owner.k = 7


def set_args(error: BaseException) -> None:
    error.args = ("a longer text",)


def text_buffer() -> io.StringIO:
    buffer = io.StringIO()
    buffer.write("ab")
    return buffer


def third_in_localcontext(_: Any) -> int:
    with decimal.localcontext() as context:
        context.prec = 5
        return len(str(decimal.Decimal(1) / 3))


def context_variable() -> contextvars.ContextVar[int]:
    return contextvars.ContextVar("variable", default=1)


COPIES: list[tuple[str, Callable[[], Any], Read, Change]] = [
    ("copy", Plain, lambda a: copy.copy(a).k, set_k),
    ("deepcopy", Plain, lambda a: copy.deepcopy(a).k, set_k),
    ("copy of slots", Slotted, lambda a: copy.copy(a).k, set_k),
    ("copy of a dataclass", Data, lambda a: copy.copy(a).k, set_k),
    ("copy of a list", Items, lambda a: copy.copy(a).k, set_k),
    ("copy by __getstate__", Stateful, lambda a: copy.copy(a).k, set_k),
    ("copy by __reduce__", Reduced, lambda a: copy.deepcopy(a).k, set_k),
    ("copy of a namespace", lambda: types.SimpleNamespace(k=1), lambda a: copy.copy(a).k, set_k),
    ("copy of an exception", lambda: Refused("text"), lambda a: copy.copy(a).k, set_k),
    (
        "copy of an OSError",
        lambda: OSError(2, "no"),
        lambda a: copy.copy(a).errno,
        lambda a: setattr(a, "args", (5, "")),
    ),
    ("deepcopy of what is held", Holder, lambda a: copy.deepcopy(a).inner.k, lambda a: set_k(a.inner)),
    ("copy of what is held", Holder, lambda a: copy.copy(a).inner.k, lambda a: set_k(a.inner)),
    ("attribute that comes", Plain, lambda a: hasattr(copy.copy(a), "z"), lambda a: setattr(a, "z", 1)),
    ("attribute that goes", Plain, lambda a: hasattr(copy.copy(a), "k"), lambda a: delattr(a, "k")),
    ("pickle", Plain, lambda a: pickle.loads(pickle.dumps(a)).k, set_k),
    ("pickle of slots", Slotted, lambda a: pickle.loads(pickle.dumps(a)).k, set_k),
    ("pickle of a list", Items, lambda a: pickle.loads(pickle.dumps(a)).k, set_k),
    (
        "pickle of what is held",
        Holder,
        lambda a: pickle.loads(pickle.dumps([{"a": a}]))[0]["a"].inner.k,
        lambda a: set_k(a.inner),
    ),
    ("__getstate__", Plain, lambda a: a.__getstate__()["k"], set_k),
    ("__reduce_ex__", Plain, lambda a: a.__reduce_ex__(4)[2]["k"], set_k),
    ("__reduce__", Plain, lambda a: a.__reduce__()[2]["k"], set_k),
    (
        "partial",
        lambda: functools.partial(max, 1),
        lambda a: copy.copy(a)(0),
        lambda a: a.__setstate__((max, (3,), {}, {})),
    ),
]
NAMES: list[tuple[str, Callable[[], Any], Read, Change]] = [
    ("dir", Plain, lambda a: "z" in dir(a), lambda a: setattr(a, "z", 1)),
    ("__dir__", Plain, lambda a: "z" in a.__dir__(), lambda a: setattr(a, "z", 1)),
    ("getmembers", Plain, lambda a: dict(inspect.getmembers(a))["k"], set_k),
    ("getattr_static", Plain, lambda a: inspect.getattr_static(a, "k"), set_k),
    ("vars", Plain, lambda a: dict(vars(a))["k"], set_k),
    ("a field of a format", Plain, lambda a: int("{.k}".format(a)), set_k),  # noqa: UP032
    ("an item in a format", Plain, lambda a: "{a.__dict__[k]:>3}".format(a=a), set_k),  # noqa: UP032
    ("format_map", Plain, lambda a: "{a.k}".format_map({"a": a}), set_k),
    ("attrgetter", Plain, lambda a: operator.attrgetter("k")(a), set_k),
]
TEXTS: list[tuple[str, Callable[[], Any], Read, Change]] = [
    ("equality", lambda: types.SimpleNamespace(k=1), lambda a: a == types.SimpleNamespace(k=1), set_k),
    ("inequality", lambda: types.SimpleNamespace(k=1), lambda a: a != types.SimpleNamespace(k=1), set_k),
    ("repr", lambda: types.SimpleNamespace(k=1), repr, lambda a: setattr(a, "k", 12)),
    ("text in a list", lambda: [types.SimpleNamespace(k=1)], lambda a: f"{a}", lambda a: setattr(a[0], "k", 12)),
    (
        "equality in a list",
        lambda: [types.SimpleNamespace(k=[1])],
        lambda a: a == [types.SimpleNamespace(k=[1])],
        lambda a: a[0].k.append(1),
    ),
    ("member", lambda: [types.SimpleNamespace(k=1)], lambda a: types.SimpleNamespace(k=1) in a, lambda a: set_k(a[0])),
    ("text of an exception", lambda: Refused("text"), str, set_args),
    ("repr of an exception", lambda: Refused("text"), repr, set_args),
    ("format of an exception", lambda: Refused("text"), lambda a: f"{a}", set_args),
]
STATES: list[tuple[str, Callable[[], Any], Read, Change]] = [
    ("StringIO.getvalue", text_buffer, lambda a: a.getvalue(), lambda a: a.write("cd")),
    ("StringIO.tell", text_buffer, lambda a: a.tell(), lambda a: a.write("cd")),
    ("StringIO.read", lambda: io.StringIO("abc"), lambda a: a.read(), lambda a: a.seek(1)),
    ("BytesIO.getvalue", lambda: io.BytesIO(b"ab"), lambda a: a.getvalue(), lambda a: a.write(b"abcd")),
    ("BytesIO.getbuffer", lambda: io.BytesIO(b"ab"), lambda a: len(a.getbuffer()), lambda a: a.write(b"abcd")),
    ("array", lambda: array.array("i", [1, 2]), lambda a: sum(a), lambda a: a.append(5)),
    ("deque", lambda: collections.deque([1, 2]), lambda a: copy.copy(a)[0], lambda a: a.appendleft(5)),
    (
        "decimal context",
        lambda: decimal.Context(prec=5),
        lambda a: str(a.divide(decimal.Decimal(1), 3)),
        lambda a: setattr(a, "prec", 9),
    ),
    (
        "copy of a decimal context",
        lambda: decimal.Context(prec=5),
        lambda a: a.copy().prec,
        lambda a: setattr(a, "prec", 9),
    ),
    (
        "the process's decimal context",
        lambda: None,
        lambda _: str(decimal.Decimal(1) / 3),
        lambda _: setattr(decimal.getcontext(), "prec", 9),
    ),
    ("context variable", context_variable, lambda a: a.get(), lambda a: a.set(7)),
    ("context variable without a value", lambda: contextvars.ContextVar("v"), lambda a: a.get(1), lambda a: a.set(7)),
    ("lock", threading.Lock, lambda a: a.locked(), lambda a: a.acquire()),
    ("event", threading.Event, lambda a: a.is_set(), lambda a: a.set()),
    ("SimpleQueue", queue.SimpleQueue, lambda a: a.qsize(), lambda a: a.put(2)),
    ("Queue", queue.Queue, lambda a: a.qsize(), lambda a: a.put(2)),
    ("Struct", lambda: [struct.Struct("i")], lambda a: a[0].size, lambda a: a.__setitem__(0, struct.Struct("ii"))),
    (
        "Match",
        lambda: [re.match("a+", "aaa")],
        lambda a: a[0].group(),
        lambda a: a.__setitem__(0, re.match("a+", "aa")),
    ),
    (
        "environment",
        lambda: None,
        lambda _: os.getenv("THUNDER_TEST_READ", "1"),
        lambda _: os.environ.__setitem__("THUNDER_TEST_READ", "5"),
    ),
    ("key of an array", lambda: array.array("i", [1]), lambda a: stored_at(a), lambda a: a.__setitem__(0, 0)),
]
TEXTS += [
    ("joined items", lambda: ["a"], lambda a: ",".join(a), lambda a: a.append("b")),
    (
        "joined items of an attribute",
        lambda: types.SimpleNamespace(k=["a"]),
        lambda a: "".join(a.k),
        lambda a: a.k.append("b"),
    ),
    ("path", lambda: [PurePosixPath("a")], lambda a: str(a[0]), lambda a: a.__setitem__(0, PurePosixPath("b"))),
    ("formatted list", lambda: ["a"], lambda a: "{}".format(a), lambda a: a.append("b")),  # noqa: UP032
]
STATES += [
    ("hash", lambda: hashlib.sha256(b"a"), lambda a: a.hexdigest(), lambda a: a.update(b"b")),
    (
        "logger's level",
        lambda: logging.getLogger("thunder_test"),
        lambda a: a.isEnabledFor(10),
        lambda a: a.setLevel(10),
    ),
    (
        "logger's effective level",
        lambda: logging.getLogger("thunder_test"),
        lambda a: a.getEffectiveLevel(),
        lambda a: a.setLevel(15),
    ),
]
CASES = [*COPIES, *NAMES, *TEXTS, *STATES]


def stored_at(places: Any) -> list[int]:
    data = bytearray(2)
    data[places[0]] = 1
    return list(data)


@pytest.fixture(autouse=True)
def process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the decimal context and the environment of the process."""
    monkeypatch.delenv("THUNDER_TEST_READ", raising=False)
    logging.getLogger("thunder_test").setLevel(logging.NOTSET)
    with decimal.localcontext():
        yield


@pytest.mark.parametrize(("make", "read", "change"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_result_for_a_changed_object_matches_eager(make: Callable[[], Any], read: Read, change: Change) -> None:
    def program(owner: Any, x: Tensor) -> tuple[Any, Tensor]:
        return read(owner), x * 2

    compiled, first = thunder.jit(program), make()
    expected = read(make())
    assert compiled(first, X)[0] == expected
    renewed = make() if isinstance(first, io.IOBase | array.array | collections.deque) else first
    change(renewed)
    found = compiled(renewed, X)[0]
    assert found != expected
    eager = make() if isinstance(first, io.IOBase | array.array | collections.deque) else renewed
    if eager is not renewed:
        change(eager)
    assert found == read(eager)


def test_decimal_context_that_the_program_sets_itself_is_not_guarded() -> None:
    compiled = thunder.jit(lambda x: (x, third_in_localcontext(None)))
    assert compiled(X)[1] == 7
    decimal.getcontext().prec = 9
    assert compiled(X)[1] == 7


def test_deepcopy_of_another_module_computes_with_that_module() -> None:
    compiled = thunder.jit(lambda module, x: copy.deepcopy(module)(x))
    modules = [torch.nn.Linear(2, 2) for _ in range(3)]
    for module in modules:
        assert torch.equal(compiled(module, X), module(X))


def test_deepcopy_of_a_module_with_a_number_computes_with_the_new_number() -> None:
    class Scaled(torch.nn.Module):
        scale = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    module = Scaled()
    compiled = thunder.jit(lambda module, x: copy.deepcopy(module)(x))
    for scale in (1.0, 2.0, 3.0):
        module.scale = scale
        assert torch.equal(compiled(module, X), X * scale)


def test_attribute_that_the_program_writes_before_a_copy_is_not_guarded() -> None:
    def program(owner: Any, x: Tensor) -> Tensor:
        owner.k += 1
        return x * copy.copy(owner).k

    compiled, owner = thunder.jit(program), Plain()
    found = [compiled(owner, X)[0].item() for _ in range(5)]
    assert found == [2, 3, 4, 5, 6]
    assert thunder.cache_misses(compiled) == 2


def test_new_attribute_of_a_class_is_listed_by_dir() -> None:
    class Grown:
        pass

    compiled = thunder.jit(lambda owner, x: x * ("later" in dir(owner)))
    assert not compiled(Grown(), X).any()
    Grown.later = 1  # type: ignore[attr-defined]
    assert compiled(Grown(), X).all()


def test_context_variable_that_the_program_sets_is_set_at_each_call() -> None:
    variable = contextvars.ContextVar("count", default=0)

    def program(x: Tensor) -> Tensor:
        variable.set(variable.get() + 1)
        return x * variable.get()

    compiled = thunder.jit(program)
    for count in (1, 2, 3):
        assert torch.equal(compiled(X), X * count)
        assert variable.get() == count


def test_context_variable_that_the_program_resets_is_left_unchanged() -> None:
    variable = contextvars.ContextVar("level", default=1)

    def program(x: Tensor) -> Tensor:
        token = variable.set(5)
        y = x * variable.get()
        variable.reset(token)
        return y + variable.get()

    compiled = thunder.jit(program)
    assert torch.equal(compiled(X), X * 6)
    variable.set(2)
    assert torch.equal(compiled(X), X * 7)
    assert variable.get() == 2


def test_position_of_a_buffer_that_the_program_reads_matches_eager() -> None:
    compiled = thunder.jit(lambda buffer, x: (buffer.read(2), x + 1))
    buffer = io.StringIO("abcdef")
    assert [compiled(buffer, X)[0] for _ in range(3)] == ["ab", "cd", "ef"]


def test_event_that_the_program_sets_is_set_by_the_call_and_not_by_tracing() -> None:
    def program(event: threading.Event, x: Tensor) -> Tensor:
        if event.is_set():
            return x
        event.set()
        return x * 2

    compiled = thunder.jit(program)
    events = [threading.Event() for _ in range(2)]
    for event in events:
        assert torch.equal(compiled(event, X), X * 2)
        assert event.is_set()
        assert torch.equal(compiled(event, X), X)


def test_symbol_of_a_copied_counter_is_not_stale() -> None:
    compiled, owner = thunder.jit(lambda owner, x: x * copy.copy(owner).k), Plain()
    for number in range(3):
        owner.k = number
        assert torch.equal(compiled(owner, X), X * number)


# ---- objects of C whose state is not known -------------------------------------------------------------------------


def opaque_reader() -> Any:
    import zlib

    return zlib.decompressobj()


def test_method_of_an_opaque_object_warns_if_sharp_edges_are_allowed() -> None:
    compiled = thunder.jit(lambda owner, x: x * len(owner.unused_data) + len(owner.flush()))
    with pytest.warns(SharpEdgeWarning, match=r"whose reads are not known: zlib.Decompress.flush of args\[0\]"):
        compiled(opaque_reader(), X)


def test_method_of_an_opaque_object_is_refused_if_sharp_edges_are_errors() -> None:
    compiled = thunder.jit(lambda owner, x: x + len(owner.flush()), sharp_edges="error")
    with pytest.raises(SharpEdgeError, match=r"zlib.Decompress.flush"):
        compiled(opaque_reader(), X)


@pytest.mark.parametrize(
    "look", [len, list, lambda element: [child.tag for child in element], lambda element: element[:]]
)
def test_builtin_that_looks_into_an_opaque_object_warns(look: Read) -> None:
    compiled = thunder.jit(lambda element, x: x * len(look(element)) if look is not len else x * look(element))
    with pytest.warns(SharpEdgeWarning, match="xml.etree.ElementTree.Element"):
        compiled(ET.Element("root"), X)


@pytest.mark.parametrize(
    "look", [lambda a: a[0]["k"], lambda a: a.tolist()[0]["k"], lambda a: sorted(a, key=len)[0]["k"]]
)
def test_array_of_python_objects_warns(look: Read) -> None:
    compiled = thunder.jit(lambda held, x: x * look(held))
    with pytest.warns(SharpEdgeWarning, match="an array of objects"):
        compiled(np.array([{"k": 1}]), X)


def test_lock_that_is_held_while_tracing_is_no_sharp_edge() -> None:
    lock = threading.Lock()

    def program(x: Tensor) -> Tensor:
        with lock:
            return x + 1

    compiled = thunder.jit(program, sharp_edges="error")
    assert torch.equal(compiled(X), X + 1)
    assert not lock.locked()


# ---- attributes of pybind11's objects ------------------------------------------------------------------------------

c10d = pytest.importorskip("torch._C._distributed_c10d", reason="torch was built without distributed")


def options() -> Any:
    made = c10d.BroadcastOptions()
    made.rootRank = 1
    return made


PYBIND: list[Read] = [
    lambda a: a.rootRank,
    lambda a: getattr(a, "rootRank"),  # noqa: B009
    lambda a: operator.attrgetter("rootRank")(a),
    lambda a: next(item.rootRank for item in (a,)),
]


@pytest.mark.parametrize("read", PYBIND)
def test_attribute_of_a_pybind11_object_is_guarded(read: Read) -> None:
    compiled, owner = thunder.jit(lambda owner, x: x * read(owner)), options()
    for rank in (1, 5, 6):
        owner.rootRank = rank
        assert torch.equal(compiled(owner, X), X * rank)


def test_attribute_of_a_subclass_of_a_pybind11_class_is_guarded() -> None:
    class Mine(c10d.AllreduceOptions):  # type: ignore[misc]
        """A Python subclass."""

    owner = Mine()
    compiled = thunder.jit(lambda x: x * owner.timeout.total_seconds())
    before = compiled(X)
    owner.timeout = owner.timeout * 2
    assert torch.equal(compiled(X), before * 2)


# ---- the list -----------------------------------------------------------------------------------------------------


# Prints the module and the name of each class after all C modules of the standard library are imported.
LISTING = r"""
import importlib, os, sys, sysconfig, warnings
warnings.simplefilter("ignore")
folder = sysconfig.get_config_var("DESTSHARED") or os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload")
names = {*sys.builtin_module_names, *(file.partition(".")[0] for file in os.listdir(folder))}
for name in sorted(names):
    if not name.startswith(("_test", "_xx", "xx", "_tkinter", "__")):
        try:
            importlib.import_module(name)
        except ImportError:
            pass
def walk(kind, found):
    for derived in type.__subclasses__(kind):
        if derived not in found:
            found.add(derived)
            walk(derived, found)
    return found
for kind in walk(object, set()):
    print("class", kind.__module__, kind.__name__, sep="\t")
print(*names, sep="\n")
"""


def classes_of(kind: type, found: dict[type, None]) -> dict[type, None]:
    for derived in type.__subclasses__(kind):
        if derived not in found:
            found[derived] = None
            classes_of(derived, found)
    return found


def test_each_c_class_of_the_standard_library_is_listed() -> None:
    lines = subprocess.run([sys.executable, "-c", LISTING], capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in lines.splitlines()]
    listed = {(row[1], row[2]) for row in rows if len(row) == 3}
    for name in (row[0] for row in rows if len(row) == 1):
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not name.startswith(("_test", "_xx", "xx", "_tkinter", "__")):
                importlib.import_module(name)
    kinds = [kind for kind in classes_of(object, {}) if (kind.__module__, kind.__name__) in listed]
    unanswered = [f"{kind.__module__}.{kind.__name__}" for kind in kinds if listed_native_state(kind) is None]
    assert len(kinds) > 500
    assert unanswered == []


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ({}, NativeState.ITEMS),
        (types.SimpleNamespace(), NativeState.ATTRIBUTES),
        (KeyError(), NativeState.ATTRIBUTES),
        (io.StringIO(), NativeState.STATE),
        (re.compile("a"), NativeState.STATE),
        (re.match("a", "a"), NativeState.SAME),
        (iter([]), NativeState.STEPS),
        (threading.Lock(), NativeState.GETTERS),
        (torch.ones(1), NativeState.TENSOR),
        (Plain(), NativeState.FIXED),
        (opaque_reader(), NativeState.OPAQUE),
    ],
)
def test_class_has_its_listed_answer(value: Any, answer: NativeState) -> None:
    assert native_state_of(type(value)) is answer


def test_member_of_an_enumeration_of_pybind11_is_guarded_by_its_number() -> None:
    backends = (torch.nn.attention.SDPBackend.MATH, torch.nn.attention.SDPBackend.FLASH_ATTENTION)

    def program(x: torch.Tensor, backend: object, held: list[object]) -> torch.Tensor:
        return x * (int(backend) + 2) * (5 if held[0] == backends[0] else 7)  # type: ignore[call-overload]

    compiled = thunder.jit(program)
    for backend in (*backends, *backends):
        for held in backends:
            assert torch.equal(compiled(torch.ones(1), backend, [held]), program(torch.ones(1), backend, [held]))
    assert thunder.cache_misses(compiled) == 4


@pytest.mark.parametrize(
    "program",
    [
        lambda x: pickle.dumps(x),
        lambda x: pickle.dumps({"a": [x * 2]}),
        lambda x: pickle.dumps(x.untyped_storage()),
        lambda x: torch.save(x + 1, io.BytesIO()),
    ],
)
def test_pickled_tensor_is_refused(program: Callable[[Tensor], Any]) -> None:
    """The bytes contain values. Storages of tensors without data would end the process."""
    with pytest.raises(CannotReplay, match="pickles a tensor"):
        thunder.jit(program, data_dependent="error")(X)


def test_pickled_symbolic_number_is_the_number_of_the_call() -> None:
    def program(x: Tensor, number: int) -> tuple[Tensor, bytes]:
        return x + 1, pickle.dumps({"a": [number, x.shape[0]], "b": x.shape})

    compiled = thunder.jit(program, data_dependent="error", cache="symbolic values", executors=("torch",))
    for number in (3, 500, 70000):
        x = torch.ones(number % 7 + 2)
        assert compiled(x, number)[1] == program(x, number)[1]
