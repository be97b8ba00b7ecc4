"""Artifacts of programs with compiled backwards behave like eager in autograd's graph."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import thunder_core as thunder
from tests.processes import run_python
from thunder_core.backend.runtime.autograd_signature import AutogradSignature, DimensionOrder, Strides
from thunder_core.foundation.errors import ArtifactDamaged, NotDifferentiable
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.passes.autodiff import rules
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format import backward as format_backward
from thunder_core.workflow.artifact.format.program_facts import StoredAutogradSignature
from thunder_core.workflow.inspect.runnable import CALLS, runnable
from thunder_core.workflow.inspect.subject import subject_of


def leaf(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 3, dtype=torch.float64, generator=generator).requires_grad_(True)


def two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = torch.tanh(x @ y)
    return hidden.exp(), hidden.sin() * y


def views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = x * y
    return hidden.T, hidden[0], x.view(-1), y


def random(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.nn.functional.dropout(x * y, 0.5) * torch.rand_like(x),)


def recorded(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    """A program that cannot be differentiated ahead of time. Its noise has equal bounds, and so is constant."""
    return (torch.nn.functional.rrelu(x * y, 0.25, 0.25, training=True, inplace=True),)


def counting(x: torch.Tensor, y: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count.add_(1)
    return (x @ y).exp(), x.sin()


PROGRAMS = {program.__name__: program for program in (two, views, random, recorded)}


def results_and_gradients(program: Callable[..., Any], **options: Any) -> list[torch.Tensor]:
    """The results of a program and its gradients, with hooks, in a graph with other operations."""
    x, y = leaf(0), leaf(1)
    torch.manual_seed(2)
    results = program(x * 1.5, y.cos(), **options)
    sum(result.square().sum() for result in results).backward()
    return [*results, x.grad, y.grad]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted)
        assert actual.stride() == wanted.stride()


def save_program(program: Callable[..., Any], folder: Path, use: Callable[..., Any] = results_and_gradients) -> Path:
    compiled = thunder.jit(program)
    use(compiled)
    return thunder.save(compiled, folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of a program with two results, which was differentiated for both."""
    return save_program(two, tmp_path_factory.mktemp("saved") / "two.thunder")


@pytest.mark.parametrize("name", PROGRAMS)
def test_loaded_training_program_equals_eager(name, tmp_path):
    loaded = thunder.load(save_program(PROGRAMS[name], tmp_path / "a"), PROGRAMS[name], strict=True)
    for _ in range(2):
        assert_equal(results_and_gradients(loaded), results_and_gradients(PROGRAMS[name]))
    assert thunder.cache_misses(loaded) == 0


@pytest.mark.parametrize("name", ["two", "views", "random"])
def test_second_derivatives(name, tmp_path):
    def second(program: Callable[..., Any]) -> list[torch.Tensor]:
        x, y = leaf(0), leaf(1)
        torch.manual_seed(2)
        loss = sum(result.pow(3).sum() for result in program(x, y))
        first = torch.autograd.grad(loss, [x, y], create_graph=True)
        return [*first, *torch.autograd.grad(sum(gradient.square().sum() for gradient in first), [x, y])]

    loaded = thunder.load(save_program(PROGRAMS[name], tmp_path / "a"), PROGRAMS[name], strict=True)
    assert_equal(second(loaded), second(PROGRAMS[name]))


