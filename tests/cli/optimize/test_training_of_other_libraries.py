"""`--train` on models of other libraries: the artifact's losses and gradients are those of their own models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import thunder_core
from tests.cli.small import Result
from tests.models.diffusion_models import MODELS
from tests.models.sentence_folders import BERT, WIDTH, write_sentence_folder
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.loading import rebuilt_model
from thunder_core.workflow.artifact.replay import example_of

Thunder = Callable[..., Result]
FAST = ("--no-benchmark", "--without", "inductor", "--out", "step")


def train_step(thunder: Thunder, *command: Any) -> tuple[Any, dict[str, Any]]:
    """The model of a step that the command line optimizes, after its backward, and the inputs of the step."""
    done = thunder("optimize", *command, "--train", *FAST)
    assert done.status == 0, done.err
    model, inputs = thunder_core.load("step", strict=True), example_of("step")
    model(**inputs).loss.backward()
    return model, inputs


def require_gradients_of(eager: torch.nn.Module, ours: torch.nn.Module, prefix: str = "", *, of: str = "") -> None:
    """Compare the gradients of an eager model after its backward with those of a compiled model."""
    found = {name.removeprefix(prefix): one.grad for name, one in ours.named_parameters()}
    expected = {name.removeprefix(of): one.grad for name, one in eager.named_parameters()}
    assert found.keys() == expected.keys()
    assert any(gradient is not None for gradient in expected.values())
    for name, gradient in expected.items():
        assert (gradient is None) == (found[name] is None), name
        if gradient is not None:
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


def test_architecture_of_timm(thunder: Thunder, here: Path) -> None:
    timm = pytest.importorskip("timm", reason="needs the package timm")
    theirs = timm.create_model("resnet10t", num_classes=7)
    timm.models.save_for_hf(theirs, here / "model", safe_serialization=True)
    ours, inputs = train_step(thunder, "model", "--batch", 2, "--height", 64, "--width", 64)
    loss = torch.nn.functional.cross_entropy(theirs.train()(inputs["pixel_values"]), inputs["labels"])
    loss.backward()
    require_gradients_of(theirs, ours, "timm_model.")


def test_architecture_of_timm_with_random_weights(thunder: Thunder, here: Path) -> None:
    pytest.importorskip("timm", reason="needs the package timm")
    arguments = ("--random-weights", "--batch", 2, "--height", 64, "--width", 64)
    train_step(thunder, "timm:mobilenetv3_small_050", *arguments)


@pytest.mark.parametrize("name", ["conditional unet", "dit", "sd3", "flux"])
def test_denoiser_of_diffusers(thunder: Thunder, here: Path, name: str) -> None:
    pytest.importorskip("diffusers", reason="needs the package diffusers")
    theirs = MODELS[name]()
    theirs.save_pretrained(here / "model")
    ours, inputs = train_step(thunder, "model", "--batch", 2, "--seq", 5)
    target = inputs.pop("target")
    sample = theirs.train()(**inputs).sample
    prediction = sample if sample.shape == target.shape else sample.chunk(2, dim=1)[0]
    torch.nn.functional.mse_loss(prediction, target).backward()
    require_gradients_of(theirs, ours, "denoiser.")


def test_autoencoder_of_diffusers_is_refused(thunder: Thunder, here: Path) -> None:
    pytest.importorskip("diffusers", reason="needs the package diffusers")
    MODELS["autoencoder"]().save_pretrained(here / "model")
    refused = thunder("optimize", "model", "--train", "--dry-run")
    assert (refused.status, "AutoencoderKL" in refused.err) == (2, True)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by a former name
def test_adapter_of_peft(thunder: Thunder, here: Path, llama: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the package peft")
    base: Any = transformers.AutoModelForCausalLM.from_pretrained(llama)
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    adapted = peft.get_peft_model(base, settings)
    adapted.save_pretrained(here / "lora")
    ours, inputs = train_step(thunder, "lora", "--seq", 8)
    adapted.train()(**inputs).loss.backward()
    require_gradients_of(adapted, ours, prefix="", of="base_model.model.")


def test_sentence_embeddings(thunder: Thunder, here: Path) -> None:
    stages = [("Pooling", {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}), ("Normalize", {})]
    config = {**BERT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    write_sentence_folder(here / "sentences", stages, config=config)
    ours, inputs = train_step(thunder, "sentences", "--batch", 3, "--seq", 8, "--include-weights")
    assert inputs["input_ids"].shape == (3, 2, 8)
    eager = rebuilt_model(open_artifact(Path("step")))
    eager(**inputs).loss.backward()
    require_gradients_of(eager, ours)


def test_loss_of_sentence_embeddings_matches_the_library(here: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    from thunder_core.tracing.library.sentences.ranking import ranking_loss

    torch.manual_seed(0)
    for texts in (2, 3):
        embeddings = torch.randn(4, texts, 6)
        loss = library.sentence_transformer.losses.MultipleNegativesRankingLoss(model=torch.nn.Identity())
        expected = loss.compute_loss_from_embeddings(list(embeddings.unbind(1)), None)
        torch.testing.assert_close(ranking_loss(embeddings), expected)
