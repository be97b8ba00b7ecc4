"""Eager PyTorch makes the calls of programs whose effects or results no trace can represent, with one warning."""

from __future__ import annotations

import array
import contextlib
import contextvars
import ctypes
import decimal
import io
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import thunder_core as thunder
from tests.compiler.inner_functions import sines
from thunder_core.foundation.errors import CannotReplay, RecompileWarning, UnsupportedError

Case = tuple[Callable[[Tensor], Any], Callable[[], Any]]  # a program, and a function that returns the state it writes


class Box:
    """An object that a program creates."""

    def __init__(self, value: object = None) -> None:
        self.value = value


def counted(log: list[Any]) -> Callable[[Tensor], Tensor]:
    """Return a compiled function with its own settings that appends to a list."""

    def inner(x: Tensor) -> Tensor:
        log.append(len(log))
        return torch.sin(x)

    return sines(inner)


# ---- a compiled function with its own settings ----


def reserved_name() -> Case:
    inner = sines(lambda x, beside: x * beside)
    return lambda x: inner(x, beside=2), list


def write_before() -> Case:
    log: list[Any] = []
    inner = counted(log)

    def program(x: Tensor) -> Any:
        log.append("outer")
        return inner(x)

    return program, lambda: log


def read_afterwards() -> Case:
    log: list[Any] = []
    inner = counted(log)

    def program(x: Tensor) -> Any:
        y = inner(x)
        return y + len(log)

    return program, lambda: log


def swallowed_failure() -> Case:
    log: list[Any] = []
    inner = counted(log)

    def program(x: Tensor) -> Any:
        try:
            return inner(x) + len(log)
        except Exception:
            return x

    return program, lambda: log


def prints() -> Case:
    inner = sines(lambda x: print("inner"))

    def program(x: Tensor) -> Any:
        print("outer")
        inner(x)
        return x * 2

    return program, list


def compilation() -> Case:
    return lambda x: sines(lambda y: y * x)(x), list


def random_number() -> Case:
    inner = sines(lambda x: x * random.random())
    return lambda x: inner(x), list


def attribute_of_a_tensor() -> Case:
    inner = sines(lambda x: setattr(x, "label", 3))

    def program(x: Tensor) -> Any:
        y: Any = x * 1
        inner(y)
        return y * y.label

    return program, list


def backward_inside() -> Case:
    weight = torch.ones(2, requires_grad=True)
    inner = sines(lambda x: (x * weight).sum().backward())
    return lambda x: inner(x), lambda: weight.grad


def backward_through() -> Case:
    weight = torch.ones(2, requires_grad=True)
    inner = sines(lambda x: x * weight)
    return lambda x: inner(x).sum().backward(), lambda: weight.grad


def write_to_a_new_object() -> Case:
    inner = sines(lambda x, items: items.append(3))

    def program(x: Tensor) -> Any:
        items: list[int] = []
        inner(x, items)
        return x * 2, items

    return program, list


def closed_over_tensor() -> Case:
    cell: list[Any] = [None]
    inner = sines(lambda x: x * cell[0])

    def program(x: Tensor) -> Any:
        cell[0] = x * 2
        return inner(x)

    return program, lambda: cell


def grad_mode() -> Case:
    inner = sines(lambda x: torch.set_grad_enabled(False))

    def program(x: Tensor) -> Any:
        inner(x)
        enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        return x * enabled

    return program, torch.is_grad_enabled


def returned_object() -> Case:
    inner = sines(lambda x: Box(x * 2))
    return lambda x: inner(x).value, list


def given_object() -> Case:
    inner = sines(lambda x, box: x * box.value)
    return lambda x: inner(x, Box(3)), list


def sparse_result() -> Case:
    inner = sines(lambda x: x.to_sparse())
    return lambda x: inner(x).to_dense(), list


def shape_changed_in_place() -> Case:
    inner = sines(lambda x: x.unsqueeze_(0))

    def program(x: Tensor) -> Any:
        y = x * 2
        inner(y)
        return y

    return program, list


def branch_after_an_effect() -> Case:
    log: list[Any] = []
    first, second = counted(log), sines(lambda x: x if x.sum() > 0 else -x)
    return lambda x: second(first(x)), lambda: log


