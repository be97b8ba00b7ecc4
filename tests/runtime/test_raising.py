"""A program that raises: its error and its earlier effects equal eager's."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from tests.described import plain_data
from thunder_core.foundation.errors import (
    Bug,
    InternalErrorWarning,
    OperationFailed,
    RecompileWarning,
    SharpEdgeError,
    SharpEdgeWarning,
    WrongResult,
)
from thunder_core.tracing.capture.call_cache import CallCache
from thunder_core.tracing.ir.own_errors import VARIABLE

CALLS = 0
INNER = thunder.jit(lambda x: x * 2)


class Box:
    """An object that programs write to."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.last: Any = None
        self.memory = torch.zeros(2)


class Failed(Exception):
    """An error with more than a message."""

    def __init__(self, message: str, value: Tensor, *, code: int) -> None:
        super().__init__(message, value)
        self.value = value
        self.code = code


def containers_and_attributes(box: Box, x: Tensor) -> Tensor:
    box.items.append(x * 2)
    box.last = x + 1
    box.added = [x]  # type: ignore[attr-defined]
    raise ValueError("no", len(box.items))


def globals_and_prints(box: Box, x: Tensor) -> Tensor:
    global CALLS
    CALLS += 1
    box.last = CALLS
    print("before", x.sum(), [x])
    raise KeyError(box.last)


def writes_in_place(box: Box, x: Tensor) -> Tensor:
    box.memory.add_(x)
    x.mul_(3)
    raise RuntimeError("written")


def random_numbers(box: Box, x: Tensor) -> Tensor:
    box.last = torch.rand(2)
    raise LookupError(f"drawn {box.last}")


def own_attributes(box: Box, x: Tensor) -> Tensor:
    raise Failed("mine", x.sum(), code=7)


def chained(box: Box, x: Tensor) -> Tensor:
    try:
        box.items[3]
    except IndexError as error:
        error.add_note(f"with {x.sum().item()}")
        raise ValueError("outer") from error
    return x


def in_the_handler(box: Box, x: Tensor) -> Tensor:
    try:
        return x @ torch.ones(9, 9)
    except RuntimeError:
        box.last = "handled"
        raise TypeError("while handling")  # noqa: B904


def caught_then_raised(box: Box, x: Tensor) -> Tensor:
    try:
        box.items.append(1)
        raise ValueError("inner")
    except ValueError as error:
        box.last = str(error)
    finally:
        box.items.append(2)
    return x + torch.ones(5)


def of_an_operation(box: Box, x: Tensor) -> Tensor:
    box.items.append(x)
    return x @ torch.ones(9, 9)


def by_a_value(box: Box, x: Tensor) -> Tensor:
    box.items.append(x.sum())
    if x.sum() > 0:
        raise AssertionError(f"sum {x.sum()}", x)
    return x


def in_a_generator(box: Box, x: Tensor) -> Tensor:
    def numbers() -> Any:
        try:
            yield 1
            raise OSError(2, "gone", "file")
        finally:
            box.last = "closed"

    for number in numbers():
        box.items.append(x * number)
    return x


def half_a_mutation(box: Box, x: Tensor) -> Tensor:
    box.items.extend(1 / (2 - number) for number in range(5))
    return x


def a_group(box: Box, x: Tensor) -> Tensor:
    box.last = x
    raise ExceptionGroup("some", [ValueError(x.shape), TypeError("b")])


def of_a_compiled_function(box: Box, x: Tensor) -> Tensor:
    box.items.append(INNER(x))
    raise ValueError("after")


def exits(box: Box, x: Tensor) -> Tensor:
    box.items.append(x)
    sys.exit(3)


def interrupts(box: Box, x: Tensor) -> Tensor:
    box.items.append(x)
    raise KeyboardInterrupt


PROGRAMS = [
    containers_and_attributes,
    globals_and_prints,
    writes_in_place,
    random_numbers,
    own_attributes,
    chained,
    in_the_handler,
    caught_then_raised,
    of_an_operation,
    by_a_value,
    in_a_generator,
    half_a_mutation,
    a_group,
    of_a_compiled_function,
    exits,
    interrupts,
]


def outcome(program: Callable[[Box, Tensor], Tensor], capsys: pytest.CaptureFixture[str]) -> Any:
    """The error of a call, its source line, and the effects of the call."""
    global CALLS
    CALLS = 0
    box, x = Box(), torch.ones(2)
    torch.manual_seed(0)
    with pytest.raises(BaseException) as raised:
        program(box, x)
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    drawn = torch.rand(1).item()
    return plain_data([raised.value, box, x, CALLS, drawn]), (last.filename, last.lineno), capsys.readouterr()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_errors_and_earlier_effects_of_a_program_equal_eager(program, capsys):
    compiled = thunder.jit(program)
    wanted = outcome(program, capsys)
    assert [outcome(compiled, capsys) for _ in range(3)] == [wanted] * 3
    assert thunder.cache_misses(compiled) == 1
    assert thunder.cache_hits(compiled) == 2


