"""saved_tensors_hooks inside and around a compiled program: autograd packs saved tensors as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, OperationFailed

Compile = Callable[[Any], Any]
CALLS = 3


def unchanged(packed: Any) -> Any:
    return packed


def leaf(count: int = 3) -> Tensor:
    return torch.arange(float(count)).requires_grad_()


def assert_same(run: Callable[[Compile], Any]) -> None:
    """Compare the results of a run with `thunder.jit` and in eager PyTorch."""
    wanted, found = tree_leaves(run(lambda subject: subject)), tree_leaves(run(thunder.jit))
    assert wanted
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs) if isinstance(theirs, Tensor) else ours == theirs


class Packing:
    """Hooks that record and change the tensors that they pack."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.log: list[Any] = []

    def pack(self, tensor: Tensor) -> Tensor:
        self.log.append(tensor.detach().clone())
        return tensor.detach() * self.factor

    def unpack(self, tensor: Tensor) -> Tensor:
        self.log.append("unpacked")
        return tensor


def test_hooks_inside_a_program_pack_and_unpack_the_tensors_that_eager_saves() -> None:
    def run(compile_: Compile) -> Any:
        packing, x, lengths = Packing(2.0), leaf(), []

        def program(x: Tensor) -> Tensor:
            y = x.exp()
            with saved_tensors_hooks(packing.pack, packing.unpack):
                z = y.sin() * x
            return z.cos()

        called = compile_(program)
        for _ in range(CALLS):
            result = called(x).sum()
            lengths.append(len(packing.log))
            result.backward()
            lengths.append(len(packing.log))
        return x.grad, lengths, packing.log

    assert_same(run)


def test_hooks_around_the_call_pack_and_unpack_the_tensors_that_eager_saves() -> None:
    def run(compile_: Compile) -> Any:
        packing, x, lengths = Packing(2.0), leaf(), []

        def program(x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.exp()
            return y.sin() * x, y

        called = compile_(program)
        for _ in range(CALLS):
            with saved_tensors_hooks(packing.pack, packing.unpack):
                result = called(x)[0].sum()
            lengths.append(len(packing.log))
            result.backward()
            lengths.append(len(packing.log))
        called(x)[0].sum().backward()
        return x.grad, lengths, packing.log

    assert_same(run)


@pytest.mark.parametrize("around", [save_on_cpu, None])
def test_a_program_in_hooks_of_pytorchs_own_stays_one_node(around: Any) -> None:
    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), leaf()
        called = compile_(model)
        for _ in range(CALLS):
            if around is None:
                result = checkpoint(called, x, use_reentrant=False)
            else:
                with around():
                    result = called(x)
            result.sum().backward()
        if called is not model:
            assert result.grad_fn.next_functions[0][0].name() == "CompiledBackward"
        return x.grad, model[0].weight.grad

    assert_same(run)


def test_innermost_of_nested_hooks_packs() -> None:
    def run(compile_: Compile) -> Any:
        def program(x: Tensor) -> Tensor:
            with saved_tensors_hooks(lambda tensor: tensor * 2, unchanged):
                y = x.sin()
                with saved_tensors_hooks(lambda tensor: tensor * 3, unchanged):
                    z = y.sin()
                return z.sin()

        called, x = compile_(program), leaf()
        for _ in range(CALLS):
            called(x).sum().backward()
        return x.grad

    assert_same(run)


class PacksItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        nn.init.constant_(self.linear.weight, 0.2)
        nn.init.zeros_(self.linear.bias)
        self.packing = Packing(2.0)

    def pack(self, tensor: Tensor) -> Tensor:
        return self.packing.pack(tensor)

    def forward(self, x: Tensor) -> Tensor:
        with saved_tensors_hooks(self.pack, unchanged):
            return self.linear(x).sin()


def test_methods_of_the_module_pack_by_its_present_attributes() -> None:
    def run(compile_: Compile) -> Any:
        model, x = PacksItself(), leaf()
        called = compile_(model)
        for call in range(CALLS):
            model.packing.factor = 2.0 + (call > 1)
            called(x).sum().backward()
        return x.grad, model.linear.weight.grad, model.packing.log

    assert_same(run)


def test_a_hook_may_decide_by_the_tensor_that_it_packs() -> None:
    def run(compile_: Compile) -> Any:
        log: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            if tensor.numel() < 5:
                return tensor
            log.append(tensor.numel())
            return tensor * 2

        def program(x: Tensor) -> Tensor:
            with saved_tensors_hooks(pack, unchanged):
                return x.sin()

        called, found = compile_(program), []
        for count in (3, 6, 6, 3):
            x = leaf(count)
            called(x).sum().backward()
            found.append(x.grad)
        return found, log

    assert_same(run)


def test_save_on_cpu_gives_the_gradients_of_eager() -> None:
    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), leaf()

        def program(x: Tensor) -> Tensor:
            with save_on_cpu():
                return model(x)

        called = compile_(program)
        for _ in range(CALLS):
            called(x).sum().backward()
        return x.grad, model[0].weight.grad

    assert_same(run)


def test_the_error_of_a_hook_leaves_no_hook_set() -> None:
    fails: list[bool] = []

    def pack(tensor: Tensor) -> Tensor:
        if fails:
            raise ValueError("nothing is packed")
        return tensor

    @thunder.jit
    def program(x: Tensor) -> Tensor:
        with saved_tensors_hooks(pack, unchanged):
            return x.sin()

    program(leaf())
    fails.append(True)
    with pytest.raises(ValueError, match="nothing is packed"):
        program(leaf())
    leaf().sin()


def reads_what_is_computed(x: Tensor) -> Any:
    doubled = x.detach() * 2
    with saved_tensors_hooks(lambda tensor: tensor * doubled, unchanged):
        return x.sin()


def writes_to_its_own_list(x: Tensor) -> Any:
    seen: list[Tensor] = []
    with saved_tensors_hooks(lambda tensor: seen.append(tensor), unchanged):  # type: ignore[func-returns-value]
        y = x.sin()
    return y, len(seen)


def differentiates_itself(x: Tensor) -> Any:
    with saved_tensors_hooks(lambda tensor: tensor * 2, unchanged):
        y = x.sin()
    return torch.autograd.grad(y.sum(), x)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (reads_what_is_computed, "refers to an object of class FakeTensor that the program creates"),
        (writes_to_its_own_list, "refers to an object of class list that the program creates"),
        (differentiates_itself, "also runs a backward"),
    ],
)
def test_hook_that_a_trace_cannot_hold_is_refused_with_the_line(program: Any, message: str) -> None:
    with pytest.raises(OperationFailed, match=message) as caught:
        thunder.jit(program, data_dependent="error")(leaf())
    assert caught.value.where is not None


def test_program_that_reads_a_value_that_a_hook_writes_is_refused() -> None:
    log: list[Tensor] = []

    @partial(thunder.jit, data_dependent="error")
    def program(x: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda tensor: log.append(tensor), unchanged):  # type: ignore[func-returns-value]
            y = x.sin()
        return y * len(log)

    with pytest.raises(CannotReplay, match="a saved_tensors_hooks hook"):
        program(leaf())
