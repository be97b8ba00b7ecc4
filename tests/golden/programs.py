"""Small programs whose traces are kept as text: each runs once, and returns the function that `jit` compiled for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder
from tests.families import FAMILIES, inputs_for
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES

Compiled = Callable[..., Any]
ONE_LAYER = {
    "gpt2": {"n_layer": 1},
    "t5": {
        "num_layers": 1,
        "num_decoder_layers": 1,
        "use_cache": False,
    },  # its cache copies with a table that other code extends
}


def family(name: str) -> Compiled:
    """Forward and backward of a training step of the family's model with one layer."""
    sample = SAMPLES[name]
    config = {**sample.config, **ONE_LAYER.get(name, {"num_hidden_layers": 1})}
    loaded = load_model(ModelRequest(sample=replace(sample, config=config)))
    compiled = thunder.jit(loaded.model, executors=("torch",))
    output = compiled(**inputs_for(loaded, batch=1, seq=4, labels=True))
    output.loss.backward()
    return compiled


def weight(*shape: int) -> Tensor:
    """A tensor of ones that requires a gradient."""
    return torch.ones(*shape, requires_grad=True)


def in_place_on_input() -> Compiled:
    """The program writes to an argument, also through a view, and to a computed tensor that autograd records."""

    def update(x: Tensor, scale: Tensor) -> Tensor:
        x.mul_(2)
        x[0] += 1
        y = x * scale
        y[:, 0] = scale[0]
        return y.relu_()

    compiled = thunder.jit(update, executors=("torch",))
    compiled(torch.ones(2, 3), weight(3)).sum().backward()
    return compiled


def in_place_on_buffer() -> Compiled:
    """A norm in training writes its running statistics, and its module counts the batches."""
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    compiled = thunder.jit(model, executors=("torch",))
    compiled(torch.ones(1, 1, 4, 4)).sum().backward()
    return compiled


