"""The purpose for which a model is called: inference, or a training step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.backend.quantization.layers import TRAIN_QUANTIZED, QuantizedLayer
from thunder_core.foundation.errors import NothingToTrain, UnsupportedError
from thunder_core.workflow.artifact.format.manifest import Manifest
from thunder_core.workflow.models.inputs.batches import Batches
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.inputs.input_names import MASK
from thunder_core.workflow.models.inputs.input_tensors import tensors_in, with_own_caches
from thunder_core.workflow.models.inputs.inputs import Inputs, example_inputs
from thunder_core.workflow.models.inputs.transformers_inputs import require_sizes
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.mode import put_into_mode
from thunder_core.workflow.validation.gradients import loss_of, preserve_gradients
from thunder_core.workflow.validation.preserved_state import preserve_buffers

Call = Callable[..., object]
PADDED = "padded"  # the option of random inputs: whether texts have padding and a mask
UNFREEZE = "unfreeze the parameters to train (`requires_grad_(True)`)"


@dataclass(frozen=True)
class Purpose:
    """Inference or, if `train` is set, training steps: it determines the inputs and the work of a call.

    Inputs are random, or samples of `data`, which may be shortened if `cut` is set. Without `padded`, random texts have
    neither padding nor a mask.
    """

    train: bool = False
    data: Dataset | None = None
    cut: bool = False
    padded: bool = True

    @property
    def configuration(self) -> dict[str, str]:
        """The facts that distinguish measurements: training or inference, and real or random inputs."""
        call = {"call": "training step"} if self.train else {}
        return call if self.data is None else {**call, "input": self.data.name}

    @property
    def input_options(self) -> dict[str, int]:
        """The options of random inputs, which an artifact stores with their sizes and their seed."""
        return {} if self.padded else {PADDED: 0}

    def inputs(
        self, loaded: LoadedModel, *, batch: int, seq: int, seed: int, number: int = 0, **optional_sizes: int
    ) -> Inputs:
        """Return the inputs with this number, random or from the file; for training, with labels.

        Only random inputs have `optional_sizes`, such as `cache`.
        """
        if self.data is None:
            sizes = {"batch": batch, "seq": seq, **optional_sizes}
            return example_inputs(loaded, **sizes, seed=seed + number, labels=self.train, padded=self.padded)
        return self.batches(loaded, self.data, batch=batch, seq=seq)[number]

    def batches(self, loaded: LoadedModel, data: Dataset, *, batch: int, seq: int) -> Batches:
        """Return the samples of a file in batches."""
        require_sizes(loaded, batch, seq)
        return Batches(loaded, data, batch, seq, self.cut, labels=self.train)

    def variants(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the inputs without some or all optional tokenizer outputs, such as `token_type_ids`."""
        optional = frozenset() if self.data is None or self.train else self.data.from_tokenizer - {MASK}
        optional_names = sorted(optional & inputs.keys())
        for count in range(1, len(optional_names) + 1):
            for left_out in itertools.combinations(optional_names, count):
                yield {name: value for name, value in inputs.items() if name not in left_out}

    def could_be_random(
        self, loaded: LoadedModel, sample: Inputs, *, batch: int, seq: int, seed: int, **_: int
    ) -> bool:
        """Whether random inputs have the same names, shapes and dtypes, so that the same programs accept them."""
        if self.data is None:
            return True
        try:
            random_inputs = example_inputs(loaded, batch=batch, seq=seq, seed=seed, labels=self.train)
        except UnsupportedError:
            return False
        return any(_describe(random_inputs) == _describe(inputs) for inputs in (sample, *self.variants(sample)))

    def numbers_to_validate_on(
        self, loaded: LoadedModel, *, batch: int, seq: int, requested: int, traced: int = 1
    ) -> tuple[list[int], int]:
        """Return the numbers of the inputs to validate on, and the number of batches if all were traced (otherwise 0).

        The first `traced` batches of a file are omitted, unless the file has no other batch.
        """
        if self.data is None:
            return list(range(1, requested + 1)), 0
        count = len(self.batches(loaded, self.data, batch=batch, seq=seq))
        untraced = list(range(traced, min(traced + requested, count)))
        return (untraced, 0) if untraced else (list(range(min(requested, count))), count)

    def call(self, function: Callable[..., Any], model: torch.nn.Module) -> Call:
        """Return the measured call of a function that uses the model's parameters; for training, with the backward."""
        return _step(function, model) if self.train else _forward(function)

    @contextmanager
    def ready(self, model: torch.nn.Module) -> Iterator[None]:
        """Put a model into the mode for its calls during the block, and restore its buffers and gradients afterwards.

        Raises `NothingToTrain` for a training of a model without trainable parameters.
        """
        if self.train and not any(parameter.requires_grad for parameter in model.parameters()):
            is_quantized = any(isinstance(module, QuantizedLayer) for module in model.modules())
            raise NothingToTrain(
                f"all parameters of this {type(model).__name__} are frozen, so there is nothing to train",
                fix=f"{TRAIN_QUANTIZED if is_quantized else UNFREEZE}, or leave out --train",
            )
        put_into_mode(model, train=self.train)
        with preserve_buffers(model), preserve_gradients(model):
            yield


def purpose_of(manifest: Manifest, data: Dataset | None = None, *, cut: bool = False) -> Purpose:
    """Return the purpose of the calls of an artifact, with random inputs like the traced inputs, or with samples."""
    return Purpose(manifest.train, data, cut, padded=bool(manifest.random_inputs.get(PADDED, True)))


def _describe(inputs: Inputs) -> dict[str, object]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors_in(inputs)}


def _forward(function: Callable[..., Any]) -> Call:
    """Return a call that runs only the forward, with gradients disabled."""

    def call(**inputs: Any) -> object:
        with torch.no_grad():
            return function(**with_own_caches(inputs))

    return call


def _step(function: Callable[..., Any], model: torch.nn.Module) -> Call:
    """Return a training step without the optimizer: it clears gradients, and runs forward, loss and backward."""

    def call(**inputs: torch.Tensor) -> object:
        with torch.enable_grad():
            model.zero_grad(set_to_none=True)
            returned = function(**inputs)
            loss_of(returned).backward()  # type: ignore[no-untyped-call]
        return returned

    return call
