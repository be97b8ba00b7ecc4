"""The class of a compiled module: hooks of the user's classes, slots, replaced classes, and copies with the subject."""

from __future__ import annotations

import copy
import inspect
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, RecompileWarning, WrongInputs

X = torch.linspace(-1, 1, 8).reshape(2, 4)
COMPILERS: dict[str, Callable[[Any], Any]] = {"jit": thunder.jit, "thunderfx": thunder.thunderfx}
REGISTERED: list[str] = []


class Registered(nn.Module):
    """A base class that registers its subclasses, which need an argument."""

    tag: int

    def __init_subclass__(cls, *, tag: int, **kwargs: Any) -> None:
        REGISTERED.append(cls.__name__)
        cls.tag = tag
        super().__init_subclass__(**kwargs)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.tag


class Three(Registered, tag=3):
    """A registered class."""


class Registering(type):
    """A metaclass that registers its classes."""

    def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> None:
        super().__init__(name, bases, members)
        REGISTERED.append(name)


class OfMetaclass(nn.Module, metaclass=Registering):
    """A class whose metaclass registers it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class Freezing(type):
    """A metaclass whose classes refuse changed attributes."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise AttributeError(f"{cls.__name__} is frozen")


class Base(nn.Module):
    """A class that sees its subclasses."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        REGISTERED.append(cls.__name__)
        super().__init_subclass__(**kwargs)

    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class Frozen(Base, metaclass=Freezing):
    """A frozen class that its base class sees."""


class Abstract(nn.Module, ABC):
    """An abstract class."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the tensor times three."""


class Concrete(Abstract):
    """A class of an abstract class."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class Slotted(nn.Module):
    """A module with an attribute outside of its dict."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.scale = 3.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale

    def doubled(self) -> float:
        """Return twice the scale."""
        return self.scale * 2


class SlottedAndRegistered(Slotted, Registered, tag=3):
    """A registered class with a slot."""


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("kind", [Three, OfMetaclass, Frozen, Concrete, Slotted, SlottedAndRegistered])
def test_hooks_of_the_users_classes_see_no_other_class(kind: type[nn.Module], compiler: str) -> None:
    registered = list(REGISTERED)
    module: Any = kind()
    compiled = COMPILERS[compiler](module)
    assert torch.equal(compiled(X), X * 3)
    assert isinstance(compiled, kind)
    assert type(type(compiled)) is type(kind)
    assert registered == REGISTERED
    if kind.__init__ is nn.Module.__init__:
        for copied in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
            assert torch.equal(copied(X), X * 3)
        assert registered == REGISTERED


@pytest.mark.parametrize("compiler", COMPILERS)
def test_slots_are_shared_with_the_module(compiler: str) -> None:
    module = Slotted()
    compiled = COMPILERS[compiler](module)
    assert (compiled.scale, compiled.doubled()) == (3.0, 6.0)
    compiled.scale = 4.0
    assert module.scale == 4.0
    assert torch.equal(compiled(X), X * 4)
    module.scale = 5.0
    assert torch.equal(compiled(X), X * 5)
    del compiled.scale
    assert not hasattr(module, "scale")
    other = type(compiled)()
    other.scale = 7.0
    assert not hasattr(module, "scale")


def test_signature_of_a_compiled_module_is_the_modules() -> None:
    module = nn.Linear(4, 4)
    compiled = thunder.jit(module)
    assert inspect.signature(compiled) == inspect.signature(module)
    assert inspect.signature(compiled.forward) == inspect.signature(module.forward)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


@pytest.mark.parametrize("compiler", COMPILERS)
def test_parametrization_of_the_compiled_module_runs_in_eager(compiler: str) -> None:
    module = nn.Linear(4, 4)
    compiled: Any = COMPILERS[compiler](module)
    compiled(X)
    expected = torch.nn.functional.linear(X, module.weight * 2, module.bias).detach()
    parametrize.register_parametrization(compiled, "weight", Doubled())
    with pytest.warns(RecompileWarning, match="has another class than when it was compiled") as caught:
        for _ in range(3):
            torch.testing.assert_close(compiled(X), expected, check_stride=False)
    assert len(caught) == 1
    parametrize.remove_parametrizations(compiled, "weight")
    torch.testing.assert_close(module(X), expected, check_stride=False)
    torch.testing.assert_close(compiled(X), expected, check_stride=False)


