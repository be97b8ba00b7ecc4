"""Batches of real samples for a model: padded tensors, named like the parameters of the model's forward."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from thunder_core.foundation.errors import BadData
from thunder_core.workflow.models.inputs.dataset import Dataset, Row
from thunder_core.workflow.models.inputs.decoder_tokens import decoder_tokens
from thunder_core.workflow.models.inputs.input_names import DECODER_IDS, IDS, LABELS, MASK
from thunder_core.workflow.models.inputs.labels import IGNORED_LABEL, next_tokens
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs
from thunder_core.workflow.models.inputs.sequence import longest_sequence
from thunder_core.workflow.models.inputs.transformers_inputs import modalities, takes_decoder_inputs
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.names import SENTENCE_TASK
from thunder_core.workflow.models.request.task import LANGUAGE_TASKS

Tensors = dict[str, torch.Tensor]

DECODER_INPUTS = frozenset({DECODER_IDS, LABELS})  # inputs with one number for each token of the decoder
TOKENS = frozenset({IDS, DECODER_IDS})
FLOATS = frozenset({"pixel_values", "input_features", "input_values"})
STARTS, ENDS = "start_positions", "end_positions"  # the first and the last token of an answer
SPANS = frozenset({STARTS, ENDS})
CAUSAL = frozenset({"causal-lm", "image-text-to-text"})  # the tasks whose labels are the input tokens


def token_length(dataset: Dataset) -> int | None:
    """Return the number of tokens of the longest sample, or None if the samples have no tokens."""
    return max((row[IDS].shape[-1] for row in dataset.rows if IDS in row and row[IDS].ndim), default=None)


def longer_than(dataset: Dataset, seq: int) -> int:
    """Return the number of samples with more than `seq` tokens."""
    return sum(row[IDS].shape[-1] > seq for row in dataset.rows if IDS in row and row[IDS].ndim)


@dataclass(frozen=True)
class Batches:
    """The samples of a file for a model, in batches of one size, each padded to the same number of tokens.

    With `cut`, samples with more tokens are truncated; otherwise, they are refused. With `labels`, the batches include
    labels.
    """

    loaded: LoadedModel
    dataset: Dataset
    batch: int
    seq: int
    cut: bool = False
    labels: bool = False

    def __post_init__(self) -> None:
        """Raise `BadData` for samples that the model does not accept, before any sample is used."""
        if len(self.dataset) < self.batch:
            raise BadData(
                f"{self.dataset.file} has {len(self.dataset)} samples, but a batch has {self.batch}",
                fix=f"use --batch {len(self.dataset)}, or a file with more samples",
            )
        use = (id(self.loaded.model), self.seq, self.cut, self.labels)
        if use in self.dataset.checked:
            return
        self._require_names()
        for number, row in enumerate(self.dataset.rows):
            self._require_row(number, row)
        self.dataset.checked.add(use)

    def __len__(self) -> int:
        return len(self.dataset) // self.batch

    def __getitem__(self, number: int) -> Tensors:
        """Return the batch with a number; numbers beyond the last batch continue with the first batch."""
        first = number % len(self) * self.batch
        return self.of_rows(range(first, first + self.batch))

    def of_rows(self, numbers: Iterable[int]) -> Tensors:
        """Return the samples with these numbers as one batch, on the model's device and in its dtype."""
        rows = [self._pad_or_truncate(self.dataset.rows[number]) for number in numbers]
        stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        return {name: self._to_device(tensor) for name, tensor in stacked.items()}

    def labels_of(self, numbers: Iterable[int]) -> torch.Tensor | None:
        """Return the labels of the samples with these numbers, or None without labels.

        The labels of an answer are its first and its last token, [batch, 2].
        """
        names = self.dataset.rows[0].keys()
        if LABELS not in names and not names >= SPANS and self.loaded.task not in CAUSAL:
            return None
        batch = replace(self, labels=True).of_rows(numbers)
        if LABELS not in batch and batch.keys() >= SPANS:
            return torch.stack([batch[STARTS], batch[ENDS]], dim=1)
        labels = batch.get(LABELS)
        if labels is None or labels.is_floating_point():
            return labels
        return labels.where(labels != self._ignored_pixel_label, IGNORED_LABEL)

    def _pad_or_truncate(self, row: Row) -> Tensors:
        """Return a sample with its tokens padded or truncated to the length of the sequence."""
        row = {
            name: self._pad_decoder_tokens(name, tensor)
            for name, tensor in row.items()
            if name not in self._unaccepted_inputs
        }
        tensors = {**row, **{name: tensor for name, tensor in self._derive_inputs(row).items() if name not in row}}
        fixed = {*row, DECODER_IDS} - self._names_per_token
        padded = {name: tensor if name in fixed else self._fit_tensor(name, tensor) for name, tensor in tensors.items()}
        return {name: tensor for name, tensor in padded.items() if self.labels or name not in {LABELS, *SPANS}}

    def _derive_inputs(self, row: Row) -> Tensors:
        """Derive inputs from a sample: the attention mask, the labels of a causal model, and the decoder's tokens."""
        decoder_inputs = {}
        if self._has_decoder and LABELS in row:
            decoder_inputs[DECODER_IDS] = decoder_tokens(
                self.loaded.model, row[LABELS].long()[None], self._random_inputs
            )[0]
        if IDS not in row or row[IDS].ndim != 1:
            return decoder_inputs
        mask = torch.ones(row[IDS].shape[0], dtype=torch.int64)
        decoder_inputs |= {MASK: mask} if MASK in self._forward_parameters else {}
        if self.labels and self.loaded.task in CAUSAL:
            decoder_inputs |= next_tokens(self._random_inputs, {MASK: mask, **row})
        return decoder_inputs

    def _pad_decoder_tokens(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Pad the decoder's input tokens or labels to the longest of all samples; return other inputs unchanged."""
        if name not in self._names_per_decoder_token:
            return tensor
        longest = max(row[name].shape[0] for row in self.dataset.rows)
        filler = IGNORED_LABEL if name == LABELS else self._random_inputs.padding
        return torch.nn.functional.pad(tensor, (0, longest - tensor.shape[0]), value=filler)

    def _fit_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        filler = {IDS: self._random_inputs.padding, LABELS: IGNORED_LABEL}.get(name, 0)
        missing = self.seq - tensor.shape[0]
        return torch.nn.functional.pad(tensor, (0, missing), value=filler) if missing > 0 else tensor[: self.seq]

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        model = self.loaded.model
        if tensor.is_floating_point():
            return tensor.to(device=model.device, dtype=model.dtype)
        return tensor.to(device=model.device, dtype=tensor.dtype if tensor.dtype == torch.bool else torch.int64)

    @cached_property
    def _names_per_token(self) -> frozenset[str]:
        """The names of the inputs that have one number for each token."""
        rows = self.dataset.rows
        names = rows[0].keys() - self._names_per_decoder_token
        shapes = [(row[IDS].shape if IDS in row else None, row) for row in rows]
        return frozenset(
            name
            for name in names
            if all(name in row and row[name].ndim == 1 and row[name].shape == shape for shape, row in shapes)
        )

    @cached_property
    def _has_decoder(self) -> bool:
        """Whether the model also needs decoder tokens as an input."""
        return takes_decoder_inputs(self.loaded)

    @cached_property
    def _names_per_decoder_token(self) -> frozenset[str]:
        """The names of the inputs that have one number for each token of the decoder."""
        rows = self.dataset.rows
        lists = {name for name in DECODER_INPUTS if all(name in row and row[name].ndim == 1 for row in rows)}
        return frozenset(lists if self._has_decoder else ())

    @property
    def _random_inputs(self) -> RandomInputs:
        return RandomInputs.from_seed(self.loaded.config, batch=1, seq=self.seq, seed=0)

    @property
    def _forward_parameters(self) -> frozenset[str]:
        return frozenset(inspect.signature(type(self.loaded.model).forward).parameters)

    @property
    def _ignored_pixel_label(self) -> int:
        """The label of pixels that the loss of a segmentation ignores, or the label that all losses ignore."""
        return int(getattr(self.loaded.config, "semantic_loss_ignore_index", IGNORED_LABEL))

    @cached_property
    def _unaccepted_inputs(self) -> frozenset[str]:
        """The names of inputs that the tokenizer returned but the model does not accept."""
        return self.dataset.from_tokenizer - self._forward_parameters

    def _require_names(self) -> None:
        """Raise `BadData` for names that the model does not accept, and for missing main inputs."""
        names = dict.fromkeys(name for row in self.dataset.rows for name in row)
        kind, accepted_names = type(self.loaded.model).__name__, self._forward_parameters - {"self", "kwargs", "args"}
        own = {LABELS, *SPANS, *self.dataset.from_tokenizer}
        strange = [name for name in names if name not in accepted_names and name not in own]
        of_decoder = [DECODER_IDS] if self._has_decoder and LABELS not in names else []
        needed_names = [*modalities(self.loaded), *of_decoder]
        if self.labels and self.loaded.task not in {*CAUSAL, SENTENCE_TASK}:
            needed_names += [] if names.keys() >= SPANS else [LABELS]
        missing = [name for name in needed_names if name not in names]
        for problem, reason in ((strange, "which it does not accept"), (missing, "which it needs and the file lacks")):
            if problem:
                follows = f"add `{DECODER_IDS}`, or the `{LABELS}` that they follow from; "
                raise BadData(
                    f"{self.dataset.file} does not fit {kind}: `{'`, `'.join(problem)}`, {reason}",
                    fix=(follows if DECODER_IDS in problem else "")
                    + f"use the names of the parameters of its forward: {', '.join(sorted(accepted_names))}",
                )

    def _require_row(self, number: int, row: Row) -> None:
        first = self.dataset.rows[0]
        if row.keys() != first.keys():
            differing = ", ".join(sorted(row.keys() ^ first.keys()))
            raise self.dataset.wrong(
                number, f"has other names than the first sample ({differing})", "give all the same"
            )
        for problem, fix in self._problems(row, first):
            raise self.dataset.wrong(number, problem, fix)

    def _shape_problems(self, name: str, row: Row, first: Row) -> Iterator[tuple[str, str]]:
        """Yield the problems of a tensor's shape, each with a fix."""
        tensor = row[name]
        if name == IDS and tensor.ndim == 1 and self.labels and self.loaded.task == SENTENCE_TASK:
            yield (
                f"`{name}` is one text, but sentence embeddings are trained with pairs of texts",
                "give two lists of tokens of the same length, with their `attention_mask`",
            )
        if name not in self._names_per_token | self._names_per_decoder_token and tensor.shape != first[name].shape:
            shapes = f"{list(tensor.shape)}, and {list(first[name].shape)} in the first"
            yield (
                f"`{name}` is of shape {shapes}",
                f"use equal shapes; Thunder pads only inputs with one number for each of the `{IDS}`",
            )
        if name == MASK and tensor.ndim == 1 and IDS in row and tensor.shape != row[IDS].shape:
            shapes = f"{list(tensor.shape)}, and `{IDS}` of {list(row[IDS].shape)}"
            yield f"`{name}` is of shape {shapes}", "write a number for each token"

    @staticmethod
    def _value_problems(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, str]]:
        """Yield the problems of a tensor's dtype and values, each with a fix."""
        if name in FLOATS and not tensor.is_floating_point():
            yield f"`{name}` is of dtype {tensor.dtype}", "give normalized floating numbers"
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            yield f"`{name}` holds NaN", "leave the sample out"
        if tensor.is_complex():
            yield f"`{name}` holds complex numbers", "give real ones"

    def _problems(self, row: Row, first: Row) -> Iterator[tuple[str, str]]:
        """Yield the problems of a sample, each with a fix."""
        for name, tensor in row.items():
            if name in TOKENS:
                yield from self._token_problems(name, tensor)
            yield from self._shape_problems(name, row, first)
            if name == LABELS:
                yield from self._label_problems(tensor)
            yield from self._value_problems(name, tensor)
        length = row[IDS].shape[-1] if IDS in row and row[IDS].ndim else 0
        if IDS in row and length > self.seq and not self.cut:
            longest = longest_sequence(self.loaded.config)
            yield (
                f"{length} tokens, more than {self.seq}",
                f"use --seq, up to {longest or 'any number'}, to truncate longer samples, or shorten the samples",
            )

    def _label_problems(self, tensor: torch.Tensor) -> Iterator[tuple[str, str]]:
        if tensor.is_floating_point() or tensor.is_complex() or not tensor.numel():
            return
        count = (
            self._random_inputs.vocabulary
            if self.loaded.task in LANGUAGE_TASKS
            else int(self.loaded.config.num_labels or 1)
        )
        wrong = tensor[
            (tensor != IGNORED_LABEL)
            & (tensor != self._ignored_pixel_label)
            & ((tensor < 0) | (tensor >= max(count, 2)))
        ]
        if wrong.numel():
            wrong_value = int(wrong.flatten()[0])
            yield (
                f"`{LABELS}` has {wrong_value}, but there are {count} classes",
                f"use 0 to {count - 1}, or {IGNORED_LABEL}",
            )

    def _token_problems(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, str]]:
        vocabulary = self._random_inputs.vocabulary
        if not tensor.numel():
            yield f"`{name}` is empty", "add at least one token, or leave out the sample"
        elif not tensor.ndim:
            yield f"`{name}` is one number, but tokens are lists of integers", "give a list of integers"
        elif tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            yield f"`{name}` has the dtype {tensor.dtype}, but tokens are lists of integers", "give integers"
        elif tensor.ndim > 1 and self.loaded.task in LANGUAGE_TASKS:
            yield f"`{name}` has the shape {list(tensor.shape)}, but a sample is one list of tokens", "give one list"
        elif not 0 <= int(tensor.min()) <= int(tensor.max()) < vocabulary:
            wrong_value = int(tensor.min()) if int(tensor.min()) < 0 else int(tensor.max())
            yield (
                f"`{name}` has the token {wrong_value}, but the vocabulary has {vocabulary}",
                "use the model's own tokenizer",
            )
