"""Row-wise quantization against the formulas."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.executors.triton.closeness import DTYPES, draw
from thunder_core.backend.claiming.device_code import targeting
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton import quantize
from thunder_executors.triton.quantize import LARGEST, quantize_rows, reference

TARGETS = tuple(LARGEST)


def exact(x: torch.Tensor, target: torch.dtype) -> list[torch.Tensor]:
    """The reference on a CPU, whose quotients are rounded correctly; PyTorch multiplies by a reciprocal on a GPU."""
    return [value.to(x.device) for value in reference(x.cpu(), target)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 5), (7,), (2, 4099)], ids=str)
def test_values_and_scales(shape: tuple[int, ...], target: torch.dtype, dtype: torch.dtype) -> None:
    x = draw(*shape, dtype=dtype) * 3
    values, scales = quantize_rows(x, target)
    expected, factors = exact(x, target)
    assert (values.dtype, values.shape, scales.shape) == (target, x.shape, (*x.shape[:-1], 1))
    assert torch.equal(scales, factors)
    if x.device.type == "cpu":
        assert torch.equal(values.float(), expected.float())
    else:  # a GPU rounds the product and the addition together, which is more exact for near ties
        assert (values.float() - expected.float()).abs().max() <= (1 if target == torch.int8 else 32)


@pytest.mark.parametrize(("target", "step"), [(torch.int8, 0.5 / 127), (torch.float8_e4m3fn, 1 / 16)], ids=str)
def test_dequantized_values_are_near_the_originals(target: torch.dtype, step: float) -> None:
    x = draw(6, 300)
    values, scales = quantize_rows(x, target)
    error = (values.float() * scales - x).abs()
    bound = x.abs().amax(-1, keepdim=True) * step if target == torch.int8 else x.abs() * step + scales * 2**-10
    assert (error <= bound * 1.0001).all()
    assert (values.float().abs().amax(-1) == LARGEST[target]).all()


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_zeros_and_non_finite_values(target: torch.dtype) -> None:
    x = torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0], [1e-38, 0.0], [3e38, -3e38]])
    values, scales = quantize_rows(x, target)
    assert values[0].float().tolist() == [0.0, 0.0]
    assert scales.isfinite().flatten().tolist() == [True, False, False, True, True]
    assert (values[4].float() == torch.tensor([LARGEST[target], -LARGEST[target]])).all()


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_rows_with_gaps_and_no_rows(target: torch.dtype) -> None:
    storage = draw(6, 20)
    for x in (storage.T, storage[:, ::3], storage[:, 2:9], storage[:0], storage[:, :0]):
        values, scales = quantize_rows(x, target)
        expected, factors = exact(x, target)
        assert torch.equal(values.float(), expected.float())
        assert torch.equal(scales, factors)


def test_unsupported_dtypes_are_refused() -> None:
    with pytest.raises(KernelRefuses, match="uint8"):
        quantize_rows(draw(2, 3), torch.uint8)
    with pytest.raises(KernelRefuses, match="int64"):
        quantize_rows(torch.ones(2, 3, dtype=torch.int64), torch.int8)


def test_quantization_has_no_derivative() -> None:
    _, scales = quantize_rows(draw(2, 3).requires_grad_(), torch.int8)
    with pytest.raises(RuntimeError, match=r"no autograd formula|does not require grad"):
        scales.sum().backward()


def test_a_gpu_without_8_bit_floats_quantizes_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton refuses to compile conversions to E4M3 before compute capability 8.9."""
    x = draw(6, 20).T
    with FakeTensorMode():
        fake = torch.empty(20, 6, device="cuda")
        for target, count in (("sm_80", 0), ("sm_86", 0), ("sm_89", 1), ("sm_90", 1)):
            with targeting(target):
                assert len(quantize_rows.launches(fake, torch.float8_e4m3fn)) == count
                assert len(quantize_rows.launches(fake, torch.int8)) == 1
    expected = reference(x, torch.float8_e4m3fn)
    monkeypatch.setattr(quantize, "converts_to", lambda dtype, device: False)
    monkeypatch.setattr(quantize, "launch_over_rows", pytest.fail)
    values, scales = quantize_rows(x, torch.float8_e4m3fn)
    assert torch.equal(values.float(), expected[0].float())
    assert torch.equal(scales, expected[1])
    assert values.is_contiguous()


def test_the_capability_of_the_gpu_decides_without_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, converts in (((8, 0), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, answer=capability: answer)
        assert quantize.converts_to(torch.float8_e4m3fn, torch.device("cuda", 0)) is converts
        assert quantize.converts_to(torch.int8, torch.device("cuda", 0))
        assert quantize.converts_to(torch.float8_e4m3fn, torch.device("cpu"))
