"""Prints and logs of a program happen at each call, with its values, in its order, and not at all if it is refused."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import io
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent, SharpEdgeError, SharpEdgeWarning

LOGGER = logging.getLogger("tests.output")
Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


class Shown:
    """An object with a custom text."""

    def __init__(self) -> None:
        self.name = "shown"
        self.items: list[Any] = []
        self.value = torch.ones(2)
        self.weight = nn.Parameter(torch.ones(2))
        self.leaf = torch.ones(2, requires_grad=True)
        self.derived = self.leaf * 3

    def __repr__(self) -> str:
        return f"<{self.name} {self.items} {self.value}>"


def containers(box: Shown, x: Tensor) -> Tensor:
    made = [x, {"sum": x.sum()}, (1, x + 1)]
    print(made, {"k": [x]}, {1, 2}, Point(x, 2), collections.deque([x]), torch.max(x, 0))
    made.append(5)
    x = x + 1
    print(made, made, sep="|", end="!\n")
    return x


def values_at_their_line(box: Shown, x: Tensor) -> Tensor:
    y = x * 2
    print([y], y)
    y.add_(1)
    print([y], y)
    return y


def objects(box: Shown, x: Tensor) -> Tensor:
    print(Pair(x, [x]), box, nn.Linear(2, 3), type(box), None, 1.5, x.shape, torch.float32)
    box.name = "other"
    box.items.append(1)
    print(box, box.items)
    box.value = x * 3
    print(box)
    return x


def containers_from_outside(box: Shown, x: Tensor) -> Tensor:
    print(box.items)
    box.items.append(x)
    print(box.items, len(box.items))
    return x


def streams(box: Shown, x: Tensor) -> Tensor:
    print("error", [x], file=sys.stderr, flush=True)
    written = sys.stdout.write("written\n")
    sys.stderr.write(f"{x.shape}\n")
    sys.stdout.flush()
    print("last")
    return x + written


def to_a_buffer(box: Shown, x: Tensor) -> Tensor:
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer):
        print("within", x.shape)
    print("without", file=buffer)
    print(buffer.getvalue())
    return x


def texts(box: Shown, x: Tensor) -> Tensor:
    print(f"{x.shape} {box.name}", str(box.name), "%s" % box.name, "{}".format(box.name))  # noqa: UP031, UP032
    return x


def gradients(box: Shown, x: Tensor) -> Tensor:
    y = x * box.weight
    print(y, [y.sum(), y.detach(), y.view(1, 2)[0]], box.weight, box.leaf, box.leaf.view(2), box.derived, Pair(y, {}))
    y.add_(1)
    print(y, torch.zeros(1, requires_grad=True), nn.Parameter(torch.zeros(1)), Doubled.apply(y), f"{box.derived}")
    with torch.no_grad():
        print(x * box.weight, y)
    return y


class Doubled(torch.autograd.Function):
    """A custom operation of the user."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2


