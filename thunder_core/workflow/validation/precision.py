"""The reference: the same model in the highest precision that runs and fits into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from thunder_core.backend.claiming.deferred_tensor import WriteToDeferred, bytes_read_at_once
from thunder_core.foundation.errors.tree import message_line
from thunder_core.tracing.ir.default_dtype import default_dtype
from thunder_core.tracing.ir.proxy import dtype_name
from thunder_core.workflow.models.inputs.input_tensors import map_tensors
from thunder_core.workflow.models.memory.free_memory import free_memory, is_out_of_memory
from thunder_core.workflow.validation.draws import DrawnValues
from thunder_core.workflow.validation.model_copies import ModelCopy, copy_sharing
from thunder_core.workflow.validation.state import ObservedCall
from thunder_core.workflow.validation.wide_weights import (
    bytes_in,
    convert_in_place,
    convert_tensor,
    deferred_buffers,
    deferred_weights,
    is_converted_at_once,
    is_packed,
    plain_tensors,
    small_weights,
    tensors_held,
)

# The classes of packed weights whose layers accept and return float32.
FLOAT32_WEIGHT_CLASSES = ("bitsandbytes.", "torchao.quantization.Int8Tensor")
WEIGHTS_SHARE = 0.7  # the share of the free memory for the reference's weights; the rest is for its activations


def widest_affordable(model: torch.nn.Module, *, train: bool = False) -> torch.dtype:
    """Return float64, or float32 if the weights of a float64 reference would not fit into the device's free memory.

    The weights of a large model are converted one at a time; `train` adds the gradients, also one at a time.
    """
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    free = free_memory(device)
    return (
        torch.float32
        if free is not None and reference_bytes(model, train=train) > WEIGHTS_SHARE * free
        else torch.float64
    )


def reference_bytes(model: torch.nn.Module, dtype: torch.dtype = torch.float64, *, train: bool = False) -> int:
    """Return the bytes that a reference's weights in a dtype occupy at once; `train` adds the gradients."""
    weights_bytes = bytes_in(model, dtype)
    if is_converted_at_once(model, dtype):
        return weights_bytes * (2 if train else 1)
    small = small_weights(model, dtype)
    small_bytes = sum(parameter.numel() * dtype.itemsize for parameter in model.parameters() if id(parameter) in small)
    largest = max((bytes_read_at_once(parameter, dtype) for parameter in model.parameters()), default=0)
    gradient = max((parameter.numel() * dtype.itemsize for parameter in model.parameters()), default=0)
    return small_bytes + largest + (gradient if train else 0)


def in_precision(model: torch.nn.Module, dtype: torch.dtype, before: torch.dtype) -> torch.nn.Module:
    """Convert a model in place, except modules whose weights have a special class, such as packed weights.

    These modules compute in the model's dtype `before`, or in float32 if they accept it; their inputs and results are
    converted.
    """
    packed = [module for module in model.modules() if is_packed(module)]
    convert_in_place(model, dtype)
    for module in packed:
        takes = torch.float32 if is_taken_in_float32(module) else before
        module.register_forward_pre_hook(partial(_convert_arguments, takes), with_kwargs=True)
        module.register_forward_hook(partial(_convert_results, dtype))
    return model


def is_taken_in_float32(module: torch.nn.Module) -> bool:
    """Whether a module with packed weights accepts float32, so that the rounding of its inputs is visible."""
    kinds = (type(tensor) for tensor in tensors_held(module))
    return any(f"{kind.__module__}.{kind.__qualname__}".startswith(FLOAT32_WEIGHT_CLASSES) for kind in kinds)


def dtype_of(model: torch.nn.Module) -> torch.dtype:
    """Return the dtype that a model computes in."""
    floating = (tensor.dtype for tensor in plain_tensors(model) if tensor.is_floating_point())
    return next(floating, torch.get_default_dtype())


