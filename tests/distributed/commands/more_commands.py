"""Checks of inference and of recipes that quantize on the command line of several ranks, run on each rank."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from tests.distributed.commands.commands import QUICK, in_one_process, run, small_model
from tests.distributed.recipes.saved import shared_folder
from thunder_core.workflow.artifact.format.parts import prepare_with
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.trust.trust import trust_in
from thunder_core.workflow.models.loading.load import rebuild_model

SIZES = {
    "int8-weight-only": (),
    "int8-dynamic": (),
    "int4-weight-only": ("--set", "group_size=16"),
    "bf16": (),
}


QUIET = ("--no-benchmark", "--without", "inductor", "--set", "kl=9")
GENERATION = ("--batch", "1", "--prompt-length", "5", "--new-tokens", "3", "--task", "generate")


def optimizes_quantized(task: str, first: str, second: str, *options: str) -> None:
    """The quantized model on two ranks is compared with the quantized model in one process; all ranks load it.

    The task is a single call, or generation.
    """
    folder = shared_folder()
    scheme = second if first == "tensor-parallel" else first
    sizes = GENERATION if task == "generate" else ("--seq", "8", "--validate-inputs", "1")
    chosen = ("--recipe", first, "--recipe", second, *SIZES[scheme], *sizes, *options, *QUIET, "--json")
    status, out, err = run("optimize", model_of_groups(folder.parent), *chosen, "--out", str(folder))
    assert status == 0, err
    if dist.get_rank() == 0:
        report = json.loads(out)["report"]
        assert (report["validation"] or report["generation"])["passed"]
        assert report["quantization"]["passed"]
        assert report["weights_bytes"] == 0
        assert ("--skip-layers" in options) == bool(report["quantization"]["skipped"])
    dist.barrier()
    loaded, twin = thunder.load(folder, strict=True), quantized_twin(folder)
    weight = loaded.model.layers[0].mlp.down_proj.weight
    assert (weight.to_local() if isinstance(weight, DTensor) else weight).shape[1] == 32
    tokens = torch.arange(8)[None]
    if task == "generate":
        numbers = {"max_new_tokens": 3, "do_sample": False}
        assert torch.equal(loaded.generate(tokens[:, :5], **numbers), twin.generate(tokens[:, :5], **numbers))
        return
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs).logits, twin(**inputs).logits, rtol=0.02, atol=0.01)


def model_of_groups(parent: Path) -> str:
    """The folder of a Llama with large weights, whose groups of 16 columns two ranks can divide."""
    folder = parent / "model"
    if dist.get_rank() == 0:
        sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 31}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0, 0.25)
        model.save_pretrained(folder)
    dist.barrier()
    return str(folder)


def quantized_twin(folder: Path) -> Any:
    """The model of an artifact in one process, quantized by the transform of the artifact."""
    manifest = open_artifact(folder).manifest
    transforms = tuple(facts for facts in manifest.compiler.transforms if not facts.is_parallel)
    model = rebuild_model(manifest.source).model
    facts = manifest.compiler.model_copy(update={"transforms": transforms})
    return prepare_with(facts, model, trust_in(model), has_values=True)


def runs_one_forward() -> None:
    """Without a task, each rank computes a part of one call; the KV caches of the ranks together are compared."""
    folder = shared_folder()
    data = folder.parent / "samples.jsonl"
    if dist.get_rank() == 0:
        samples = [{"input_ids": list(range(start, start + 8))} for start in range(3)]
        data.write_text("".join(json.dumps({**one, "labels": one["input_ids"]}) + "\n" for one in samples))
    chosen = ("--recipe", "hf-llama3", "--recipe", "tensor-parallel", "--out", str(folder), "--eval", str(data), *QUICK)
    status, out, err = run("optimize", small_model(folder.parent), *chosen, "--json")
    assert status == 0, err
    if dist.get_rank() == 0:
        report = json.loads(out)["report"]
        assert {one["name"] for one in report["validation"]["outputs"]} == {
            "logits",
            *(f"past_key_values.layers.{layer}.{part}" for layer in range(1) for part in ("keys", "values")),
        }
        assert [one["name"] for one in report["benchmark"]["candidates"]] == ["parallelize_module", "thunder"]
        assert report["evaluation"]["before"] == pytest.approx(report["evaluation"]["after"], rel=1e-4)
        assert "compared with the same call in one process" in " ".join(err.split())
    dist.barrier()
    loaded = thunder.load(folder, strict=True)
    tokens = torch.arange(8)[None]
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with torch.no_grad():
        found, expected = loaded(**inputs).logits, in_one_process(loaded)(**inputs).logits
    torch.testing.assert_close(found, expected)


def trains_adapters(recipe: str) -> None:
    """Adapters of frozen codes are trained on two ranks."""
    folder = shared_folder()
    chosen = ("--recipe", "nf4-lora", "--recipe", recipe, "--train", "--out", str(folder), *QUICK, "--json")
    status, out, err = run("optimize", model_of_groups(folder.parent), *chosen)
    assert status == 0, err
    if dist.get_rank() == 0:
        outputs = json.loads(out)["report"]["validation"]["outputs"]
        assert sum(one["name"].endswith(".grad") for one in outputs) == 14
    dist.barrier()
    loaded = thunder.load(folder, strict=True)
    tokens = torch.arange(8)[None]
    loaded(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens.clone()).loss.backward()
