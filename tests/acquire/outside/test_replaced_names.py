"""Names that are replaced or hidden between calls: in `torch.Tensor`, in classes of objects, and functions' code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import thunder_core as thunder
from tests.uncompiled import leave_inductor_out
from thunder_core.foundation.errors import NotTraceable

X = torch.tensor([[-1.0, 2.0]])


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs in eager operations."""
    leave_inductor_out(monkeypatch)


@pytest.fixture(params=["constant values", "symbolic values"])
def compiled(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that compiles a program with each kind of cache."""
    return lambda program: thunder.jit(program, cache=request.param)


READS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "relu": (lambda x: x.relu(), [lambda self: self * 10, lambda self: self * 20]),
    "__mul__": (lambda x: x * 2, [lambda self, other: self + 100]),
    "size": (lambda x: x + x.size(1), [lambda self, dimension: 7]),
    "shape": (lambda x: x + x.shape[1], [property(lambda self: (7, 8))]),
    "added": (lambda x: x.added if hasattr(x, "added") else x, [5, 6]),
    "added_method": (lambda x: (x + 1).added_method(), [lambda self: self * 5, lambda self: self * 6]),
    "computed": (lambda x: getattr(x + 1, "computed", None), [5, 6]),
    "__bool__": (lambda x: x if x.sum() else -x, [lambda self: False]),
    "__len__": (lambda x: x * len(x), [lambda self: 9]),
}


def attempt(program: Callable[..., Any], *args: Any) -> Any:
    try:
        result = program(*args)
        return result.tolist() if isinstance(result, Tensor) else result
    except AttributeError as error:
        return str(error)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("is_replaced_first", [False, True])
def test_entry_of_the_tensor_class_is_replaced(
    name: str, is_replaced_first: bool, compiled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, entries = READS[name]
    fast = compiled(program)
    if not is_replaced_first:
        assert attempt(fast, X) == attempt(program, X)
    for entry in entries:
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, name, entry, raising=False)
            results = [attempt(fast, X) for _ in range(2)]
            expected = attempt(program, X)
        assert results == [expected] * 2
    for _ in range(2):
        assert attempt(fast, X) == attempt(program, X)


def test_unrelated_name_in_the_tensor_class_needs_no_new_program(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = thunder.jit(lambda x: x * 2)
    fast(X)
    monkeypatch.setattr(Tensor, "unrelated", 5, raising=False)
    assert torch.equal(fast(X), X * 2)
    assert thunder.cache_misses(fast) == 1


class Net(nn.Module):
    """A module with a parameter, a buffer and a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("offset", torch.ones(2))
        self.inner = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.scale) + self.offset


