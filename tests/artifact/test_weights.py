"""Weights in an artifact stay tied, shared and strided, are verified when read, and suffice to build a model."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from tests.artifact.test_listing_check import rewrite
from tests.artifact.test_loading import run
from thunder_core.foundation.errors import (
    ArtifactDamaged,
    ArtifactForeign,
    CannotReplay,
    OutOfDisk,
    OutOfMemory,
    WrongInputs,
)
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.manifest import CONFIG, WEIGHTS
from thunder_core.workflow.artifact.format.tensors import DTYPES, write_tensors
from thunder_core.workflow.artifact.format.weights import stored_weights, view_of
from thunder_core.workflow.models.loading import depth


class Odd(torch.nn.Module):
    """A model with tied, partly shared, strided, scalar, empty and non-persistent weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.turned = torch.nn.Parameter(torch.randn(4, 4).t(), requires_grad=False)
        whole = torch.randn(3, 4)
        self.register_buffer("whole", whole)
        self.register_buffer("row", whole[1], persistent=False)
        self.register_buffer("step", torch.tensor(3))
        self.register_buffer("none", torch.empty(0, 4))
        self.register_buffer("narrow", torch.randn(3, dtype=torch.bfloat16))
        self.register_buffer("wide", torch.randn(2, dtype=torch.complex128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            self.second(self.first(x)) @ self.turned + self.row * self.step + self.narrow.sum() + self.wide.real.sum()
        )


X = torch.ones(2, 4)


@pytest.fixture
def odd() -> Odd:
    return Odd()


def save_weights(model: torch.nn.Module, folder: Path) -> Path:
    compiled = thunder.jit(model)
    compiled(X)
    return thunder.save(compiled, folder, include_weights=True)


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: tensor for some in named for name, tensor in some}


def sharing(model: torch.nn.Module) -> list[int]:
    places = [(t.untyped_storage().data_ptr() or id(t), t.data_ptr()) for t in tensors_of(model).values()]
    first = [places.index(place) for place in places]
    offset = tensors_of(model)["row"].data_ptr() - tensors_of(model)["whole"].data_ptr()
    return [*first, offset]


def assert_same_weights(first: torch.nn.Module, second: torch.nn.Module) -> None:
    mine, theirs = tensors_of(first), tensors_of(second)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0, msg=name)
        assert (tensor.stride(), tensor.requires_grad) == (theirs[name].stride(), theirs[name].requires_grad), name


def test_a_model_without_data_gets_the_saved_weights(odd, tmp_path):
    folder = save_weights(odd, tmp_path / "a")
    with torch.device("meta"):
        empty = Odd()
    loaded = thunder.load(folder, empty, strict=True)
    assert_same_weights(empty, odd)
    assert empty.second.weight is empty.first.weight
    assert isinstance(empty.turned, torch.nn.Parameter)
    assert sharing(empty) == sharing(odd)
    torch.testing.assert_close(loaded(X), odd(X), rtol=0, atol=0)


def test_a_given_model_keeps_its_weights_unless_loading_is_requested(odd, tmp_path):
    folder = save_weights(odd, tmp_path / "a")
    other = Odd()
    with torch.no_grad():
        other.first.weight.mul_(2)
        other.turned.requires_grad_()
    thunder.load(folder, other)
    assert not torch.equal(other.first.weight, odd.first.weight)
    parameter = other.first.weight
    loaded = thunder.load(folder, other, strict=True, weights=True)
    assert other.first.weight is parameter
    assert_same_weights(other, odd)
    torch.testing.assert_close(loaded(X), odd(X), rtol=0, atol=0)


def test_another_model_is_refused_before_its_weights_are_touched(odd, tmp_path):
    folder = save_weights(odd, tmp_path / "a")
    other = torch.nn.Linear(4, 4)
    before = other.weight.clone()
    with pytest.raises(ArtifactForeign, match="another model"):
        thunder.load(folder, other, weights=True)
    assert torch.equal(other.weight, before)


def test_a_class_that_cannot_be_built_requires_the_model(odd, tmp_path):
    with pytest.raises(WrongInputs, match="does not record where its Odd comes from") as caught:
        thunder.load(save_weights(odd, tmp_path / "a"))
    assert "weights=True" in caught.value.fix


def test_weights_that_were_not_included_cannot_be_had(written, model):
    with pytest.raises(WrongInputs, match="has no weights"):
        thunder.load(written, model, weights=True)


def test_the_file_is_plain_safetensors_with_each_storage_once(odd, tmp_path):
    folder = save_weights(odd, tmp_path / "a")
    found = safetensors.torch.load_file(folder / WEIGHTS)
    assert found.keys() == {"first.weight", "first.bias", "turned", "whole", "step", "none", "narrow", "wide"}
    assert torch.equal(found["first.weight"], odd.first.weight)
    assert found["step"] == 3


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_is_written_in_the_safetensors_format(dtype, tmp_path):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    write_tensors(tmp_path / "mine", {"b": tensor, "a": torch.ones(1, dtype=torch.float64)})
    found = safetensors.torch.load_file(tmp_path / "mine")
    assert torch.equal(found["b"].view(torch.uint8), tensor.view(torch.uint8))
    assert found["b"].dtype == dtype


def test_memory_that_no_weight_uses_is_not_kept():
    model = torch.nn.Module()
    model.register_buffer("part", torch.arange(1000.0)[500:503])
    kept = stored_weights(model)
    assert kept.size < 50
    assert view_of(kept.tensors["part"], kept.facts["part"]).tolist() == [500, 501, 502]


