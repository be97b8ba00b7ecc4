"""A compiled module behaves like the module in every respect."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import BadOption, CannotReplay, DataDependent, UnknownName, WrongInputs


class Net(nn.Module):
    """A small network with a buffer, dropout and a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("offset", torch.ones(4))
        self.scale = 2.0

    def forward(self, x: Tensor, *, flip: bool = False) -> Tensor:
        """Apply the linear layer, scale and shift."""
        y = self.drop(self.linear(x)) * self.scale + self.offset
        return -y if flip else y

    def helper(self) -> str:
        """Another method."""
        return "helped"


@pytest.fixture
def pair() -> tuple[Any, Net]:
    """A network and its compiled module, which share one state."""
    torch.manual_seed(0)
    net = Net().eval()
    return thunder.jit(net), net


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def test_compiled_module_has_class_state_and_methods_of_the_module(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    assert isinstance(compiled, Net)
    assert type(compiled).__name__ == "Net"
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), net.parameters(), strict=True))
    assert compiled.helper() == "helped"
    assert [name for name, _ in compiled.named_modules()] == ["", "linear", "drop"]
    assert repr(compiled) == repr(net)


def test_changes_of_the_module_and_of_the_compiled_module_are_shared(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    compiled.scale = 5.0
    assert net.scale == 5.0
    assert torch.equal(compiled(X), net(X))
    with torch.no_grad():
        net.linear.weight.mul_(2)
    assert torch.equal(compiled(X), net(X))
    net.linear = nn.Linear(4, 4)
    assert torch.equal(compiled(X), net(X))
    compiled.load_state_dict({key: value + 1 for key, value in net.state_dict().items()})
    assert torch.equal(compiled(X), net(X))


def test_train_and_eval(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    compiled.train()
    assert net.drop.training
    for _ in range(2):
        torch.manual_seed(1)
        ours = compiled(X)
        torch.manual_seed(1)
        assert torch.equal(ours, net(X))
    compiled.eval()
    assert torch.equal(compiled(X), net(X))


def test_to_another_dtype_is_traced_again(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    compiled(X)
    assert compiled.to(torch.bfloat16)(X.bfloat16()).dtype is torch.bfloat16
    assert torch.equal(compiled(X.bfloat16()), net(X.bfloat16()))
    assert thunder.cache_misses(compiled) == 2


def test_arguments_shapes_and_constants_are_guarded(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    for arguments in ({}, {"flip": True}, {"flip": False}):
        assert torch.equal(compiled(X, **arguments), net(X, **arguments))
    assert torch.equal(compiled(X[:1]), net(X[:1]))
    assert thunder.cache_misses(compiled) == 4
    assert torch.equal(compiled(X), net(X))
    assert thunder.cache_hits(compiled) == 1


def test_hooks_run(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    compiled(X)
    net.linear.register_forward_hook(lambda module, args, output: output * 10)
    assert torch.equal(compiled(X), net(X))
    net.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert torch.equal(compiled(X), net(X))


def test_forward_runs_compiled_too(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    assert torch.equal(compiled.forward(X), net.forward(X))


def test_copies_are_compiled_and_have_a_separate_state(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    expected = net(X)
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        net.linear.weight.zero_()
    assert torch.equal(twin(X), expected)
    assert thunder.cache_misses(twin) == 1


def saved(module: nn.Module) -> Any:
    """The module after `torch.save` and `torch.load`."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", [lambda module: pickle.loads(pickle.dumps(module)), saved], ids=["pickle", "torch"])
def test_pickled_module_is_compiled_with_the_same_settings(pair: tuple[Any, Net], way: Any) -> None:
    _, net = pair
    compiled = thunder.jit(net, cache="same input", max_programs=3, executors=["sdpa", "torch"])
    again = way(compiled)
    settings = specializations_of(again).compiler.settings
    assert settings == specializations_of(compiled).compiler.settings
    assert isinstance(again, Net)
    assert type(again).__name__ == "Net"
    assert torch.equal(again(X), net(X))
    assert torch.equal(again.forward(X), net(X))
    assert thunder.cache_misses(again) == 1
    with torch.no_grad():
        again.linear.weight.zero_()
    assert not torch.equal(again.linear.weight, net.linear.weight)
    assert torch.equal(copy.deepcopy(again)(X), again(X))
    with pytest.raises(WrongInputs, match="same input"):
        again(torch.ones(3, 4))


def test_a_module_that_holds_itself_compiled_is_pickled(pair: tuple[Any, Net]) -> None:
    _, net = pair
    object.__setattr__(net, "fast", thunder.jit(net))
    again = pickle.loads(pickle.dumps(net))
    assert type(again) is Net
    assert again.fast.linear is again.linear
    assert again.fast.fast is again.fast
    assert torch.equal(again.fast(X), again(X))
    assert thunder.cache_misses(again.fast) == 1
    twice = pickle.loads(pickle.dumps((net.fast, net)))
    assert twice[0].linear is twice[1].linear
    assert twice[1].fast is twice[0]


def test_calling_a_pickled_module_without_its_executor_is_refused(pair: tuple[Any, Net]) -> None:
    _, net = pair
    own = thunder.OperatorExecutor("of_this_test")
    again = pickle.loads(pickle.dumps(thunder.jit(net, executors=[own, "torch"])))  # the executor is not registered
    assert torch.equal(again.linear.weight, net.linear.weight)
    with pytest.raises(UnknownName, match="of_this_test"):
        again(X)


def test_an_executor_whose_name_is_anothers_is_not_pickled(pair: tuple[Any, Net]) -> None:
    _, net = pair
    with pytest.raises(CannotReplay, match="sdpa cannot be pickled"):
        pickle.dumps(thunder.jit(net, executors=[thunder.OperatorExecutor("sdpa"), "torch"]))


def test_compiled_submodules_of_eager_and_compiled_modules(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    whole = nn.Sequential(compiled, nn.Linear(4, 2))
    eager = nn.Sequential(net, whole[1])
    assert torch.equal(whole(X), eager(X))
    assert torch.equal(thunder.jit(whole)(X), eager(X))


def test_gradients_reach_parameters_and_inputs(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    gradients = []
    for module in (compiled, net):
        x = X.clone().requires_grad_()
        module(x).sum().backward()
        gradients.append((x.grad, net.linear.weight.grad.clone()))
        net.zero_grad()
    for ours, eager in zip(*gradients, strict=True):
        assert torch.equal(ours, eager)


def test_no_grad_and_grad_have_separate_programs(pair: tuple[Any, Net]) -> None:
    compiled, _ = pair
    with torch.no_grad():
        assert not compiled(X).requires_grad
    assert compiled(X).requires_grad
    assert thunder.cache_misses(compiled) == 2


def test_autocast_outside_and_inside(pair: tuple[Any, Net]) -> None:
    compiled, net = pair

    def inside(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = net(x)
        return y @ y.T

    with torch.no_grad():
        plain = compiled(X)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(compiled(X), net(X))
        assert torch.equal(compiled(X), plain)
        program = thunder.jit(inside)
        for _ in range(2):
            assert torch.equal(program(X), inside(X))
        assert not torch.is_autocast_enabled("cpu")


def test_a_branch_on_a_value_names_the_line() -> None:
    def branches(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(DataDependent) as caught:
        thunder.jit(branches, data_dependent="error")(X)
    assert caught.value.status == 8
    assert caught.value.where is not None
    assert caught.value.where.filename == __file__
    assert caught.value.where.lineno == branches.__code__.co_firstlineno + 1
    assert "torch.where" in caught.value.fix


def test_a_branch_on_a_value_is_not_hidden_by_the_programs_own_except() -> None:
    def hides(x: Tensor) -> Tensor:
        try:
            return x if x.sum() > 0 else -x
        except Exception:
            return x * 0

    with pytest.raises(DataDependent):
        thunder.jit(hides, data_dependent="error")(X)


def test_errors_of_the_program_are_its_own() -> None:
    def fails(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        thunder.jit(fails)(X)


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(WrongInputs):
        thunder.jit(3)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match=r"no.*torhc"):
        thunder.jit(Net(), executors=["torhc"])
    with pytest.raises(BadOption):
        thunder.jit(Net(), cache="sometimes")  # type: ignore[arg-type]
    with pytest.raises(WrongInputs):
        thunder.last_traces(Net())
    with pytest.raises(WrongInputs, match="nothing has been traced"):
        thunder.last_traces(thunder.jit(Net()))


def test_no_caching_traces_at_each_call() -> None:
    compiled = thunder.jit(lambda x: x + 1, cache="no caching")
    for _ in range(3):
        compiled(X)
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (3, 0)


def test_a_lazy_module_is_compiled_from_its_second_call_on() -> None:
    def lazy() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())

    x = torch.randn(5, 3)
    module, twin = lazy(), lazy()
    compiled = thunder.jit(twin)
    for _ in range(3):
        torch.manual_seed(0)
        wanted = module(x)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x), wanted, rtol=0, atol=0)
    torch.testing.assert_close(twin.state_dict(), module.state_dict(), rtol=0, atol=0)
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 1)


def test_other_modules_of_its_class_have_programs_of_no_other(pair: tuple[Any, Net]) -> None:
    compiled, net = pair
    compiled(X)
    other = type(compiled)().eval()
    replica = compiled._replicate_for_data_parallel()
    replica.scale = 3.0
    for module, scale in ((other, other.scale), (replica, 3.0)):
        expected = module.linear(X) * scale + module.offset
        for copied in (module, copy.deepcopy(other) if module is other else copy.copy(module)):
            assert torch.equal(copied(X), expected)
            assert torch.equal(copied.forward(X, flip=True), -expected)
    assert torch.equal(pickle.loads(pickle.dumps(other))(X), other(X))
    with pytest.raises(WrongInputs, match="was not compiled"):
        thunder.cache_misses(other)
    assert thunder.cache_misses(compiled) == 1
    assert torch.equal(compiled(X), net(X))
    compiled.linear.weight.data.mul_(2)
    assert torch.equal(compiled(X), net(X))
