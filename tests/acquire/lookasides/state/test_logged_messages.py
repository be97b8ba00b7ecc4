"""Programs that read what they print or log match eager PyTorch: the epilogue writes too late."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.errors import RecompileWarning

Case = tuple[logging.Handler, Callable[[], Any]]


class Counting(logging.Handler):
    """A handler that counts its messages."""

    count = 0

    def emit(self, _record: logging.LogRecord) -> None:
        self.count += 1


def counting() -> Case:
    handler = Counting()
    return handler, lambda: handler.count


def filtering() -> Case:
    handler, names = logging.StreamHandler(io.StringIO()), list[str]()
    handler.addFilter(lambda record: names.append(record.name) is None)
    return handler, lambda: len(names)


def streaming() -> Case:
    stream = io.StringIO()
    return logging.StreamHandler(stream), lambda: len(stream.getvalue())


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize("case", [counting, filtering, streaming])
def test_program_that_reads_what_it_logs_matches_eager(case: Callable[[], Case]) -> None:
    results = []
    for compiles in (False, True):
        (handler, read), logger = case(), logging.getLogger(f"{__name__}.{case.__name__}")
        logger.handlers[:], logger.propagate = [handler], False

        def program(x: Tensor, logger: logging.Logger = logger, read: Callable[[], Any] = read) -> Tensor:
            logger.warning("of the program")
            return x * read()

        function = thunder.jit(program) if compiles else program
        results.append([function(torch.ones(1)).item() for _ in range(3)])
    assert results[0] == results[1]


def test_a_handler_that_is_added_later_is_noticed() -> None:
    logger, handler = logging.getLogger(f"{__name__}.later"), Counting()
    logger.handlers[:], logger.propagate = [logging.NullHandler()], False

    def program(x: Tensor) -> Tensor:
        logger.warning("of the program")
        return x * handler.count

    compiled = thunder.jit(program)
    assert compiled(torch.ones(1)).item() == 0
    logger.addHandler(handler)
    with pytest.warns(RecompileWarning):
        assert compiled(torch.ones(1)).item() == 1


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_program_that_reads_what_it_prints_matches_eager() -> None:
    stream = io.StringIO()

    def program(x: Tensor) -> Tensor:
        print("of the program")
        return x * len(stream.getvalue())

    compiled = thunder.jit(program)
    for count in (1, 2, 3):
        with contextlib.redirect_stdout(stream):
            assert compiled(torch.ones(1)).item() == count * len("of the program\n")


def test_output_stream_of_the_program_has_effects_at_each_call() -> None:
    texts: list[str] = []

    class Stream:
        """A stream that keeps its texts."""

        def write(self, text: str) -> int:
            texts.append(text)
            return len(text)

    def program(x: Tensor) -> Tensor:
        with contextlib.redirect_stdout(Stream()):  # type: ignore[type-var]
            print("of the program", end="")
        return x * len(texts)

    compiled = thunder.jit(program)
    for count in (1, 2, 3):
        assert compiled(torch.ones(1)).item() == 2 * count  # the text and the end


@pytest.mark.parametrize(
    "log", [logging.root.warning, logging.warning, logging.debug], ids=lambda log: log.__qualname__
)
def test_handler_of_the_root_logger_is_added_as_in_eager(
    log: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the functions of `logging` add a handler to a root logger without handlers."""
    monkeypatch.setattr(logging.root, "handlers", [])
    outcomes = []
    for compiles in (False, True):

        def program(x: Tensor) -> Tensor:
            log("of the program")
            return x + 1

        function = thunder.jit(program) if compiles else program
        logging.root.handlers.clear()
        for _ in range(2):
            function(torch.ones(1))
        outcomes.append(([type(handler) for handler in logging.root.handlers], capsys.readouterr().err))
    assert outcomes[0] == outcomes[1]
