"""`thunderfx` itself: its refusals, its reports of splits and graphs, and the errors that it raises."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import dataclass
from threading import Thread

import pytest
import torch

import thunder_core as thunder
from tests.dynamo.programs import branches
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.foundation.errors import (
    BadOption,
    DynamoRefuses,
    OperationFailed,
    ThunderError,
    UnknownName,
    WrongInputs,
)


@dataclass(frozen=True)
class Refuse(thunder.Transform):
    """Refuse every program."""

    def __call__(self, trace):
        raise OperationFailed("not this one", fix="another", where=trace.bound_symbols[0].source)


def line_of(function, text):
    lines, start = inspect.getsourcelines(function)
    return next(start + number for number, line in enumerate(lines) if text in line)


def prints(x):
    y = x + 1
    print("seen")
    return y * 2


def asks(x):
    return "yes" if x.sum() > 0 else "no"


def doubles_row(x):
    return x * 2 + x.shape[0]


def test_splits_name_the_line_and_the_reason(capsys):
    compiled = thunder.thunderfx(prints)
    assert thunder.splits(compiled) == thunder.graphs(compiled) == ()
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    (split,) = thunder.splits(compiled)
    assert (split.where.lineno, split.where.function) == (line_of(prints, "print("), "prints")
    assert "print" in split.reason
    assert str(split).startswith("the line runs in eager PyTorch at ")
    first, second = thunder.graphs(compiled)
    assert first.where.lineno == line_of(prints, "x + 1")
    assert second.where.lineno == line_of(prints, "y * 2")
    compiled(torch.ones(3))
    assert thunder.splits(compiled) == (split,)


def test_a_function_that_dynamo_leaves_alone_is_named():
    def unsupported(x):
        for _ in range(2):
            x = x + 1
            torch._dynamo.graph_break()
        return x

    compiled = thunder.thunderfx(unsupported)
    compiled(torch.ones(2))
    assert not thunder.graphs(compiled)
    assert "unsupported" in {split.function for split in thunder.splits(compiled)}
    assert "all of `unsupported` runs in eager PyTorch" in "".join(map(str, thunder.splits(compiled)))


def test_traces_are_of_a_graph():
    compiled = thunder.thunderfx(doubles_row)
    with pytest.raises(WrongInputs, match="into 0 graphs"):
        thunder.last_traces(compiled)
    compiled(torch.ones(2))
    (graph,) = thunder.graphs(compiled)
    assert str(thunder.last_traces(compiled)[-1]) == str(thunder.last_traces(graph)[-1])
    bsyms = thunder.last_traces(graph)[0].bound_symbols
    assert [bsym.source.lineno for bsym in bsyms] == [line_of(doubles_row, "x * 2")] * 2
    compiled(torch.ones(2))
    assert (thunder.cache_hits(compiled), thunder.cache_misses(compiled)) == (1, 1)
    split = thunder.thunderfx(branches)
    split(torch.ones(2))
    with pytest.raises(WrongInputs, match="into 2 graphs"):
        thunder.last_traces(split)
    assert thunder.cache_misses(split) == 2


def test_bound_symbols_are_in_their_modules():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.ReLU()))
    compiled = thunder.thunderfx(model)
    compiled(torch.ones(1, 2))
    (graph,) = thunder.graphs(compiled)
    assert [bsym.module for bsym in thunder.last_traces(graph)[0].bound_symbols] == ["0", "1.0"]


def test_dynamic_sizes_of_dynamo_are_symbols_of_one_program():
    compiled = thunder.thunderfx(doubles_row, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 2)
        assert torch.equal(compiled(x), doubles_row(x))
    (graph,) = thunder.graphs(compiled)
    assert (thunder.cache_misses(graph), thunder.cache_hits(graph)) == (1, 2)
    assert "f32[s0, s1]" in str(thunder.last_traces(graph)[-1])


def test_executor_for_constant_sizes_is_left_out_of_the_program_of_dynamic_sizes():
    class Constant(OperatorExecutor):
        symbolic_sizes = False

    compiled = thunder.thunderfx(doubles_row, dynamic=True, executors=[Constant("constant")])
    for rows in (3, 5, 8, 5):
        x = torch.randn(rows, 2)
        assert torch.equal(compiled(x), doubles_row(x))
    assert len(thunder.graphs(compiled)) == 1
    assert thunder.cache_misses(compiled) == 1


def test_executors_claim_in_graphs():
    tripled = OperatorExecutor("tripled")

    @tripled.implements(torch.relu)
    def three(x):
        return x * 3

    compiled = thunder.thunderfx(lambda x: torch.relu(x) + 1, executors=[tripled])
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert "tripled" in {bsym.executor for bsym in thunder.last_traces(compiled)[-1].bound_symbols}


def test_with_fullgraph_a_split_is_refused():
    compiled = thunder.thunderfx(prints, fullgraph=True)
    with pytest.raises(DynamoRefuses, match="would split the program") as refused:
        compiled(torch.ones(2))
    assert refused.value.where.lineno == line_of(prints, "print(")


def test_too_many_kinds_of_inputs_are_refused_without_a_run_in_eager():
    compiled = thunder.thunderfx(doubles_row, dynamic=False, max_programs=2)
    for rows in (1, 2):
        compiled(torch.ones(rows))
    with pytest.raises(DynamoRefuses, match="more kinds"):
        compiled(torch.ones(3))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert len(thunder.graphs(compiled)) == 2


def test_errors_of_thunder_are_raised_unchanged():
    compiled = thunder.thunderfx(doubles_row, transforms=[Refuse()])
    for _ in range(2):
        with pytest.raises(OperationFailed, match="not this one") as raised:
            compiled(torch.ones(2))
        assert raised.value.where.lineno == line_of(doubles_row, "x * 2")


def test_errors_of_the_program_match_eager():
    def mismatched(x):
        print("about to fail")
        return x @ torch.ones(7, 7)

    compiled = thunder.thunderfx(mismatched)
    with pytest.raises(RuntimeError, match="mat1 and mat2") as eager:
        mismatched(torch.ones(2, 2))
    with pytest.raises(type(eager.value)):
        compiled(torch.ones(2, 2))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"executors": ["nosuch"]}, UnknownName),
        ({"memory_budget": 7.5}, BadOption),
        ({"symbolic": ["x.size(0)"]}, BadOption),
        ({"cache": "symbolic values"}, BadOption),
        ({"lookasides": [thunder.Lookaside(prints, asks)]}, BadOption),
    ],
)
def test_options_are_checked_at_once(options, error):
    with pytest.raises(error):
        thunder.thunderfx(doubles_row, **options)


def test_lookaside_of_a_package_named_like_pytorch_is_refused(monkeypatch):
    monkeypatch.setattr(prints, "__module__", "torchlike.functions")
    with pytest.raises(BadOption, match="no graph calls it"):
        thunder.thunderfx(doubles_row, lookasides=[thunder.Lookaside(prints, asks)])


def test_lookaside_replaces_a_pytorch_function():
    lookaside = thunder.Lookaside(torch.sin, lambda x: x * 10)
    compiled = thunder.thunderfx(lambda x: torch.sin(x) + 1, lookasides=[lookaside])
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 11.0))


def test_wrong_arguments_of_thunderfx_and_graphs_are_refused():
    with pytest.raises(WrongInputs, match="takes a function or a module"):
        thunder.thunderfx(3)
    with pytest.raises(WrongInputs, match="thunderfx"):
        thunder.graphs(thunder.jit(doubles_row))


def test_artifact_of_a_dynamo_program_is_refused(tmp_path):
    compiled = thunder.thunderfx(torch.nn.Linear(2, 2))
    compiled(torch.ones(1, 2))
    with pytest.raises(WrongInputs, match="traced by Dynamo"):
        thunder.save(compiled, tmp_path / "artifact")
    assert not (tmp_path / "artifact").exists()


def test_traced_program_inlines_a_thunderfx_function():
    model = torch.nn.Linear(2, 2)
    inner, function = thunder.thunderfx(model), thunder.thunderfx(doubles_row)
    outer = thunder.jit(lambda x: function(inner(x)))
    x = torch.randn(3, 2)
    assert torch.equal(outer(x), doubles_row(model(x)))
    assert {bsym.symbol.short_name for bsym in thunder.last_traces(outer)[0].bound_symbols} == {"linear", "mul", "add"}
    assert not thunder.graphs(inner)


def test_thunderfx_calls_a_function_that_jit_compiled():
    inner = thunder.jit(doubles_row)
    compiled = thunder.thunderfx(lambda x: inner(x) + 1)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert any("thunder_core has compiled this function" in split.reason for split in thunder.splits(compiled))


def test_copies_and_pickles_of_a_module_are_compiled_like_the_module():
    compiled = thunder.thunderfx(torch.nn.Linear(2, 2), max_programs=3)
    x = torch.ones(1, 2)
    for again in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert torch.equal(again(x), compiled(x))
        assert again.weight is not compiled.weight
        assert len(thunder.graphs(again)) == 1


def test_two_compilers_of_one_function_keep_their_graphs_apart():
    first, second = thunder.thunderfx(doubles_row), thunder.thunderfx(doubles_row)
    first(torch.ones(2))
    assert not thunder.graphs(second)
    second(torch.ones(2))
    first(torch.ones(2))
    assert len(thunder.graphs(first)) == len(thunder.graphs(second)) == 1


def test_the_backend_is_found_by_its_name():
    compiled = torch.compile(doubles_row, backend="thunder")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    wrong = torch.compile(branches, backend="thunder", options={"executors": ["nosuch"]})
    with pytest.raises(ThunderError, match="nosuch"):
        wrong(torch.ones(2))


def test_settings_of_dynamo_are_unchanged_after_a_capture():
    with torch._dynamo.config.patch(suppress_errors=True, recompile_limit=3):
        compiled = thunder.thunderfx(doubles_row, dynamic=False, max_programs=1)
        compiled(torch.ones(1))
        with pytest.raises(DynamoRefuses, match="more kinds"):
            compiled(torch.ones(2))
        assert torch._dynamo.config.suppress_errors
        assert torch._dynamo.config.recompile_limit == 3


def test_recursive_and_threaded_calls_match_eager():
    def depth(x, n):
        return x if n == 0 else compiled(x + 1, n - 1)

    compiled = thunder.thunderfx(depth)
    assert torch.equal(compiled(torch.zeros(2), 3), torch.full((2,), 3.0))
    results = []
    shared = thunder.thunderfx(doubles_row)
    threads = [Thread(target=lambda n=n: results.append((n, shared(torch.ones(n))))) for n in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(torch.equal(result, doubles_row(torch.ones(n))) for n, result in results)


def test_layers_of_one_class_with_other_sizes_are_compiled() -> None:
    torch._dynamo.reset()
    for size in (3, 5, 6, 4):
        layer = torch.nn.Linear(size, 4)
        x = torch.linspace(-1, 1, 2 * size).reshape(2, size)
        torch.testing.assert_close(thunder.thunderfx(layer)(x), layer(x))