def test_only_the_calls_that_raise_are_made_in_eager():
    def positive(x: Tensor, seen: list[int]) -> Tensor:
        seen.append(len(x))
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2

    compiled, seen, wanted = thunder.jit(positive), [], []
    for value in (-1.0, -2.0, 1.0, 1.0, -3.0, 2.0, 3.0, -4.0):
        x = torch.full((3,), value)
        if value < 0:
            with pytest.raises(ValueError, match="negative"):
                compiled(x, seen)
        else:
            assert torch.equal(compiled(x, seen), x * 2)
        wanted.append(3)
        assert seen == wanted
    assert len(thunder.compiler.specializations_of(compiled).programs) == 1
    assert thunder.cache_misses(compiled) == 3


def test_calls_that_raise_and_calls_that_do_not_in_turn_come_to_be_compiled():
    def positive(x: Tensor) -> Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2

    compiled = thunder.jit(positive)
    for size in (2, 3):
        for _ in range(4):
            with pytest.raises(ValueError, match="negative"):
                compiled(-torch.ones(size))
            assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0))
    assert len(thunder.compiler.specializations_of(compiled).programs) == 2
    misses = thunder.cache_misses(compiled)
    for value in (1.0, -1.0) * 3:
        with pytest.raises(ValueError, match="negative") if value < 0 else nullcontext():
            compiled(torch.full((3,), value))
    assert thunder.cache_misses(compiled) == misses


def test_a_call_that_a_sharp_edge_runs_in_eager_is_reported():
    def program(x: Tensor, times: list[float]) -> Tensor:
        times.append(-time.perf_counter() + time.perf_counter())  # a duration, which is recorded
        if len(times) == 1 and object.__getstate__(x * 2):  # a tensor without data has a state
            raise ValueError(times)
        return x * 2

    times: list[float] = []
    with pytest.warns(SharpEdgeWarning, match="nothing was compiled"):
        assert thunder.jit(program)(torch.ones(1), times).tolist() == [2.0]
    assert len(times) == 1


def test_a_call_that_raises_is_traced_again_if_its_guards_fail():
    def program(x: Tensor, factor: int) -> Tensor:
        if factor > 2:
            raise ValueError(f"{factor} is too large for {list(x.shape)}")
        return x * factor

    compiled = thunder.jit(program)
    for factor, size in ((3, 2), (4, 2), (4, 3), (2, 3), (4, 3), (3, 2)):
        if factor == 2:
            assert torch.equal(compiled(torch.ones(size), factor), torch.full((size,), 2.0))
            continue
        with pytest.raises(ValueError, match=rf"{factor} is too large for \[{size}\]"):
            compiled(torch.ones(size), factor)
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (4, 2)


def in_rows_of_three(x: Tensor, limit: int) -> Tensor:
    if x.shape[0] > limit:
        raise ValueError("too long")
    return x.view(3, -1)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_calls_of_other_sizes_that_raise_alike_are_traced_once(cache):
    compiled, misses = thunder.jit(in_rows_of_three, cache=cache), []
    for size in (4, 5, 7, 8, 10, 30, 31, 6, 9, 11, 40, 12):
        x = torch.arange(float(size))
        try:
            wanted = in_rows_of_three(x, 20)
        except Exception as error:
            with pytest.raises(type(error)) as caught:
                compiled(x, 20)
            assert str(caught.value) == str(error)
        else:
            assert torch.equal(compiled(x, 20), wanted)
        misses.append(thunder.cache_misses(compiled))
    assert misses[-1] == (4 if cache == "constant values" else 3), misses
    assert len(thunder.compiler.specializations_of(compiled).raising.programs.latest) == misses[-1] - 1


def test_a_program_that_raises_for_a_size_does_not_accept_others():
    def narrow(x: Tensor, y: Tensor) -> Tensor:
        return x + y if x.shape[0] > 2 else x @ y

    compiled = thunder.jit(narrow, cache="symbolic values")
    for rows, columns in ((5, 4), (6, 4), (4, 4), (2, 3), (2, 2), (1, 3), (7, 7)):
        x, y = torch.ones(rows), torch.ones(columns)
        if rows == columns:
            assert torch.equal(compiled(x, y), narrow(x, y))
        else:
            with pytest.raises(RuntimeError):
                compiled(x, y)


def test_modules_that_raise_keep_their_counters():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            x = self.norm(x)
            if self.calls > 1:
                raise RuntimeError("once")
            return x

    ours, eager = Counting(), Counting()
    compiled, x = thunder.jit(ours), torch.arange(6.0).reshape(3, 2)
    for _ in range(3):
        results = []
        for module in (compiled, eager):
            try:
                results.append(module(x).tolist())
            except RuntimeError as error:
                results.append(str(error))
        assert results[0] == results[1]
        assert ours.calls == eager.calls
        assert torch.equal(ours.norm.running_mean, eager.norm.running_mean)


def raises_only_while_traced(x: Tensor, seen: list[str]) -> Tensor:
    seen.append("run")
    return x.missing if object.__getstate__(x * 2) else x * 2  # type: ignore[attr-defined]  # a tensor without data has a state


