"""The steps of random programs over layouts: each is a row of a table, with weights for the shape of its input."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Apply = Callable[..., Tensor]
Weights = list[Tensor]
Step = tuple[Apply, Weights]
Build = Callable[[Tensor, random.Random], Step]
TABLE: dict[str, Build] = {}
SIZES = (1, 2, 3)


def step(build: Build) -> Build:
    """Register a function that builds a step for a tensor like its input."""
    TABLE[build.__name__] = build
    return build


def weight(draw: random.Random, like: Tensor, *shape: int) -> Tensor:
    """Return a weight of this shape, in some layout."""
    made = torch.randn(shape, dtype=like.dtype, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))
    return laid_out(made * 0.5, draw)


# ---- layouts ------------------------------------------------------------------------------------------------------


def as_it_is(tensor: Tensor, draw: random.Random) -> Tensor:
    return tensor


def permuted(tensor: Tensor, draw: random.Random) -> Tensor:
    order = list(range(tensor.dim()))
    draw.shuffle(order)
    return tensor.permute(order).contiguous().permute([order.index(index) for index in range(tensor.dim())])


def channels_last(tensor: Tensor, draw: random.Random) -> Tensor:
    if tensor.dim() == 3:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=formats.get(tensor.dim(), torch.contiguous_format))


def sliced(tensor: Tensor, draw: random.Random) -> Tensor:
    step = draw.choice((1, 2))
    whole = torch.zeros([2 * size for size in tensor.shape], dtype=tensor.dtype)
    return whole[tuple(slice(None, step * size, step) for size in tensor.shape)].copy_(tensor)


def expanded(tensor: Tensor, draw: random.Random) -> Tensor:
    """Expand a dimension, with a stride of zero."""
    place = draw.randrange(tensor.dim()) if tensor.dim() else None
    return tensor if place is None else tensor.narrow(place, 0, 1).expand(tensor.shape)


def odd_in_sizes_of_one(tensor: Tensor, draw: random.Random) -> Tensor:
    strides = [draw.choice((1, 2, 7, 40)) if n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.contiguous().as_strided(tensor.shape, strides) if tensor.is_contiguous() else tensor


LAYOUTS = (as_it_is, permuted, permuted, channels_last, channels_last, sliced, expanded, odd_in_sizes_of_one)


def laid_out(tensor: Tensor, draw: random.Random) -> Tensor:
    """Return a tensor with these values (except for repeats of an expansion) in some layout."""
    return draw.choice(LAYOUTS)(tensor, draw).detach()


# ---- convolutions and linear maps ---------------------------------------------------------------------------------


@step
def convolution(x: Tensor, draw: random.Random) -> Step:
    groups = draw.choice([n for n in (1, 2, 4, x.shape[1]) if x.shape[1] % n == 0])
    return convolved(x, draw, groups, transposed=False)


@step
def depthwise(x: Tensor, draw: random.Random) -> Step:
    return convolved(x, draw, x.shape[1], transposed=False)


@step
def transposed_convolution(x: Tensor, draw: random.Random) -> Step:
    groups = draw.choice([n for n in (1, 2, x.shape[1]) if x.shape[1] % n == 0])
    return convolved(x, draw, groups, transposed=True)


def convolved(x: Tensor, draw: random.Random, groups: int, *, transposed: bool) -> Step:
    dims = x.dim() - 2
    out = groups * draw.choice((1, 2))
    kernel = [draw.choice(SIZES) for _ in range(dims)]
    shape = (x.shape[1], out // groups) if transposed else (out, x.shape[1] // groups)
    numbers = {"stride": draw.choice((1, 1, 2)), "padding": draw.choice((0, 1)), "dilation": draw.choice((1, 1, 2))}
    function = getattr(functional, f"conv_transpose{dims}d" if transposed else f"conv{dims}d")
    weights = [weight(draw, x, *shape, *kernel)]
    if draw.random() < 0.5:
        weights.append(weight(draw, x, out))
    return lambda y, *ws: function(y, *ws, groups=groups, **numbers), weights


@step
def linear(x: Tensor, draw: random.Random) -> Step:
    out = draw.choice((1, 4, 8))
    weights = [weight(draw, x, out, x.shape[-1])]
    if draw.random() < 0.5:
        weights.append(weight(draw, x, out))
    return functional.linear, weights


@step
def matmul(x: Tensor, draw: random.Random) -> Step:
    batch = tuple(draw.choice((1, size)) for size in x.shape[:-2])[draw.randrange(2) :]
    return torch.matmul, [weight(draw, x, *batch, x.shape[-1], draw.choice((1, 4)))]


@step
def matmul_from_the_left(x: Tensor, draw: random.Random) -> Step:
    return lambda y, w: torch.matmul(w, y), [weight(draw, x, draw.choice((1, 4)), x.shape[-2])]


@step
def einsum(x: Tensor, draw: random.Random) -> Step:
    form, shape = draw.choice(
        (
            ("bij,bkj->bik", (x.shape[0], 3, x.shape[-1])),
            ("bij,jk->bki", (x.shape[-1], 3)),
            ("bchw,dc->bdhw", (3, x.shape[1])),
            ("bchw,bdhw->bcd", tuple(x.shape)),
            ("bchw,cw->bhc", (x.shape[1], x.shape[-1])),
        )
    )
    return lambda y, w: torch.einsum(form, y, w), [weight(draw, x, *shape)]


# ---- norms --------------------------------------------------------------------------------------------------------


@step
def batch_norm(x: Tensor, draw: random.Random) -> Step:
    training, count = draw.random() < 0.4, x.shape[1]
    mean, variance = weight(draw, x, count), weight(draw, x, count).square() + 0.5
    weights = [weight(draw, x, count), weight(draw, x, count)] if draw.random() < 0.7 else []

    def apply(y: Tensor, *ws: Tensor) -> Tensor:
        return functional.batch_norm(y, mean.clone(), variance.clone(), *ws, training=training)

    return apply, weights


@step
def layer_norm(x: Tensor, draw: random.Random) -> Step:
    shape = x.shape[draw.randrange(1, x.dim()) :]
    weights = [weight(draw, x, *shape), weight(draw, x, *shape)] if draw.random() < 0.6 else []
    return lambda y, *ws: functional.layer_norm(y, shape, *ws), weights


@step
def group_norm(x: Tensor, draw: random.Random) -> Step:
    groups = draw.choice([n for n in (1, 2, x.shape[1]) if x.shape[1] % n == 0])
    weights = [weight(draw, x, x.shape[1]), weight(draw, x, x.shape[1])] if draw.random() < 0.6 else []
    return lambda y, *ws: functional.group_norm(y, groups, *ws), weights


@step
def instance_norm(x: Tensor, draw: random.Random) -> Step:
    return lambda y, *ws: functional.instance_norm(y, weight=ws[0], bias=ws[1]), [
        weight(draw, x, x.shape[1]) for _ in "12"
    ]


@step
def rms_norm(x: Tensor, draw: random.Random) -> Step:
    return lambda y, w: functional.rms_norm(y, y.shape[-1:], w), [weight(draw, x, x.shape[-1])]


# ---- pooling, sampling, attention ---------------------------------------------------------------------------------


@step
def pooling(x: Tensor, draw: random.Random) -> Step:
    kind = draw.choice(("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"))
    size = draw.choice((1, 2)) if kind.startswith("adaptive") else draw.choice((1, 2, 3))
    function = getattr(functional, f"{kind}{x.dim() - 2}d")
    numbers: dict[str, Any] = {} if kind.startswith("adaptive") else {"stride": draw.choice((1, 2))}
    return lambda y: function(y, size, **numbers), []


@step
def interpolation(x: Tensor, draw: random.Random) -> Step:
    modes = {3: ("nearest", "linear", "area"), 4: ("nearest", "bilinear", "bicubic", "area", "nearest-exact")}
    mode = draw.choice((*modes.get(x.dim(), ("nearest", "trilinear", "area")),))
    size = [draw.choice((2, 4, 5)) for _ in x.shape[2:]]
    return lambda y: functional.interpolate(y, size=size, mode=mode), []


@step
def attention(x: Tensor, draw: random.Random) -> Step:
    heads = draw.choice([n for n in (1, 2, 4) if x.shape[-1] % n == 0])
    causal, width = draw.random() < 0.5, x.shape[-1]

    def apply(y: Tensor, *ws: Tensor) -> Tensor:
        flat = y.flatten(1, -2)
        q, k, v = (functional.linear(flat, w).unflatten(-1, (heads, -1)).transpose(1, 2) for w in ws)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return mixed.transpose(1, 2).reshape(y.shape)

    return apply, [weight(draw, x, width, width) for _ in "qkv"]


@step
def padding(x: Tensor, draw: random.Random) -> Step:
    mode = draw.choice(("constant", "reflect", "replicate", "circular"))
    amounts = [draw.choice((0, 1)) for _ in range(2 * (x.dim() - 2))]
    return lambda y: functional.pad(y, amounts, mode=mode), []


@step
def pixels(x: Tensor, draw: random.Random) -> Step:
    return draw.choice((lambda y: functional.pixel_shuffle(y, 2), lambda y: functional.pixel_unshuffle(y, 2))), []


@step
def unfolding(x: Tensor, draw: random.Random) -> Step:
    return lambda y: functional.unfold(y, 2), []


# ---- views and copies ---------------------------------------------------------------------------------------------


@step
def permutation(x: Tensor, draw: random.Random) -> Step:
    order = list(range(x.dim()))
    draw.shuffle(order)
    return lambda y: y.permute(order), []


@step
def last_two_swapped(x: Tensor, draw: random.Random) -> Step:
    return lambda y: y.transpose(-1, -2), []


@step
def new_shape(x: Tensor, draw: random.Random) -> Step:
    """Return a view if possible, and otherwise a copy."""
    sizes = list(x.shape)
    at = draw.randrange(len(sizes))
    ways = [*_split(sizes, at, draw), *_joined(sizes, at)]
    shape = draw.choice(ways or [sizes])
    return (lambda y: y.view(shape)) if draw.random() < 0.3 else (lambda y: y.reshape(shape)), []


def _split(sizes: list[int], at: int, draw: random.Random) -> list[list[int]]:
    factors = [n for n in (2, 4) if sizes[at] % n == 0]
    return [[*sizes[:at], n, sizes[at] // n, *sizes[at + 1 :]] for n in factors if len(sizes) < 5]


def _joined(sizes: list[int], at: int) -> list[list[int]]:
    return (
        [[*sizes[:at], sizes[at] * sizes[at + 1], *sizes[at + 2 :]]] if at + 1 < len(sizes) and len(sizes) > 3 else []
    )


@step
def to_image(x: Tensor, draw: random.Random) -> Step:
    """Reshape rows of tokens to an image, as vision transformers do."""
    side = math.isqrt(x.shape[1])
    assert x.dim() == 3 and side * side == x.shape[1]
    function = draw.choice((Tensor.view, Tensor.reshape))
    return lambda y: function(y.permute(0, 2, 1), (y.shape[0], y.shape[2], side, side)), []


@step
def to_tokens(x: Tensor, draw: random.Random) -> Step:
    """Reshape an image to tokens."""
    assert x.dim() == 4
    function = draw.choice((Tensor.view, Tensor.reshape))
    return lambda y: function(y, (y.shape[0], y.shape[1], -1)).permute(0, 2, 1), []


@step
def one_more_dimension(x: Tensor, draw: random.Random) -> Step:
    assert x.dim() < 5
    place = draw.randrange(x.dim())
    return (lambda y: y.unsqueeze(place)) if draw.random() < 0.6 else (
        lambda y: y.unsqueeze(place).expand(*y.shape[:place], 2, *y.shape[place:])
    ), []


@step
def one_less_dimension(x: Tensor, draw: random.Random) -> Step:
    assert x.dim() > 3
    place = draw.randrange(x.dim())
    return draw.choice(
        (lambda y: y.select(place, 0), lambda y: y.sum(place), lambda y: y.mean(place), lambda y: y.amax(place))
    ), []


@step
def part(x: Tensor, draw: random.Random) -> Step:
    place = draw.randrange(1, x.dim())
    return draw.choice(
        (
            lambda y: y.narrow(place, 0, (y.shape[place] + 1) // 2),
            lambda y: y.transpose(0, place)[::2].transpose(0, place),
            lambda y: y.chunk(2, place)[-1],
            lambda y: y.roll(1, place),
            lambda y: y.flip(place),
        )
    ), []


@step
def copy(x: Tensor, draw: random.Random) -> Step:
    return draw.choice(
        (
            Tensor.contiguous,
            Tensor.clone,
            lambda y: y.contiguous(memory_format=torch.channels_last),
            lambda y: y.clone(memory_format=torch.contiguous_format),
            lambda y: y.to(memory_format=torch.channels_last),
        )
    ), []


# ---- element by element, reductions -------------------------------------------------------------------------------


ACTIVATIONS: tuple[Apply, ...] = (
    functional.gelu,
    functional.silu,
    functional.elu,
    functional.softplus,
    functional.hardswish,
    functional.hardtanh,
    functional.logsigmoid,
    functional.leaky_relu,
    functional.mish,
    functional.relu6,
    torch.tanh,
    lambda y: functional.softmax(y, -1),
    lambda y: functional.softmax(y, 1),
    lambda y: functional.log_softmax(y, 1),
    lambda y: y * 0.5,
    lambda y: 2 - y,
    lambda y: y.square() + 1,
    lambda y: torch.where(y > 0, y, -y),
    lambda y: y.masked_fill(y > 1, 0.5),
    lambda y: y.tril(),
    lambda y: y.cumsum(-1),
    lambda y: y.sort(1).values,
    lambda y: y - y.mean(1, keepdim=True),
    lambda y: y / (y.var(-1, keepdim=True, correction=0) + 1),
)


@step
def activation(x: Tensor, draw: random.Random) -> Step:
    return draw.choice(ACTIVATIONS), []


@step
def parametric_activation(x: Tensor, draw: random.Random) -> Step:
    return functional.prelu, [weight(draw, x, x.shape[1])]


@step
def gate(x: Tensor, draw: random.Random) -> Step:
    return lambda y: functional.glu(y, 1), []


@step
def scale(x: Tensor, draw: random.Random) -> Step:
    function = draw.choice((torch.add, torch.mul, torch.sub, torch.atan2, torch.maximum))
    return function, [weight(draw, x, *(draw.choice((1, size)) for size in x.shape))]


@step
def joined(x: Tensor, draw: random.Random) -> Step:
    place = draw.randrange(x.dim())
    return lambda y, w: torch.cat((y, w), place), [weight(draw, x, *x.shape)]


@step
def distance(x: Tensor, draw: random.Random) -> Step:
    function = draw.choice((functional.mse_loss, functional.huber_loss, functional.smooth_l1_loss))
    return lambda y, w: function(y, w, reduction="none"), [weight(draw, x, *x.shape)]