PROGRAMS = [
    gradients,
    containers,
    values_at_their_line,
    objects,
    containers_from_outside,
    streams,
    to_a_buffer,
    texts,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_output_of_each_call_matches_eager(program: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    compiled = thunder.jit(program)
    for step in range(3):
        printed = []
        for run in (program, compiled):
            run(Shown(), torch.arange(2.0) + step)
            printed.append(capsys.readouterr())
        assert printed[0] == printed[1]
    assert thunder.cache_misses(compiled) == 1


def test_autograd_state_of_a_printed_tensor_is_guarded(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Tensor) -> Tensor:
        print(x)
        return x * 1

    compiled, leaf = thunder.jit(program), torch.ones(2, requires_grad=True)
    for x in (leaf, leaf * 2, leaf + 1, leaf * 3, leaf.detach()):
        for run in (program, compiled):
            run(x)
        first, _, second = capsys.readouterr().out.strip().partition("\n")
        assert first == second
    assert thunder.cache_misses(compiled) == 4


def test_the_text_of_a_value_is_guarded(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = thunder.jit(lambda x: print(f"sum {x.sum():.2f}, {x}"))
    for step in range(3):
        compiled(torch.ones(2) * step)
        assert capsys.readouterr().out == f"sum {2 * step:.2f}, {torch.ones(2) * step}\n"


def test_a_refused_program_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def refused(box: Shown, x: Tensor) -> Tensor:
        print("one", [x], box)
        print("two", file=sys.stderr)
        sys.stdout.write("three")
        LOGGER.warning("four")
        return x if x.sum() > 0 else -x

    with pytest.raises(DataDependent):
        thunder.jit(refused, data_dependent="error")(Shown(), torch.ones(2))
    assert capsys.readouterr() == ("", "")


def test_logging_is_done_at_each_call(caplog: pytest.LogCaptureFixture) -> None:
    def logs(x: Tensor) -> Tensor:
        LOGGER.info("values %s of %d", [x], len(x))
        LOGGER.debug("unseen %s", x)
        logging.warning("root %s", x.shape)  # noqa: LOG015
        return x + 1

    compiled = thunder.jit(logs)
    caplog.set_level(logging.INFO, "tests.output")
    found = []
    for run in (logs, compiled):
        caplog.clear()
        for step in range(2):
            run(torch.ones(2) * step)
        found.append([(r.name, r.levelno, r.getMessage(), r.pathname, r.lineno, r.funcName) for r in caplog.records])
    assert found[0] == found[1]
    assert thunder.cache_misses(compiled) == 1
    caplog.set_level(logging.DEBUG, "tests.output")
    caplog.clear()
    compiled(torch.ones(2))
    assert [record.getMessage() for record in caplog.records][1] == "unseen tensor([1., 1.])"


@pytest.fixture
def warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a method to all loggers that logs each message once, as transformers does."""

    @functools.lru_cache(None)
    def warning_once(self: logging.Logger, *args: Any, **kwargs: Any) -> None:
        self.warning(*args, **kwargs)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)


@pytest.mark.usefixtures("warns_once")
def test_message_of_warning_once_is_logged_once_by_all_programs(caplog: pytest.LogCaptureFixture) -> None:
    def logs(x: Tensor) -> Tensor:
        LOGGER.warning_once("of %s", "all")  # type: ignore[attr-defined]
        LOGGER.warning_once(f"of {x.dim()}")  # type: ignore[attr-defined]
        return x + 1

    compiled = thunder.jit(logs, cache="constant values")
    found, cached = [], logging.Logger.warning_once  # type: ignore[attr-defined]
    for run in (logs, compiled):
        caplog.clear()
        cached.cache_clear()
        for shape in ((2,), (2,), (2, 2), (2,), (2, 2)):
            assert torch.equal(run(torch.ones(shape)), torch.full(shape, 2.0))
        found.append([(r.name, r.levelno, r.getMessage(), r.pathname, r.lineno, r.funcName) for r in caplog.records])
    assert found[0] == found[1]
    assert len(found[0]) == 3
    assert thunder.cache_misses(compiled) == 2, thunder.recompile_reasons(compiled)


@pytest.mark.usefixtures("warns_once")
def test_a_size_in_a_message_of_warning_once_comes_from_the_call(caplog: pytest.LogCaptureFixture) -> None:
    def pads(x: Tensor) -> Tensor:
        LOGGER.warning_once(f"padded from {x.shape[0]} to {x.shape[0] + 2}")  # type: ignore[attr-defined]
        return torch.nn.functional.pad(x, (0, 2))

    compiled, found = thunder.jit(pads, cache="symbolic values"), []
    for run in (pads, compiled):
        caplog.clear()
        logging.Logger.warning_once.cache_clear()  # type: ignore[attr-defined]
        for size in (3, 4, 3, 5):
            assert run(torch.ones(size)).tolist() == [1.0] * size + [0.0, 0.0]
        found.append([record.getMessage() for record in caplog.records])
    assert found[0] == found[1] == [f"padded from {size} to {size + 2}" for size in (3, 4, 5)]
    assert thunder.cache_misses(compiled) == 1


def to_a_file_from_outside(file: Any, x: Tensor) -> Tensor:
    print("into it", file=file)
    return x


def shown_before_a_write(box: Shown, x: Tensor) -> Tensor:
    print(box)
    box.value.add_(x)
    return x


@pytest.mark.parametrize(
    ("program", "make"), [(to_a_file_from_outside, io.StringIO), (shown_before_a_write, Shown)], ids=["file", "write"]
)
def test_print_that_cannot_be_replayed_is_warned_or_refused(program: Any, make: Any) -> None:
    with pytest.warns(SharpEdgeWarning, match="print") as caught:
        thunder.jit(program)(make(), torch.ones(2))
    assert (caught[0].filename, len(caught)) == (__file__, 1)
    with pytest.raises(SharpEdgeError, match="print"):
        thunder.jit(program, sharp_edges="error")(make(), torch.ones(2))
