"""By default a size is symbolic from its second value on, and programs for constant sizes stay valid."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from tests.symbolic.programs import FEATURES, PROGRAMS
from tests.symbolic.sizes.test_sizes import assert_same
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import last_program, specializations_of
from thunder_core.compilation.compiler.compiler import Compiler
from thunder_core.foundation.errors import Bug, OperationFailed, SymbolicAttemptWarning
from thunder_core.tracing.capture.symbolic.shape_env import ConstraintAfterPrologue
from thunder_core.tracing.extension.transform import Transform
from thunder_core.tracing.ir.check import check_trace
from thunder_core.tracing.ir.own_errors import VARIABLE, is_own_error
from thunder_core.tracing.ir.trace import Trace


def weighed(x: Tensor, y: Tensor) -> Tensor:
    return (x.softmax(1) * y).sum(-1) + x.shape[1]


def pair(batch: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, length, 4), torch.randn(batch, length, 4)


def misses(function: Callable[..., Any], compiled: Any, calls: list[tuple[Any, ...]]) -> list[int]:
    """Return the number of programs after each call, and compare each call with eager PyTorch."""
    counts = []
    for arguments in calls:
        assert_same(function(*arguments), compiled(*arguments))
        counts.append(thunder.cache_misses(compiled))
    return counts


@pytest.mark.parametrize(
    "shapes, counts",
    [
        (((2, 16), (2, 17), (2, 18), (2, 1), (2, 99)), [1, 2, 2, 2, 2]),
        (((2, 16), (3, 17), (5, 18), (1, 1), (4, 8)), [1, 2, 2, 2, 2]),
        (((2, 16), (2, 17), (3, 17), (4, 18), (1, 1)), [1, 2, 3, 3, 3]),
        (((1, 1), (2, 8), (3, 1), (1, 9)), [1, 2, 2, 2]),
        (((2, 8), (2, 1), (2, 9), (2, 16)), [1, 2, 2, 2]),
        (((2, 8), (2, 0), (2, 9), (2, 16)), [1, 2, 3, 3]),
    ],
)
def test_second_length_traces_the_program_for_all_lengths(shapes: Any, counts: list[int]) -> None:
    compiled = thunder.jit(weighed)
    assert misses(weighed, compiled, [pair(*shape) for shape in shapes]) == counts


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_programs_equal_eager_from_the_second_size_on(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name])
    for shape in ((2, 7), (2, 9), (1, 5), (4, 1)):
        x = torch.randn(*shape, FEATURES)
        assert_same(PROGRAMS[name](x.clone()), compiled(x.clone()))


def test_program_for_constant_sizes_continues_to_serve_them() -> None:
    compiled = thunder.jit(weighed)
    ran: list[Program] = []
    for length in (16, 17, 18, 16, 17, 16):
        compiled(*pair(2, length))
        ran.append(last_program(compiled))
    static, symbolic = ran[:2]
    assert ran == [static, symbolic, symbolic, static, symbolic, static]


def test_sizes_by_attributes_and_items_change() -> None:
    class Cache:
        def __init__(self) -> None:
            self.layers = [{"keys": torch.randn(2, 3)}]

    def joined(cache: Cache, x: Tensor) -> Tensor:
        keys = cache.layers[0]["keys"]
        cache.layers[0]["keys"] = torch.cat([keys, x], 0)
        return cache.layers[0]["keys"] @ x.T

    compiled, mine, eagers = thunder.jit(joined), Cache(), Cache()
    eagers.layers[0]["keys"] = mine.layers[0]["keys"].clone()
    for _ in range(5):
        x = torch.randn(1, 3)
        assert_same(joined(eagers, x), compiled(mine, x))
        assert_same(eagers.layers[0]["keys"], mine.layers[0]["keys"])
    assert thunder.cache_misses(compiled) == 2


def test_sizes_of_parameters_are_constant() -> None:
    def applied(layer: torch.nn.Module, x: Tensor) -> Any:
        return layer(x)

    compiled = thunder.jit(applied)
    for width in (3, 4, 5):
        layer = torch.nn.Linear(4, width)
        assert_same(applied(layer, torch.ones(2, 4)), compiled(layer, torch.ones(2, 4)))
    assert thunder.cache_misses(compiled) == 3
    assert not any("s0" in str(trace) for trace in thunder.last_traces(compiled))


def test_unchanged_size_is_constant_if_another_guard_fails() -> None:
    compiled = thunder.jit(weighed)
    x, y = pair(2, 16)
    compiled(x, y)
    compiled(x.double(), y)
    with torch.no_grad():
        compiled(x, y)
    assert thunder.cache_misses(compiled) == 3
    assert not specializations_of(compiled).observed.changing
    assert "s0" not in str(thunder.last_traces(compiled)[-1])


def test_size_that_changed_once_stays_symbolic() -> None:
    compiled = thunder.jit(weighed)
    for length, kind in ((16, torch.float32), (17, torch.float32), (16, torch.float64), (18, torch.float64)):
        one, other = (tensor.to(kind) for tensor in pair(2, length))
        torch.testing.assert_close(compiled(one, other), weighed(one, other))
    assert thunder.cache_misses(compiled) == 3


def test_program_that_cannot_be_symbolic_is_attempted_once() -> None:
    def told(x: Tensor) -> tuple[Tensor, str]:
        return x + 1, json.dumps([x.shape[0]])

    compiled = thunder.jit(told)
    for length in range(2, 8):
        assert_same(told(torch.ones(length)), compiled(torch.ones(length)))
    assert not specializations_of(compiled).observed.sizes_may_be_symbolic
    assert thunder.cache_misses(compiled) == 6


def test_training_has_one_backward_for_all_lengths() -> None:
    layer = torch.nn.Linear(4, 4)
    compiled = thunder.jit(layer)
    for length in (16, 17, 18, 5, 1):
        x = torch.randn(2, length, 4)
        wanted = torch.autograd.grad(layer(x).square().mean(), layer.weight)
        found = torch.autograd.grad(compiled(x).square().mean(), layer.weight)
        torch.testing.assert_close(found, wanted)
    assert thunder.cache_misses(compiled) == 2
    assert not thunder.last_backward_reason(compiled)


def test_compiled_function_inside_another_becomes_symbolic_too() -> None:
    inner = thunder.jit(lambda x: x.softmax(0) * x.shape[0])

    def outer(x: Tensor) -> Any:
        return inner(x) + 1

    compiled = thunder.jit(outer)
    assert misses(lambda x: x.softmax(0) * x.shape[0] + 1, compiled, [(torch.randn(n),) for n in (3, 4, 5, 1)])[-1] == 2


def test_executor_for_constant_sizes_keeps_its_programs() -> None:
    """No program that the user's executor does not run replaces a program that it runs."""

    class Constant(thunder.OperatorExecutor):
        symbolic_sizes = False

    fast = Constant("sine_for_constant_sizes")

    @fast.implements(torch.Tensor.sin)
    def sine(x: Tensor) -> Tensor:
        return torch.sin(x)

    compiled = thunder.jit(lambda x: (x + x).sin(), executors=[fast])
    for length in (3, 4, 5):
        assert_same((torch.ones(length) * 2).sin(), compiled(torch.ones(length)))
        assert any(bsym.executor == fast.name for bsym in thunder.last_traces(compiled)[-1].bound_symbols)
    assert thunder.cache_misses(compiled) == 3


