"""A generation by the programs of an artifact checks the guards on the model once, as with `thunder_core.jit`."""

from __future__ import annotations

import io
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.generation import BaseStreamer

import thunder_core as thunder
from tests.runtime.test_uninterrupted import (
    CHANGED_AT,
    FEW,
    OF_LIBRARY,
    OPTIONS,
    Change,
    ChangingProcessor,
    Uncompiled,
    fresh_model,
    generate,
    pytestmark,
)
from thunder_cli.commands.run import GeneratedOutput
from thunder_core.backend.runtime.prologues import uninterrupted
from thunder_core.backend.runtime.prologues.stored_prologue import StoredPrologue, module_reads_of
from thunder_core.foundation.errors import ArtifactDamaged, ModelChangedWarning
from thunder_core.frontend.acquire.codegen import prologue
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.format.stored import stored_programs
from thunder_core.workflow.pipeline.generation.artifact_generation import TokenListener
from thunder_core.workflow.pipeline.generation.generation_speed import TokenClock

__all__ = ["pytestmark"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of a Llama with a program for the prompt and one for all later tokens."""
    folder = tmp_path_factory.mktemp("settled") / "artifact"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prologue, "MIN_SKIPPED_STATEMENTS", 1)
        compiled = thunder.compile(fresh_model(), Uncompiled)
        generate(compiled)
    thunder.save(compiled, folder)
    return folder


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of calls that have checked all guards."""
    counter: Counter[str] = Counter()
    check = StoredPrologue.check_all_guards
    monkeypatch.setattr(
        StoredPrologue, "check_all_guards", lambda self, *args: (counter.update(["all"]), check(self, *args))[1]
    )
    return counter


def loaded(folder: Path, model: Any) -> Any:
    return thunder.load(folder, model)


def test_the_guards_on_the_model_are_checked_once_for_each_program(folder: Path, checked: Counter[str]) -> None:
    model = fresh_model()
    compiled = loaded(folder, model)
    for number in (1, 2):
        assert torch.equal(generate(compiled), generate(model))
        assert 0 < checked["all"] <= FEW * number


@pytest.mark.parametrize("name", OF_LIBRARY)
def test_settings_of_the_library_keep_the_guards_settled(name: str, folder: Path, checked: Counter[str]) -> None:
    model, results = fresh_model(), []
    for subject in (model, loaded(folder, model)):
        torch.manual_seed(0)
        result: Any = generate(subject, **OF_LIBRARY[name])
        results.append(result if isinstance(result, torch.Tensor) else result.sequences)
    assert torch.equal(*results)
    assert 0 < checked["all"] <= FEW


@pytest.mark.parametrize("name", OPTIONS)
def test_code_of_the_user_may_change_the_model_between_tokens(name: str, folder: Path, checked: Counter[str]) -> None:
    results = []
    for is_loaded in (False, True):
        model = fresh_model()
        change = Change(model)
        results.append(generate(loaded(folder, model) if is_loaded else model, **OPTIONS[name](change)))
        assert change.calls > CHANGED_AT
    assert torch.equal(*results)
    assert not checked


class OwnStdout(io.StringIO):
    """A standard output of the user."""


def own_streamers() -> dict[str, BaseStreamer]:
    """The streamers of `thunder run`, with and without a tokenizer, and of the benchmark."""
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{number}": number for number in range(512)}, unk_token="w0")
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    outputs = {name: GeneratedOutput(given, is_printed=True) for name, given in (("ids", None), ("text", tokenizer))}
    listeners = {name: TokenListener(output.add, frozenset({1, 2})) for name, output in outputs.items()}
    return {**listeners, "print": TokenListener(print, frozenset()), "clock": TokenClock()}


@pytest.mark.parametrize("name", ["ids", "text", "print", "clock"])
def test_streamers_of_thunder_keep_the_guards_settled(
    name: str, folder: Path, checked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fresh_model()
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    result = generate(loaded(folder, model), streamer=own_streamers()[name])
    assert torch.equal(result, generate(model))
    assert 0 < checked["all"] <= FEW
    assert bool(printed.getvalue()) == (name != "clock")


def test_streamers_of_thunder_with_code_of_the_user_make_an_ordinary_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    model, prompt = fresh_model(), torch.arange(3, 10).view(1, 7)

    def is_uninterrupted(streamer: BaseStreamer) -> bool:
        return uninterrupted.is_uninterrupted(model, (prompt,), {"streamer": streamer})

    class Own(TokenListener):
        pass

    changed = TokenListener(print, frozenset())
    vars(changed)["put"] = lambda value: None
    for streamer in (Own(print, frozenset()), changed, TokenListener(lambda token: None, frozenset())):
        assert not is_uninterrupted(streamer)
    own = own_streamers()
    assert all(map(is_uninterrupted, own.values()))
    put = TokenListener.put
    for replacement in (lambda self, value: put(self, value), torch.no_grad()(lambda self, value: put(self, value))):
        with monkeypatch.context() as patch:
            patch.setattr(TokenListener, "put", replacement)
            assert [name for name, streamer in own.items() if is_uninterrupted(streamer)] == ["clock"]
    monkeypatch.setattr(sys, "stdout", OwnStdout())
    assert not any(map(is_uninterrupted, own.values()))


def test_each_generation_checks_the_model_again(folder: Path) -> None:
    model = fresh_model()
    compiled = loaded(folder, model)
    before = generate(compiled)
    model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight.detach())
    after = generate(compiled)
    assert torch.equal(after, generate(model))
    assert not torch.equal(before, after)
    model.lm_head.register_forward_hook(lambda module, args, output: -output)
    assert torch.equal(generate(compiled), before)


# ---- the end of a generation --------------------------------------------------------------------------------------


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes between tokens that are not expected, such as those of another thread."""
    monkeypatch.setattr(uninterrupted, "is_uninterrupted", lambda *_: True)


@pytest.mark.usefixtures("hidden")
def test_a_change_that_was_not_expected_is_reported(folder: Path) -> None:
    model = fresh_model()
    compiled = loaded(folder, model)
    with pytest.warns(ModelChangedWarning, match="LlamaForCausalLM was changed during generate"):
        generate(compiled, logits_processor=[ChangingProcessor(Change(model))])
    assert torch.equal(generate(compiled), generate(model))


@pytest.mark.usefixtures("hidden")
def test_a_change_that_no_guard_reads_is_not_reported(folder: Path) -> None:
    model = fresh_model()
    compiled = loaded(folder, model)

    processor = ChangingProcessor(lambda: setattr(model, "unrelated", object()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(compiled, logits_processor=[processor])


@pytest.mark.usefixtures("hidden")
def test_a_weight_with_other_metadata_is_reported(folder: Path) -> None:
    model = fresh_model()

    processor = ChangingProcessor(lambda: model.model.norm.weight.requires_grad_(False))
    with pytest.warns(ModelChangedWarning):
        generate(loaded(folder, model), logits_processor=[processor])


# ---- the text of a prologue ---------------------------------------------------------------------------------------


def test_the_numbers_in_the_artifact_are_those_of_the_statements_in_the_text(folder: Path) -> None:
    artifact = open_artifact(folder)
    for facts, program in zip(artifact.manifest.programs, stored_programs(artifact, fresh_model()), strict=True):
        assert facts.skipped is not None
        bsyms = program.last("prologue").bound_symbols
        reads = module_reads_of(facts.skipped, bsyms)
        (passed,) = filter(reads.tensor_checks.sets_passed, bsyms)
        assert "tensors_match" in str(passed.args)
        assert all("passed" in str(bsym.args) for bsym in reads.tensor_checks.statements)
        assert not any(f"kwargs[{name!r}]" in str(bsym.args) for bsym in reads.without_arguments for name in ("cache",))


def test_statements_of_a_stored_prologue_are_those_that_ran_before(folder: Path) -> None:
    (program,) = stored_programs(open_artifact(folder), fresh_model())[:1]
    assert str(program.last("prologue")) == program.source("prologue").text


def test_numbers_of_statements_that_do_not_exist_are_damage(folder: Path, tmp_path: Path) -> None:
    artifact = open_artifact(folder)
    program = artifact.manifest.programs[0]
    assert program.skipped is not None
    wrong = replace(program.skipped, without_arguments=(10_000,))
    manifest = artifact.manifest.model_copy(update={"programs": (program.model_copy(update={"skipped": wrong}),)})
    object.__setattr__(artifact, "manifest", manifest)
    with pytest.raises(ArtifactDamaged, match="program 0 skips statements that its prologue does not have"):
        stored_programs(artifact, fresh_model())
