"""Programs that Dynamo captures completely, in parts or not at all; each is compared with eager PyTorch."""

from __future__ import annotations

import torch
from torch import nn


class Splitting(nn.Module):
    """Dropout, batch normalization and a print between two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.dropout, self.last = nn.Dropout(0.5), nn.Linear(8, 2)

    def forward(self, x):
        y = self.norm(self.first(x)).relu()
        print("between")
        return self.last(self.dropout(y))


def branches(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y.sin()


def writes_to_input(x):
    x.mul_(2)
    x[0] = x[1] + 1
    return x.sum()


def without_gradient(x):
    with torch.no_grad():
        scale = (x * x).mean()
    return x / scale


def random_numbers(x):
    return torch.nn.functional.dropout(x, 0.3) + torch.rand(3) + torch.randn_like(x)


def containers(x):
    pieces = {"a": (x[:1], x[-1:]), "b": [x, x.t()]}
    return {"sum": sum(pieces["a"]), "views": pieces["b"], "n": x.shape[0], "none": None}


def generator(x):
    def powers():
        for exponent in range(1, 4):
            yield x**exponent

    return sum(powers())


def closes(x, scale=[2.0]):  # noqa: B006
    return x * scale[0]


def view_written(x):
    y = x + 1
    view = y[:, 0]
    view.zero_()
    return y, view


def returns_input(x):
    return x, x.detach(), x.view(-1)


def changes_dtype(x):
    return x.double().sum(), (x > 0).any(), x.to(torch.bfloat16).float()


def break_in_loop(x):
    for step in range(3):
        x = x + step
        torch._dynamo.graph_break()
    return x


def hides_a_value(x):
    return x * int(x.abs().sum().ceil().item())


def tries(x):
    try:
        x = x * 2
        print("in try")
        return x + 1
    finally:
        x = x + 1


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(lambda y: (y.sin() * y).tanh(), x, use_reentrant=False)


def scaled_attention(x):
    q = x[None, None]
    return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + x * 0


def own_function(x):
    return Doubled.apply(x) + 1


class Scaled(torch.autograd.Function):
    """A function of a tensor and a number with two results, one without a derivative."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.save_for_backward(x.sin())
        order = x.argsort(0)
        ctx.mark_non_differentiable(order)
        return x * factor, order

    @staticmethod
    def backward(ctx, gradient, _):
        (sine,) = ctx.saved_tensors
        return gradient * ctx.factor * sine, None


def function_with_number(x):
    scaled, order = Scaled.apply(x, 1.5)
    return scaled.exp(), order


def checkpointed_dropout(x):
    def block(y, z):
        return torch.nn.functional.dropout(y * z, 0.5).tanh()

    return torch.utils.checkpoint.checkpoint(block, x, x + 1, use_reentrant=False).sin()


def branch_operator(x):
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


def set_grad(x):
    torch.set_grad_enabled(False)
    y = x * 3
    torch.set_grad_enabled(True)
    return y + x


def vmapped(x):
    return torch.vmap(lambda row: row.sin().sum())(x)


def gradient_of_function(x):
    return torch.func.grad(lambda y: (y**3).sum())(x)


def inplace_in_training(x):
    y = x * 2
    y.add_(1)
    y[0].mul_(3)
    return y.exp()


FUNCTIONS = [
    branches,
    writes_to_input,
    without_gradient,
    random_numbers,
    containers,
    generator,
    closes,
    view_written,
    returns_input,
    changes_dtype,
    break_in_loop,
    hides_a_value,
    tries,
    autocast,
    checkpointed,
    scaled_attention,
    own_function,
    function_with_number,
    checkpointed_dropout,
    branch_operator,
    set_grad,
    vmapped,
    gradient_of_function,
    inplace_in_training,
]
