"""Example labels: the tensors that the model of each task needs to return a loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PretrainedConfig

from thunder_core.foundation.errors import NoLoss
from thunder_core.workflow.models.inputs.input_names import DECODER_IDS, IDS, LABELS, MASK
from thunder_core.workflow.models.inputs.random_inputs import Inputs, RandomInputs
from thunder_core.workflow.models.request.names import SENTENCE_TASK

Tensors = dict[str, torch.Tensor]
LabelMaker = Callable[[RandomInputs, Tensors], Inputs]

IGNORED_LABEL = -100  # the label that torch.nn.functional.cross_entropy leaves out
OBJECTS = 2  # objects in each image
SPEECH_TOKENS = 10  # tokens, fewer than the frames of a second of sound
MASKED_SHARE = 0.15  # the share of tokens that BERT's training hides


def labels_for(task: str, draw: RandomInputs, inputs: Tensors) -> Inputs:
    """Return labels of a task for inputs; raise `NoLoss` if the task has no labels."""
    require_labels(task)
    return MAKERS[task](draw, inputs)


def require_labels(task: str) -> None:
    """Raise `NoLoss` for a task whose models have no labels, and therefore no loss."""
    if task not in MAKERS:
        raise NoLoss(
            f"the task {task!r} has no labels, so there is no loss to train with",
            fix=f"set --task to the task that the model is trained for: {', '.join(sorted(MAKERS))}",
        )


def next_tokens(_draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return the input tokens as labels, with padding ignored; the model shifts the labels."""
    return {LABELS: inputs[IDS].masked_fill(padding_mask(inputs), IGNORED_LABEL)}


def padding_mask(inputs: Tensors) -> torch.Tensor:
    """Return the mask of padding tokens, of the shape of the tokens; no token is padding without an attention mask."""
    ids = inputs[IDS]
    return inputs.get(MASK, torch.ones_like(ids)) == 0


