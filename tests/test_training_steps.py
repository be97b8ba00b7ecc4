"""Compiled models train like eager ones while data, masks, labels and masked spans change with every batch."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import thunder_core as thunder
from tests.zoo.configs import small_config
from thunder_core.foundation.errors import RecompileWarning

BATCH, SEQUENCE_LENGTH, VOCABULARY, CLASSES = 2, 12, 99, 3
Inputs = dict[str, Any]
WAV2VEC2_CONFIG = {
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 4],
    "conv_kernel": [10, 4, 4],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "apply_spec_augment": True,
    "mask_time_prob": 0.3,
    "mask_time_length": 2,
    "mask_feature_prob": 0.2,
    "mask_feature_length": 2,
    "layerdrop": 0.0,
    "ctc_loss_reduction": "mean",
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
}
WHISPER_CONFIG = {
    "num_mel_bins": 8,
    "max_source_positions": 16,
    "apply_spec_augment": True,
    "mask_time_prob": 0.3,
    "mask_time_length": 2,
    "mask_feature_prob": 0.3,
    "mask_feature_length": 2,
}
BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 16, 16, 32],
    "depths": [1] * 4,
    "out_features": ["stage4"],
}


def model_of(family: str, architecture: str, **values: Any) -> torch.nn.Module:
    """A small model with seeded weights, in training mode."""
    config = small_config(family, architecture=architecture)
    config = type(config).from_dict(config.to_dict() | values)
    torch.manual_seed(0)
    model: torch.nn.Module = getattr(transformers, architecture)(config)
    return model.train()


def mask_of(length: int) -> torch.Tensor:
    """A mask whose first sample has full length, and whose others end in padding of random lengths."""
    mask = torch.ones(BATCH, length, dtype=torch.int64)
    for row in range(1, BATCH):
        mask[row, int(torch.randint(length // 2, length, ())) :] = 0
    return mask


def random_tokens(length: int = SEQUENCE_LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length))


def texts() -> Inputs:
    ids, mask = random_tokens(), mask_of(SEQUENCE_LENGTH)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def translations() -> Inputs:
    mask, target = mask_of(SEQUENCE_LENGTH), mask_of(SEQUENCE_LENGTH // 2)
    labels = random_tokens(SEQUENCE_LENGTH // 2).masked_fill(target == 0, -100)
    return {"input_ids": random_tokens() * mask, "attention_mask": mask, "labels": labels}


def utterances() -> Inputs:
    """Sounds of several lengths, with their transcripts as token labels."""
    mask = mask_of(4000)
    labels = torch.randint(1, VOCABULARY, (BATCH, 6)).masked_fill(mask_of(6) == 0, -100)
    return {"input_values": torch.randn(BATCH, 4000) * mask, "attention_mask": mask, "labels": labels}


def spectrograms() -> Inputs:
    frames = 2 * WHISPER_CONFIG["max_source_positions"]
    labels = random_tokens(6).masked_fill(mask_of(6) == 0, -100)
    return {"input_features": torch.randn(BATCH, 8, frames), "attention_mask": mask_of(frames), "labels": labels}


def pictures() -> Inputs:
    """Pictures of several sizes, each with a random number of boxes."""
    mask = torch.ones(BATCH, 64, 64, dtype=torch.int64)
    mask[1, :, int(torch.randint(40, 64, ())) :] = 0
    counts = torch.randint(1, 4, (BATCH,)).tolist()
    labels = [
        {"class_labels": torch.randint(0, CLASSES, (count,)), "boxes": torch.rand(count, 4) * 0.4 + 0.3}
        for count in counts
    ]
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "pixel_mask": mask, "labels": labels}


CASES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], Inputs]]] = {
    "bert": (lambda: model_of("bert", "BertForMaskedLM"), texts),
    "detr": (
        lambda: model_of("detr", "DetrForObjectDetection", backbone_config=BACKBONE, num_labels=CLASSES),
        pictures,
    ),
    "wav2vec2": (lambda: model_of("wav2vec2", "Wav2Vec2ForCTC", **WAV2VEC2_CONFIG), utterances),
    "whisper": (lambda: model_of("whisper", "WhisperForConditionalGeneration", **WHISPER_CONFIG), spectrograms),
    "mixtral": (lambda: model_of("mixtral", "MixtralForCausalLM", output_router_logits=True), texts),
    "t5": (lambda: model_of("t5", "T5ForConditionalGeneration", decoder_start_token_id=0), translations),
}


def losses_of(model: torch.nn.Module, call: Callable[..., Any], batches: list[Inputs]) -> list[float]:
    """Train a model on each batch, and return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = call(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare_losses(name: str, steps: int) -> None:
    build, draw = CASES[name]
    model = build()
    eager_model = copy.deepcopy(model)
    torch.manual_seed(1)
    batches = [draw() for _ in range(steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)  # boxes are matched by values of a batch
        losses = losses_of(model, thunder.jit(model, executors=("torch",)), copy.deepcopy(batches))
    expected = losses_of(eager_model, eager_model, batches)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert len(set(losses)) == steps  # each batch changes the loss


@pytest.mark.parametrize("name", CASES)
def test_losses_on_changing_batches_match_eager(name: str) -> None:
    compare_losses(name, 4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CASES)
def test_fifty_losses_on_changing_batches_match_eager(name: str) -> None:
    compare_losses(name, 50)


@pytest.mark.parametrize("dropped", [0.0, 0.3], ids=["all layers", "dropped layers"])
def test_sounds_of_all_lengths_with_random_masks_share_a_symbolic_program(dropped: float) -> None:
    model = model_of("wav2vec2", "Wav2Vec2ForCTC", **(WAV2VEC2_CONFIG | {"layerdrop": dropped}))
    compiled_model = copy.deepcopy(model)
    # With "guard", each pattern of dropped layers has a program.
    compiled = thunder.jit(compiled_model, executors=("torch",), data_dependent="error" if dropped else "guard")
    for length in (4000, 4400, 5200, 3700):
        torch.manual_seed(length)
        batch = {"input_values": torch.randn(BATCH, length), "labels": torch.randint(1, VOCABULARY, (BATCH, 6))}
        for module, call in ((model, model), (compiled_model, compiled)):
            torch.manual_seed(7)
            np.random.seed(length)
            module.zero_grad()
            call(**batch).loss.backward()
        pairs = zip(compiled_model.parameters(), model.parameters(), strict=True)
        for actual, expected in pairs:
            torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-3, atol=1e-4)
    assert thunder.cache_misses(compiled) == 2  # for constant, then for symbolic lengths