def squares_with_their_own_derivative(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    squares = torch.square(x)
    return squares * y, squares


@pytest.mark.parametrize(
    "use",
    [
        lambda first, second, x: torch.autograd.grad(first.sum(), x, create_graph=True),
        lambda first, second, x: torch.autograd.grad(first.sum(), second),
        lambda first, second, x: torch.autograd.grad(second.sum(), x),
    ],
    ids=["second derivative", "between results", "one result alone"],
)
def test_a_registered_derivative_that_an_artifact_does_not_hold_is_refused(tmp_path, monkeypatch, use):
    monkeypatch.setattr(rules, "_rules", {})
    monkeypatch.setattr(rules, "OWN_DERIVATIVES", set())
    save = {"setup_context": lambda context, args, kwargs, output: context.save_for_backward(args[0])}
    thunder.register_derivative(torch.square, **save)(lambda context, gradient: gradient * context.saved_tensors[0] * 7)
    loaded = thunder.load(
        save_program(squares_with_their_own_derivative, tmp_path / "a"), squares_with_their_own_derivative
    )
    x = leaf(0)
    sum(result.sum() for result in loaded(x, leaf(1))).backward()
    torch.testing.assert_close(x.grad, x.detach() * 7 * (leaf(1).detach() + 1))
    with pytest.raises(NotDifferentiable, match=r"registered for torch\.square"):
        use(*loaded(x, leaf(1)), x)


def test_returned_views_are_views(tmp_path):
    loaded = thunder.load(save_program(views, tmp_path / "a"), views, strict=True)
    x, y = leaf(0), leaf(1)
    turned, row, flat, same = loaded(x, y)
    assert same is y
    assert flat._base is x
    assert turned.data_ptr() == row.data_ptr()


def test_saving_compiles_a_backward_that_was_not_compiled_before(tmp_path):
    folder = save_program(two, tmp_path / "a", lambda program: program(leaf(0), leaf(1)))
    (stage,) = (
        kept_stage
        for kept_stage in open_artifact(folder).manifest.programs[0].stages
        if kept_stage.runs and kept_stage.has_cotangent
    )
    assert (stage.trace, stage.has_cotangent) == ("backward", (True, True))
    assert_equal(results_and_gradients(thunder.load(folder, two, strict=True)), results_and_gradients(two))


def test_backward_traces_can_be_inspected_after_loading(saved):
    loaded = thunder.load(saved, two)
    results_and_gradients(loaded)
    assert "# of t" in str(thunder.last_backward_traces(loaded)[-1])


@pytest.mark.parametrize("name", ["tail", "backward"])
def test_plain_file_of_a_stage_reports_an_unknown_model(tmp_path, name):
    """The file is that of `thunder inspect-trace --plain`, for each stage."""
    folder = save_program(views, tmp_path / "a")
    subject = subject_of(open_artifact(folder))
    stages = subject.traces[name]
    assert len(stages) == (1 if name == "tail" else 5)
    for stage in stages:
        text = runnable(subject, stage, stage.read())
        assert "raise SystemExit('the origin of the model is unknown" in text
        block = list(CALLS[name](subject, stage, stage.read()))
        x, y = leaf(0), leaf(1)
        space = {"torch": torch, "ARTIFACT": str(folder), "module": views, "args": (x, y), "kwargs": {}}
        exec("\n".join([text.partition("\nif __name__")[0], *block]), space)
        results = views(x, y)
        if name == "backward":
            assert_equal(space["outputs"], torch.autograd.grad(sum(result.sum() for result in (x * y,)), [x, y]))
        else:
            assert_equal(list(space["outputs"]), list(results[:3]))


# ---- some results alone ---------------------------------------------------------------------------------------


def of_the_second(program: Callable[..., Any]) -> list[torch.Tensor]:
    x, y = leaf(0), leaf(1)
    program(x, y)[1].sum().backward()
    return [x.grad, y.grad]


def test_every_compiled_backward_is_saved(tmp_path):
    folder = save_program(two, tmp_path / "a", lambda program: (results_and_gradients(program), of_the_second(program)))
    given = [
        stage.has_cotangent
        for stage in open_artifact(folder).manifest.programs[0].stages
        if stage.runs and stage.has_cotangent
    ]
    assert given == [(True, True), (False, True)]
    loaded = thunder.load(folder, two, strict=True)
    assert_equal(results_and_gradients(loaded), results_and_gradients(two))
    assert_equal(of_the_second(loaded), of_the_second(two))


def test_strict_refuses_a_backward_that_was_not_saved_and_lists_the_saved_ones(saved):
    loaded = thunder.load(saved, two, strict=True)
    with pytest.raises(NotDifferentiable, match=r"gradients of result 1 of 2; .* for: all its results") as refused:
        of_the_second(loaded)
    assert "save the artifact again after such a backward" in refused.value.fix


def test_autograd_computes_backwards_that_were_not_saved(saved):
    loaded = thunder.load(saved, two)
    assert_equal(of_the_second(loaded), of_the_second(two))
    out = loaded(leaf(0), leaf(1))[1].sum()
    out.backward(retain_graph=True)
    out.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


def test_a_program_that_writes_runs_again_on_copies_for_a_backward_that_was_not_saved(tmp_path):
    def use(program: Callable[..., Any]) -> None:
        sum(result.sum() for result in program(leaf(0), leaf(1), torch.zeros(3))).backward()

    def gradient_of_some(program: Callable[..., Any]) -> tuple[torch.Tensor | None, torch.Tensor]:
        x, count = leaf(0), torch.zeros(3)
        program(x, leaf(1), count)[1].sum().backward()
        return x.grad, count

    loaded = thunder.load(save_program(counting, tmp_path / "a", use), counting)
    use(loaded)
    torch.testing.assert_close(gradient_of_some(loaded), gradient_of_some(counting))


# ---- the manifest ---------------------------------------------------------------------------------------------


def test_reason_for_a_missing_backward_is_saved(tmp_path):
    folder = save_program(recorded, tmp_path / "a")
    facts = open_artifact(folder).manifest.programs[0]
    assert facts.derivative is None
    assert "rrelu" in facts.no_backward_reason
    loaded = thunder.load(folder, recorded)
    results_and_gradients(loaded)
    assert thunder.last_program(loaded).no_backward_reason == facts.no_backward_reason


WRONG = {"body": 99, "count": 1, "results": [0], "strides": [[1]]}


@pytest.mark.parametrize("key", WRONG)
def test_facts_that_do_not_fit_each_other_are_damage(saved, tmp_path, key):
    """The manifest has a valid digest: its content was changed deliberately."""
    content = json.loads((saved / "manifest.json").read_text())
    del content["digest"]
    content["programs"][0]["derivative"][key] = WRONG[key]
    text = json.dumps(content, indent=1, ensure_ascii=False)
    seal = digest_of(f"{text}\n".encode())
    folder = Path(shutil.copytree(saved, tmp_path / "a"))
    (folder / "manifest.json").write_text(f'{text[:-2]},\n "digest": "{seal}"\n}}\n')
    with pytest.raises(ArtifactDamaged, match="the facts about the backward of program 0 are inconsistent"):
        thunder.load(folder, two)


def test_a_manifest_holds_the_layouts_of_gradients_as_strides_or_ranks():
    """A negative number is the rank of a dimension in memory, counted from the fastest dimension."""
    layouts = (Strides((1, 3)), DimensionOrder((2, 0, 1)), Strides(()))
    signature = AutogradSignature(
        3, (0, 1, 2), layouts, (0,), writes=True, tail_inputs=(1,), downstream=((), (0,), ()), written=(2, 3), kept=(3,)
    )
    stored = StoredAutogradSignature.of(signature, body=2)
    assert stored.strides == ((1, 3), (-2, -1, -3), ())
    assert StoredAutogradSignature.model_validate_json(stored.model_dump_json()).signature == signature


# ---- another process ------------------------------------------------------------------------------------------

MODEL = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.silu(layer(x)) * 2.0
        return x
"""
RUN = """
import sys
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import thunder_core as thunder
from small import Model

model, x = Model(), torch.linspace(-1, 1, 24).reshape(3, 8)

def gradients(program):
    model.zero_grad()
    program(x).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]

