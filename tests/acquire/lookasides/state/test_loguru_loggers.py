"""Messages of loguru's loggers appear at each call, with the values of that call and the line that logs them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.errors import RecompileWarning

# The parts of `loguru._logger` that Thunder relies on: where messages come from, and how options are passed.
SOURCE = '''
import sys

class Message(str):
    """The text for a sink, with the record that it was made of."""

class Logger:
    def __init__(self, core, options):
        self._core = core
        self._options = options

    def opt(self, *, exception=None, lazy=False):
        return Logger(self._core, (exception, 0, False, lazy, *self._options[4:]))

    def _log(self, level, from_decorator, options, message, args, kwargs):
        frame = sys._getframe(options[1] + 2)
        text = Message(message.format(*args, **kwargs))
        text.record = {"line": frame.f_lineno}
        self._core.append((level, frame.f_globals["__name__"], frame.f_code.co_name, frame.f_lineno, text))

    def info(__self, __message, *args, **kwargs):
        __self._log("INFO", False, __self._options, __message, args, kwargs)
'''
OPTIONS = (None, 0, False, False, False, False, True, [], {})


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A logger whose class has the names of loguru's class."""
    module: Any = types.ModuleType("loguru._logger")
    monkeypatch.setitem(sys.modules, "loguru._logger", module)
    exec(SOURCE, vars(module))
    return module.Logger([], OPTIONS)


def test_messages_are_logged_at_each_call(logger: Any) -> None:
    def program(x: Tensor, step: int) -> Tensor:
        logger.info("rows {} of {total} in {}", x.shape[0], step, total=x.sum())  # noqa: PLE1205 - the format of loguru
        return x * 2

    compiled = thunder.jit(program)
    calls = [(torch.ones(2), 0), (torch.ones(2), 1), (torch.full((3,), 4.0), 2)]
    for arguments in calls:
        assert torch.equal(compiled(*arguments), arguments[0] * 2)
    ours = list(logger._core)
    logger._core.clear()
    for arguments in calls:
        program(*arguments)
    assert ours == logger._core
    assert len(ours) == len(calls)
    assert ours[0][1:3] == (__name__, "program")


USES: dict[str, Callable[[Any], object]] = {
    "a function": lambda logger: logger.opt(lazy=True).info("value {}", lambda: 3),
    "an exception": lambda logger: logger.opt(exception=ValueError("no")).info("failed"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_eager_makes_calls_whose_messages_have_options(logger: Any, use: Callable[[Any], object]) -> None:
    compiled = thunder.jit(lambda x: (use(logger), x + 1)[1])
    with pytest.warns(RecompileWarning, match="a message of loguru has options"):
        compiled(torch.ones(2))
    compiled(torch.ones(2))
    assert len(logger._core) == 2


def test_loggers_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    loguru = pytest.importorskip("loguru")
    loguru.logger.remove()
    loguru.logger.add(sys.stderr, format="{level} {name} {function} {message} {extra}")
    bound = loguru.logger.bind(rank=1)
    compiled = thunder.jit(lambda x: (bound.warning("sum {}", x.sum()), x + 1)[1])
    for value in (1.0, 2.0):
        compiled(torch.full((2,), value))
        assert capsys.readouterr().err == f"WARNING {__name__} <lambda> sum {2 * value} {{'rank': 1}}\n"
