"""Recorded strides of results equal the strides of PyTorch's kernels."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.layouts.steps import laid_out
from thunder_core.tracing.capture.fakes.fake import new_mode
from thunder_core.tracing.capture.torch_facts.layouts import rule_of

aten = torch.ops.aten
SHAPES = ((2, 3, 4), (1, 8, 4, 4), (2, 1, 4, 5), (2, 3, 1, 1), (1, 4, 3, 2, 2))
RandomInputs = random.Random


def some(draw: RandomInputs, shape: tuple[int, ...]) -> Tensor:
    return laid_out(torch.rand(shape, dtype=torch.float64), draw)


Call = Callable[..., object]
OF_ONE: dict[str, Call] = {
    "view": lambda x: aten.view.default(x.transpose(1, 2), (*x.shape[:1], x.shape[2], x.shape[1], *x.shape[3:], 1)),
    "number": lambda x: aten.mul.Tensor(x, 2.0),
    "scalar": lambda x: aten.sub.Scalar(x, 2.0),
    "scalar power": lambda x: aten.pow.Scalar(2.0, x),
    "unary": aten.exp.default,
    "clone": aten.clone.default,
    "cast": lambda x: aten._to_copy.default(x, dtype=torch.float32),
    "zeros_like": aten.zeros_like.default,
    "flip": lambda x: aten.flip.default(x, [1]),
    "roll": lambda x: aten.roll.default(x, [1], [1]),
    "sort": lambda x: aten.sort.default(x, 1),
    "tril": aten.tril.default,
    "glu": lambda x: aten.glu.default(torch.ops.aten.cat.default([x, x], 1), 1),
    "log_softmax": lambda x: aten._log_softmax.default(x, 1, False),
    "logsigmoid": aten.log_sigmoid_forward.default,
    "hardtanh": aten.hardtanh.default,
    "dropout": lambda x: aten.native_dropout.default(x, 0.5, True),
    "layer_norm": lambda x: aten.native_layer_norm.default(x, x.shape[2:], None, None, 1e-5),
    "batch_norm": lambda x: aten.native_batch_norm.default(x, None, None, None, None, True, 0.1, 1e-5),
    "masked_fill": lambda x: aten.masked_fill.Scalar(x, x > 0.5, 1.0),
}
OF_TWO: dict[str, Call] = {
    "add": aten.add.Tensor,
    "where": lambda x, y: aten.where.self(x > 0.5, x, y),
    "copysign": aten.copysign.Tensor,
    "mse_loss": lambda x, y: aten.mse_loss.default(x, y, 0),
    "huber_loss": lambda x, y: aten.huber_loss.default(x, y, 0, 1.0),
    "mse_loss_backward": lambda x, y: aten.mse_loss_backward.default(x, y, x, 0),
    "log_softmax_backward": lambda x, y: aten._log_softmax_backward_data.default(x, y, 1, torch.float64),
    "leaky_relu_backward": lambda x, y: aten.leaky_relu_backward.default(x, y, 0.1, False),
    "threshold_backward": lambda x, y: aten.threshold_backward.default(x, y, 0.5),
    "hardswish_backward": aten.hardswish_backward.default,
    "softplus_backward": lambda x, y: aten.softplus_backward.default(x, y, 1, 20),
    "batch_norm_backward": lambda x, y: aten.native_batch_norm_backward.default(
        x, y, None, None, None, y.new_ones(y.shape[1]), y.new_ones(y.shape[1]), True, 1e-5, [True, False, False]
    ),
}


def strides(results: object) -> list[object]:
    found = results if isinstance(results, tuple) else (results,)
    return [
        (value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else value
        for value in found
        if kept(value)
    ]


def kept(result: object) -> bool:
    return not isinstance(result, Tensor) or bool(result.numel())


def compare(call: Call, given: list[Tensor]) -> None:
    with new_mode():
        fakes = [torch.empty_strided(item.shape, item.stride(), dtype=item.dtype) for item in given]
        recorded = strides(call(*fakes))
    assert recorded == strides(call(*given)), [(value.shape, value.stride()) for value in given]


@pytest.mark.parametrize("name", OF_ONE)
def test_results_of_one_operand_have_the_strides_of_the_kernel(name: str) -> None:
    draw = random.Random(name)
    for _ in range(12):
        try:
            compare(OF_ONE[name], [some(draw, draw.choice(SHAPES))])
        except RuntimeError as error:  # a view that real tensors refuse is refused for fake tensors too
            assert "view size" in str(error)


@pytest.mark.parametrize("name", OF_TWO)
def test_results_of_two_operands_have_the_strides_of_the_kernel(name: str) -> None:
    draw = random.Random(name)
    for _ in range(12):
        shape = draw.choice(SHAPES)
        compare(OF_TWO[name], [some(draw, shape), some(draw, shape)])


SHAPES_OF_NOTHING = ((3, 0), (17, 0, 4), (0, 4, 6), (2, 4, 0), (0, 2, 2, 2), (2, 0, 3, 2))
OF_NOTHING = (
    "number",
    "scalar",
    "scalar power",
    "unary",
    "clone",
    "cast",
    "zeros_like",
    "flip",
    "hardtanh",
    "masked_fill",
)


def of_nothing(draw: RandomInputs, shape: tuple[int, ...]) -> Tensor:
    """Return an empty tensor whose dimensions have any order in memory, contiguous or spaced."""
    order = draw.sample(range(len(shape)), len(shape))
    step = draw.choice((1, 1, 2))
    tensor = torch.zeros([shape[place] * step for place in order], dtype=torch.float64)
    apart = tensor[tuple(slice(None, None, step) for _ in order)]
    return apart.permute([order.index(index) for index in range(len(shape))])


@pytest.mark.parametrize("name", [*OF_NOTHING, "add", "where", "copysign"])
def test_empty_results_have_the_strides_of_the_kernel(name: str) -> None:
    """A program may read their strides, which equal the strides of nonempty tensors in the same order."""
    draw = random.Random(name)
    for _ in range(30):
        shape = draw.choice(SHAPES_OF_NOTHING)
        given = [of_nothing(draw, shape)]
        if name in OF_TWO:
            given.append(of_nothing(draw, tuple(draw.choice((1, size)) for size in shape)[draw.randrange(3) :]))
        call = OF_TWO[name] if name in OF_TWO else OF_ONE[name]
        with new_mode():
            fakes = [torch.empty_strided(item.shape, item.stride(), dtype=item.dtype) for item in given]
            recorded = call(*fakes).stride()  # type: ignore[attr-defined]
        assert recorded == call(*given).stride(), [(value.shape, value.stride()) for value in given]  # type: ignore[attr-defined]


def test_broadcast_results_have_the_strides_of_the_kernel() -> None:
    draw = random.Random(0)
    for _ in range(60):
        shape = draw.choice(SHAPES)
        other = tuple(draw.choice((1, size)) for size in shape)[draw.randrange(3) :]
        compare(aten.atan2.default, [some(draw, shape), some(draw, other)])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions_have_the_strides_of_the_kernel(groups: int, transposed: bool) -> None:
    draw = random.Random(groups)
    for _ in range(10):
        kernel = (draw.choice((1, 3)), draw.choice((1, 2)))
        numbers = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)
        x, w = some(draw, (draw.choice((1, 2)), 4, 4, 5)), some(draw, (4, 4 // groups, *kernel))
        compare(lambda x, w: aten.convolution.default(x, w, None, *numbers), [x, w])  # noqa: B023
        gradient = laid_out(aten.convolution.default(x, w, None, *numbers), draw)
        mask = [True, True, False]
        compare(lambda g, x, w: aten.convolution_backward.default(g, x, w, [0], *numbers, mask), [gradient, x, w])  # noqa: B023


def test_indexing_by_tensors_has_the_strides_of_the_kernel() -> None:
    draw = random.Random(1)
    for _ in range(120):
        shape = draw.choice(SHAPES)
        sizes = draw.choice(((3,), (1,), (3, 2), (4, 1), (2, 1, 2)))
        places = draw.sample(range(len(shape)), draw.randint(1, len(shape)))
        given = {
            place: laid_out(torch.randint(0, shape[place], sizes[draw.randrange(len(sizes)) :]), draw)
            for place in places
        }

        def call(x: Tensor, *indices: Tensor) -> Tensor:
            wanted = dict(zip(given, indices, strict=True))  # noqa: B023
            result: Tensor = aten.index.Tensor(x, [wanted.get(index) for index in range(x.dim())])
            return result

        compare(call, [some(draw, shape), *given.values()])


FACTORS = ((6, 16), (8, 16), (3, 7, 16), (6, 3)), ((3, 16, 5), (16, 24), (3, 3, 8), (2, 16, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("count", [None, 3, 2])
def test_grouped_products_match_the_kernel(dtype: torch.dtype, count: int | None) -> None:
    """A product that the kernel refuses is refused; others have the kernel's shapes and strides."""

    def call(one: Tensor, other: Tensor, *offsets: Tensor) -> Tensor | str:
        try:
            return torch._grouped_mm(one, other, *offsets)
        except RuntimeError:
            return "refused"

    offsets = [] if count is None else [torch.zeros(count, dtype=torch.int32)]
    for left, right, across in itertools.product(*FACTORS, (False, True)):
        x, y = torch.zeros(left, dtype=dtype), torch.zeros(right, dtype=dtype)
        compare(call, [x, y.mT.contiguous().mT if across else y, *offsets])


