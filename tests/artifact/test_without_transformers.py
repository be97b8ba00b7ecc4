"""An artifact with weights and plain outputs loads and runs without the transformers library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

import thunder_core as thunder
from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.artifact.replay import example_of
from thunder_core.workflow.artifact.standalone.replaced_outputs import is_read_alike, replace_outputs
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, optimize
from thunder_core.workflow.pipeline.request.request_checks import check_request

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64, "num_hidden_layers": 1}
T5 = {"d_model": 16, "d_ff": 32, "num_heads": 2, "d_kv": 8, "vocab_size": 64, "num_layers": 1}
Artifacts: TypeAlias = Callable[..., Path]
MODELS = {
    "bert": lambda: BertModel(BertConfig(**SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**T5, decoder_start_token_id=0)),
}
# Code of a process in which no module of transformers or of its dependencies can be imported.
PROBE = """
import importlib.machinery, sys
BLOCKED = ("transformers", "tokenizers", "huggingface_hub", "accelerate", "datasets")
class Others(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else super().find_spec(name, path, target)
sys.meta_path[:] = [Others if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
import torch
import thunder_core as thunder
from thunder_core.foundation.errors import PackageMissing
def call(folder):
    inputs = torch.load(folder + "/../inputs.pt")
    loaded = thunder.load(folder, strict=True)
    with torch.no_grad():
        return loaded, loaded(**inputs), inputs
def refused(act):
    try:
        act()
    except PackageMissing as error:
        assert "--outputs dict" in error.fix and "transformers" in error.what, error
    else:
        raise AssertionError("it was built")
"""
END = """
assert not [name for name in sys.modules if name.partition(".")[0] in BLOCKED]
"""


def run(text: str, *arguments: object) -> None:
    """Run a probe in a separate process."""
    command = [sys.executable, "-c", PROBE + text + END, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory) -> Artifacts:
    """Artifacts of small models, each made once."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    for name, make in MODELS.items():
        make().save_pretrained(root / name)

    @cache
    def made(name: str, outputs: str | None, include_weights: bool = True) -> Path:
        folder = tmp_path_factory.mktemp(name)
        request = ModelRequest(model=str(root / name), outputs=outputs)
        options = {"seq": 8, "inputs": 1, "benchmark": False, "without": ("inductor",)}
        optimize(Request(model=request, out=folder / "artifact", include_weights=include_weights, **options))
        torch.save(example_of(folder / "artifact"), folder / "inputs.pt")
        torch.save(eager_call(root / name, folder).to_tuple(), folder / "expected.pt")
        return folder / "artifact"

    return made


def eager_call(model: Path, folder: Path):
    """The results of eager transformers for the same inputs, without a KV cache."""
    eager = load_model(ModelRequest(model=str(model))).model
    with torch.no_grad():
        return eager(**torch.load(folder / "inputs.pt"), use_cache=False)


@pytest.mark.parametrize("name", MODELS)
def test_named_outputs_need_pytorch_alone(artifacts, name):
    run(
        """
loaded, result, inputs = call(sys.argv[1])
expected = torch.load(sys.argv[1] + "/../expected.pt")
assert type(result) is thunder.ModelOutput and len(result) == len(expected), result
assert {"logits", "last_hidden_state"} & set(result), result
for place, (key, value) in enumerate(zip(result, expected)):
    for got in (result[key], getattr(result, key), result[place], result.to_tuple()[place]):
        torch.testing.assert_close(got, value)
refused(lambda: loaded.config)
refused(lambda: loaded(**inputs, output_hidden_states=True))
""",
        artifacts(name, "dict"),
    )


def test_tuples_need_pytorch_alone(artifacts):
    run(
        """
loaded, result, inputs = call(sys.argv[1])
assert type(result) is tuple
torch.testing.assert_close(result, torch.load(sys.argv[1] + "/../expected.pt"))
""",
        artifacts("llama", "tuple"),
    )


def test_outputs_of_the_library_are_replaced_only_if_the_library_is_missing(artifacts):
    made = artifacts("bert", None)
    run(
        """
loaded, result, inputs = call(sys.argv[1])
assert type(result) is thunder.ModelOutput and result.attentions is None
assert list(result) == ["last_hidden_state", "pooler_output"]
torch.testing.assert_close(result.to_tuple(), torch.load(sys.argv[1] + "/../expected.pt"))
refused(lambda: loaded.config)
""",
        made,
    )
    with torch.no_grad():
        result = thunder.load(made, strict=True)(**torch.load(made.parent / "inputs.pt"))
    assert type(result) is BaseModelOutputWithPoolingAndCrossAttentions


def test_a_cache_and_weights_that_are_elsewhere_need_the_library_and_the_error_says_so(artifacts):
    made = artifacts("llama", None), artifacts("bert", "dict", include_weights=False)
    run("for folder in sys.argv[1:]: refused(lambda: thunder.load(folder))", *made)


def test_a_model_that_is_built_later_gives_the_same_outputs(artifacts):
    made = artifacts("bert", "dict")
    loaded, inputs = thunder.load(made), torch.load(made.parent / "inputs.pt")
    with torch.no_grad():
        first = loaded(**inputs)
        assert loaded.config.model_type == "bert"  # reading an attribute builds the model
        again, traced = loaded(**inputs), loaded(**inputs, output_hidden_states=True)
    assert {type(first), type(again), type(traced)} == {thunder.ModelOutput}
    assert list(again) == ["last_hidden_state", "pooler_output"]
    assert list(traced) == ["last_hidden_state", "pooler_output", "hidden_states"]
    torch.testing.assert_close(dict(again), dict(first))


def test_generation_keeps_the_outputs_of_the_library():
    for outputs in ("dict", "tuple"):
        request = Request(model=ModelRequest(model="a/model", task="generate", outputs=outputs))
        with pytest.raises(BadOption, match="--task generate and --outputs"):
            check_request(request)


def test_classes_with_methods_of_their_own_are_not_replaced():
    assert is_read_alike("transformers.modeling_outputs:CausalLMOutputWithPast")
    assert not is_read_alike("transformers.models.clip.modeling_clip:CLIPOutput")  # its to_tuple() differs
    assert not is_read_alike("collections:OrderedDict")


def test_an_epilogue_that_uses_the_library_otherwise_stays_unchanged():
    plain = (
        "from thunder_core.tracing.library.objects import new\n\ndef epilogue(a):\n    return new(collections.deque)\n"
    )
    mixed = "import transformers.x\n\ndef epilogue(a):\n    b = new(transformers.x.Output)\n"
    mixed += "    return transformers.x.f(b)\n"
    assert replace_outputs(plain) == (plain, frozenset())
    assert replace_outputs(mixed) == (mixed, frozenset())
    text, classes = replace_outputs(mixed.replace("transformers.x.f(b)", "b"))
    assert classes == {"transformers.x:Output"}
    assert "transformers" not in text
