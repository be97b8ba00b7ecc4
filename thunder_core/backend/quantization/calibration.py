"""Calibration: run a float model on some inputs, and compute the mean square of each input column of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from thunder_core.backend.quantization.replacement import QuantizationSettings, plan_layers


def importances_of(
    model: torch.nn.Module, settings: QuantizationSettings, calls: Iterable[Callable[[], object]]
) -> dict[str, Tensor]:
    """Return the mean square of each input column (columns,) of the layers that are quantized in groups, by name.

    Each of the `calls` runs the model once, on its own inputs. Only sums over the inputs stay in memory.
    """
    names = [name for name, plan in plan_layers(model, settings).items() if plan.kind.in_groups]
    sums: dict[str, Tensor] = {}
    rows = dict.fromkeys(names, 0)

    def add(name: str, x: Tensor) -> None:
        flat = x.detach().reshape(-1, x.shape[-1]).double()
        sums[name] = sums.get(name, 0) + flat.square().sum(0)
        rows[name] += len(flat)

    with watch_inputs(model, names, add), torch.no_grad():
        for call in calls:
            call()
    return {name: (total / max(rows[name], 1)).float() for name, total in sums.items()}


@contextmanager
def watch_inputs(model: torch.nn.Module, names: Iterable[str], watch: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Within the block, call `watch` with the name and the input of each named layer whenever the layer runs."""

    def hook(name: str) -> Callable[..., None]:
        def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            (layer_input,) = (*args, *kwargs.values())
            watch(name, layer_input)

        return before

    with ExitStack() as hooks:
        for name in names:
            layer = model.get_submodule(name)
            hooks.enter_context(layer.register_forward_pre_hook(hook(name), with_kwargs=True))
        yield
