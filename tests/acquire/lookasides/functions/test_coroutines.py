"""Coroutines that only compute are run by `asyncio.run` as in eager; eager PyTorch runs those that wait."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, RecompileWarning

CLOSED: list[str] = []
LEVEL = contextvars.ContextVar("level", default=1)


async def doubled(x: Tensor) -> Tensor:
    return x * 2


async def numbers() -> AsyncIterator[int]:
    try:
        for number in range(5):
            yield number
    finally:
        CLOSED.append("closed")


class Context:
    """An asynchronous context manager."""

    async def __aenter__(self) -> int:
        return 3

    async def __aexit__(self, *raised: object) -> None:
        return None


async def all_of_it(x: Tensor) -> Any:
    LEVEL.set(5)
    y = await doubled(x)
    async with Context() as offset, asyncio.Lock():
        y = y + offset
    async for number in numbers():
        if number == 3:
            break
        y = y + number
    await asyncio.sleep(0)
    return y, [number async for number in numbers()]


async def raises(x: Tensor) -> Any:
    await doubled(x)
    raise ValueError("of the user's")


def test_coroutine_that_computes_is_part_of_the_program() -> None:
    compiled = thunder.jit(lambda x: asyncio.run(all_of_it(x)))
    for step in range(3):
        x = torch.ones(2) + step
        found, wanted = compiled(x), asyncio.run(all_of_it(x))
        assert torch.equal(found[0], wanted[0])
        assert found[1] == wanted[1]
    assert thunder.cache_misses(compiled) == 1
    assert LEVEL.get() == 1
    assert CLOSED == ["closed"] * 12


async def raise_level() -> int:
    LEVEL.set(LEVEL.get() + 5)
    return LEVEL.get()


def test_coroutine_reads_the_variables_of_its_own_run() -> None:
    def program(x: Tensor) -> Tensor:
        before = asyncio.run(raise_level()), asyncio.run(raise_level())
        LEVEL.set(LEVEL.get() * 10)
        return x * torch.tensor((*before, asyncio.run(raise_level()), LEVEL.get()))

    compiled, x = thunder.jit(program), torch.ones(4)
    for level in (1, 2, 3):
        contexts = contextvars.Context(), contextvars.Context()
        for context in contexts:
            context.run(LEVEL.set, level)
        assert torch.equal(contexts[0].run(compiled, x), contexts[1].run(program, x))
        assert contexts[0][LEVEL] == level * 10


def test_error_of_a_coroutine_matches_eager() -> None:
    with pytest.raises(ValueError, match="of the user's"):
        thunder.jit(lambda x: asyncio.run(raises(x)))(torch.ones(2))
    with pytest.raises(ValueError, match="a coroutine was expected"):
        thunder.jit(lambda x: asyncio.run(x))(torch.ones(2))


async def sleeps(x: Tensor) -> Tensor:
    await asyncio.sleep(0.01)  # here
    return x


async def makes_a_task(x: Tensor) -> Tensor:
    coroutine = doubled(x)
    try:
        return await asyncio.create_task(coroutine)  # here
    finally:
        coroutine.close()


async def gathers(x: Tensor) -> Any:
    coroutine = doubled(x)
    try:
        return await asyncio.gather(coroutine)  # here
    finally:
        coroutine.close()


@pytest.mark.parametrize("waits", [sleeps, makes_a_task, gathers])
def test_coroutine_that_waits_is_refused_with_the_line(waits: Callable[[Tensor], Any]) -> None:
    with pytest.raises(CannotReplay, match="event loop") as caught:
        thunder.jit(lambda x: asyncio.run(waits(x)), data_dependent="error")(torch.ones(2))
    where = caught.value.where
    assert where is not None
    assert where.filename == __file__
    assert Path(__file__).read_text(encoding="utf-8").splitlines()[where.lineno - 1].endswith("# here")


@pytest.mark.parametrize("waits", [sleeps, makes_a_task, gathers])
def test_eager_runs_coroutines_that_wait(waits: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(lambda x: asyncio.run(waits(x)))
    with pytest.warns(RecompileWarning, match="event loop"):
        results = [compiled(torch.ones(2)), compiled(torch.ones(3))]
    for size, result in zip((2, 3), results, strict=True):
        torch.testing.assert_close(result, asyncio.run(waits(torch.ones(size))))