def test_memory_of_two_dtypes_is_kept_once():
    model = torch.nn.Module()
    whole = torch.arange(64, dtype=torch.uint8)
    model.register_buffer("bytes", whole[3:50])
    model.register_buffer("words", whole[8:24].view(torch.int32)[1:])
    kept = stored_weights(model)
    assert len(kept.tensors) == 1
    views = {name: view_of(kept.tensors["bytes"].clone(), facts) for name, facts in kept.facts.items()}
    assert all(torch.equal(views[name], getattr(model, name)) for name in ("bytes", "words"))


Special = namedtuple("Special", ["tensor", "told"])
SPECIAL = {
    "sparse": Special(torch.eye(2).to_sparse(), "more data than its elements"),
    "conjugate": Special(torch.ones(2, dtype=torch.complex64).conj(), "more data than its elements"),
    "meta": Special(torch.empty(2, device="meta"), "has no data"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_weights_that_are_more_than_numbers_are_refused(kind):
    model = torch.nn.Module()
    model.register_buffer("odd", SPECIAL[kind].tensor)
    with pytest.raises(CannotReplay, match=f"the weight odd .*{SPECIAL[kind].told}"):
        stored_weights(model)


def test_a_function_has_no_weights(tmp_path):
    compiled = thunder.jit(torch.tanh)
    compiled(X)
    with pytest.raises(WrongInputs, match="a function has no weights"):
        thunder.save(compiled, tmp_path / "a", include_weights=True)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_reported_before_anything_is_written(odd, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(OutOfDisk, match="the weights need"):
        save_weights(odd, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_change_while_they_are_read_are_refused(odd, tmp_path, monkeypatch):
    """The bytes that were read are verified, not the earlier content of the file."""
    folder = save_weights(odd, tmp_path / "a")
    opened = open_artifact

    def meanwhile(path, **options):
        artifact = opened(path, **options)
        content = bytearray((folder / WEIGHTS).read_bytes())
        content[-1] ^= 1
        (folder / WEIGHTS).write_bytes(content)
        return artifact

    monkeypatch.setattr("thunder_core.workflow.artifact.loading.open_artifact", meanwhile)
    before = odd.first.weight.clone()
    with pytest.raises(ArtifactDamaged, match="does not match its digest"):
        thunder.load(folder, odd, weights=True)
    assert torch.equal(odd.first.weight, before)


# ---- models of the transformers library -----------------------------------------------------------------------

ALONE = """
import sys
import torch, thunder_core as thunder
model = thunder.load("saved.thunder", strict=True)
ids = torch.arange(12).reshape(1, 12)
with torch.no_grad():
    torch.save = None
    logits = model(input_ids=ids).logits
assert model.lm_head.weight is model.model.embed_tokens.weight
assert not model.training
assert model.generation_config.max_new_tokens == 7
expected = torch.frombuffer(bytearray(open("expected", "rb").read()), dtype=torch.float32).reshape(logits.shape)
assert torch.equal(logits, expected), (logits - expected).abs().max()
print("same", model.config._attn_implementation)
"""


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, tie_word_embeddings=True)).eval()
    model.generation_config.max_new_tokens = 7
    return model


@pytest.fixture(scope="module")
def alone(llama, tmp_path_factory) -> Path:
    """An artifact with weights, and the logits that it should return."""
    compiled = thunder.jit(llama)
    ids = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        compiled(input_ids=ids)
        folder = tmp_path_factory.mktemp("alone") / "saved.thunder"
        (folder.parent / "expected").write_bytes(llama(input_ids=ids).logits.numpy().tobytes())
    return thunder.save(compiled, folder, include_weights=True)


def test_a_fresh_process_needs_nothing_but_the_artifact(alone):
    done = run(ALONE, alone.parent)
    assert (done.returncode, done.stdout) == (0, "same sdpa\n"), done.stderr


def test_weights_are_not_initialized_before_they_are_loaded(alone, monkeypatch):
    for name in ("normal_", "uniform_", "kaiming_uniform_", "trunc_normal_"):
        monkeypatch.setattr(torch.nn.init, name, lambda *_, **__: pytest.fail("drawn"))
    state = torch.random.get_rng_state()
    thunder.load(alone)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("layers", [1_000_000, 10**30])
def test_a_kept_config_of_too_many_layers_is_refused_before_one_is_built(alone, tmp_path, monkeypatch, layers):
    folder = Path(shutil.copytree(alone, tmp_path / "copy"))
    config = json.loads((folder / CONFIG).read_text())
    rewrite(folder, CONFIG, json.dumps(config | {"num_hidden_layers": layers}))
    monkeypatch.setattr(depth, "free_memory", lambda device: 64 << 30)
    monkeypatch.setattr(LlamaConfig, "from_dict", lambda *_, **__: pytest.fail("it lists its layers"))
    with pytest.raises(OutOfMemory, match=f"copy/{CONFIG} describes {layers:,} layers") as caught:
        thunder.load(folder)
    assert caught.value.status == 7


def test_a_given_model_of_the_library_is_filled_on_request(alone, llama):
    torch.manual_seed(1)
    other = LlamaForCausalLM(llama.config).eval()
    thunder.load(alone, other, weights=True)
    torch.testing.assert_close(other.lm_head.weight, llama.lm_head.weight, rtol=0, atol=0)