def _convert_arguments(
    dtype: torch.dtype, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    return tuple(_to(dtype, value) for value in args), {name: _to(dtype, value) for name, value in kwargs.items()}


def _convert_results(dtype: torch.dtype, module: torch.nn.Module, args: object, output: object) -> Any:
    return _to(dtype, output)


def _to(dtype: torch.dtype, value: object) -> Any:
    return map_tensors(value, lambda tensor: convert_tensor(tensor, dtype))


class Reference:
    """The model in higher precision. If it does not run in a dtype, the next lower dtype is used, with a note."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self.notes: list[str] = []
        self._model, self._before = model, dtype_of(model)
        self._widens_created = False  # whether the reference's dtype is the default dtype while the model runs
        self._lower: list[torch.dtype | None] = [torch.float32, None] if dtype == torch.float64 else [None]
        self._dtype: torch.dtype | None = dtype
        self._weights = tuple(model.parameters())
        try:
            self._weights = self._converted_weights()
        except (
            TypeError,
            ValueError,
            RuntimeError,
            NotImplementedError,
        ) as error:  # weights of a special class raise these
            if is_out_of_memory(error):
                raise
            self._step_down(f"the model cannot be converted to {self.name} ({message_line(error)})")

    @property
    def name(self) -> str:
        """The name of the reference for people: `float64`, `float32` or `eager`."""
        return "eager" if self._dtype is None else dtype_name(self._dtype)

    @property
    def by_layer(self) -> bool:
        """Whether weights are converted layer by layer, when they are read."""
        return self._dtype is not None and not is_converted_at_once(self._model, self._dtype)

    def _converted_weights(self) -> tuple[torch.nn.Parameter, ...]:
        """Return the model's weights in the dtype of the reference."""
        if self._dtype is None:
            return tuple(self._model.parameters())
        weights = deferred_weights(self._model, self._dtype) if self.by_layer else {}
        unread = deferred_buffers(self._model, self._model.buffers(), self._dtype)
        copied = copy_sharing(self._model, {**weights, **unread}).model
        return tuple(in_precision(copied, self._dtype, self._before).parameters())

    def _copy_of_state(self, start: ModelCopy) -> torch.nn.Module:
        """Return a copy of the model with the state of `start` and the weights of the reference."""
        pairs = zip(self._model.parameters(), self._weights, strict=True)
        weights = {id(parameter): weight for parameter, weight in pairs}
        if self._dtype is None:
            return copy_sharing(start.model, weights).model
        buffers = deferred_buffers(start.model, start.unwritten, self._dtype)
        return in_precision(copy_sharing(start.model, {**weights, **buffers}).model, self._dtype, self._before)

    def observe(
        self, run: Callable[..., tuple[ObservedCall, DrawnValues]], start: ModelCopy, eager_draws: DrawnValues
    ) -> ObservedCall:
        """Return the result of `run(function, model, convert)` for a copy of `start`, which has the model's weights.

        Floating inputs are converted like the weights. Large buffers that eager does not change are converted when they
        are read; if the reference writes to one of them, it runs again with copies of all buffers. If it does not run
        in float64, it runs again with float64 as the default dtype, so that the model also creates tensors in float64.
        If it still does not run, or consumes the RNG differently from eager, the next lower dtype is used.
        """
        while True:
            try:
                copied = self._copy_of_state(start)
                with default_dtype(self._dtype if self._widens_created else None):
                    observation, draws = run(copied, copied, self._convert)
                if not self._lower or draws.agree_with(eager_draws):
                    return observation
                self._step_down(f"the random numbers differ in {self.name}")
            except Exception as error:  # code and kernels raise any error for a dtype that they do not support
                if isinstance(error, WriteToDeferred) and start.unwritten:
                    start = replace(start, unwritten=())
                    continue
                if not self._lower or is_out_of_memory(error):
                    raise
                if not self._widens_created and self._dtype == torch.float64:
                    self._widens_created = True  # the model may combine its weights with tensors that it creates
                    continue
                self._step_down(f"the model does not run in {self.name} ({message_line(error)})")

    def _convert(self, value: object) -> object:
        return value if self._dtype is None else _to(self._dtype, value)

    def _step_down(self, reason: str) -> None:
        self._weights = ()
        self._widens_created = False
        self._dtype = self._lower.pop(0)
        self._weights = self._converted_weights()
        self.notes.append(f"{reason}, so the reference is {self.name}")