def hook_that_writes() -> Case:
    log: list[Any] = []

    def program(x: Tensor) -> Any:
        leaf = x.detach().requires_grad_()
        with saved_tensors_hooks(log.append, lambda tensor: tensor):
            y = leaf.sin()
        return y.detach() * len(log)

    return program, lambda: log


# ---- results and effects ----


def list_in_itself() -> Case:
    def program(x: Tensor) -> Any:
        items: list[Any] = [x * 2]
        items.append(items)
        return items

    return program, list


def partial_sort() -> Case:
    items: list[Any] = [3, 2, "a"]

    def program(x: Tensor) -> Any:
        with contextlib.suppress(TypeError):
            items.sort()
        return x * 2

    return program, lambda: items


def example_that_leaves_vmap() -> Case:
    box = Box()

    def example(y: Tensor) -> Tensor:
        box.value = y
        return y * 2

    return lambda x: torch.vmap(example)(x), list


def message_with_an_effect() -> Case:
    log: list[Any] = []

    def message() -> str:
        log.append(1)
        return "not positive"

    def program(x: Tensor) -> Any:
        torch._check_tensor_all(x > 0, message)
        return x * 2

    return program, lambda: log


def earlier_context_variable() -> Case:
    variable = contextvars.ContextVar("variable", default=0)
    tokens = [variable.set(1), variable.set(2)]

    def program(x: Tensor) -> Any:
        y = x * variable.get()
        variable.reset(tokens.pop())
        return y

    return program, lambda: (variable.get(), len(tokens))


# ---- objects of C from outside ----


def written(value: Any, write: Callable[[Any], object]) -> Callable[[], Case]:
    """Return the case of a program that writes to an object from outside, after it has drawn random numbers."""

    def case() -> Case:
        target = value()

        def program(x: Tensor) -> Any:
            y = x * random.random() + torch.rand(2) + np.random.rand()
            x.add_(1)
            write(target)
            return y

        return program, lambda: contents(target)

    return case


def contents(target: Any) -> object:
    """Return what an object of C holds."""
    if isinstance(target, io.StringIO):
        return target.closed
    if isinstance(target, np.ndarray):
        return target.tolist(), target.flags.writeable
    return list(target) if isinstance(target, (bytearray, array.array, ctypes.Array)) else repr(target)


def set_precision(context: decimal.Context) -> None:
    context.prec = 7
    context.clear_flags()


def write_to_memory(numbers: Any) -> None:
    numbers[0] += 1


def bytes_of_memory() -> Any:
    return (ctypes.c_int * 2)(1, 2)


WRITES = {
    "item of an array": written(lambda: np.array([3.0, 1.0]), write_to_memory),
    "sort of an array": written(lambda: np.array([3.0, 1.0]), lambda numbers: numbers.sort()),
    "shape of an array": written(lambda: np.array([3.0, 1.0]), lambda numbers: setattr(numbers, "shape", (1, 2))),
    "resize of an array": written(lambda: np.array([3.0, 1.0]), lambda numbers: numbers.resize((3,), refcheck=False)),
    "flag of an array": written(lambda: np.array([3.0, 1.0]), lambda numbers: numbers.setflags(write=False)),
    "item of ctypes": written(bytes_of_memory, write_to_memory),
    "bytearray": written(lambda: bytearray(b"ab"), lambda data: data.append(3)),
    "array.array": written(lambda: array.array("i", [1, 2]), lambda numbers: numbers.extend([3, 4])),
    "closed buffer": written(lambda: io.StringIO("a"), lambda buffer: buffer.close()),
    "decimal context": written(lambda: decimal.Context(prec=5), set_precision),
}


# ---- random numbers ----


def state_after_a_draw() -> Case:
    generator = np.random.default_rng(1)
    return (
        lambda x: (x * generator.random(), generator.bit_generator.state["bit_generator"]),
        lambda: str(generator.bit_generator.state),
    )


def write_behind_a_tensor() -> Case:
    def program(x: Tensor) -> Any:
        drawn = np.random.rand(3)
        tensor = torch.from_numpy(drawn)
        drawn[0] = 5
        return x.sum() * tensor

    return program, list


def write_by_a_function() -> Case:
    def program(x: Tensor) -> Any:
        drawn = np.random.rand(3)
        np.clip(drawn, 0.2, 0.5, out=drawn)
        return x.sum() * torch.tensor(drawn)

    return program, list


