"""The purpose that a model is called for: inference, or a step of training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.foundation.errors import NothingToTrain, UnsupportedError
from thunder_core.workflow.models.inputs.batches import MASK, Batches
from thunder_core.workflow.models.inputs.dataset import Dataset
from thunder_core.workflow.models.inputs.input_tensors import tensors_in, with_own_caches
from thunder_core.workflow.models.inputs.inputs import Inputs, example_inputs, require_sizes
from thunder_core.workflow.models.loading.load import LoadedModel
from thunder_core.workflow.models.request.mode import put_into_mode
from thunder_core.workflow.validation.comparison import buffers_kept
from thunder_core.workflow.validation.gradients import gradients_kept, loss_of

Call = Callable[..., object]


@dataclass(frozen=True)
class Purpose:
    """Inference or, with `train`, steps of training: which inputs the model takes, and what one call of it does.

    Inputs are drawn, or taken from the samples of `data`, which with `cut` may be shortened.
    """

    train: bool = False
    data: Dataset | None = None
    cut: bool = False

    @property
    def configuration(self) -> dict[str, str]:
        """The facts that set a measurement of training apart from one of inference, and one of real inputs."""
        call = {"call": "training step"} if self.train else {}
        return call if self.data is None else {**call, "input": self.data.name}

    def inputs(self, loaded: LoadedModel, *, batch: int, seq: int, seed: int, number: int = 0, **others: int) -> Inputs:
        """The inputs of a number, with labels where there is a loss: drawn, or out of the file.

        Only inputs that are drawn take the `others` of sizes, such as `cache`.
        """
        if self.data is None:
            return example_inputs(loaded, batch=batch, seq=seq, seed=seed + number, labels=self.train, **others)
        return self.batches(loaded, self.data, batch=batch, seq=seq)[number]

    def batches(self, loaded: LoadedModel, data: Dataset, *, batch: int, seq: int) -> Batches:
        """The samples of a file in batches."""
        require_sizes(loaded, batch, seq)
        return Batches(loaded, data, batch, seq, self.cut, labels=self.train)

    def variants(self, inputs: Inputs) -> Iterator[Inputs]:
        """The inputs without some or all of what a tokenizer gives beside tokens and mask: models default it."""
        beside = frozenset() if self.data is None or self.train else self.data.from_tokenizer - {MASK}
        given = sorted(beside & inputs.keys())
        for count in range(1, len(given) + 1):
            for left_out in itertools.combinations(given, count):
                yield {name: value for name, value in inputs.items() if name not in left_out}

    def could_be_drawn(self, loaded: LoadedModel, given: Inputs, *, batch: int, seq: int, seed: int, **_: int) -> bool:
        """Whether drawn inputs have the names, shapes and dtypes of these, so that the same programs take them."""
        if self.data is None:
            return True
        try:
            drawn = example_inputs(loaded, batch=batch, seq=seq, seed=seed, labels=self.train)
        except UnsupportedError:
            return False
        return any(_described(drawn) == _described(one) for one in (given, *self.variants(given)))

    def numbers_to_validate_on(
        self, loaded: LoadedModel, *, batch: int, seq: int, wanted: int, traced: int = 1
    ) -> tuple[list[int], int]:
        """The numbers of the inputs to validate on, and how many were traced because the file has no others."""
        if self.data is None:
            return list(range(1, wanted + 1)), 0
        count = len(self.batches(loaded, self.data, batch=batch, seq=seq))
        others = list(range(traced, min(traced + wanted, count)))
        return (others, 0) if others else (list(range(min(wanted, count))), count)

    def call(self, function: Callable[..., Any], model: torch.nn.Module) -> Call:
        """The measured call: of the function, which computes with the model's parameters, and what comes after."""
        return _step(function, model) if self.train else _forward(function)

    @contextmanager
    def ready(self, model: torch.nn.Module) -> Iterator[None]:
        """The model in the mode that it is called in; its buffers and gradients are put back after the block.

        Raises `NothingToTrain` for one that is to be trained and has no parameter that is.
        """
        if self.train and not any(parameter.requires_grad for parameter in model.parameters()):
            raise NothingToTrain(
                f"all parameters of this {type(model).__name__} are frozen, so there is nothing to train",
                fix="unfreeze the parameters to train (`requires_grad_(True)`), or leave out --train",
            )
        put_into_mode(model, train=self.train)
        with buffers_kept(model), gradients_kept(model):
            yield


def _described(inputs: Inputs) -> dict[str, object]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors_in(inputs)}


def _forward(function: Callable[..., Any]) -> Call:
    """The forward alone, which autograd does not record."""

    def call(**inputs: Any) -> object:
        with torch.no_grad():
            return function(**with_own_caches(inputs))

    return call


def _step(function: Callable[..., Any], model: torch.nn.Module) -> Call:
    """Gradients away, forward, loss and backward: a step of training without its optimizer."""

    def call(**inputs: torch.Tensor) -> object:
        with torch.enable_grad():
            model.zero_grad(set_to_none=True)
            returned = function(**inputs)
            loss_of(returned).backward()  # type: ignore[no-untyped-call]
        return returned

    return call
