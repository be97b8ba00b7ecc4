"""`generate` of a module around the model that generates: the inner model is compiled, or a warning is shown."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import thunder_core as thunder
from thunder_core.backend.runtime.inner_generation import InnerGeneration
from thunder_core.foundation.errors import EagerMethodWarning
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES

PROMPT = torch.arange(3, 17).view(2, 7)
OPTIONS: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}


class Tuner(nn.Module):
    """A wrapper that looks up missing attributes in its model, like tuners of adapters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)


class Adapted(nn.Module):
    """A wrapper that generates with the model beneath a tuner and changes how inputs are prepared, like PeftModel."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = Tuner(model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model.generate(*args, **kwargs)


class Guided(nn.Module):
    """A model that extends the text of its inner model, like composite models."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.language_model = model
        self.bridge = nn.Linear(2, 2)

    def forward(self, ids: Any) -> Any:
        return self.language_model(ids).logits

    def generate(self, ids: Any, **options: Any) -> Any:
        return self.language_model.generate(ids, **options) + 1


class Looping(nn.Module):
    """A model that calls a module without a `generate` method in a loop."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, x: Any) -> Any:
        return self.inner(x)

    def generate(self, x: Any, steps: int) -> Any:
        for _ in range(steps):
            x = self.inner(x)
        return x


@pytest.fixture(scope="module")
def llama() -> Any:
    model: Any = load_model(ModelRequest(sample=SAMPLES["llama"])).model.eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.mark.parametrize("wrap", [Adapted, Tuner, Guided, lambda model: Adapted(Adapted(model))])
def test_generate_of_a_wrapper_runs_programs_of_the_inner_model(wrap: Any, llama: Any) -> None:
    wrapper = wrap(llama).eval()
    expected = wrapper.generate(PROMPT, **OPTIONS)
    compiled = thunder.jit(wrapper)
    with warnings.catch_warnings(action="error", category=EagerMethodWarning):
        assert torch.equal(compiled.generate(PROMPT, **OPTIONS), expected)
    traced = thunder.cache_misses(compiled)
    assert traced >= 2
    assert thunder.last_traces(compiled)
    assert torch.equal(compiled.generate(PROMPT, **OPTIONS), expected)
    assert thunder.cache_hits(compiled) >= OPTIONS["max_new_tokens"]
    assert "generate" not in llama.__dict__


def test_error_in_compiling_an_inner_model_leaves_the_other_inner_models_unchanged() -> None:
    models = [Looping(nn.Linear(2, 2)), Looping(nn.Linear(2, 2))]
    wrapper = nn.Sequential(*models)

    def compile_inner(model: nn.Module) -> nn.Module:
        if model is models[1]:
            raise ValueError("this model cannot be compiled")
        return thunder.jit(model)

    generation = InnerGeneration(thunder.jit(wrapper)._thunder, compile_inner)
    with pytest.raises(ValueError, match="cannot be compiled"):
        generation.run(lambda: None, (), {})
    assert all("generate" not in model.__dict__ for model in models)


def test_programs_of_the_wrapper_itself_stay_when_it_generates(llama: Any) -> None:
    wrapper = Guided(llama).eval()
    compiled = thunder.jit(wrapper)
    with torch.no_grad():
        compiled(PROMPT)
        compiled.generate(PROMPT, **OPTIONS)
        traced = thunder.cache_misses(compiled)
        torch.testing.assert_close(compiled(PROMPT), wrapper(PROMPT))
    assert thunder.cache_misses(compiled) == traced


def test_generate_that_runs_no_program_warns() -> None:
    compiled = thunder.jit(Looping(nn.Linear(2, 2)))
    with pytest.warns(EagerMethodWarning, match="generate of Looping ran in eager PyTorch") as caught:
        compiled.generate(torch.ones(1, 2), 3)
    assert caught[0].filename == __file__


def test_generate_that_calls_a_compiled_module_within_does_not_warn() -> None:
    inner = thunder.jit(nn.Linear(2, 2))
    compiled = thunder.jit(Looping(inner))
    with warnings.catch_warnings(action="error", category=EagerMethodWarning):
        compiled.generate(torch.ones(1, 2), 3)
    assert thunder.cache_misses(inner) + thunder.cache_hits(inner) == 3


class Acting(nn.Module):
    """Methods that call the module by its `forward` and by `__call__`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x) * 2

    def by_forward(self, x: Any) -> Any:
        return self.forward(x)

    def by_call(self, x: Any) -> Any:
        return self(x)


@pytest.mark.parametrize("name", ["by_forward", "by_call"])
def test_programs_of_methods_are_counted(name: str) -> None:
    compiled = thunder.jit(Acting())
    for _ in range(2):
        getattr(compiled, name)(torch.ones(1, 2))
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (1, 1)
    assert thunder.last_traces(compiled)
    assert thunder.cache_misses(compiled.forward) == int(name == "by_forward")