def hidden_tokens(draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return about 15% of the tokens as labels, always including the first token; the others are ignored."""
    hidden = torch.rand(inputs[IDS].shape, generator=draw.generator) < MASKED_SHARE
    hidden[:, 0] = True
    return {LABELS: inputs[IDS].masked_fill(~hidden | padding_mask(inputs), IGNORED_LABEL)}


def decoded_tokens(draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return the target tokens of the decoder: its inputs shifted by one step, followed by the end token.

    Models for sound without a text encoder are listed as encoder-decoders, but they predict the next token.
    """
    if DECODER_IDS not in inputs:
        return next_tokens(draw, inputs)
    last = torch.full((draw.batch, 1), draw.padding if draw.end is None else draw.end)
    return {LABELS: torch.cat([inputs[DECODER_IDS][:, 1:], last], dim=1)}


def classes(draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return a class for each sample, numbers for a regression, or several classes for a multi-label problem."""
    count, problem = int(draw.config.num_labels or 1), draw.config.problem_type
    if is_regression(draw.config):
        return {LABELS: draw.normal(draw.batch, count).squeeze(1) if count == 1 else draw.normal(draw.batch, count)}
    if problem == "multi_label_classification":
        return {LABELS: draw.integers(0, 2, draw.batch, count).float()}
    return class_numbers(draw, inputs)


def is_regression(config: PretrainedConfig) -> bool:
    """Whether a model with this config predicts numbers instead of classes."""
    problem = config.problem_type
    return problem == "regression" or (problem is None and int(config.num_labels or 1) == 1)


def token_classes(draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return a class for each token that is not padding."""
    numbers = draw.integers(0, int(draw.config.num_labels or 1), draw.batch, draw.seq)
    return {LABELS: numbers.masked_fill(padding_mask(inputs), IGNORED_LABEL)}


def no_labels(_draw: RandomInputs, _inputs: Tensors) -> Tensors:
    """Return no labels, because the targets (hidden patches, or pairs of texts) are part of the inputs."""
    return {}


def spans(draw: RandomInputs, _inputs: Tensors) -> Tensors:
    """Return the positions at which an answer starts and ends."""
    both = draw.integers(0, draw.seq, draw.batch, 2).sort(dim=1).values
    return {"start_positions": both[:, 0].contiguous(), "end_positions": both[:, 1].contiguous()}


def choices(draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return the index of the right choice for each sample."""
    return {LABELS: draw.integers(0, inputs[IDS].shape[1], draw.batch)}


def yes_or_no(draw: RandomInputs, _inputs: Tensors) -> Tensors:
    """Return a class for each sample: 0 if the second sentence follows the first, otherwise 1."""
    return {LABELS: draw.integers(0, 2, draw.batch)}


def pixel_classes(draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return a class for each pixel, [batch, height, width]."""
    return {LABELS: draw.integers(0, int(draw.config.num_labels or 1), draw.batch, *inputs["pixel_values"].shape[-2:])}


def depths(draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return a positive depth for each pixel, [batch, height, width]."""
    return {LABELS: draw.normal(draw.batch, *inputs["pixel_values"].shape[-2:]).abs() + 0.1}


def class_numbers(draw: RandomInputs, _inputs: Tensors) -> Tensors:
    """Return a class for each sample."""
    return {LABELS: draw.integers(0, int(draw.config.num_labels or 1), draw.batch)}


def scores(draw: RandomInputs, _inputs: Tensors) -> Tensors:
    """Return a score of 0 to 1 for each possible answer."""
    return {LABELS: draw.integers(0, 2, draw.batch, int(draw.config.num_labels or 1)).float()}


def spoken_tokens(draw: RandomInputs, _inputs: Tensors) -> Tensors:
    """Return ten spoken tokens for each sample, without padding."""
    return {LABELS: draw.tokens(SPEECH_TOKENS)}


def frame_classes(draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return a class for each frame of a sound, one-hot: [batch, frames, classes]."""
    count = int(draw.config.num_labels or 1)
    if "input_values" in inputs:
        frames = inputs["input_values"].shape[1]
        for kernel, stride in zip(draw.config.conv_kernel, draw.config.conv_stride, strict=True):
            frames = (frames - kernel) // stride + 1
    else:
        frames = inputs["input_features"].shape[1]
    numbers = draw.integers(0, count, draw.batch, frames)
    return {LABELS: torch.nn.functional.one_hot(numbers, count).float()}


def objects(draw: RandomInputs, _inputs: Tensors) -> Inputs:
    """Return the classes and boxes of two objects in each image; boxes are the center and the size, from 0 to 1."""
    count = int(draw.config.num_labels or 1)

    def of_image() -> Tensors:
        corners = torch.rand(OBJECTS, 2, 2, generator=draw.generator).sort(dim=1).values
        boxes = torch.cat([corners.mean(dim=1), corners[:, 1] - corners[:, 0]], dim=1)
        return {"class_labels": draw.integers(0, count, OBJECTS), "boxes": boxes}

    return {LABELS: [of_image() for _ in range(draw.batch)]}


def future_values(draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return the future of a time series, if the inputs do not contain it."""
    if "future_values" in inputs:
        return {}
    return {"future_values": draw.normal(draw.batch, draw.config.prediction_length, draw.config.num_input_channels)}


# Tasks whose models predict numbers instead of classes if their config says so.
REGRESSION_TASKS = ("sequence-classification", "image-classification", "audio-classification", "video-classification")
MAKERS: dict[str, LabelMaker] = {
    **dict.fromkeys(REGRESSION_TASKS, classes),
    "causal-lm": next_tokens,
    "image-text-to-text": next_tokens,
    "masked-lm": hidden_tokens,
    "seq2seq-lm": decoded_tokens,
    "speech-seq2seq": decoded_tokens,
    "token-classification": token_classes,
    "question-answering": spans,
    "multiple-choice": choices,
    "next-sentence-prediction": yes_or_no,
    "audio-xvector": class_numbers,
    "audio-frame-classification": frame_classes,
    "object-detection": objects,
    "semantic-segmentation": pixel_classes,
    "depth-estimation": depths,
    "visual-question-answering": scores,
    "document-question-answering": spans,
    "ctc": spoken_tokens,
    "time-series-prediction": future_values,
    "masked-image-modeling": no_labels,
    SENTENCE_TASK: no_labels,
}
