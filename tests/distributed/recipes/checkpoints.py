"""Checks of checkpoints (`torch.distributed.checkpoint`), run on each rank: other numbers of ranks and FSDP2 can load
them.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import thunder_core as thunder
from tests.distributed.models import Layers, tokens
from tests.distributed.recipes.sharded_training import sharded_by_pytorch, whole
from tests.distributed.recipes.training import EAGER, assert_close

MAKERS = {
    "recipe": lambda: thunder.compile(Layers(seed=5), "fsdp", without=EAGER),
    "FSDP2": lambda: sharded_by_pytorch(model := Layers(seed=5), model.layers),
}


def made(kind: str) -> tuple[Any, torch.optim.Optimizer]:
    """A model of a kind, with its optimizer."""
    model = MAKERS[kind]()
    return model, optimizer_of(model)


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    """The optimizer of all parameters that get gradients."""
    named = model.named_parameters()
    trained = [one for name, one in named if one.requires_grad and not name.startswith("unused")]
    return torch.optim.AdamW(trained, 0.01)


def train(model: Any, optimizer: torch.optim.Optimizer, first: int) -> list[torch.Tensor]:
    """The parameters after two steps on the same tokens on each rank."""
    for step in (first, first + 1):
        model(tokens(step, 0)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [whole(parameter) for parameter in model.parameters()]


def save(kind: str, folder: str) -> None:
    """Train for two steps and save."""
    model, optimizer = made(kind)
    train(model, optimizer, 0)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=folder)


def go_on(kind: str, folder: str, again: str = "") -> list[torch.Tensor]:
    """Load, perhaps save once more, and train for two steps more."""
    model, optimizer = made(kind)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    if again:
        dcp.save(states, checkpoint_id=again)
    return train(model, optimizer, 2)


def goes_on(kind: str, folder: str, again: str = "") -> None:
    """A model that continues from a checkpoint is trained like a model that was never saved."""
    model = Layers(seed=5)
    optimizer = optimizer_of(model)
    train(model, optimizer, 0)
    assert_close(go_on(kind, folder, again), train(model, optimizer, 2), 1e-12)