def test_calls_with_an_error_that_eager_does_not_have_are_made_in_eager():
    seen: list[str] = []
    fast = thunder.jit(raises_only_while_traced)
    with pytest.warns(RecompileWarning, match=r"`AttributeError: .*missing.*not by the same call in eager"):
        assert torch.equal(fast(torch.ones(2), seen), torch.full((2,), 2.0))
    assert torch.equal(fast(torch.ones(2) * 3, seen), torch.full((2,), 6.0))
    assert seen == ["run", "run"]
    assert thunder.cache_misses(fast) == 1
    assert "missing" in thunder.recompile_reasons(fast)[-1]


def test_an_error_that_eager_does_not_have_is_refused_where_no_call_may_run_in_eager():
    seen: list[str] = []
    with pytest.raises(OperationFailed, match=r"`AttributeError: .*missing.*not by the same call in eager") as caught:
        thunder.jit(raises_only_while_traced, data_dependent="error")(torch.ones(2), seen)
    assert caught.value.where is not None
    assert caught.value.where.lineno == raises_only_while_traced.__code__.co_firstlineno + 2
    assert isinstance(caught.value.__cause__, AttributeError)
    assert seen == ["run"]


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A tracer with a bug: it raises an `AttributeError` when it records a call."""
    monkeypatch.delattr(CallCache, "key")
    monkeypatch.delenv(VARIABLE, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("without_keys")
def test_an_internal_error_is_reported_and_its_traceback_is_logged(caplog: pytest.LogCaptureFixture):
    fast, x = thunder.jit(torch.nn.Linear(2, 3)), torch.ones(1, 2)
    with (
        caplog.at_level(logging.DEBUG, "thunder_core.internal_errors"),
        pytest.warns(InternalErrorWarning, match=r"internal error of Thunder \(TH7001, `AttributeError: .*'key'"),
    ):
        first = fast(x)
    assert torch.equal(first, fast(x))
    assert thunder.cache_misses(fast) == 1
    assert "recorder.py" in caplog.text
    assert "TH7001" in thunder.recompile_reasons(fast)[-1]


def test_an_internal_error_is_raised_on_request(without_keys: pytest.MonkeyPatch):
    without_keys.setenv(VARIABLE, "raise")
    with pytest.raises(Bug, match=r"TH7001.*AttributeError: .*'key'") as caught:
        thunder.jit(torch.nn.Linear(2, 3))(torch.ones(1, 2))
    assert isinstance(caught.value.__cause__, AttributeError)


@pytest.mark.usefixtures("without_keys")
def test_an_internal_error_is_raised_where_no_call_may_run_in_eager():
    with pytest.raises(Bug, match=r"TH7001.*AttributeError: .*'key'"):
        thunder.jit(torch.nn.Linear(2, 3), data_dependent="error")(torch.ones(1, 2))


def test_sharp_edges_are_reported_if_the_program_raises():
    def program() -> None:
        raise ValueError(time.perf_counter() - time.perf_counter())

    with pytest.raises(SharpEdgeError, match="time"):
        thunder.jit(program, sharp_edges="error")()
    with pytest.raises(ValueError, match=r"\d"):
        thunder.jit(program)()


def failing(box: Box, x: Tensor, index: Tensor) -> Tensor:
    box.items.append(x * 2)
    box.last = x[index]
    box.items.append("after")
    return box.last


def failing_behind_a_write(box: Box, x: Tensor, index: Tensor) -> Tensor:
    box.items.append(x)
    x.add_(1)
    return x[index]


@pytest.mark.parametrize("warm", [True, False])
def test_effects_before_an_operation_that_fails_when_it_runs(warm):
    compiled, eager = thunder.jit(failing), failing
    found = []
    for program in (compiled, eager):
        box = Box()
        if warm:
            program(box, torch.ones(3), torch.tensor([1]))
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            program(box, torch.ones(3), torch.tensor([7]))
        found.append(plain_data(box))
    assert found[0] == found[1]
    assert thunder.cache_misses(compiled) == 1


def test_writes_before_an_error_are_not_repeated():
    compiled, box, x = thunder.jit(failing_behind_a_write), Box(), torch.ones(3)
    with pytest.raises(IndexError, match="index 7 is out of bounds") as caught:
        compiled(box, x, torch.tensor([7]))
    assert x.tolist() == [2.0, 2.0, 2.0]
    assert box.items == []
    line = failing_behind_a_write.__code__.co_firstlineno + 3
    assert caught.value.__notes__ == [f"  at: {__file__}:{line}, in failing_behind_a_write"]


def test_thunders_own_errors_show_the_source_line_once() -> None:
    approximate = thunder.OperatorExecutor("approximate")
    approximate.implements(torch.tanh)(lambda x: x)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)

    with pytest.raises(WrongResult) as caught:
        thunder.jit(program, executors=[approximate, "debug"])(torch.ones(2))
    assert not getattr(caught.value, "__notes__", ())
    assert str(caught.value).count("  at: ") == 1
    assert str(caught.value.where).startswith(f"{__file__}:{program.__code__.co_firstlineno + 1}")
