"""The executor: the operations that it claims, and the message if Triton is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from tests.executors.triton.closeness import assert_close, draw
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import EnvironmentLacks
from thunder_executors.triton.launch import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for the interpreter")

LABELS = torch.tensor([2, -100, 0])


def claimed(function: Callable[..., torch.Tensor], *args: object) -> list[str]:
    """The operations of a function that our kernels run. The result is checked."""
    compiled = thunder.jit(function, executors=["triton", "torch"])
    assert_close(compiled(*args), function(*args))
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    return [line.symbol.short_name for line in lines if line.executor == "triton"]


def test_norm_and_loss_of_pytorch_are_claimed() -> None:
    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional.rms_norm(x, (5,), weight, 1e-5), LABELS, reduction="sum")

    assert claimed(loss, draw(3, 5), draw(5, seed=1)) == ["norm", "loss"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.rms_norm(x, (5,)),
        lambda x: functional.rms_norm(x, (3, 5), None, 1e-5),
        lambda x: functional.rms_norm(x.double(), (5,), None, 1e-5),
        lambda x: functional.cross_entropy(x, LABELS, label_smoothing=0.1),
        lambda x: functional.cross_entropy(x, LABELS, x[0].abs()),
        lambda x: functional.cross_entropy(x, x.softmax(-1)),
        lambda x: functional.cross_entropy(x.T[None], LABELS[None]),
    ],
)
def test_calls_that_our_kernels_cannot_compute_are_not_claimed(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert claimed(function, draw(3, 5)) == []


def test_gradients_flow_through_claimed_operations() -> None:
    def squares(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (5,), weight, 1e-5).square().sum()

    found = []
    for function in (squares, thunder.jit(squares, executors=["triton", "torch"])):
        leaves = draw(3, 5).requires_grad_(), draw(5, seed=1).requires_grad_()
        function(*leaves).backward()
        found.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs)


def test_missing_triton_is_listed_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("thunder_executors.triton")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    (listed,) = [executor for executor in plugins.listing("executors") if executor.name == "triton"]
    assert listed.reason == 'needs triton, not installed here: pip install "thunder-optimize[triton]"'
    with pytest.raises(EnvironmentLacks, match="needs triton, not installed here"):
        plugins.load("executors", "triton")


def test_listing_imports_no_triton() -> None:
    program = (
        "import sys; from thunder_core import plugins; "
        "assert 'triton' in [one.name for one in plugins.listing('executors')]; sys.exit('triton' in sys.modules)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path})


def test_the_kernels_are_no_executors() -> None:
    assert not {"rms-norm", "rotary", "triton-kernels", "launch"} & set(plugins.names("executors"))
