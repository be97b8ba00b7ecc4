"""Tensors created in inference mode as inputs of programs that are differentiated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import thunder_core as thunder

with torch.inference_mode():
    MADE = torch.arange(1.0, 4.0)


def written(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    result = a.clone()
    result += w
    return result


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "added": lambda a, w: a + w,
    "viewed": lambda a, w: a.view(3, 1) + w,
    "read as a number": lambda a, w: w * a.sum().item(),
    "decides a branch": lambda a, w: w + 1 if a.sum() > 2 else w * 3,
    "an index": lambda a, w: w[a.nonzero()[:, 0]],
    "a condition": lambda a, w: torch.where(a > 1, w, 0.0),
    "copied and saved": lambda a, w: a.clone() * w,
    "written to a copy": written,
}


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_match_eager(name: str, executors: tuple[str, ...]) -> None:
    outcomes = []
    for function in (PROGRAMS[name], thunder.jit(PROGRAMS[name], executors=executors)):
        w = torch.ones(3, requires_grad=True)
        result = function(MADE, w)
        result.sum().backward()
        outcomes.append((result.detach(), w.grad))
    for expected, ours in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, expected)


def step_after_a_use_in_inference_mode(w: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        w.reshape(-1)
    loss = (w * 2).sum()
    if loss.requires_grad:
        loss.backward()
    return loss.detach()


def test_tensor_that_is_first_used_in_inference_mode_is_tracked() -> None:
    w = torch.ones(3, requires_grad=True)
    thunder.jit(step_after_a_use_in_inference_mode, data_dependent="error")(w)
    torch.testing.assert_close(w.grad, torch.full((3,), 2.0))
