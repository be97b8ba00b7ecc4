"""A launch as data: its description, and the launchers that run it."""

from __future__ import annotations

import json

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.executors.triton.closeness import draw
from tests.executors.triton.examples import EXAMPLES, random_tensors
from thunder_core.foundation.errors import DeviceNotAvailable
from thunder_executors.triton import launch as launching
from thunder_executors.triton.launch import STORED_KERNELS, Launch, Specialization, dropped_launches
from thunder_executors.triton.operations import OPERATORS
from thunder_executors.triton.rms_norm import rms_norm

pytestmark = pytest.mark.skipif(not launching.INTERPRETED, reason="for the interpreter")

EXPECTED = Specialization(
    kernel="thunder_executors.triton.rms_norm:rms_norm_forward_kernel",
    types=(
        ("x", "*bf16"),
        ("y", "*bf16"),
        ("x_stride", "i64"),
        ("residual_stride", "i64"),
        ("columns", "i32"),
        ("eps", "fp32"),
    ),
    divisible=("x", "y", "x_stride", "residual_stride", "columns"),
    constants=(("residual", None), ("weight", None), ("total", None), ("BLOCK", 32), ("IS_ONE_BLOCK", True)),
    warps=1,
)


def test_specialization_and_grid_of_a_launch() -> None:
    x = draw(3, 32, dtype=torch.bfloat16)
    (launch,) = rms_norm.launches(x, None, 1e-6)
    assert launch.specialization == EXPECTED
    assert (launch.grid, launch.device) == ((3,), x.device)
    assert Specialization.from_dict(json.loads(json.dumps(EXPECTED.as_dict()))) == EXPECTED


def test_sizes_and_alignment_make_the_difference() -> None:
    def divisible(x: torch.Tensor) -> tuple[str, ...]:
        (launch,) = rms_norm.launches(x, None, 1e-6)
        return launch.specialization.divisible

    x = draw(3, 33)
    assert divisible(x) == ("x", "y", "residual_stride")
    assert divisible(x[:, 1:]) == ("y", "residual_stride", "columns")
    assert divisible(x[:, :1]) == ("x", "y", "residual_stride")
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert divisible(fake[:, 1:]) == ("y", "residual_stride", "columns")


def test_fake_tensors_are_described_and_nothing_runs() -> None:
    with FakeTensorMode():
        x = torch.empty(10**7, 32, dtype=torch.bfloat16, device="cuda")
        (launch,) = rms_norm.launches(x, None, 1e-6)
        assert launch.specialization == EXPECTED
        assert rms_norm(x, None, 1e-6).shape == x.shape


def test_dropped_launches_leave_the_outputs_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "launch_now", pytest.fail)
    with dropped_launches():
        assert rms_norm.launcher(draw(2, 3), None, 1e-6).shape == (2, 3)


def test_kept_machine_code_is_launched_in_place_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Launch] = []
    monkeypatch.setitem(STORED_KERNELS, EXPECTED, taken.append)
    x = draw(3, 32, dtype=torch.bfloat16)
    rms_norm(x, None, 1e-6)
    assert [launch.specialization for launch in taken] == [EXPECTED]
    other = draw(3, 32)
    assert torch.equal(rms_norm(other, None, 1e-6), rms_norm.launcher(other, None, 1e-6))
    assert len(taken) == 1


def test_the_cpu_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "INTERPRETED", False)
    with pytest.raises(DeviceNotAvailable, match="rms_norm_forward_kernel needs CUDA tensors") as caught:
        rms_norm(draw(2, 3), None, 1e-6)
    assert "TRITON_INTERPRET=1" in caught.value.fix


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_operation_is_a_valid_operator_of_pytorch(name: str) -> None:
    """Each operation has a valid schema, and its fake outputs have the metadata of the real outputs."""
    for arguments in EXAMPLES[name](random_tensors(torch.float32, "cpu")):
        small = tuple(
            value[:3] if name == "rms_norm" and torch.is_tensor(value) and value.ndim > 1 else value
            for value in arguments
        )
        torch.library.opcheck(
            OPERATORS[name].operation,
            small,
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


def test_code_that_another_thread_stores_during_a_search_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[Specialization, object] = {}
    monkeypatch.setattr(launching, "STORED_KERNELS", stored)

    class Storing(Specialization):
        def with_alignment(self, divisible: tuple[str, ...]) -> Specialization:
            stored[Specialization("other", (), (), (), len(stored))] = print
            return super().with_alignment(divisible)

    stored[Storing(EXPECTED.kernel, EXPECTED.types, (), EXPECTED.constants, EXPECTED.warps)] = print
    stored[Specialization("last", (), (), (), 1)] = print
    assert launching.find_weaker(EXPECTED) is None
