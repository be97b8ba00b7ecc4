"""Errors of signal handlers while a program is traced: they reach the caller, as in eager PyTorch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import SharpEdgeWarning
from thunder_core.foundation.signal_handlers import ended_by_handlers


class Late(BaseException):
    """An error outside of `Exception`, as of pytest's time limits."""


def send() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture(params=[TimeoutError, Late])
def error(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """The class of the error that the handler of SIGUSR1 raises."""

    def handle(number: int, _: object) -> None:
        raise request.param(f"signal {number}")

    before = signal.signal(signal.SIGUSR1, handle)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


def sent_once(x: Tensor) -> Tensor:
    if x.shape[0] == 2:
        send()
    return x * 2


def sent_to_all_handlers(x: Tensor) -> Tensor:
    try:
        send()
        return x * 2
    except:  # noqa: E722
        return x * 3


def test_error_of_a_handler_reaches_the_caller(error: type[BaseException]) -> None:
    compiled = thunder.jit(sent_once)
    with pytest.raises(error, match=f"signal {int(signal.SIGUSR1)}"):
        compiled(torch.ones(2))
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_error_that_the_program_catches_ends_the_tracing(error: type[BaseException]) -> None:
    """The program's branch for errors must not become the program of all later calls."""
    compiled = thunder.jit(sent_to_all_handlers)
    for _ in range(2):
        with pytest.raises(error, match="signal"):
            compiled(torch.ones(2))
    signal.signal(signal.SIGUSR1, quiet := lambda _, __: None)
    with pytest.warns(SharpEdgeWarning, match="kill"):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert signal.getsignal(signal.SIGUSR1) is quiet


def test_error_that_code_in_the_block_swallows(error: type[BaseException]) -> None:
    with pytest.raises(error), ended_by_handlers(), suppress(BaseException):
        send()
    with pytest.raises(error), ended_by_handlers(), ended_by_handlers():
        send()


def test_handler_that_the_program_reads(error: type[BaseException]) -> None:
    handler = signal.getsignal(signal.SIGUSR1)

    def program(x: Tensor) -> Tensor:
        return x * 2 if signal.getsignal(signal.SIGUSR1) is handler else x * 3

    compiled = thunder.jit(program)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert thunder.cache_misses(compiled) == 1
    signal.signal(signal.SIGUSR1, lambda _, __: None)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))


def test_error_keeps_its_cause() -> None:
    def handle(_: int, __: object) -> None:
        raise TimeoutError("late") from ValueError("a cause")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(TimeoutError) as caught:
            thunder.jit(sent_once)(torch.ones(2))
        assert isinstance(caught.value.__cause__, ValueError)
        assert signal.getsignal(signal.SIGUSR1) is handle
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_handler_that_raises_nothing_is_called_during_tracing() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        with pytest.warns(SharpEdgeWarning, match="kill"):
            assert thunder.jit(sent_once)(torch.ones(2)).sum() == 4
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received
    assert set(received) == {signal.SIGUSR1}


def test_handler_that_the_block_installs_stays() -> None:
    def handle(_: int, __: object) -> None:
        """Do nothing."""

    before = signal.signal(signal.SIGUSR1, lambda _, __: None)
    try:
        with ended_by_handlers():
            signal.signal(signal.SIGUSR1, handle)
        assert signal.getsignal(signal.SIGUSR1) is handle
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_have_no_handlers() -> None:
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(thunder.jit(lambda x: x * 2)(torch.ones(2))))
    thread.start()
    thread.join()
    assert results[0].sum() == 4