def test_an_artifact_holds_the_program_of_the_first_length_and_that_for_all(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    compiled = thunder.jit(model)
    with torch.no_grad():
        for length in (16, 17):
            compiled(torch.randn(length, 4))
        thunder.save(compiled, tmp_path / "artifact")
        loaded = thunder.load(tmp_path / "artifact", model, strict=True)
        for length in (16, 17, 300, 1):
            x = torch.randn(length, 4)
            torch.testing.assert_close(loaded(x), model(x))
    assert len(specializations_of(loaded).programs) == 2


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_symbolic_program_is_kept_if_only_one_program_may_be_kept() -> None:
    compiled = thunder.jit(weighed, max_programs=1)
    assert misses(weighed, compiled, [pair(2, length) for length in (16, 17, 18, 16, 17)])[-1] == 2


@dataclass(frozen=True)
class Loud(Transform):
    """Logs and raises for traces with symbols, as PyTorch's metadata functions do."""

    def __call__(self, trace: Trace) -> Trace:
        if any(isinstance(size, torch.SymInt) for proxy in trace.inputs for size in getattr(proxy, "shape", ())):
            logging.getLogger("torch.fx.experimental.symbolic_shapes").error("failed during evaluate_expr")
            raise RuntimeError("it cannot be symbolic")
        return trace


@dataclass(frozen=True)
class Wrong(Transform):
    """Has a bug that only appears in traces with symbolic sizes."""

    def __call__(self, trace: Trace) -> Trace:
        if any(isinstance(size, torch.SymInt) for proxy in trace.inputs for size in getattr(proxy, "shape", ())):
            raise Bug("it cannot happen", fix="report it")
        return trace


def test_bug_in_the_handling_of_symbols_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    compiled = thunder.jit(weighed, transforms=[Wrong()])
    assert misses(weighed, compiled, [pair(2, 3)]) == [1]
    with pytest.warns(SymbolicAttemptWarning, match=r"weighed .* failed with symbolic sizes \(Bug: .*it cannot happen"):
        assert misses(weighed, compiled, [pair(2, 4)]) == [2]
    assert "it cannot happen" in last_program(compiled).constant_because


def test_python_errors_in_thunder_are_bugs_and_refusals_are_not() -> None:
    def raised(action: Callable[[], Any]) -> Exception:
        with pytest.raises(Exception) as caught:
            action()
        return caught.value

    assert is_own_error(raised(lambda: check_trace(None)))  # type: ignore[arg-type]
    assert not is_own_error(raised(lambda: {}["of the user's"]))
    assert not is_own_error(raised(lambda: torch.ones(2).view(3)))
    assert not is_own_error(OperationFailed("it is not traced", fix="leave it"))


def scaled_weighed(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return weighed(x, y) * scale


def test_programs_with_symbolic_numbers_alone_count_as_fallbacks() -> None:
    compiled = thunder.jit(scaled_weighed, transforms=[Loud()])
    for length in range(2, 8):
        compiled(*pair(2, length), length / 4)
    assert not specializations_of(compiled).observed.sizes_may_be_symbolic


def test_nothing_is_decided_by_a_size_when_the_prologue_is_made() -> None:
    compiled = thunder.jit(weighed, cache="symbolic values")
    compiled(*pair(2, 3))
    inputs = last_program(compiled).last("computation").inputs
    size = next(size for proxy in inputs for size in getattr(proxy, "shape", ()) if isinstance(size, torch.SymInt))
    assert size > 0
    with pytest.raises(ConstraintAfterPrologue, match="is decided after the prologue was made"):
        bool(size > 2)


def test_logs_of_pytorch_about_a_failed_attempt_are_hidden(caplog: pytest.LogCaptureFixture) -> None:
    compiled = thunder.jit(weighed, transforms=[Loud()])
    assert misses(weighed, compiled, [pair(2, length) for length in (3, 4)]) == [1, 2]
    assert last_program(compiled).constant_because == "it cannot be symbolic"
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]
    logging.getLogger("torch.fx.experimental.symbolic_shapes").error("another one")
    assert "another one" in caplog.text


# ---- number of traces of a call -----------------------------------------------------------------------------------


def of_two_lengths(x: Tensor, mask: Tensor) -> Tensor:
    assert x.shape[1] == mask.shape[1]
    return x * mask if x.shape[1] > 1 else x + mask


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the kinds of traces that calls needed."""
    found: list[Any] = []
    compiled = Compiler._compile

    def counted(self: Compiler, subject: Any, args: Any, kwargs: Any, symbolic: Any, *rest: Any) -> Any:
        found.append(symbolic)
        return compiled(self, subject, args, kwargs, symbolic, *rest)

    monkeypatch.setattr(Compiler, "_compile", counted)
    return found


def test_a_size_of_one_that_a_constraint_refuses_is_traced_once(attempts: list[Any]) -> None:
    """After that, it is known that no other size represents this size, nor the sizes that have to be equal to it."""
    compiled = thunder.jit(of_two_lengths)
    traced = []
    for batch, length in ((2, 5), (2, 6), (2, 1), (3, 1), (3, 4)):
        call = torch.randn(batch, length, 3), torch.randn(batch, length, 3)
        assert_same(of_two_lengths(*call), compiled(*call))
        traced.append(len(attempts))
    assert traced[2] - traced[1] == 1
    assert thunder.cache_misses(compiled) == 5


def test_size_of_one_includes_the_sizes_that_have_to_be_equal(attempts: list[Any]) -> None:
    compiled = thunder.jit(of_two_lengths, cache="symbolic values")
    for batch, length in ((1, 1), (4, 1), (7, 1)):
        call = torch.randn(batch, length, 3), torch.randn(batch, length, 3)
        assert_same(of_two_lengths(*call), compiled(*call))
    assert thunder.cache_misses(compiled) == 1
    assert not thunder.last_program(compiled).constant_because
