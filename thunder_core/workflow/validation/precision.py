"""The reference: the same model in the highest precision that it runs in and that fits into memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from thunder_core.backend.claiming.deferred_tensor import DeferredTensor, bytes_read_at_once
from thunder_core.foundation.errors import NotComparable
from thunder_core.foundation.errors.tree import message_line
from thunder_core.workflow.models.inputs.input_tensors import converted
from thunder_core.workflow.models.memory.free_memory import free_memory, is_out_of_memory
from thunder_core.workflow.validation.draws import DrawnValues
from thunder_core.workflow.validation.leaves import dtype_name
from thunder_core.workflow.validation.state import Observed
from thunder_core.workflow.validation.wide_weights import (
    bytes_in,
    constant_buffers,
    convert_in_place,
    deferred_weights,
    is_converted_at_once,
    is_packed,
    plain_tensors,
    tensors_held,
)

# Weights whose layers take float32, and return it, whatever the dtype is that they were made for.
TAKEN_IN_FLOAT32 = ("bitsandbytes.", "torchao.quantization.Int8Tensor")
ROOM = 0.7  # of the free memory, for the reference's weights; the rest is for what it computes


def copy_sharing_parameters(model: torch.nn.Module) -> torch.nn.Module:
    """A copy that shares the parameters, and buffers that never change: running it leaves no mark on the model."""
    shared = {id(parameter): parameter for parameter in model.parameters()}
    return _copied(model, shared)


def _copied(model: torch.nn.Module, shared: Mapping[int, object]) -> torch.nn.Module:
    try:
        return copy.deepcopy(model, {**constant_buffers(model), **shared, **_results(model)})
    except (TypeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise NotComparable(
            f"the model cannot be copied ({error}), and validation needs a copy",
            fix="keep locks, generators, open files and lists of earlier results out of the module's attributes during "
            "validation",
        ) from error


def _results(model: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Results of earlier calls that modules keep as attributes: deepcopy refuses tensors that autograd made."""
    kept = (value for module in model.modules() for value in vars(module).values())
    return {id(value): value.detach().clone() for value in kept if isinstance(value, torch.Tensor) and value.grad_fn}


def widest_affordable(model: torch.nn.Module, *, train: bool = False) -> torch.dtype:
    """float64, or float32 where the weights of a reference in float64 would not fit into the device's free memory.

    Those of a large model are there one at a time, and so are its gradients with `train`.
    """
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    free = free_memory(device)
    return torch.float32 if free is not None and reference_bytes(model, train=train) > ROOM * free else torch.float64


def reference_bytes(model: torch.nn.Module, dtype: torch.dtype = torch.float64, *, train: bool = False) -> int:
    """The bytes that the weights of a reference in a dtype take at once, with their gradients for training."""
    whole = bytes_in(model, dtype)
    largest = max((bytes_read_at_once(parameter, dtype) for parameter in model.parameters()), default=0)
    if is_converted_at_once(model, dtype):
        return whole * (2 if train else 1)
    gradient = max((parameter.numel() * dtype.itemsize for parameter in model.parameters()), default=0)
    return largest + (gradient if train else 0)


def in_precision(model: torch.nn.Module, dtype: torch.dtype, before: torch.dtype) -> torch.nn.Module:
    """Convert a model, in place, but for modules whose weights are tensors of a class of its own, as packed ones are.

    These compute in the dtype that the model had before, or in float32 where they take it: what they are given and what
    they return is converted.
    """
    packed = [module for module in model.modules() if is_packed(module)]
    if not packed and not any(isinstance(one, DeferredTensor) for one in model.parameters()):
        return torch.nn.Module.to(model, dtype)
    convert_in_place(model, dtype)
    for module in packed:
        takes = torch.float32 if is_taken_in_float32(module) else before
        module.register_forward_pre_hook(partial(_given, takes), with_kwargs=True)
        module.register_forward_hook(partial(_returned, dtype))
    return model


def is_taken_in_float32(module: torch.nn.Module) -> bool:
    """Whether a module with packed weights takes float32, in which the rounding of what it is given shows."""
    kinds = (type(tensor) for tensor in tensors_held(module))
    return any(f"{kind.__module__}.{kind.__qualname__}".startswith(TAKEN_IN_FLOAT32) for kind in kinds)


def dtype_of(model: torch.nn.Module) -> torch.dtype:
    """The dtype that a model computes in."""
    return next((tensor.dtype for tensor in plain_tensors(model)), torch.get_default_dtype())


def _given(dtype: torch.dtype, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return tuple(_to(dtype, one) for one in args), {name: _to(dtype, one) for name, one in kwargs.items()}


def _returned(dtype: torch.dtype, module: torch.nn.Module, args: Any, output: Any) -> Any:
    return _to(dtype, output)


def _to(dtype: torch.dtype, value: Any) -> Any:
    return converted(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


class Reference:
    """The model in higher precision. Where it does not run there, the next lower one is taken, and noted."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self.notes: list[str] = []
        self._model, self._before = model, dtype_of(model)
        self._lower: list[torch.dtype | None] = [torch.float32, None] if dtype == torch.float64 else [None]
        self._dtype: torch.dtype | None = dtype
        self._converted = model
        try:
            self._converted = self._copy()
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:  # of weights of a class of its own
            if is_out_of_memory(error):
                raise
            self._step_down(f"the model cannot be converted to {self.name} ({message_line(error)})")

    @property
    def name(self) -> str:
        """The name of the reference for people: `float64`, `float32` or `eager`."""
        return "eager" if self._dtype is None else dtype_name(self._dtype)

    @property
    def by_layer(self) -> bool:
        """Whether weights are converted layer by layer, each while it is read."""
        return self._dtype is not None and not is_converted_at_once(self._model, self._dtype)

    def _copy(self) -> torch.nn.Module:
        if self._dtype is None:
            return self._model
        weights = deferred_weights(self._model, self._dtype) if self.by_layer else {}
        return in_precision(_copied(self._model, weights), self._dtype, self._before)

    def _copy_of_state(self, start: torch.nn.Module) -> torch.nn.Module:
        """A copy of the model in the state of `start`, with the weights of the reference."""
        weights = zip(self._model.parameters(), self._converted.parameters(), strict=True)
        copied = _copied(start, {id(parameter): converted for parameter, converted in weights})
        return copied if self._dtype is None else in_precision(copied, self._dtype, self._before)

    def observed(
        self, run: Callable[..., tuple[Observed, DrawnValues]], start: torch.nn.Module, wanted: DrawnValues
    ) -> Observed:
        """The result of `run(function, model, convert)` for a fresh copy of `start`, which has the model's weights.

        Floating inputs are converted as its weights were. One that draws other random numbers than eager has no say.
        """
        while True:
            try:
                copied = self._copy_of_state(start)
                found, draws = run(copied, copied, self._convert)
                if not self._lower or draws.agree_with(wanted):
                    return found
                self._step_down(f"the random numbers differ in {self.name}")
            except Exception as error:  # whatever its code or a kernel says of a dtype that they were not made for
                if not self._lower or is_out_of_memory(error):
                    raise
                self._step_down(f"the model does not run in {self.name} ({message_line(error)})")

    def _convert(self, value: object) -> object:
        return value if self._dtype is None else _to(self._dtype, value)

    def _step_down(self, reason: str) -> None:
        self._converted = self._model
        self._dtype = self._lower.pop(0)
        self._converted = self._copy()
        self.notes.append(f"{reason}, so the reference is {self.name}")