def views() -> Compiled:
    """Results that are views of an argument and of each other. The tail makes these views."""

    def split(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        product = x * y
        return x.t(), product[0], product.view(-1)

    compiled = thunder.jit(split, executors=("torch",))
    _, row, _ = compiled(weight(2, 3), weight(2, 3))
    row.sum().backward()
    return compiled


def dropout() -> Compiled:
    """Random numbers are drawn once, and the backward reads the mask."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.GELU())
    compiled = thunder.jit(model, executors=("torch",))
    compiled(torch.ones(2, 4)).sum().backward()
    return compiled


def autocast_inside() -> Compiled:
    """A program enables autocast for a part of its operations."""

    def mixed(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = x @ w
        return hidden.float().softmax(-1)

    compiled = thunder.jit(mixed, executors=("torch",))
    compiled(torch.ones(2, 4), weight(4, 4)).sum().backward()
    return compiled


def autocast_transform() -> Compiled:
    """The transform `Autocast` rewrites a program that does not use autocast."""
    from thunder_core.passes.transforms.autocast import Autocast

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    compiled = thunder.jit(model, executors=("torch",), transforms=(Autocast(torch.bfloat16),))
    compiled(torch.ones(2, 4)).sum().backward()
    return compiled


def checkpointed() -> Compiled:
    """The operations inside `torch.utils.checkpoint` are recomputed in the backward."""
    inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.Linear(8, 4))

    def forward(x: Tensor) -> Tensor:
        return checkpoint(inner, x, use_reentrant=False).tanh()

    compiled = thunder.jit(forward, executors=("torch",))
    compiled(weight(2, 4)).sum().backward()
    return compiled


def optimizer_step() -> Compiled:
    """A whole training step: forward, backward and AdamW, which writes the parameters and its state."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = thunder.jit(step, executors=("torch",))
    compiled(torch.ones(3, 4))
    compiled(torch.ones(3, 4))
    return compiled


def data_dependent_branch() -> Compiled:
    """The value of a tensor decides a branch, and the program guards this value from then on."""

    def clip(x: Tensor, limit: float) -> Tensor:
        if x.abs().max() > limit:
            return x / x.norm()
        return x * 1.0

    compiled = thunder.jit(clip, executors=("torch",))
    compiled(weight(4), 0.5).sum().backward()
    return compiled


def value_of_a_tensor() -> Compiled:
    """A tensor's values are used as a size and as a result in Python."""

    def count(x: Tensor) -> tuple[Tensor, int]:
        found = x.nonzero()
        return found.float().mean(0), int(x.sum())

    compiled = thunder.jit(count, executors=("torch",))
    compiled(torch.tensor([0, 2, 3]))
    return compiled


def repeated_region() -> Compiled:
    """Layers of one structure are fused into regions, and the regions that repeat are compiled once."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + F.gelu(layer(x)) * 0.5
            return x

    compiled = thunder.jit(Layers(), executors=("inductor", "torch"))
    compiled(torch.ones(2, 4)).sum().backward()
    return compiled


def attention() -> Compiled:
    """Attention, with its backward, is claimed by the backend that will run it."""
    compiled = thunder.jit(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), executors=("sdpa", "torch")
    )
    compiled(*(weight(1, 2, 4, 8) for _ in range(3))).sum().backward()
    return compiled


def side_effects() -> Compiled:
    """The epilogue replays the changes of Python objects and the prints."""
    seen: list[Tensor] = []
    state = {"calls": 0}

    def remember(x: Tensor) -> dict[str, Tensor]:
        seen.append(x + 1)
        state["calls"] += 1
        print("remembered", len(seen))
        return {"last": seen[-1], "double": x * 2}

    compiled = thunder.jit(remember, executors=("torch",))
    compiled(torch.ones(2))
    return compiled


def default_dtype() -> Compiled:
    """The program sets and restores the process's default dtype."""

    def factory(x: Tensor) -> Tensor:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        made = torch.zeros(2)
        torch.set_default_dtype(before)
        return made + x

    compiled = thunder.jit(factory, executors=("torch",))
    compiled(torch.ones(2))
    return compiled


def derivative_as_function() -> Compiled:
    """A gradient taken inside a program, with a reused subexpression for common subexpression elimination."""

    def forward(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return (y.sin() * y.sin() + y.sin().exp()).sum()

        return thunder.grad(inner)(x) * x

    compiled = thunder.jit(forward, executors=("torch",))
    compiled(torch.ones(3))
    return compiled


def nested_compiled() -> Compiled:
    """A separately compiled function stays a single call."""
    from thunder_core.passes.transforms.autocast import Autocast

    inner = thunder.jit(lambda x, w: x @ w, executors=("torch",), transforms=(Autocast(torch.bfloat16),))
    compiled = thunder.jit(lambda x, w: inner(x, w).float() + x, executors=("torch",))
    compiled(torch.ones(2, 2), weight(2, 2)).sum().backward()
    return compiled


def functional_program() -> Compiled:
    """Random numbers and a write after `Functionalize`."""
    from thunder_core.passes.transforms.functionalize import Functionalize

    def noisy(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(torch.rand_like(x))
        y[0] = 0
        return y

    compiled = thunder.jit(noisy, executors=("torch",), transforms=(Functionalize(),))
    compiled(torch.ones(3))
    return compiled


def symbolic_constraints() -> Compiled:
    """Decisions on sizes and numbers: bounds, an excluded value, divisibility, equal and ordered sizes."""

    def decided(x: Tensor, y: Tensor, n: int) -> Tensor:
        if 2 <= x.shape[0] <= 100 and x.shape[0] != 7 and n > 3:
            x = x.view(x.shape[0] // 2, 2, -1) if x.shape[0] % 2 == 0 else x[None]
        return x.sum() + (y - 1 if y.shape[0] < x.shape[-1] else y + n)

    compiled = thunder.jit(decided, executors=("torch",), cache="symbolic values")
    compiled(torch.ones(6, 5), torch.ones(3), 4)
    return compiled


def symbolic_shapes() -> Compiled:
    """Sizes that are computed from sizes and numbers, which the prologue passes to the computation."""

    def shaped(x: Tensor, n: int, scale: float) -> tuple[Tensor, ...]:
        head, tail = x.split((n, x.shape[0] - n))
        places = torch.arange(tail.shape[0] * 2)
        return torch.cat([tail, head]) * scale, places, x[n:, : x.shape[1] // 2]

    compiled = thunder.jit(shaped, executors=("torch",), cache="symbolic values")
    compiled(torch.ones(6, 5), 2, 0.5)
    return compiled


def symbolic_training() -> Compiled:
    """A loss whose backward also depends on sizes, which are passed to the backward."""

    def loss(x: Tensor, w: Tensor) -> Tensor:
        hidden = (x @ w).view(x.shape[0], 2, -1).transpose(0, 1)
        return hidden.softmax(-1).square().mean() + hidden.cumprod(0).sum() * x.shape[1]

    compiled = thunder.jit(loss, executors=("torch",), cache="symbolic values")
    compiled(torch.ones(3, 5), weight(5, 4)).backward()
    return compiled


def symbolic_region() -> Compiled:
    """A region that is compiled for all sizes: its kernels take the symbols after the tensors."""
    compiled = thunder.jit(
        lambda x: (x.exp() * 2 + x.shape[1]).softmax(-1), executors=("inductor", "torch"), cache="symbolic values"
    )
    with torch.no_grad():
        compiled(torch.ones(3, 5))
    return compiled


FEATURES: tuple[Callable[[], Compiled], ...] = (
    attention,
    autocast_inside,
    autocast_transform,
    checkpointed,
    data_dependent_branch,
    default_dtype,
    derivative_as_function,
    dropout,
    functional_program,
    in_place_on_buffer,
    in_place_on_input,
    nested_compiled,
    optimizer_step,
    repeated_region,
    side_effects,
    symbolic_constraints,
    symbolic_region,
    symbolic_shapes,
    symbolic_training,
    value_of_a_tensor,
    views,
)
PROGRAMS: dict[str, Callable[[], Compiled]] = {
    **{f"family_{name}": (lambda name=name: family(name)) for name in FAMILIES},
    **{program.__name__: program for program in FEATURES},
}
