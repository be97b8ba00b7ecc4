"""New inputs of a loaded artifact are compiled like the artifact: with the same options, transforms and executors."""

from __future__ import annotations

import copy
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core import Lookaside, functional
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.compilation.compiler import Compiler, specializations_of
from thunder_core.foundation.errors import (
    ArtifactForeign,
    DataDependent,
    SharpEdgeError,
    WrongInputs,
)
from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.passes.transforms.autocast import Autocast
from thunder_core.workflow.artifact.format.compilers import compiler_facts, compiler_of
from thunder_core.workflow.artifact.format.manifest import CompilerFacts
from thunder_core.workflow.artifact.trust.trust import trust_in

# For each option, values that are not the defaults of `jit`. A new option needs values here and a higher
# SCHEMA_VERSION, because earlier manifests do not have it.
OTHERS: dict[str, tuple[Any, ...]] = {
    "cache": ("same input",),
    "sharp_edges": ("warn", "error"),
    "functional": (True,),
    "data_dependent": ("retrace", "error"),
    "memory_budget": (0.25, 0, 1, 4096, 1 << 40),
    "max_programs": (1, 1000),
    "without": (("dce",), ("cse", "dce")),
    "symbolic": ((SymbolicArgument("x.size(0)", 2, 8),), (SymbolicArgument("x.size(-1)", None, None),)),
}
SCALE = 3.0


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def clocked(x: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "none":
        return x
    with open(os.devnull, "w") as file:  # noqa: PTH123 - a function of C, which is what is refused
        return x * file.write("written")


LOOKASIDES = [Lookaside(torch.relu, double), Lookaside(torch.Tensor.relu, double, when=torch.is_tensor)]


def save_and_load(compiled: Any, subject: Any, folder: Path) -> Any:
    return thunder.load(thunder.save(compiled, folder / "kept.thunder"), subject)


def options_of(compiled: Any) -> CompileOptions:
    """The options with which a loaded function compiles new programs."""
    return compiler_of(specializations_of(compiled).compiler.facts, trust_in(None)).options


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(CompileOptions)])
def test_every_option_is_kept(name, tmp_path):
    for number, value in enumerate(OTHERS[name]):
        compiled = thunder.jit(double, **{name: value})
        compiled(torch.ones(2))
        assert getattr(specializations_of(compiled).options, name) == value
        loaded = save_and_load(compiled, double, tmp_path / str(number))
        assert options_of(loaded) == specializations_of(compiled).options == specializations_of(loaded).options
        assert type(getattr(options_of(loaded), name)) is type(value)


def test_compiler_options_have_no_defaults():
    missing = dataclasses.MISSING
    fields = dataclasses.fields(CompileOptions)
    assert all(field.default is missing and field.default_factory is missing for field in fields)
    assert CompilerFacts.model_fields["options"].annotation is CompileOptions
    assert CompilerFacts.model_fields["options"].is_required()


def test_every_field_of_a_compiler_is_saved():
    """Every field of a compiler, except the devices that it traces for, is restored from the saved facts."""
    compiled = thunder.jit(
        double, transforms=[Autocast(torch.bfloat16)], executors=["sdpa", "torch"], lookasides=LOOKASIDES
    )
    compiler = specializations_of(compiled).compiler
    assert compiler_of(compiler_facts(compiler), trust_in(None)) == compiler
    how = {field.name for field in dataclasses.fields(Compiler) if field.compare}
    assert how == {"transforms", "executors", "options", "device", "moves_from", "lookasides"}
    assert {field.name for field in dataclasses.fields(Compiler)} - how == {"dump"}  # the folder for traces


def test_lookasides_apply_when_new_inputs_are_traced(tmp_path):
    compiled = thunder.jit(torch.relu, lookasides=[Lookaside(torch.relu, double)])
    torch.testing.assert_close(compiled(-torch.ones(2)), -torch.full((2,), 2.0))
    loaded = save_and_load(compiled, torch.relu, tmp_path)
    for size in (2, 3):
        torch.testing.assert_close(loaded(-torch.ones(size)), -torch.full((size,), 2.0))
    assert thunder.cache_misses(loaded) == 1


