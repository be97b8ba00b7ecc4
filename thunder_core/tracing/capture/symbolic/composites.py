"""Python functions that replace composite C++ functions of PyTorch that read sizes as plain integers.

With symbolic sizes, they compute the metadata and the derivative of a function's result; the program runs the function
itself. Most formulas are PyTorch's (LinearAlgebra.cpp, Correlation.cpp, SpectralOps.cpp, its references in Python).
Each has the parameters of the function that it replaces.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, _refs

from thunder_core.tracing.capture.symbolic.all_sizes import MATRIX, REWRITES, Call, rewrites
from thunder_core.tracing.ir.sizes import comparison_keys

PAIR = 2
THREE = 3
COMPLEX_TO_REAL = ("hfft", "irfft")
ONE_DIMENSION = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL_DIMENSIONS = (
    "fft2",
    "ifft2",
    "rfft2",
    "irfft2",
    "hfft2",
    "ihfft2",
    "fftn",
    "ifftn",
    "rfftn",
    "irfftn",
    "hfftn",
    "ihfftn",
)
Python = Callable[..., Any]
REWRITES_OF_OTHER_MODULES = frozenset(REWRITES)


def replaces(*functions: Callable[..., Any]) -> Callable[[Python], Python]:
    """Register a Python function that replaces functions of PyTorch if sizes are symbolic.

    Calls that do not fit its parameters are left unchanged.
    """

    def register(python: Python) -> Python:
        signature = inspect.signature(python)

        def rewrite(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                return None
            return python, args, kwargs

        rewrites(*functions)(rewrite)
        return python

    return register


# ---- Fourier transforms with a given number of points ----


def resize(tensor: Tensor, dim: int, size: Any) -> Tensor:
    """Return the first `size` elements of a dimension, padded with zeros; `size` may be symbolic."""
    if comparison_keys((tensor.shape[dim],)) == comparison_keys((size,)):
        return tensor
    shape = [*tensor.shape]
    shape[dim] = size
    return torch.cat([tensor, tensor.new_zeros(shape)], dim).narrow(dim, 0, size)


def points_of(name: str, size: Any) -> Any:
    """Return the size of the last dimension of a transform's input for `size` points in the result."""
    return size // 2 + 1 if name.startswith(COMPLEX_TO_REAL) else size


def transform_along_dimension(function: Callable[..., Any]) -> Python:
    """Return a transform along one dimension, in Python."""

    def transform(input: Tensor, n: Any = None, dim: int = -1, norm: Any = None) -> Any:  # noqa: A002
        if n is not None and n >= 1 and -input.dim() <= dim < input.dim():
            input = resize(input, dim, points_of(function.__name__, n))  # noqa: A001
        return function(input, n, dim, norm)

    return transform


def transform_along_dimensions(function: Callable[..., Any]) -> Python:
    """Return a transform along several dimensions, in Python."""

    def transform(input: Tensor, s: Any = None, dim: Any = None, norm: Any = None) -> Any:  # noqa: A002
        if dim is None and function.__name__.endswith("2"):
            dim = (-2, -1)
        if s is not None:
            dims = tuple(range(-len(s), 0)) if dim is None else dim
            input = resize_dimensions(function.__name__, input, s, dims)  # noqa: A001
        return function(input, s, dim, norm)

    return transform


def resize_dimensions(name: str, tensor: Tensor, sizes: Sequence[Any], dims: Sequence[int]) -> Tensor:
    """Return the input of a transform along several dimensions, resized to the elements that it uses."""
    for index, (size, dim) in enumerate(zip(sizes, dims, strict=False)):
        if size >= 1 and -tensor.dim() <= dim < tensor.dim():
            tensor = resize(tensor, dim, points_of(name, size) if index == len(sizes) - 1 else size)
    return tensor


for name in ONE_DIMENSION:
    replaces(getattr(torch.fft, name))(transform_along_dimension(getattr(torch.fft, name)))
for name in SEVERAL_DIMENSIONS:
    replaces(getattr(torch.fft, name))(transform_along_dimensions(getattr(torch.fft, name)))

