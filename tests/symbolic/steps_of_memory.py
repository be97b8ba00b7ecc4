"""Steps of random programs that make views and new tensors, and that write to tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.symbolic.steps_of_numbers import Number, Row


def written_rows(x: Tensor, y: Tensor, n: Number) -> Tensor:
    z = x.clone()
    z[: n + 1] = y.sum()
    z[..., -1:] *= 2
    return z


def written_view(x: Tensor, n: Number) -> Tensor:
    z = x.clone()
    z.view(-1)[n:].add_(1)
    return z


def written_in_place(x: Tensor, y: Tensor, n: Number) -> Tensor:
    x.add_(n)
    x[:1] = 0
    return x


def written_copy(x: Tensor, y: Tensor, n: Number) -> tuple[Tensor, Tensor]:
    z = x.clone()
    z.transpose(0, -1).contiguous().add_(1)
    z.reshape(-1).mul_(2)
    return z, z.transpose(0, -1)


def written(nothing: None, x: Tensor) -> Tensor:
    return x.clone()


def written_by_halves(x: Tensor, n: Number) -> Tensor:
    half = x.shape[0] // 2
    x[:half], x[half:] = n, x[: x.shape[0] - half] * 2
    x[..., -1] += 1
    return x * 1


def written_rows_in_turn(x: Tensor, n: Number) -> Tensor:
    for row in range(min(x.shape[0], 3)):
        x[row].mul_(n) if row % 2 else x[row, ...].add_(row)
    return x


SHAPES: tuple[Row, ...] = (
    lambda x, y, n, m: x[n:],
    lambda x, y, n, m: x[:n],
    lambda x, y, n, m: x[n : n + m],
    lambda x, y, n, m: x[..., n:m],
    lambda x, y, n, m: x[:: max(n, 1)],
    lambda x, y, n, m: x[:, -n:],
    lambda x, y, n, m: x[n],
    lambda x, y, n, m: x[..., n % 3],
    lambda x, y, n, m: x[None],
    lambda x, y, n, m: x.reshape(-1),
    lambda x, y, n, m: x.reshape(x.shape[0], -1),
    lambda x, y, n, m: x.view(-1, 2),
    lambda x, y, n, m: x.view(*x.shape[:-1], x.shape[-1] // 2, 2),
    lambda x, y, n, m: x.reshape(n, -1),
    lambda x, y, n, m: x.reshape(x.shape[::-1]),
    lambda x, y, n, m: x.reshape(y.shape),
    lambda x, y, n, m: x.view(x.numel()),
    lambda x, y, n, m: x.view(1, *x.shape),
    lambda x, y, n, m: x.flatten(),
    lambda x, y, n, m: x.flatten(0, 1),
    lambda x, y, n, m: x.unflatten(0, (2, -1)),
    lambda x, y, n, m: x.squeeze(),
    lambda x, y, n, m: x.squeeze(0),
    lambda x, y, n, m: x.unsqueeze(n % 2),
    lambda x, y, n, m: x.transpose(0, -1),
    lambda x, y, n, m: x.transpose(0, -1).contiguous(),
    lambda x, y, n, m: x.contiguous(),
    lambda x, y, n, m: x.movedim(0, -1),
    lambda x, y, n, m: x.expand(2, *x.shape),
    lambda x, y, n, m: x.expand_as(y),
    lambda x, y, n, m: x[:1].expand(max(n, -1), *x.shape[1:]),
    lambda x, y, n, m: x.chunk(2),
    lambda x, y, n, m: x.chunk(3, -1)[0],
    lambda x, y, n, m: x.split(2),
    lambda x, y, n, m: x.split(max(n, 1))[-1],
    lambda x, y, n, m: x.split([n, x.shape[0] - n]),
    lambda x, y, n, m: x.tensor_split(2, -1),
    lambda x, y, n, m: x.unbind(-1)[0],
    lambda x, y, n, m: x.narrow(0, n, m),
    lambda x, y, n, m: x.select(0, -1),
    lambda x, y, n, m: x.diagonal(),
    lambda x, y, n, m: x.unfold(0, 2, 1),
    lambda x, y, n, m: torch.broadcast_tensors(x, y),
    lambda x, y, n, m: x.as_strided((n, 2), (1, 0)),
    lambda x, y, n, m: x.detach(),
    lambda x, y, n, m: x.reshape(-1, x.shape[0]),
    lambda x, y, n, m: x.view(x.shape[0], -1),
    lambda x, y, n, m: x.view(x.shape[::-1]),
    lambda x, y, n, m: x.reshape(x.shape[0] // 2, 2, -1),
    lambda x, y, n, m: x.view(-1).split(x.shape[0]),
    lambda x, y, n, m: x.split(x.shape[-1] // 2, -1),
    lambda x, y, n, m: x.split([x.shape[-1] // 2, x.shape[-1] - x.shape[-1] // 2], -1),
    lambda x, y, n, m: x.split((n, m, x.shape[0] - n - m)),
    lambda x, y, n, m: x[::-1],
    lambda x, y, n, m: x[::-n],
    lambda x, y, n, m: x[-n:m],
    lambda x, y, n, m: x[::2, n:],
    lambda x, y, n, m: x[..., ::2],
    lambda x, y, n, m: x[1::2],
    lambda x, y, n, m: x[-1],
    lambda x, y, n, m: x[-x.shape[0]],
    lambda x, y, n, m: x[x.shape[0] - 1],
    lambda x, y, n, m: x[:, None],
    lambda x, y, n, m: x[..., None, :],
    lambda x, y, n, m: x[..., 1:-1],
    lambda x, y, n, m: x[x.shape[0] // 2 :, : x.shape[-1] // 2],
    lambda x, y, n, m: x.expand(x.shape),
    lambda x, y, n, m: x.expand(max(n, -1), *x.shape),
    lambda x, y, n, m: x.expand(max(n, -1), -1),
    lambda x, y, n, m: x.expand(y.shape),
    lambda x, y, n, m: x[:1].expand(y.shape[0], *x.shape[1:]),
    lambda x, y, n, m: x.permute(*range(x.dim() - 1, -1, -1)),
    lambda x, y, n, m: x.mT,
    lambda x, y, n, m: x.swapaxes(0, -1).reshape(-1),
    lambda x, y, n, m: x.transpose(0, -1).reshape(x.shape[0], -1),
    lambda x, y, n, m: x.transpose(0, -1).flatten(),
    lambda x, y, n, m: x.unfold(-1, n, 1),
    lambda x, y, n, m: x.unfold(0, 2, m),
    lambda x, y, n, m: x.as_strided(x.shape, x.stride()),
    lambda x, y, n, m: x.as_strided((x.shape[0],), (x.stride(0),)),
    lambda x, y, n, m: torch.atleast_2d(x),
    lambda x, y, n, m: x.ravel(),
    lambda x, y, n, m: x.view_as(y),
    lambda x, y, n, m: x.reshape_as(y),
    lambda x, y, n, m: x.tensor_split(n),
    lambda x, y, n, m: x.tensor_split([n, m]),
    lambda x, y, n, m: x.chunk(n),
    lambda x, y, n, m: x.narrow(-1, 0, x.shape[-1] // 2),
    lambda x, y, n, m: x.narrow(0, x.shape[0] - 1, 1),
    lambda x, y, n, m: x.diagonal(n),
    lambda x, y, n, m: x.squeeze(-1),
    lambda x, y, n, m: x.squeeze((0, -1)),
    lambda x, y, n, m: x.unbind(0),
    lambda x, y, n, m: x.unsqueeze(-1).squeeze(0),
    lambda x, y, n, m: x.unsqueeze(n % (x.dim() + 1)),
    lambda x, y, n, m: x.transpose(n % x.dim(), 0),
    lambda x, y, n, m: x.select(n % x.dim(), 0),
    lambda x, y, n, m: x.data,
    lambda x, y, n, m: x.view(2, -1, x.shape[-1]),
    lambda x, y, n, m: x.unflatten(-1, (x.shape[-1] // 2, 2)),
    lambda x, y, n, m: x.swapaxes(0, -1)[n:],
    lambda x, y, n, m: x.view(-1, x.shape[-1], 1),
    lambda x, y, n, m: x.T if x.dim() == 2 else x,
    lambda x, y, n, m: x.real,
    lambda x, y, n, m: torch.movedim(x, 0, n % x.dim()),
    lambda x, y, n, m: x.broadcast_to(2, *x.shape),
    lambda x, y, n, m: x.flatten(0, n % x.dim()),
    lambda x, y, n, m: x.moveaxis(-1, 0).contiguous().view(-1),
    lambda x, y, n, m: x.contiguous().view(x.shape[::-1]),
    lambda x, y, n, m: next(iter(x.split(2))),
)
MADE: tuple[Row, ...] = (
    lambda x, y, n, m: torch.arange(n),
    lambda x, y, n, m: torch.arange(n, m),
    lambda x, y, n, m: torch.arange(x.shape[0] * 2, dtype=torch.float32),
    lambda x, y, n, m: torch.zeros(n, 2),
    lambda x, y, n, m: torch.ones(x.shape),
    lambda x, y, n, m: torch.full((2, x.shape[-1]), n),
    lambda x, y, n, m: torch.full(x.shape, m, dtype=torch.float32),
    lambda x, y, n, m: x.new_zeros(x.shape[0] + 1),
    lambda x, y, n, m: torch.zeros_like(x),
    lambda x, y, n, m: torch.eye(x.shape[-1]),
    lambda x, y, n, m: torch.linspace(0, 1, x.shape[0]),
    lambda x, y, n, m: torch.tensor(n),
    lambda x, y, n, m: torch.tensor([n, m]),
    lambda x, y, n, m: torch.empty(n).fill_(m),
    lambda x, y, n, m: torch.ones(x.shape[0], x.shape[0]).tril(),
    lambda x, y, n, m: torch.zeros(y.shape[0], x.shape[-1]),
    lambda x, y, n, m: torch.arange(x.shape[0], 0, -1),
    lambda x, y, n, m: torch.arange(0, n, max(m, 1)),
    lambda x, y, n, m: torch.arange(start=n, end=m, step=2),
    lambda x, y, n, m: torch.arange(n, dtype=torch.float64),
    lambda x, y, n, m: torch.arange(0, x.shape[0], 2),
    lambda x, y, n, m: torch.full((n,), m),
    lambda x, y, n, m: torch.full((x.shape[0], n), x.shape[0] / 2),
    lambda x, y, n, m: torch.ones(n, m),
    lambda x, y, n, m: torch.ones(size=(x.shape[0] - 1,)),
    lambda x, y, n, m: x.new_full((x.shape[0], n), m),
    lambda x, y, n, m: x.new_ones(x.shape[::-1]),
    lambda x, y, n, m: torch.rand(x.shape[0]),
    lambda x, y, n, m: torch.randn(x.shape),
    lambda x, y, n, m: torch.randint(0, 5, (x.shape[0], 2)),
    lambda x, y, n, m: torch.randperm(x.shape[0]),
    lambda x, y, n, m: torch.empty(0, n),
    lambda x, y, n, m: torch.tril_indices(x.shape[0], x.shape[0]),
    lambda x, y, n, m: torch.scalar_tensor(n),
    lambda x, y, n, m: torch.as_tensor(n),
    lambda x, y, n, m: torch.tensor(x.shape),
    lambda x, y, n, m: torch.tensor([x.shape[0], n], dtype=torch.float32),
    lambda x, y, n, m: torch.linspace(0, n, 5),
    lambda x, y, n, m: torch.linspace(n, m, x.shape[0]),
    lambda x, y, n, m: torch.zeros_like(x.transpose(0, -1)),
    lambda x, y, n, m: torch.full_like(x, n),
    lambda x, y, n, m: torch.empty_like(x).fill_(m),
    lambda x, y, n, m: torch.ones(x.shape[0], 1).expand(-1, n),
    lambda x, y, n, m: torch.eye(n, x.shape[0]),
    lambda x, y, n, m: torch.tensor(x.shape[0] > n),
    lambda x, y, n, m: x.new_tensor([n, m]),
    lambda x, y, n, m: torch.empty_strided((x.shape[0], 2), (2, 1)).zero_(),
)
WRITTEN: tuple[Row, ...] = (
    lambda x, y, n, m: written_rows(x, y, n),
    lambda x, y, n, m: written_view(x, n),
    lambda x, y, n, m: written_in_place(x, y, n),
    lambda x, y, n, m: written_copy(x, y, n),
    lambda x, y, n, m: x.mul_(y),
    lambda x, y, n, m: x[n % 3 :].zero_(),
    lambda x, y, n, m: x.t().add_(1),
    lambda x, y, n, m: written(x.__setitem__(n, m), x),
    lambda x, y, n, m: written(x.__setitem__((..., slice(None, n)), y.sum()), x),
    lambda x, y, n, m: written(x.__setitem__(x > 0, n), x),
    lambda x, y, n, m: written(x.__setitem__(slice(None, None, 2), x[:1]), x),
    lambda x, y, n, m: written(x.__setitem__(torch.arange(n), m), x),
    lambda x, y, n, m: x.view(-1)[::2].mul_(2),
    lambda x, y, n, m: x.copy_(y),
    lambda x, y, n, m: x.copy_(y[:1]),
    lambda x, y, n, m: x.fill_(n),
    lambda x, y, n, m: x.zero_(),
    lambda x, y, n, m: x.add_(y[:1]),
    lambda x, y, n, m: x.add_(x.transpose(0, -1)),
    lambda x, y, n, m: x.sub_(y, alpha=n),
    lambda x, y, n, m: x.index_fill_(0, torch.arange(n), m),
    lambda x, y, n, m: x.index_copy_(0, torch.arange(x.shape[0]), x * 2),
    lambda x, y, n, m: x.scatter_(0, torch.zeros_like(x, dtype=torch.int64), n),
    lambda x, y, n, m: x.masked_fill_(x > 0, n),
    lambda x, y, n, m: x.clamp_(n, m),
    lambda x, y, n, m: x.squeeze(0).add_(1),
    lambda x, y, n, m: x.unsqueeze(0).mul_(2),
    lambda x, y, n, m: x.t_(),
    lambda x, y, n, m: x.unsqueeze_(0),
    lambda x, y, n, m: x.squeeze_(),
    lambda x, y, n, m: x.transpose_(0, -1),
    lambda x, y, n, m: x.reshape(-1).add_(1),
    lambda x, y, n, m: x.flatten().mul_(2),
    lambda x, y, n, m: x.ravel()[:n].zero_(),
    lambda x, y, n, m: x.contiguous().add_(1),
    lambda x, y, n, m: x.transpose(0, -1).reshape(-1).add_(1),
    lambda x, y, n, m: x.transpose(0, -1).contiguous().mul_(2),
    lambda x, y, n, m: x.transpose(0, -1).contiguous().view(-1)[n:].zero_(),
    lambda x, y, n, m: x.reshape(y.shape).add_(1),
    lambda x, y, n, m: x.reshape(x.shape[::-1]).add_(1),
    lambda x, y, n, m: x.narrow(0, 0, 1).zero_(),
    lambda x, y, n, m: x.narrow(-1, n, 1).fill_(m),
    lambda x, y, n, m: x.split(2)[0].add_(1),
    lambda x, y, n, m: x.unbind(0)[0].add_(1),
    lambda x, y, n, m: x.chunk(2)[-1].mul_(2),
    lambda x, y, n, m: x.diagonal().zero_(),
    lambda x, y, n, m: x.select(0, -1).add_(n),
    lambda x, y, n, m: x.expand(1, *x.shape).add_(1),
    lambda x, y, n, m: x.to(torch.float32).add_(1),
    lambda x, y, n, m: x.data.add_(1),
    lambda x, y, n, m: torch.add(x, y, out=torch.empty_like(x)),
    lambda x, y, n, m: x.relu_(),
    lambda x, y, n, m: x.cumsum_(0),
    lambda x, y, n, m: x.tril_(n),
    lambda x, y, n, m: x.T.copy_(x),
    lambda x, y, n, m: x[: x.shape[0] // 2].add_(x[x.shape[0] // 2 :][: x.shape[0] // 2]),
    lambda x, y, n, m: x.detach().add_(1),
    lambda x, y, n, m: written_by_halves(x, n),
    lambda x, y, n, m: written_rows_in_turn(x, n),
)