if sys.argv[1] == "save":
    compiled = thunder.jit(model, executors=("inductor", "torch"))
    gradients(compiled)
    thunder.save(compiled, "saved.thunder")
else:
    expected = gradients(model)
    compiled = thunder.load("saved.thunder", model, strict=True)
    torch.testing.assert_close(gradients(compiled), expected)
    heavy = {"torch._dynamo", "torch._inductor", "transformers", "huggingface_hub", "scipy", "triton"}
    heavy |= {f"thunder_core.{name}" for name in ("compiler", "acquire", "interpreter", "autodiff.vjp", "transforms")}
    assert not sys.modules.keys() & heavy, sys.modules.keys() & heavy
    assert thunder.cache_misses(compiled) == 0
    assert "region_0" in str(thunder.last_backward_traces(compiled)[-1])
"""


def test_a_fresh_process_without_a_compiler_trains_with_kept_machine_code(tmp_path):
    (tmp_path / "small.py").write_text(MODEL)
    (tmp_path / "run.py").write_text(RUN)
    without = {**os.environ, "CXX": "/bin/false", "THUNDER_CACHE_DIR": str(tmp_path / "empty")}
    saved = run_python("run.py", "save", cwd=tmp_path)
    assert saved.returncode == 0, saved.stderr
    command = [sys.executable, "run.py", "load"]
    told = subprocess.run(command, cwd=tmp_path, env=without, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def write_shared_memory(x: torch.Tensor, view: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    view.mul_(2)
    hidden = (x * w).tanh()
    return hidden * 2, hidden.exp(), hidden.sum()


def test_gradients_of_some_results_of_a_program_that_cannot_run_twice(tmp_path, without_kernels):
    def gradient(program: Callable[..., Any], selected: tuple[int, ...]) -> torch.Tensor:
        base, w = torch.ones(3), torch.full((3,), 0.1, requires_grad=True)
        results = program(base, base[1:], w)
        return torch.autograd.grad(sum(results[index].sum() for index in selected), w)[0]

    compiled = thunder.jit(write_shared_memory)
    gradient(compiled, (0, 1, 2))
    thunder.save(compiled, tmp_path / "artifact")
    loaded = thunder.load(tmp_path / "artifact", write_shared_memory)
    for selected in ((0,), (1,), (0, 2), (0, 1, 2)):
        torch.testing.assert_close(gradient(loaded, selected), gradient(write_shared_memory, selected))


def reduce_and_multiply(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        total = funcol.all_reduce(x.detach(), "sum", dist.group.WORLD)
    return (x * total).exp()


def test_collectives_of_a_program_that_autograd_records_are_compared(tmp_path, without_kernels, monkeypatch):
    compared: dict[str, list[str]] = {}

    def note(function: Callable[..., Any], collectives: Any) -> Callable[..., Any]:
        compared[function.__name__] = [collective.kind for collective in collectives]
        return function

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.ones(3, requires_grad=True)
        compiled = thunder.jit(reduce_and_multiply)
        compiled(x).sum().backward()
        thunder.save(compiled, tmp_path / "artifact")
        monkeypatch.setattr(format_backward, "compare_collectives_first", note)
        loaded = thunder.load(tmp_path / "artifact", reduce_and_multiply)
        torch.autograd.grad(loaded(x).sum(), x, create_graph=True)
    finally:
        dist.destroy_process_group()
    assert compared["computation"] == ["all_reduce"]