def test_parametrization_of_a_module_that_a_recipe_compiled_is_refused() -> None:
    compiled = thunder.compile(nn.Linear(4, 4))
    compiled(X)
    parametrize.register_parametrization(compiled, "weight", Doubled())
    with pytest.raises(CannotReplay, match="the class of the compiled module was replaced"):
        compiled(X)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.filterwarnings("ignore:.*has another class than when it was compiled")
def test_deep_copy_of_a_compiled_module_keeps_its_own_parametrization(compiler: str, is_called: bool) -> None:
    compiled: Any = COMPILERS[compiler](nn.Linear(4, 4))
    compiled(X)
    parametrize.register_parametrization(compiled, "weight", Doubled())
    if is_called:
        compiled(X)
    copied = copy.deepcopy(compiled)
    assert type(copied) is type(compiled)
    assert copied.parametrizations.weight.original is not compiled.parametrizations.weight.original
    assert torch.equal(copied.weight, compiled.weight)
    assert torch.equal(copied(X), compiled(X))
    with torch.no_grad():
        copied.parametrizations.weight.original.zero_()
    assert torch.equal(copied(X), copied.bias.expand(2, 4))
    assert not torch.equal(copied(X), compiled(X))
    assert torch.equal(copy.deepcopy(copied)(X), copied(X))


def test_deep_copy_of_a_compiled_module_keeps_its_replaced_class_and_slots() -> None:
    compiled: Any = thunder.jit(Slotted())

    class Other(type(compiled)):  # type: ignore[misc]
        """A class that replaces the compiled module's class."""

    compiled.scale = 5.0
    compiled.__class__ = Other
    with pytest.warns(RecompileWarning, match="has another class than when it was compiled"):
        copied = copy.deepcopy(compiled)
    assert type(copied) is Other
    assert copied.scale == 5.0
    copied.scale = 4.0
    assert compiled.scale == 5.0
    assert torch.equal(copied(X), X * 4)


@pytest.mark.parametrize("duplicate", [copy.copy, pickle.dumps])
def test_parametrized_compiled_module_refuses_a_shallow_copy_and_a_pickle_as_eager(duplicate: Any) -> None:
    for module in (nn.Linear(4, 4), thunder.jit(nn.Linear(4, 4))):
        parametrize.register_parametrization(module, "weight", Doubled())
        with pytest.raises(RuntimeError, match="Serialization of parametrized modules is only supported"):
            duplicate(module)


def test_deep_copy_of_a_parametrized_module_that_a_recipe_compiled_is_refused() -> None:
    compiled = thunder.compile(nn.Linear(4, 4))
    parametrize.register_parametrization(compiled, "weight", Doubled())
    with pytest.raises(CannotReplay, match="the class of the compiled module was replaced"):
        copy.deepcopy(compiled)


class Scaled(nn.Module):
    """A module with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


class Holder(nn.Module):
    """A module that holds another module and the compiled module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()
        self.compiled = thunder.jit(self.inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.compiled(x)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("is_called", [False, True])
def test_copies_of_a_module_and_of_its_compiled_module_share_their_state(name: str, is_called: bool) -> None:
    holder = Holder()
    if is_called:
        holder(X)
    copied = COPIES[name](holder)
    first, second = COPIES[name]([holder.compiled, holder.inner])
    for inner, compiled in ((copied.inner, copied.compiled), (second, first)):
        inner.scale = 5.0
        inner.eval()
        assert (compiled.scale, compiled.training) == (5.0, False)
        assert torch.equal(compiled(X), inner(X))
    assert (holder.inner.scale, holder.inner.training) == (2.0, True)


class Itself(Scaled):
    """A module that holds its own compiled module outside of its submodules."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "fast", thunder.jit(self))


@pytest.mark.parametrize("name", COPIES)
def test_copy_of_a_module_that_holds_its_own_compiled_module(name: str) -> None:
    module: Any = Itself()
    copied = COPIES[name](module)
    assert torch.equal(copied.fast(X), module(X))
    copied.scale = 3.0
    assert torch.equal(copied.fast(X), copied(X))


def test_compile_refuses_a_function() -> None:
    function: Any = torch.sin
    with pytest.raises(WrongInputs, match="compile takes a module, not an object of class builtin"):
        thunder.compile(function)


def test_jit_says_where_a_class_method_is_decorated() -> None:
    decorated: Any = classmethod(lambda cls, x: x)
    with pytest.raises(WrongInputs, match="write @classmethod above @jit"):
        thunder.jit(decorated)