replaces(torch.stft)(_refs.stft)
replaces(torch.istft)(_refs.istft)


# ---- products of matrices and tensors ------------------------------------------------------------------------


@replaces(torch.kron, torch.Tensor.kron)
def kron(input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """Return the Kronecker product: each element of one tensor times the other tensor."""
    dims = max(input.dim(), other.dim())
    ours, theirs = ([1] * (dims - tensor.dim()) + [*tensor.shape] for tensor in (input, other))
    product = input.reshape(interleave(ours, [1] * dims)) * other.reshape(interleave([1] * dims, theirs))
    return product.reshape([size * count for size, count in zip(ours, theirs, strict=True)])


def interleave(evens: Sequence[Any], odds: Sequence[Any]) -> list[Any]:
    """Return the items of two sequences in alternation."""
    return [size for pair in zip(evens, odds, strict=True) for size in pair]


@rewrites(torch.linalg.multi_dot, torch.chain_matmul)
def multi_dot(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite the product of two or three matrices; for more matrices, the best order depends on the sizes."""
    tensors = args[0] if len(args) == 1 and type(args[0]) in (tuple, list) else args
    matrices = all(isinstance(tensor, Tensor) and tensor.dim() == MATRIX for tensor in tensors)
    return (product_of_chain, tuple(tensors), {}) if matrices and len(tensors) in (PAIR, THREE) and not kwargs else None


def product_of_chain(first: Tensor, *others: Tensor) -> Tensor:
    """Return the product of two or three matrices in the order with fewer multiplications."""
    if len(others) == 1:
        return first.mm(others[0])
    second, third = others
    rows, inner, outer, columns = first.shape[0], first.shape[1], second.shape[1], third.shape[1]
    from_left = rows * outer * (inner + columns) <= inner * columns * (rows + outer)
    return first.mm(second).mm(third) if from_left else first.mm(second.mm(third))


@replaces(torch.bilinear, torch.nn.functional.bilinear)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the bilinear form of two vectors for each matrix of the weight."""
    outputs, ours, theirs = weight.shape
    left = input1.reshape(-1, ours) @ weight.permute(1, 0, 2).reshape(ours, outputs * theirs)
    products = (left.view(-1, outputs, theirs) * input2.reshape(-1, 1, theirs)).sum(-1)
    result: Tensor = products.view(*input1.shape[:-1], outputs)
    return result if bias is None else torch.add(result, bias)


# ---- statistics ----------------------------------------------------------------------------------------------


@rewrites(torch.cov, torch.Tensor.cov)
def cov(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite the covariances of equally weighted observations; None for weights."""
    if kwargs.keys() - {"correction"} or len(args) != 1 or not 1 <= args[0].dim() <= MATRIX:
        return None
    observations = args[0].shape[-1]
    return (covariances, args, dict(kwargs)) if observations > kwargs.get("correction", 1) else None


def covariances(observed: Tensor, correction: Any = 1) -> Tensor:
    """Return the covariance matrix of variables whose observations are the columns."""
    rows = observed.reshape(1, -1) if observed.dim() == 1 else observed
    rows = rows if rows.is_floating_point() or rows.is_complex() else rows.to(torch.get_default_dtype())
    centered = rows - rows.mean(1, keepdim=True)
    products: Tensor = centered.mm(centered.t().conj()) / (rows.shape[1] - correction)
    return products.squeeze()


@replaces(torch.corrcoef, torch.Tensor.corrcoef)
def corrcoef(input: Tensor) -> Tensor:  # noqa: A002
    """Return the correlations of variables whose observations are the columns."""
    matrix = covariances(input)
    if not matrix.dim():
        return matrix / matrix
    deviations = matrix.diag().real.sqrt() if matrix.is_complex() else matrix.diag().sqrt()
    matrix = matrix / deviations.view(-1, 1) / deviations.view(1, -1)
    if not matrix.is_complex():
        return matrix.clip(-1, 1)
    return torch.complex(matrix.real.clip(-1, 1), matrix.imag.clip(-1, 1))


# ---- derivatives that C++ computes from plain sizes ----


class CumulativeSum(torch.autograd.Function):
    """The cumulative sum, with a derivative that does not decide whether there is only one element."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
        """Return the sums along a dimension."""
        ctx.dim, ctx.dtype = dim, tensor.dtype
        return torch.cumsum(tensor, dim, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Return the gradient of the tensor, summed in its dtype."""
        return gradient.to(ctx.dtype).flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None, None


class CumulativeProduct(torch.autograd.Function):
    """The cumulative product, with a derivative for all sizes and for elements that are zero.

    The derivative of the product up to `k` by element `i` is the product of all other elements up to `k`. These form a
    matrix whose rows are cumulative products with one at position `i`. The result is saved as in PyTorch's own
    derivative, which refuses a result that was written to.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
        """Return the products along a dimension."""
        ctx.dim = dim
        result = torch.cumprod(tensor, dim, dtype=dtype)
        ctx.save_for_backward(tensor, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Return the gradient of the tensor."""
        tensor, _ = ctx.saved_tensors
        factors = tensor.to(gradient.dtype).movedim(ctx.dim, -1).unsqueeze(-2)
        size = factors.shape[-1]
        itself = torch.arange(size, device=tensor.device)
        is_itself, is_before = itself[:, None] == itself, itself[:, None] > itself
        others = torch.where(is_itself, torch.ones_like(factors), factors).cumprod(-1)
        partial = torch.where(is_before, torch.zeros_like(others), others).conj()
        result = (gradient.movedim(ctx.dim, -1).unsqueeze(-2) * partial).sum(-1)
        return result.movedim(-1, ctx.dim).to(tensor.dtype), None, None


def cumulative(plain: Python, function: type[torch.autograd.Function]) -> Python:
    """Return a cumulative sum or product, with the derivative of `function` for real numbers."""

    def python(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:  # noqa: A002
        if not input.dim() or not input.is_floating_point():
            return plain(input, dim, dtype=dtype)
        return function.apply(input, dim, dtype)  # type: ignore[no-untyped-call]

    return python


replaces(torch.cumsum, torch.Tensor.cumsum)(cumulative(torch.cumsum, CumulativeSum))
cumulative_product = cumulative(torch.cumprod, CumulativeProduct)
replaces(torch.cumprod, torch.Tensor.cumprod)(cumulative_product)


@replaces(torch.linalg.vander)
def vander(x: Tensor, *, N: Any = None) -> Tensor:  # noqa: N803 (PyTorch's name for it)
    """Return the powers of the elements, beginning with the power zero."""
    count = x.shape[-1] if N is None else N
    if not count > 1:
        raise RuntimeError("N must be greater than 1.")
    powers = x.unsqueeze(-1).expand(*x.shape, count - 1)
    return torch.cat([x.unsqueeze(-1).new_ones((*x.shape, 1)), cumulative_product(powers, -1)], -1)


@rewrites(torch.sgn, torch.Tensor.sgn)
def sgn(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite the sign of real numbers; None for complex numbers."""
    tensor = args[0] if args else kwargs["input"]
    return None if kwargs.keys() - {"input"} or tensor.is_complex() else (torch.sign, (tensor,), {})


@rewrites(torch.hash_tensor, torch.Tensor.hash_tensor)
def hash_tensor(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite `hash_tensor` as `any`, converted to the dtype of hashes: the result has the same metadata."""
    arguments = dict(zip(("input", "dim"), args, strict=False)) | dict(kwargs)
    if arguments.keys() - {"input", "dim", "keepdim"} or arguments.get("input") is None:
        return None
    return hashes, (arguments["input"], arguments.get("dim") or None, arguments.get("keepdim", False)), {}


def hashes(tensor: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """Return a tensor with the shape and dtype of the hashes."""
    return torch.any(tensor, dim, keepdim).to(torch.uint64)


# ---- indices ----


@replaces(torch.take_along_dim, torch.Tensor.take_along_dim)
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:  # noqa: A002
    """Return the elements at indices along a dimension; both tensors are broadcast in the other dimensions."""
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    dim = dim % max(input.dim(), 1)
    ours, theirs = [*input.shape], [*indices.shape]
    ours[dim], theirs[dim] = 1, 1
    common = list(torch.broadcast_shapes(ours, theirs))  # type: ignore[no-untyped-call]
    return input.expand(with_size(common, dim, input.shape[dim])).gather(
        dim, indices.expand(with_size(common, dim, indices.shape[dim]))
    )


def with_size(shape: Sequence[Any], dim: int, size: object) -> list[Any]:
    """Return a shape with a different size in one dimension."""
    return [*shape[:dim], size, *shape[dim + 1 :]]


@rewrites(torch.block_diag)
def block_diag(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite the block-diagonal matrix of matrices of one dtype; None for several dtypes, which the kernel promotes.

    Also returns None if a vector without elements may need a gradient: PyTorch's derivative then takes the gradients of
    the other matrices from other rows.
    """
    dtypes = {getattr(matrix, "dtype", None) for matrix in args}
    if kwargs or len(dtypes) > 1:
        return None
    vectors = [matrix for matrix in args if matrix.dim() == 1] if any(matrix.requires_grad for matrix in args) else []
    return None if any(vector.shape[0] == 0 for vector in vectors) else (_refs.block_diag, args, kwargs)


@rewrites(torch.combinations)
def combinations(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite the single elements of a vector, or its pairs; None for more elements, which have no simple formula."""
    arguments = dict(zip(("input", "r", "with_replacement"), args, strict=False)) | dict(kwargs)
    if arguments.get("input") is None or arguments["input"].dim() != 1 or arguments.get("r", PAIR) not in (1, PAIR):
        return None
    return choose, (arguments["input"], arguments.get("r", PAIR), arguments.get("with_replacement", False)), {}


def choose(tensor: Tensor, count: int, repeated: bool) -> Tensor:
    """Return the single elements of a vector, or its pairs, with or without repetition."""
    if count == 1:
        return tensor.clone().unsqueeze(1)
    size = tensor.shape[0]
    first, second = _refs.triu_indices(size, size, 0 if repeated else 1, device=tensor.device)
    return torch.stack([tensor[first], tensor[second]], 1)


@rewrites(torch.gradient)
def gradient(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """Rewrite the estimated derivatives of samples at equal distances; None if distances or coordinates are given."""
    arguments = dict(zip(("input",), args, strict=False)) | dict(kwargs)
    unusual = arguments.get("spacing") is not None or arguments.keys() - {"input", "spacing", "dim", "edge_order"}
    if unusual or len(args) > 1 or arguments.get("edge_order", 1) != 1:
        return None
    return differences, (arguments["input"], arguments.get("dim")), {}


def differences(tensor: Tensor, dims: Any) -> tuple[Tensor, ...]:
    """Return half the difference of both neighbours along each dimension; one-sided differences at its ends."""
    chosen_dims = range(tensor.dim()) if dims is None else (dims,) if isinstance(dims, int) else dims
    return tuple(differences_along(tensor, dim) for dim in chosen_dims)


def differences_along(tensor: Tensor, dim: int) -> Tensor:
    """Return half the difference of both neighbours along a dimension; one-sided differences at its ends."""
    size = tensor.shape[dim]
    if not size > 1:
        raise RuntimeError("torch.gradient expected each dimension size to be at least edge_order+1")
    inner = (tensor.narrow(dim, 2, size - 2) - tensor.narrow(dim, 0, size - 2)) / 2
    ends = (tensor.narrow(dim, index, 1) - tensor.narrow(dim, index - 1, 1) for index in (1, size - 1))
    first, last = ends
    return torch.cat([first, inner, last], dim)


COMPOSITES = frozenset(REWRITES) - REWRITES_OF_OTHER_MODULES  # the program runs the functions themselves