DTYPES = (torch.float32, torch.float64, torch.int64)


@pytest.mark.parametrize("dtypes", [*itertools.product(DTYPES, repeat=2)], ids=str)
@pytest.mark.parametrize("shapes", [((), (2, 3)), ((3,), ()), ((), ()), ((2, 2), (1, 0))], ids=str)
def test_dtype_of_block_diag_matches_eager(
    dtypes: tuple[torch.dtype, ...], shapes: tuple[tuple[int, ...], ...]
) -> None:
    """A zero-dimensional tensor has lower priority in type promotion."""
    given = [torch.ones(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    compare(lambda *tensors: (made := torch.block_diag(*tensors), made.dtype), given)


@pytest.mark.parametrize("shapes", [((2, 3, 0), (2, 0, 4)), ((0, 3, 2), (0, 2, 4)), ((2, 3, 4), (2, 4, 0))], ids=str)
@pytest.mark.parametrize("dtypes", [(torch.int64, torch.float32), (torch.float32, torch.float64)], ids=str)
def test_dtype_of_empty_products_matches_eager(
    dtypes: tuple[torch.dtype, ...], shapes: tuple[tuple[int, ...], ...]
) -> None:
    """PyTorch only compares the dtypes of elements when it multiplies batches of matrices."""
    given = [torch.ones(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    compare(lambda *tensors: (made := torch.bmm(*tensors), made.dtype), given)


@pytest.mark.parametrize("exponent", [False, True, 0, 2, 0.5])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_dtype_of_powers_matches_eager(dtype: torch.dtype, exponent: float) -> None:
    given = [torch.ones(2, 3, dtype=dtype).T]
    compare(lambda x: (power := x**exponent, power.dtype), given)
    compare(lambda x: torch.pow(x, exponent, out=torch.empty_like(x**exponent)), given)
    if (given[0] ** exponent).dtype == dtype:
        compare(lambda x: x.pow_(exponent), given)


def test_writes_have_no_rule() -> None:
    assert rule_of(aten.add_.Tensor, ()) is None