def test_artifact_with_unsaved_lookasides_refuses_to_trace_new_inputs(tmp_path):
    compiled = thunder.jit(double, lookasides=[Lookaside(torch.relu, lambda x: x)])
    compiled(torch.ones(2))
    loaded = save_and_load(compiled, double, tmp_path)
    assert torch.equal(loaded(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(WrongInputs, match=r"the lookasides for torch\.relu cannot be saved"):
        loaded(torch.ones(3))


def test_memory_budget_applies_when_new_inputs_are_traced(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8), torch.nn.GELU()] * 3)

    frugal, generous = thunder.jit(model, memory_budget=0.0), thunder.jit(model)
    frugal(torch.ones(2, 8))
    loaded = save_and_load(frugal, model, tmp_path)
    for compiled in (frugal, loaded, generous):
        compiled(torch.ones(2, 8, requires_grad=True))
    texts = [str(thunder.last_traces(compiled)[-1]) for compiled in (frugal, loaded, generous)]
    assert texts[0] == texts[1] != texts[2]


def test_sharp_edges_are_refused_when_new_inputs_are_traced(tmp_path):
    compiled = thunder.jit(clocked, sharp_edges="error")
    compiled(torch.ones(2), "none")
    loaded = save_and_load(compiled, clocked, tmp_path)
    assert torch.equal(loaded(torch.ones(2), "none"), torch.ones(2))
    with pytest.raises(SharpEdgeError):
        loaded(torch.ones(2), "written")


def test_a_functional_program_stays_functional(tmp_path, monkeypatch):
    compiled = functional.jit(scaled, sharp_edges="allow")
    compiled(torch.ones(2))
    loaded = save_and_load(compiled, scaled, tmp_path)
    loaded(torch.ones(3))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert torch.equal(loaded(torch.ones(3)), torch.full((3,), 3.0))
    assert thunder.cache_misses(loaded) == 1


def test_same_input_caching_accepts_the_same_input_only(tmp_path):
    compiled = thunder.jit(double, cache="same input")
    compiled(torch.ones(2))
    loaded = save_and_load(compiled, double, tmp_path)
    assert torch.equal(loaded(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(WrongInputs, match="same input"):
        loaded(torch.ones(3))


def test_data_dependent_error_applies_after_loading(tmp_path):
    compiled = thunder.jit(branching_or_not, data_dependent="error")
    compiled(torch.ones(2), False)
    loaded = save_and_load(compiled, branching_or_not, tmp_path)
    with pytest.raises(DataDependent):
        loaded(torch.ones(2), True)


def branching_or_not(x: torch.Tensor, branch: bool) -> torch.Tensor:
    return x if not branch or x.sum() > 0 else -x


def test_a_copy_of_a_compiled_module_is_compiled_too():
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * SCALE

    chosen = {name: values[0] for name, values in OTHERS.items()}
    compiled = thunder.jit(Scaled(), **{**chosen, "sharp_edges": "warn"})
    for copied in (copy.deepcopy(compiled), copy.copy(compiled)):
        assert specializations_of(copied).options == specializations_of(compiled).options
        assert specializations_of(copied).compiler == specializations_of(compiled).compiler


def test_an_executor_with_the_name_of_another_is_not_replaced_by_the_other(tmp_path):
    own = OperatorExecutor("sdpa")
    compiled = thunder.jit(double, executors=[own])
    compiled(torch.ones(2))
    loaded = save_and_load(compiled, double, tmp_path)
    assert torch.equal(loaded(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(WrongInputs, match="the executors sdpa are not registered under these names"):
        loaded(torch.ones(3))


def test_an_executor_that_is_not_registered_here_is_named(tmp_path):
    compiled = thunder.jit(double, executors=[OperatorExecutor("of_another_process")])
    compiled(torch.ones(2))
    loaded = save_and_load(compiled, double, tmp_path)
    with pytest.raises(ArtifactForeign, match="the executor of_another_process"):
        loaded(torch.ones(3))


def test_saving_without_caching_is_refused_with_the_reason(tmp_path):
    compiled = thunder.jit(double, cache="no caching")
    compiled(torch.ones(2))
    with pytest.raises(WrongInputs, match="no caching"):
        thunder.save(compiled, tmp_path / "none.thunder")
