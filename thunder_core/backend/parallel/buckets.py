"""Buckets: parameters and gradients that one collective gathers or reduces together, up to a number of bytes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BACKWARD_OF, BoundSymbol

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class BucketSizes:
    """The sizes in bytes at which a bucket is full: the first bucket, and the others."""

    first: float = MEBIBYTE
    following: float = 25 * MEBIBYTE


@dataclass
class Bucket:
    """Bound symbols with their indices in a trace, in order; `bytes` is the total size of the full tensors."""

    members: list[tuple[int, BoundSymbol]] = field(default_factory=list)
    bytes: int = 0

    @property
    def first(self) -> int:
        """The index of the first member."""
        return self.members[0][0]

    @property
    def last(self) -> int:
        """The index of the last member."""
        return self.members[-1][0]

    @property
    def bsyms(self) -> list[BoundSymbol]:
        """The members without their indices."""
        return [bsym for _, bsym in self.members]


def tensor_of(bsym: BoundSymbol) -> TensorProxy:
    """Return the input tensor of a call of an operator of `thunder_parallel`."""
    tensor = bsym.args[0]
    assert isinstance(tensor, TensorProxy)
    return tensor


def result_of(bsym: BoundSymbol) -> TensorProxy:
    """Return the result of a call of an operator of `thunder_parallel`."""
    assert isinstance(bsym.output, TensorProxy)
    return bsym.output


def layer_of(bsym: BoundSymbol) -> str:
    """Return the path of the outermost numbered module of a bound symbol (`layers.3`), or an empty string."""
    return layer_of_path(bsym.module.removeprefix(BACKWARD_OF))


def layer_of_path(path: str) -> str:
    """Return the outermost numbered module in the path of a module or parameter, or an empty string."""
    parts = path.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def buckets_of(members: Iterable[tuple[int, BoundSymbol]], sizes: BucketSizes, *, by_layer: bool) -> list[Bucket]:
    """Divide bound symbols into buckets, ordered by their last member.

    The tensors of a bucket have the same group, dtypes and devices and, if `by_layer` is set, the same layer.
    """
    open_buckets: dict[Hashable, Bucket] = {}
    full: list[Bucket] = []
    for index, bsym in members:
        tensor = tensor_of(bsym)
        group = next(argument for argument in bsym.args if isinstance(argument, str))
        dtypes, devices = (tensor.dtype, result_of(bsym).dtype), (tensor.device, result_of(bsym).device)
        bucket = open_buckets.setdefault((group, dtypes, devices, by_layer and layer_of(bsym)), Bucket())
        bucket.members.append((index, bsym))
        bucket.bytes += max(tensor.bytes, result_of(bsym).bytes)
        if bucket.bytes >= (sizes.following if full else sizes.first):
            full.append(bucket)
            open_buckets = {key: still_open for key, still_open in open_buckets.items() if still_open is not bucket}
    return sorted((*full, *open_buckets.values()), key=lambda bucket: bucket.last)