@pytest.fixture
def net() -> Iterator[Net]:
    """Return a module; afterwards, its class has no added entries."""
    own = set(vars(Net))
    yield Net()
    for name in set(vars(Net)) - own:
        delattr(Net, name)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("scale", 3),
        ("scale", property(lambda self: 4)),
        ("offset", property(lambda self: 30)),
        ("inner", staticmethod(lambda x: x * 7)),
        ("training", property(lambda self: 1)),
    ],
)
def test_class_attribute_hides_what_a_module_has(
    name: str, entry: Any, compiled: Callable[..., Any], net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(x: Tensor) -> Tensor:
        return net(x) * net.training

    fast = compiled(program)
    assert torch.equal(fast(X), program(X))
    with monkeypatch.context() as patch:
        patch.setattr(Net, name, entry, raising=False)
        for _ in range(2):
            assert torch.equal(fast(X), program(X))
    assert torch.equal(fast(X), program(X))
    assert thunder.cache_misses(fast) == 2


def test_class_attribute_of_a_base_in_pytorch_hides_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(2, 2)
    fast = thunder.jit(net)
    assert torch.equal(fast(X), net(X))
    monkeypatch.setattr(nn.Module, "bias", property(lambda self: None), raising=False)
    assert torch.equal(fast(X), net(X))


def test_descriptor_that_gets_a_setter_overrides_a_stored_attribute(compiled: Callable[..., Any]) -> None:
    class Descriptor:
        def __get__(self, owner: Any, kind: Any) -> int:
            return 2

    class Owner:
        size = Descriptor()

    owner = Owner()
    vars(owner)["size"] = 100
    fast = compiled(lambda x: x * owner.size)
    assert torch.equal(fast(X), X * 100)
    Descriptor.__set__ = lambda self, owner, value: None  # type: ignore[attr-defined]
    assert torch.equal(fast(X), X * 2)


def test_property_hides_an_attribute_of_an_object_that_the_program_makes(compiled: Callable[..., Any]) -> None:
    class Made:
        def __init__(self, size: int) -> None:
            self.size = size

    fast = compiled(lambda x: x * Made(3).size)
    assert torch.equal(fast(X), X * 3)
    Made.size = property(lambda self: 7, lambda self, value: None)  # type: ignore[assignment]
    assert torch.equal(fast(X), X * 7)


def test_code_of_a_function_is_exchanged(compiled: Callable[..., Any]) -> None:
    def inner(x: Tensor) -> Tensor:
        return x * 2

    def program(x: Tensor) -> Tensor:
        return inner(x) + 1

    fast = compiled(program)
    assert torch.equal(fast(X), X * 2 + 1)
    inner.__code__ = (lambda x: x * 3).__code__
    assert torch.equal(fast(X), X * 3 + 1)
    program.__code__ = (lambda x: x * 5).__code__ if not program.__code__.co_freevars else program.__code__
    inner.__code__ = (lambda x: x * 4).__code__
    for _ in range(2):
        assert torch.equal(fast(X), X * 4 + 1)


def test_dir_lists_names_that_were_added(compiled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, module = torch.ones(2), nn.Linear(2, 2)

    def program(x: Tensor) -> tuple[Any, ...]:
        added = [[name for name in dir(owner) if name.startswith("added")] for owner in (x, tensor, module)]
        return (*added, list(vars(tensor)))

    fast, x = compiled(program), torch.ones(2)
    assert fast(x) == program(x)
    for owner, name in ((tensor, "added"), (module, "added"), (x, "added")):
        setattr(owner, name, 1)
        assert fast(x) == program(x)
    module.added_parameter = nn.Parameter(torch.ones(2))
    assert fast(x) == program(x)
    monkeypatch.setattr(Tensor, "added_to_class", 1, raising=False)
    assert fast(x) == program(x)
    del tensor.added  # type: ignore[attr-defined]
    assert fast(x) == program(x)


def test_tensor_stores_a_name_that_its_class_has(compiled: Callable[..., Any]) -> None:
    class Scaled(Tensor):
        factor = 2

        def scaled(self) -> Tensor:
            return self * self.factor

    tensor = X.as_subclass(Scaled)
    fast = compiled(lambda tensor: tensor.scaled())
    for factor in (2, 5):
        Scaled.factor = factor
        assert fast(tensor).tolist() == (X * factor).tolist()
    tensor.factor = 9
    assert fast(tensor).tolist() == (X * 9).tolist()


def logging_class(base: type, log: list[str]) -> Any:
    """Return a subclass of a tensor class whose instances log the functions that are called with them."""

    class Logging(base):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            log.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    return Logging


def test_guards_do_not_call_the_torch_function_of_an_argument(compiled: Callable[..., Any]) -> None:
    log: list[str] = []
    x = X.as_subclass(logging_class(Tensor, log))
    fast = compiled(lambda x: (x * 2).sum())
    for length in (1, 1, 2, 3):
        argument = torch.cat([x] * length)
        log.clear()
        fast(argument)
        assert log == ["mul", "sum"]


def test_guards_do_not_call_the_torch_function_of_a_parameter(compiled: Callable[..., Any]) -> None:
    log: list[str] = []
    net = nn.Linear(2, 2)
    net.weight = logging_class(nn.Parameter, log)(net.weight.detach())
    fast = compiled(net)
    for _ in range(3):
        log.clear()
        fast(X)
        assert log == ["linear"]


class Counting(TorchFunctionMode):
    """A mode that counts the functions that are called."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_call_within_a_function_mode_is_refused() -> None:
    fast = thunder.jit(lambda x: x * 2)
    for _ in range(2):
        with Counting() as mode, pytest.raises(NotTraceable, match="the TorchFunctionMode Counting"):
            fast(X)
        assert mode.count == 0
        assert torch.equal(fast(X), X * 2)
    with torch.device("cpu"):
        fast(X)
    with Counting(), pytest.raises(NotTraceable, match="the TorchFunctionMode Counting"):
        fast(X)
