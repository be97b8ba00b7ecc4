"""What can be neither guarded nor replayed is allowed, warned of or refused, as the user says."""

from __future__ import annotations

import datetime as dt
import functools
import random
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core import functional
from thunder_core.errors import BadOption, SharpEdgeError, SharpEdgeWarning, WrongInputs

X = torch.ones(2)
SCALE = 3.0
TABLE = {"n": 2}


def reads_a_file(x: Tensor) -> Tensor:
    with open(__file__) as file:  # noqa: PTH123
        return x * len(file.readline())


class Hidden:
    """An object whose comparison C reaches too deep in what it is given."""

    def __eq__(self, other: object) -> bool:
        return bool(SCALE)

    __hash__ = object.__hash__


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else Hidden()


def compares(x: Tensor) -> Tensor:
    return x if nested(9) == nested(9) else -x


@functools.lru_cache
def makes_a_tensor() -> Tensor:
    return torch.ones(2) * SCALE


def starts_a_thread(x: Tensor) -> Tensor:
    thread = threading.Thread(target=compares, args=(1,))
    thread.start()
    thread.join()
    return x + 1


EDGES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "clock": (lambda x: x * time.time(), "the time: time.time"),
    "date": (lambda x: x * dt.datetime.now().year, "the time: datetime.now"),  # noqa: DTZ005
    "random": (lambda x: x * random.random(), "randomness outside torch"),
    "random method": (lambda x: x * random.randint(1, 5), "randomness outside torch"),
    "numpy random": (lambda x: x * float(np.random.rand()), "randomness outside torch"),
    "uuid": (lambda x: (x, uuid.uuid4().hex), "randomness outside torch"),
    "file": (reads_a_file, "input and output"),
    "cached tensor": (lambda x: x + makes_a_tensor(), "makes_a_tensor under functools.lru_cache makes an object"),
    "thread": (starts_a_thread, "code in another thread"),
}


@pytest.mark.parametrize("name", EDGES)
def test_each_policy(name: str) -> None:
    program, told = EDGES[name]
    with pytest.raises(SharpEdgeError, match=told) as caught:
        thunder.jit(program, sharp_edges="error")(X)
    assert caught.value.where is not None
    assert caught.value.where.filename == __file__
    with pytest.warns(SharpEdgeWarning, match=told) as warned:
        thunder.jit(program, sharp_edges="warn")(X)
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = thunder.jit(program)
        compiled(X)
    assert any(told in edge.what for edge in thunder.last_program(compiled).sharp_edges)


def test_what_runs_natively_is_told_where_edges_matter() -> None:
    told = "Hidden.__eq__ ran natively"
    with pytest.raises(SharpEdgeError, match=told):
        thunder.jit(compares, sharp_edges="error")(X)
    with pytest.warns(SharpEdgeWarning, match=told):
        thunder.jit(compares, sharp_edges="warn")(X)


def test_a_plain_program_has_none() -> None:
    compiled = thunder.jit(lambda x: torch.nn.functional.gelu(x) * SCALE + TABLE["n"], sharp_edges="error")
    compiled(X)
    assert thunder.last_program(compiled).sharp_edges == ()


def test_environment_variables_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("THUNDER_TEST_SCALE", "2")
    compiled = thunder.jit(lambda x: x * float(os.environ.get("THUNDER_TEST_SCALE", "1")))
    assert torch.equal(compiled(X), X * 2)
    monkeypatch.setenv("THUNDER_TEST_SCALE", "5")
    assert torch.equal(compiled(X), X * 5)


def test_printing_is_done_at_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Tensor) -> Tensor:
        print("shape", tuple(x.shape), sep=": ")
        print(x + 1)
        return x * 2

    compiled = thunder.jit(program)
    for _ in range(2):
        compiled(X)
        ours = capsys.readouterr().out
        program(X)
        assert ours == capsys.readouterr().out


def test_functional_jit_lists_every_read_with_its_line() -> None:
    local = 5

    def program(x: Tensor) -> Tensor:
        y = x * SCALE
        return y + TABLE["n"] + local

    with pytest.raises(SharpEdgeError) as caught:
        functional.jit(program)(X)
    message = str(caught.value)
    for told in ("SCALE", "TABLE['n']", "closure local of program", f"{Path(__file__).name}:"):
        assert told in message, told
    assert functional.jit(lambda x, n: torch.relu(x) * n)(X, 2).tolist() == [2.0, 2.0]


def test_functional_jit_binds_constants_where_it_is_allowed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = functional.jit(lambda x, n: x * SCALE * n, sharp_edges="allow")
    assert torch.equal(compiled(X, 1), X * 3)
    monkeypatch.setitem(globals(), "SCALE", 100.0)
    assert torch.equal(compiled(X, 1), X * 3), "bound when it was compiled"
    assert torch.equal(compiled(X, 2), X * 200), "arguments are guarded"


def test_functional_jit_refuses_modules_and_unknown_policies() -> None:
    with pytest.raises(WrongInputs, match="Linear is a module"):
        functional.jit(torch.nn.Linear(2, 2))
    with pytest.raises(BadOption, match="maybe"):
        thunder.jit(lambda x: x, sharp_edges="maybe")  # type: ignore[arg-type]
