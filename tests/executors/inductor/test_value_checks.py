"""Values that eager PyTorch refuses are refused in regions of Inductor, with eager's error at the source line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_core.backend.fusion.fuse import Fused
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.partition import partition_into_regions
from thunder_executors.inductor import EXECUTOR
from thunder_executors.inductor.build import build

pytestmark = pytest.mark.skipif(EXECUTOR.missing() is not None, reason="needs a C++ compiler")

X = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
ROWS = torch.tensor([0, 1])
BAD_ROWS = tuple(map(torch.tensor, ([0, 9], [-1, 0], [2**40, 0], [-9, 0])))
HALVES = torch.full((4,), 0.5)
BAD_PROBABILITIES = tuple(torch.full((4,), value) for value in (2.0, -0.1, float("nan")))
ODD = torch.tensor([1, 3])
ZEROS = (torch.tensor([1, 0]), torch.tensor([0, 0]))

OF_ROWS = {
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select of columns": lambda x, i: x.t().contiguous().index_select(1, i),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "index": lambda x, i: x[i],
    "index of two": lambda x, i: x[i, i],
    "index_put": lambda x, i: x.index_put((i,), x[:2]),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "take": lambda x, i: x.take(i),
    "put": lambda x, i: x.put(i, x[0, :2]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], x),
    "scatter of a number": lambda x, i: x.scatter(0, i[:, None], 3.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x),
    "embedding": lambda x, i: functional.embedding(i, x),
    "embedding of computed rows": lambda x, i: functional.embedding(i * 2 - i, x),
    "the first row of an embedding": lambda x, i: functional.embedding(i, x)[:1],
    "the last row of an embedding": lambda x, i: functional.embedding(i, x)[-1],
    "the first row of an index": lambda x, i: x[i][0],
    "the last row of gather": lambda x, i: x.gather(0, i[:, None].expand(2, 3))[-1],
    "nll_loss": lambda x, i: functional.nll_loss(x[:2], i),
    "cross_entropy": lambda x, i: functional.cross_entropy(x[:2], i),
    "nll_loss of pictures": lambda x, i: functional.nll_loss(x[:2, :, None, None], i[:, None, None]),
    "multi_margin_loss": lambda x, i: functional.multi_margin_loss(x[:2], i),
    "max_unpool1d": lambda x, i: functional.max_unpool1d(x[:2, :1].T[None], i[None, None], 2),
}
OF_PROBABILITIES = {
    "binary_cross_entropy": lambda p: functional.binary_cross_entropy(p, p * 0),
    "binary_cross_entropy of each": lambda p: functional.binary_cross_entropy(p, p * 0, reduction="none"),
    "targets of binary_cross_entropy": lambda p: functional.binary_cross_entropy(p.detach() * 0 + 0.5, p),
}
OF_DIVISORS = {
    "floor division": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncated division": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": lambda a, b: a % b,
    "fmod": lambda a, b: torch.fmod(a, b),
}


def continued(program: Any) -> Any:
    """The program followed by two operations, so that its region is worth a kernel."""

    def run(*args: Any) -> Any:
        result = program(*args)
        return (result + 1) * 3

    return run


CASES: dict[str, tuple[Any, tuple[Any, ...], tuple[tuple[Any, ...], ...]]] = {
    **{name: (run, (X, ROWS), tuple((X, bad) for bad in BAD_ROWS)) for name, run in OF_ROWS.items()},
    **{name: (run, (HALVES,), tuple((bad,) for bad in BAD_PROBABILITIES)) for name, run in OF_PROBABILITIES.items()},
    **{name: (run, (ODD, ODD + 1), tuple((ODD, bad) for bad in ZEROS)) for name, run in OF_DIVISORS.items()},
}
PROGRAMS = {name: continued(run) for name, (run, _, _) in CASES.items()}


@pytest.fixture(scope="module")
def built() -> dict[str, Fused]:
    """The regions of all programs, compiled together, by their digests."""
    regions = {}
    for name, (_, good, _) in CASES.items():
        compiled = thunder.jit(PROGRAMS[name], executors=("torch",))
        compiled(*good)
        trace = next(stage for stage in thunder.last_traces(compiled) if stage.made_by.startswith("drop"))
        for _, occurrence in partition_into_regions(trace, EXECUTOR.fuses, updates=EXECUTOR.updates).occurrences:
            regions[occurrence.region.digest] = occurrence.region
    results = build(list(regions.values()))
    assert [result for result in results if not isinstance(result, MachineCode)] == []
    return {
        digest: Fused(result.function, empties=True)
        for digest, result in zip(regions, results, strict=True)
        if isinstance(result, MachineCode)
    }


def outcome(program: Any, args: tuple[Any, ...]) -> Any:
    """The class and the message of the error that a program raises, or its result."""
    try:
        return program(*args)
    except Exception as error:
        return type(error), str(error).partition("\n")[0]


@pytest.mark.parametrize("name", CASES)
def test_refused_values_raise_eagers_error(name: str, built: dict[str, Fused], monkeypatch: Any) -> None:
    monkeypatch.setattr(type(EXECUTOR), "compile", lambda self, regions: [built[region.digest] for region in regions])
    _, good, bad = CASES[name]
    program = PROGRAMS[name]
    compiled = thunder.jit(program, executors=(EXECUTOR, "torch"))
    torch.testing.assert_close(compiled(*good), program(*good))
    assert "inductor" in {line.executor for line in thunder.last_traces(compiled)[-1].bound_symbols}
    outcomes = [(outcome(compiled, args), outcome(program, args)) for args in bad]
    assert any(isinstance(eager, tuple) for _, eager in outcomes)
    for ours, eager in outcomes:
        if isinstance(eager, tuple):
            assert ours == eager
        else:
            torch.testing.assert_close(ours, eager)
    torch.testing.assert_close(compiled(*good), program(*good))


def two_selections(x, rows, columns, seen):
    seen.append(x * 2)
    x = x.index_select(0, rows).exp() + 1
    return x.index_select(1, columns + 1) * 3


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_source_line_and_earlier_effects_equal_eager(cache: str) -> None:
    compiled = thunder.jit(two_selections, executors=("inductor", "torch"), cache=cache)
    first = two_selections.__code__.co_firstlineno
    for size in (4, 5):
        x, seen = torch.rand(size, 3), list[Any]()
        torch.testing.assert_close(compiled(x, ROWS, ROWS, seen), two_selections(x, ROWS, ROWS, []))
        for rows, columns, line in ((BAD_ROWS[0], ROWS, 2), (ROWS, ROWS + 1, 3)):
            with pytest.raises((IndexError, RuntimeError)) as caught:
                compiled(x, rows, columns, seen)
            assert outcome(two_selections, (x, rows, columns, [])) == (caught.type, str(caught.value))
            program_line = [entry.lineno for entry in caught.traceback if entry.name == "two_selections"]
            assert program_line == [first + line - 1]
        assert len(seen) == 3


def test_without_effects_the_error_names_the_line_in_the_region() -> None:
    def program(x, rows, columns):
        x = x.index_select(0, rows).exp() + 1
        return x.index_select(1, columns + 1) * 3

    compiled = thunder.jit(program, executors=("inductor", "torch"))
    compiled(X, ROWS, ROWS)
    with pytest.raises((IndexError, RuntimeError)) as caught:
        compiled(X, ROWS, ROWS + 1)
    assert f":{program.__code__.co_firstlineno + 2}, " in caught.value.__notes__[0]


def test_writes_of_the_program_match_eager_when_values_are_refused() -> None:
    def program(x, rows):
        x.mul_(2)
        y = x.index_select(0, rows) * 2 + 1
        x.add_(1)
        return y

    compiled = thunder.jit(program, executors=("inductor", "torch"))
    compiled(X.clone(), ROWS)
    for rows in BAD_ROWS[:2]:
        ours, eager = X.clone(), X.clone()
        assert outcome(compiled, (ours, rows)) == outcome(program, (eager, rows))
        assert torch.equal(ours, eager)


def test_losses_of_training_refuse_the_values_that_eager_refuses() -> None:
    def program(table, words, labels):
        return functional.cross_entropy(functional.embedding(words, table) * 2, labels)

    compiled = thunder.jit(program, executors=("inductor", "torch"))
    for labels in (ROWS, torch.tensor([0, -100]), torch.tensor([0, 5]), torch.tensor([0, -1])):
        table = X.clone().requires_grad_()
        ours, eager = (outcome(function, (table, ROWS, labels)) for function in (compiled, program))
        if isinstance(eager, tuple):
            assert ours == eager
        else:
            torch.testing.assert_close(torch.autograd.grad(ours, table), torch.autograd.grad(eager, table))
