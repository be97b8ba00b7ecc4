"""Steps of random programs that compute tensors, some with numbers, branches and loops."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tests.symbolic.steps_of_numbers import Number, Row


def grown(x: Tensor, n: Number) -> Tensor:
    turns = 0
    while x.shape[0] < n and turns < 3:
        x = torch.cat([x, x])
        turns += 1
    return x


def summed_rows(x: Tensor, n: Number) -> Tensor:
    total = x.sum(0)
    for row in range(min(x.shape[0], n, 3)):
        total = total + x[row] * row
    return total


def compared(x: Tensor, y: Tensor) -> Tensor:
    if x.shape == y.shape:
        return x - y
    return x * 2 if x.numel() > y.numel() else x.neg()


def convolved(x: Tensor, n: Number) -> Tensor:
    signal = x.reshape(1, 1, -1)
    return functional.conv1d(signal, torch.ones(2, 1, n % 3 + 1), stride=n % 2 + 1, padding=n % 2)


def nested(x: Tensor, y: Tensor, n: Number, m: Number) -> Tensor:
    if x.shape[0] > y.shape[0]:
        if n > x.shape[0]:
            return x + n
        return x * m if x.shape[-1] % 2 else x - y[:1].sum()
    if x.shape == y.shape and n != m:
        return x + y
    return x.abs() if n >= m or x.numel() > 6 else x.sin()


def unrolled(x: Tensor, n: Number) -> Tensor:
    for step in range(n % 4, x.shape[0], 3):
        if step > 6:
            break
        x = x + x[step] if step % 2 else x * 2
    return x


def chunked_sum(x: Tensor) -> Tensor:
    return sum((part.sum(0) for part in x.split(2)), start=torch.zeros(()))


def halved_rows(x: Tensor) -> Tensor:
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        x = x[:half] + x[half : half * 2]
    return x


def split_and_joined(x: Tensor, n: Number) -> Tensor:
    one, other = x.split([x.shape[0] - n, n])
    return torch.cat([other * one.shape[0], one * other.shape[0]])


def autocast_product(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.mT + x.shape[0]


def without_gradients(x: Tensor, n: Number) -> Tensor:
    with torch.no_grad():
        return x * n


COMPUTED: tuple[Row, ...] = (
    lambda x, y, n, m: x + y,
    lambda x, y, n, m: x * y,
    lambda x, y, n, m: x + n,
    lambda x, y, n, m: n - x,
    lambda x, y, n, m: x / n,
    lambda x, y, n, m: x * n**2,
    lambda x, y, n, m: x / x.shape[-1] ** 0.5,
    lambda x, y, n, m: x.add(y, alpha=n),
    lambda x, y, n, m: x.clamp(n, m),
    lambda x, y, n, m: torch.where(x > n, x, m),
    lambda x, y, n, m: x.masked_fill(x > 0, n),
    lambda x, y, n, m: x.pow(2),
    lambda x, y, n, m: x.tanh(),
    lambda x, y, n, m: torch.cat([x, y]),
    lambda x, y, n, m: torch.cat([x, x], -1),
    lambda x, y, n, m: torch.cat([x, y[: n % 4]]),
    lambda x, y, n, m: torch.stack([x, y]),
    lambda x, y, n, m: torch.stack([x, x], -1),
    lambda x, y, n, m: functional.pad(x, (n, 1)),
    lambda x, y, n, m: functional.pad(x, (0, y.shape[0])),
    lambda x, y, n, m: x.repeat(2, *([1] * (x.dim() - 1))),
    lambda x, y, n, m: x.repeat(abs(n), *([1] * (x.dim() - 1))),
    lambda x, y, n, m: x.repeat_interleave(2, 0),
    lambda x, y, n, m: x.tile(2),
    lambda x, y, n, m: x.roll(n, 0),
    lambda x, y, n, m: x.flip(0),
    lambda x, y, n, m: x.gather(0, torch.zeros_like(x, dtype=torch.int64)),
    lambda x, y, n, m: x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1)),
    lambda x, y, n, m: x[torch.arange(x.shape[0])],
    lambda x, y, n, m: x[torch.arange(n)],
    lambda x, y, n, m: x.sum(),
    lambda x, y, n, m: x.sum(0),
    lambda x, y, n, m: x.sum(-1, keepdim=True),
    lambda x, y, n, m: x.mean(0),
    lambda x, y, n, m: x.mean(),
    lambda x, y, n, m: x.amax(-1),
    lambda x, y, n, m: x.max(),
    lambda x, y, n, m: x.max(0)[0],
    lambda x, y, n, m: x.softmax(-1),
    lambda x, y, n, m: x.cumsum(0),
    lambda x, y, n, m: x.var(0),
    lambda x, y, n, m: x.argmax(0),
    lambda x, y, n, m: x.prod(0),
    lambda x, y, n, m: x.norm(),
    lambda x, y, n, m: x.sort(0)[0],
    lambda x, y, n, m: x.topk(2, 0)[0],
    lambda x, y, n, m: x.all(),
    lambda x, y, n, m: x @ y,
    lambda x, y, n, m: x @ x.mT,
    lambda x, y, n, m: x.flatten() @ x.flatten(),
    lambda x, y, n, m: torch.einsum("i...,i...->i", x, x),
    lambda x, y, n, m: torch.outer(x.flatten(), y.flatten()[:2]),
    lambda x, y, n, m: functional.layer_norm(x, x.shape[-1:]),
    lambda x, y, n, m: functional.mse_loss(x, y),
    lambda x, y, n, m: functional.gelu(x),
    lambda x, y, n, m: x.tril() if x.dim() > 1 else x,
    lambda x, y, n, m: x.to(torch.float64) if n > 3 else x,
    lambda x, y, n, m: x * 2 if n > m else x + 1,
    lambda x, y, n, m: x - 1 if x.shape[0] > 4 else x,
    lambda x, y, n, m: x - 1 if x.shape[0] % 2 else x * 3,
    lambda x, y, n, m: x[: x.shape[0] // 2] + x[(x.shape[0] + 1) // 2 :],
    lambda x, y, n, m: x[: min(x.shape[0], y.shape[0])],
    lambda x, y, n, m: compared(x, y),
    lambda x, y, n, m: grown(x, n),
    lambda x, y, n, m: summed_rows(x, n),
    lambda x, y, n, m: functional.interpolate(x[None, None].flatten(2), scale_factor=2),
    lambda x, y, n, m: functional.one_hot(torch.arange(x.shape[0]), max(x.shape[0], 1)),
    lambda x, y, n, m: convolved(x, n),
    lambda x, y, n, m: functional.conv1d(x.reshape(1, x.shape[0], -1), torch.ones(2, x.shape[0], 1)),
    lambda x, y, n, m: functional.conv2d(x.reshape(1, 1, x.shape[0], -1), torch.ones(1, 1, 1, 2), padding=1, stride=2),
    lambda x, y, n, m: functional.conv_transpose1d(x.reshape(1, 1, -1), torch.ones(1, 2, 3), stride=2),
    lambda x, y, n, m: functional.max_pool1d(x.reshape(1, 1, -1), 2),
    lambda x, y, n, m: functional.max_pool2d(x.reshape(1, 1, x.shape[0], -1), (2, 1)),
    lambda x, y, n, m: functional.avg_pool1d(x.reshape(1, 1, -1), 3, ceil_mode=True, padding=1),
    lambda x, y, n, m: functional.avg_pool2d(x.reshape(1, 1, x.shape[0], -1), 2),
    lambda x, y, n, m: functional.adaptive_avg_pool1d(x.reshape(1, 1, -1), n),
    lambda x, y, n, m: functional.adaptive_max_pool1d(x.reshape(1, 1, -1), 2),
    lambda x, y, n, m: functional.interpolate(x.reshape(1, 1, -1), size=n),
    lambda x, y, n, m: functional.interpolate(x.reshape(1, 1, x.shape[0], -1), scale_factor=2, mode="bilinear"),
    lambda x, y, n, m: functional.embedding(torch.arange(x.shape[0]), x),
    lambda x, y, n, m: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    lambda x, y, n, m: functional.scaled_dot_product_attention(x, y, y, is_causal=True),
    lambda x, y, n, m: functional.cross_entropy(x.reshape(x.shape[0], -1), torch.zeros(x.shape[0], dtype=torch.int64)),
    lambda x, y, n, m: functional.normalize(x, dim=0),
    lambda x, y, n, m: functional.batch_norm(x, None, None, training=True),
    lambda x, y, n, m: functional.group_norm(x[None], 1),
    lambda x, y, n, m: functional.dropout(x, 0.5),
    lambda x, y, n, m: functional.leaky_relu(x, m),
    lambda x, y, n, m: functional.elu(x, alpha=m),
    lambda x, y, n, m: functional.threshold(x, n, m),
    lambda x, y, n, m: functional.hardtanh(x, -1, n),
    lambda x, y, n, m: functional.pad(x, (-1, n)),
    lambda x, y, n, m: functional.pad(x[None], (1, 1), mode="reflect"),
    lambda x, y, n, m: functional.pad(
        x[None], (1, n % 3), mode="circular"
    ),  # negative indices read memory that eager never wrote
    lambda x, y, n, m: functional.pad(x, (x.shape[-1], 0), value=n),
    lambda x, y, n, m: functional.linear(x, y),
    lambda x, y, n, m: functional.softmax(x, n % x.dim()),
    lambda x, y, n, m: functional.smooth_l1_loss(x, y, beta=abs(m)),
    lambda x, y, n, m: functional.glu(x, -1),
    lambda x, y, n, m: functional.rms_norm(x, (x.shape[-1],)),
    lambda x, y, n, m: functional.cosine_similarity(x, y, -1),
    lambda x, y, n, m: x.std(),
    lambda x, y, n, m: x.median(),
    lambda x, y, n, m: x.cumprod(-1),
    lambda x, y, n, m: x.logsumexp(0),
    lambda x, y, n, m: x.log_softmax(0),
    lambda x, y, n, m: x.sum((0, -1)),
    lambda x, y, n, m: x.sum(n % x.dim()),
    lambda x, y, n, m: x.sum(0, dtype=torch.float64),
    lambda x, y, n, m: x.mean(-1, keepdim=True) * x.shape[-1],
    lambda x, y, n, m: x.mean((0, -1), keepdim=True),
    lambda x, y, n, m: x.amax((0, -1)),
    lambda x, y, n, m: x.aminmax(),
    lambda x, y, n, m: x.var_mean(-1, correction=n % 2),
    lambda x, y, n, m: x.argsort(0),
    lambda x, y, n, m: x.kthvalue(n, 0),
    lambda x, y, n, m: x.topk(n, -1),
    lambda x, y, n, m: x.count_nonzero(0),
    lambda x, y, n, m: x.any(0),
    lambda x, y, n, m: torch.bmm(x[None], x.mT[None]),
    lambda x, y, n, m: torch.addmm(y, x, x.mT, beta=n, alpha=m),
    lambda x, y, n, m: torch.einsum("...i,...j->...ij", x, y),
    lambda x, y, n, m: torch.einsum("ij,kj->ik", x, y),
    lambda x, y, n, m: torch.tensordot(x, x, ([0], [0])),
    lambda x, y, n, m: torch.cdist(x, x),
    lambda x, y, n, m: torch.cat([x, x], n % x.dim()),
    lambda x, y, n, m: torch.cat([x[:n], x[n:]]),
    lambda x, y, n, m: torch.cat([x, x.new_zeros(x.shape[0], *x.shape[1:])]),
    lambda x, y, n, m: torch.vstack([x, x]),
    lambda x, y, n, m: torch.hstack([x, y]),
    lambda x, y, n, m: torch.block_diag(x, y),
    lambda x, y, n, m: torch.where(x > n, n, m),
    lambda x, y, n, m: torch.where(x > y, x, y),
    lambda x, y, n, m: torch.add(x, n, alpha=2),
    lambda x, y, n, m: torch.full(x.shape, n) + x,
    lambda x, y, n, m: x // m,
    lambda x, y, n, m: x % m,
    lambda x, y, n, m: x**n,
    lambda x, y, n, m: n**x,
    lambda x, y, n, m: x * True,
    lambda x, y, n, m: x.eq(n),
    lambda x, y, n, m: x == y,
    lambda x, y, n, m: x.lt(m),
    lambda x, y, n, m: x.maximum(y),
    lambda x, y, n, m: x.clamp(min=n),
    lambda x, y, n, m: x.clamp_max(m),
    lambda x, y, n, m: x.lerp(y, m),
    lambda x, y, n, m: x.tril(n),
    lambda x, y, n, m: x.triu(-n),
    lambda x, y, n, m: x.diag(),
    lambda x, y, n, m: x.trace(),
    lambda x, y, n, m: x.renorm(2, 0, abs(m) + 1),
    lambda x, y, n, m: x.repeat(n, *([1] * x.dim())),
    lambda x, y, n, m: x.repeat_interleave(n % 4),
    lambda x, y, n, m: x.roll((n, m), (0, -1)),
    lambda x, y, n, m: x.rot90(n),
    lambda x, y, n, m: x.take(torch.arange(n)),
    lambda x, y, n, m: x.index_add(0, torch.arange(x.shape[0]), x),
    lambda x, y, n, m: x.scatter(0, torch.zeros_like(x, dtype=torch.int64), n),
    lambda x, y, n, m: x.index_put((torch.arange(x.shape[0]),), x[:1]),
    lambda x, y, n, m: x.masked_select(x > 0),
    lambda x, y, n, m: x.nonzero(),
    lambda x, y, n, m: x[x > 0],
    lambda x, y, n, m: x.histc(n),
    lambda x, y, n, m: torch.bucketize(x, torch.arange(3.0)),
    lambda x, y, n, m: x.double(),
    lambda x, y, n, m: x.long(),
    lambda x, y, n, m: x.to(torch.bfloat16).float(),
    lambda x, y, n, m: x.type_as(y),
    lambda x, y, n, m: x * 2 if x.sum() > 0 else x,
    lambda x, y, n, m: x + float(x.mean() * 0),
    lambda x, y, n, m: x[torch.tensor(0) + n],
    lambda x, y, n, m: x[[0, -1]],
    lambda x, y, n, m: x[:, torch.arange(x.shape[-1] - 1, -1, -1)],
    lambda x, y, n, m: x.index_select(-1, torch.arange(n % x.shape[-1])),
    lambda x, y, n, m: x * torch.arange(x.shape[-1]),
    lambda x, y, n, m: x + torch.arange(x.shape[0])[:, None],
    lambda x, y, n, m: x[..., : x.shape[-1] // 2] * x[..., x.shape[-1] // 2 :],
    lambda x, y, n, m: x - x.mean(0) if x.shape[0] > 1 else x,
    lambda x, y, n, m: x.expand(max(n, -1), *x.shape).sum(0),
    lambda x, y, n, m: x @ y.mT,
    lambda x, y, n, m: x.mT @ y,
    lambda x, y, n, m: x.flatten() * n / x.numel(),
    lambda x, y, n, m: x.sum() / max(x.numel(), 1) ** 0.5,
    lambda x, y, n, m: x[: y.shape[0]] + y[: x.shape[0]],
    lambda x, y, n, m: (x * n).view(-1)[: x.numel() // 2],
    lambda x, y, n, m: nested(x, y, n, m),
    lambda x, y, n, m: unrolled(x, n),
    lambda x, y, n, m: chunked_sum(x),
    lambda x, y, n, m: halved_rows(x),
    lambda x, y, n, m: split_and_joined(x, n),
    lambda x, y, n, m: autocast_product(x),
    lambda x, y, n, m: without_gradients(x, n),
    lambda x, y, n, m: x.unfold(0, 2, 1).sum(-1),
    lambda x, y, n, m: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(n), indexing="ij"),
    lambda x, y, n, m: torch.cumsum(torch.ones(x.shape[0], 2), 0),
    lambda x, y, n, m: torch.outer(torch.arange(n), torch.arange(x.shape[0])),
    lambda x, y, n, m: torch.searchsorted(torch.arange(float(x.shape[0])), x),
    lambda x, y, n, m: torch.combinations(torch.arange(x.shape[0])),
    lambda x, y, n, m: torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(2)),
    lambda x, y, n, m: torch.linalg.vector_norm(x, 2, -1),
    lambda x, y, n, m: torch.logcumsumexp(x, 0),
    lambda x, y, n, m: torch.diff(x, dim=0),
    lambda x, y, n, m: torch.trapezoid(x, dim=-1),
    lambda x, y, n, m: torch.heaviside(x, y),
)
