"""Compute only the rows of tokens that a program reads: these rows come first in memory, and the rest are zeros.

A tensor has the shape [batch, length, ...]. Its row (b, t) belongs to token t of text b. In a gathered tensor, the
first `count` rows are the rows that the program reads, and `order` has their places. Its shape is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def order_of_rows(
    x: torch.Tensor, masks: Sequence[torch.Tensor], positions: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of the rows that a program reads, with the other rows behind them, and their count.

    The program reads the rows of `x` [batch, length, ...] at these positions of each text, and the rows whose keys a
    mask of attention [batch, heads, queries, length] does not hide.
    """
    is_read = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    for position in positions:
        is_read[:, position] = True
    for mask in masks:
        is_read |= keys_read(mask)
    flat = is_read.flatten()
    read = flat.nonzero()[:, 0]
    return torch.cat((read, flat.logical_not().nonzero()[:, 0])), torch.tensor(len(read), device=x.device)


def keys_read(mask: torch.Tensor) -> torch.Tensor:
    """Return for each text and key whether attention reads the key: [batch, keys].

    If a mask hides all keys of a query, the softmax may read all of them.
    """
    for dim, stride in enumerate(mask.stride()):
        if stride == 0 and dim in (1, 2):  # a broadcast dimension: all its masks are equal
            mask = mask.narrow(dim, 0, 1)
    visible = mask if mask.dtype is torch.bool else mask > torch.finfo(mask.dtype).min
    lacks_keys = visible.any(-1).logical_not().flatten(1).any(1)
    return visible.flatten(1, 2).any(1) | lacks_keys[:, None]


def gather_rows(x: torch.Tensor, order: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return the gathered tensor of `x`; if the program reads all rows, `x` itself."""
    read = int(count)
    if read == len(order):
        return x
    gathered = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = gathered.view(len(order), -1)
    torch.index_select(x.reshape(len(order), -1), 0, order[:read], out=rows[:read])
    rows[read:].zero_()
    return gathered


def scatter_rows(gathered: torch.Tensor, order: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return the tensor of a gathered tensor; the rows that the program does not read are zeros."""
    read = int(count)
    if read == len(order):
        return gathered
    x = torch.zeros_like(gathered)
    x.view(len(order), -1).index_copy_(0, order[:read], gathered.view(len(order), -1)[:read])
    return x


def linear_of_rows(
    gathered: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, count: torch.Tensor
) -> torch.Tensor:
    """Return a linear layer of the first `count` rows of a gathered tensor [batch, length, in]; the rest are zeros."""
    read, columns = int(count), weight.shape[0]
    result = torch.empty((*gathered.shape[:-1], columns), dtype=gathered.dtype, device=gathered.device)
    rows, product = gathered.reshape(-1, gathered.shape[-1]), result.view(-1, columns)
    if bias is None:
        torch.mm(rows[:read], weight.t(), out=product[:read])
    else:
        torch.addmm(bias, rows[:read], weight.t(), out=product[:read])
    product[read:].zero_()
    return result