def read_after_a_write_to_a_tensor(read: Callable[[Any], Any], *, is_drawn: bool) -> Callable[[], Case]:
    """Return the case of a program that writes to a tensor of an array, and then reads the array."""

    def case() -> Case:
        outside = np.array([3.0, 1.0])

        def program(x: Tensor) -> Any:
            numbers = np.random.rand(2) if is_drawn else outside
            torch.from_numpy(numbers).mul_(2)
            return x * read(numbers)

        return program, outside.tolist

    return case


READS = {
    "sum of an array": read_after_a_write_to_a_tensor(lambda numbers: numbers.sum(), is_drawn=False),
    "item of an array that is read": read_after_a_write_to_a_tensor(lambda numbers: numbers[0], is_drawn=False),
    "sum of a random array": read_after_a_write_to_a_tensor(lambda numbers: numbers.sum(), is_drawn=True),
    "item of a random array": read_after_a_write_to_a_tensor(lambda numbers: numbers[0], is_drawn=True),
    "product of a random array": read_after_a_write_to_a_tensor(
        lambda numbers: torch.from_numpy(numbers * 3), is_drawn=True
    ),
}
CASES: dict[str, Callable[[], Case]] = {
    case.__name__.replace("_", " "): case
    for case in (
        reserved_name,
        write_before,
        read_afterwards,
        swallowed_failure,
        prints,
        compilation,
        random_number,
        attribute_of_a_tensor,
        backward_inside,
        backward_through,
        write_to_a_new_object,
        closed_over_tensor,
        grad_mode,
        returned_object,
        given_object,
        sparse_result,
        shape_changed_in_place,
        branch_after_an_effect,
        hook_that_writes,
        list_in_itself,
        partial_sort,
        example_that_leaves_vmap,
        message_with_an_effect,
        earlier_context_variable,
        state_after_a_draw,
        write_behind_a_tensor,
        write_by_a_function,
    )
} | {**WRITES, **READS}
GENERATORS = (torch.get_rng_state, random.getstate, np.random.get_state)


def observed(case: Callable[[], Case], transform: Callable[..., Any]) -> Iterator[str]:
    """Yield results, written state and states of random generators after each of two calls of a program."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    program, state = case()
    called = transform(program)
    x = torch.ones(2)
    for _ in range(2):
        try:
            yield repr(called(x))
        except Exception as error:
            yield repr(error)
        yield repr((x, state(), *(generator() for generator in GENERATORS)))


@pytest.mark.parametrize("name", CASES)
def test_eager_makes_a_call_that_no_trace_represents(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = list(observed(CASES[name], lambda program: program))
    printed = capsys.readouterr().out
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecompileWarning)
        assert list(observed(CASES[name], thunder.jit)) == expected
    assert capsys.readouterr().out == printed
    reasons = [str(warning.message) for warning in caught if warning.category is RecompileWarning]
    assert len([reason for reason in reasons if "made in eager PyTorch" in reason]) == 1


def test_tensor_of_an_array_may_be_written_to_after_a_read() -> None:
    def program(x: Tensor, numbers: Any) -> Tensor:
        total = numbers.sum()
        return torch.from_numpy(numbers).mul_(2) * x * total

    compiled = thunder.jit(program)
    ours, theirs, x = np.array([3.0, 1.0]), np.array([3.0, 1.0]), torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x, ours), program(x, theirs))
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("name", CASES)
def test_call_that_no_trace_represents_is_refused_where_values_are_errors(name: str) -> None:
    program, state = CASES[name]()
    before = repr(state())
    with pytest.raises(UnsupportedError):
        thunder.jit(program, data_dependent="error")(torch.ones(2))
    assert repr(state()) == before


def test_write_to_a_weak_container_for_a_dead_object_is_refused() -> None:
    keys = [Box(), Box()]
    container = weakref.WeakKeyDictionary(dict.fromkeys(keys, 1))
    iterator = iter(container.keys())
    next(iterator)
    keys.pop()  # while a loop runs, the container keeps the reference to the dead object

    def program(x: Tensor) -> Tensor:
        container[Box()] = 2
        return x * 2

    with pytest.raises(CannotReplay, match="for an object that no longer exists"):
        thunder.jit(program)(torch.ones(2))
    del iterator
