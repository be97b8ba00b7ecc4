"""The reference: the same model in the highest precision that it runs in and that fits into memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch

from thunder_core.errors import NotComparable
from thunder_core.models.free_memory import free_memory, is_out_of_memory
from thunder_core.models.input_tensors import converted
from thunder_core.validation.draws import Draws
from thunder_core.validation.leaves import dtype_name
from thunder_core.validation.state import Observed

ROOM = 0.7  # of the free memory, for the copy's weights; the rest is for what it computes


def copy_sharing_parameters(model: torch.nn.Module) -> torch.nn.Module:
    """A copy that shares the parameters and nothing else: running it leaves no mark on the model."""
    shared = {id(parameter): parameter for parameter in model.parameters()}
    return _copied(model, shared)


def _copied(model: torch.nn.Module, shared: Mapping[int, object]) -> torch.nn.Module:
    try:
        return copy.deepcopy(model, {**shared, **_results(model)})
    except (TypeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise NotComparable(
            f"the model cannot be copied ({error}), so there is nothing to compare with",
            fix="keep locks, generators, open files and results of earlier calls (in lists, say) out of the module's "
            "attributes while it is validated",
        ) from error


def _results(model: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Results of earlier calls that modules keep as attributes: deepcopy refuses tensors that autograd made."""
    kept = (value for module in model.modules() for value in vars(module).values())
    return {id(value): value.detach().clone() for value in kept if isinstance(value, torch.Tensor) and value.grad_fn}


def widest_affordable(model: torch.nn.Module, copies: int = 1) -> torch.dtype:
    """float64, or float32 where so many copies of the model in float64 would not fit into the device's free memory."""
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    free = free_memory(device)
    needed = copies * sum(tensor.numel() for tensor in tensors) * torch.float64.itemsize
    return torch.float32 if free is not None and needed > ROOM * free else torch.float64


class Reference:
    """The model in higher precision. Where it does not run there, the next lower one is taken, and noted."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self.notes: list[str] = []
        self._model = model
        self._lower: list[torch.dtype | None] = [torch.float32, None] if dtype == torch.float64 else [None]
        self._dtype: torch.dtype | None = dtype
        self._converted = self._copy()

    @property
    def name(self) -> str:
        """The name of the reference for people: `float64`, `float32` or `eager`."""
        return "eager" if self._dtype is None else dtype_name(self._dtype)

    def _copy(self) -> torch.nn.Module:
        if self._dtype is None:
            return self._model
        return _copied(self._model, {}).to(self._dtype)

    def _copy_of_state(self, start: torch.nn.Module) -> torch.nn.Module:
        """A copy of the model in the state of `start`, with the weights of the reference."""
        weights = zip(self._model.parameters(), self._converted.parameters(), strict=True)
        copied = _copied(start, {id(parameter): converted for parameter, converted in weights})
        return copied if self._dtype is None else copied.to(self._dtype)

    def observed(self, run: Callable[..., tuple[Observed, Draws]], start: torch.nn.Module, wanted: Draws) -> Observed:
        """The result of `run(function, model, convert)` for a fresh copy of `start`, which has the model's weights.

        Floating inputs are converted as its weights were. One that draws other random numbers than eager has no say.
        """
        while True:
            try:
                copied = self._copy_of_state(start)
                found, draws = run(copied, copied, self._convert)
                if not self._lower or draws.agree_with(wanted):
                    return found
                self._step_down(f"random numbers are others in {self.name}")
            except Exception as error:  # whatever its code or a kernel says of a dtype that they were not made for
                if not self._lower or is_out_of_memory(error):
                    raise
                said = (str(error).splitlines() or [type(error).__name__])[0]
                self._step_down(f"the model does not run in {self.name} ({said})")

    def _convert(self, value: object) -> object:
        dtype = self._dtype
        if dtype is None:
            return value
        return converted(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def _step_down(self, reason: str) -> None:
        self._converted = self._model
        self._dtype = self._lower.pop(0)
        self._converted = self._copy()
        self.notes.append(f"{reason}, so the reference is {self.name}")
