"""Writes through methods that a class overrides: each write is replayed once, at the level at which it was made."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import heapq
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent

GLOBAL: Any = 1
THIS = sys.modules[__name__]


class Plain:
    """An object with many attributes."""

    count = 0

    def __init__(self) -> None:
        self.a, self.b = 1, 2
        self.items = [3, 5, 9]
        self.table = {"a": 1, "b": 2}


class Doubling:
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * 2)


class DoublingByObject:
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value * 2)


class DoublingInDict:
    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value * 2


class DoublingInVars:
    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value * 2


class Updating:
    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.update({name: value * 2})


class DoublingSlot:
    __slots__ = ("value",)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * 2)


class Counting:
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "writes", self.__dict__.get("writes", 0) + 1)
        object.__setattr__(self, name, value)


class Following:
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "value":
            self.follower = value + 1
        object.__setattr__(self, name, value)


class WithProperty:
    @property
    def value(self) -> Any:
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value * 2
        self.sets = getattr(self, "sets", 0) + 1


class Descriptor:
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else owner.inner

    def __set__(self, owner: Any, value: Any) -> None:
        owner.inner = value * 2


class WithDescriptor:
    value = Descriptor()


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any = None


class Renaming:
    def __init__(self) -> None:
        self._a = 1

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, f"_{name}")


class Meta(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value * 2)


class List(list[Any]):
    def __setattr__(self, name: str, value: Any) -> None:
        list.__setattr__(self, name, value * 2)

    def append(self, value: Any) -> None:
        super().append(value * 2)

    def extend(self, values: Any) -> None:
        for value in values:
            self.append(value)

    def insert(self, index: Any, value: Any) -> None:
        list.insert(self, index, value * 2)

    def __setitem__(self, index: Any, value: Any) -> None:
        list.__setitem__(self, index, value * 2)

    def __iadd__(self, values: Any) -> Any:
        self.extend(values)
        return self


class Dict(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value * 2)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(f"_{key}")

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def pop(self, key: str, *default: Any) -> Any:
        return super().pop(f"_{key}", *default)


class Ordered(collections.OrderedDict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value * 2)


class Default(collections.defaultdict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value * 2)


class Set(set[int]):
    def add(self, value: int) -> None:
        super().add(value * 2)


class Deque(collections.deque[Any]):
    def append(self, value: Any) -> None:
        super().append(value * 2)


class User(collections.UserDict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value * 2)


class DoublingModule(nn.Module):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * 2 if isinstance(value, int) else value)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = 3
        self.norm = nn.Linear(1, 1) if False else None
        return x * self.calls


class ModuleWithTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2), persistent=False)
        self.first, self.second = nn.Identity(), nn.Tanh()
        self._old = 1

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "mean" and "mean" in self._buffers:
            self._buffers["mean"] = value * 2
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__("_old" if name == "old" else name)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first
        del self.first, self.old
        self.first = first
        self.mean = x + 1
        self._buffers["other"] = self.mean * 2
        return x + self.other + self.mean


def set_value(box: Any, x: Tensor) -> Any:
    box.value = x + 1
    return box.value


def set_value_unread(box: Any, x: Tensor) -> Any:
    box.value = x + 1
    box.value = x + 2
    return x


def set_frozen(box: Any, x: Tensor) -> Any:
    object.__setattr__(box, "value", x * 3)
    return x


def delete_renamed(box: Any, x: Tensor) -> Any:
    del box.a
    return x


def change_list(box: Any, x: Tensor) -> Any:
    box.append(x)
    box.extend([x, 2])
    box.insert(1, x + 1)
    box[0] = x
    box += [x]
    box.tag = x
    return x


def change_dict(box: Any, x: Tensor) -> Any:
    box["k"] = x
    box.update(m=x, n=2)
    box.pop("p")
    del box["q"]
    box.setdefault("z", x)
    return x


def set_item(box: Any, x: Tensor) -> Any:
    box["k"] = x
    return x


def call_forward(box: Any, x: Tensor) -> Any:
    return box(x)


def set_class_attribute(box: Any, x: Tensor) -> Any:
    box.level = 5
    return x * box.level


def count_in_class(box: Any, x: Tensor) -> Any:
    type(box).count += 1
    counted = x * box.count
    type(box).count -= 1
    return counted


def namespace_and_attributes(box: Any, x: Tensor) -> Any:
    vars(box)["k"] = x
    box.j = box.k * 2
    box.__dict__.update(z=x)
    box.m = x
    vars(box)["m"] = x
    del box.m
    return box.k + vars(box)["j"] + len(vars(box))


def odd_names(box: Any, x: Tensor) -> Any:
    setattr(box, "a b", x)
    setattr(box, "class", x)
    delattr(box, "a")
    return x


def order_of_names(box: Any, x: Tensor) -> Any:
    del box.a
    box.a = x
    del box.table["a"]
    box.table["a"] = x
    return x


def arguments_that_change(box: Any, x: Tensor) -> Any:
    taken = [x]
    box.items.extend(taken)
    taken.append(x)
    box.items += taken
    taken.clear()
    box.items.extend(x * number for number in range(2))
    box.table.update(zip("xy", [x, 2], strict=True))
    return x


def unbound_methods(box: Any, x: Tensor) -> Any:
    list.append(box.items, x)
    dict.update(box.table, z=x)
    dict.__setitem__(box.table, "w", 1)
    box.items.__setitem__(0, x)
    return x


def c_functions(box: Any, x: Tensor) -> Any:
    heapq.heappush(box.items, 1)
    least = heapq.heappop(box.items)
    bisect.insort(box.items, 4)
    return x * least


def class_and_dictionary(box: Any, x: Tensor) -> Any:
    box.__class__ = WithProperty
    box.__dict__ = {"q": x}
    return x


def count_elements(box: Any, x: Tensor) -> Any:
    box.update("aab")
    box.subtract(b=5)
    return x * box["a"]


def globals_and_module(box: Any, x: Tensor) -> Any:
    THIS.GLOBAL = x * 2  # type: ignore[attr-defined]
    first = x + GLOBAL
    globals()["GLOBAL"] = x * 3
    return first + THIS.GLOBAL  # type: ignore[attr-defined]


VALUED = (
    Doubling, DoublingByObject, DoublingInDict, DoublingInVars, Updating, DoublingSlot, Counting, Following,
    WithProperty, WithDescriptor,
)  # fmt: skip
Case = tuple[Callable[[], Any], Callable[[Any, Tensor], Any]]
CASES: dict[str, Case] = {
    **{f"{kind.__name__} read": (kind, set_value) for kind in VALUED},
    **{f"{kind.__name__} unread": (kind, set_value_unread) for kind in VALUED},
    "frozen": (Frozen, set_frozen),
    "renaming": (Renaming, delete_renamed),
    "list": (lambda: List([1, 2]), change_list),
    "dict": (lambda: Dict(_p=1, _q=2), change_dict),
    "ordered": (lambda: Ordered(a=1), set_item),
    "default": (lambda: Default(list), set_item),
    "deque": (lambda: Deque([1]), lambda box, x: box.append(x)),
    "set": (lambda: Set([1]), lambda box, x: box.add(4)),
    "user": (lambda: User(a=1), set_item),
    "counter": (lambda: collections.Counter("zz"), count_elements),
    "module": (DoublingModule, call_forward),
    "tables": (ModuleWithTables, call_forward),
    "metaclass": (lambda: Meta("Made", (), {}), set_class_attribute),
    **{
        program.__name__: (Plain, program)
        for program in (
            count_in_class, namespace_and_attributes, odd_names, order_of_names, arguments_that_change,
            unbound_methods, c_functions, class_and_dictionary, globals_and_module,
        )
    },
}  # fmt: skip


def state(value: Any) -> Any:
    """Return everything that an object holds, in order."""
    if isinstance(value, Tensor):
        assert type(value) is Tensor, "a trace's tensor has leaked"
        return value.tolist()
    if isinstance(value, dict):
        return [(key, state(item)) for key, item in value.items()], state(getattr(value, "__dict__", None))
    if isinstance(value, list | tuple | set | collections.deque):
        return [state(item) for item in value], state(getattr(value, "__dict__", None))
    if isinstance(value, nn.Module):
        return state({**vars(value), "keys": list(value.state_dict())})
    if isinstance(value, type):
        return value.__name__, getattr(value, "level", None)
    if hasattr(value, "__slots__"):
        return state([getattr(value, name) for name in value.__slots__])
    return (type(value), state(vars(value))) if hasattr(value, "__dict__") else value


@pytest.mark.parametrize("name", CASES)
def test_writes_are_replayed_at_their_level(name: str) -> None:
    make, program = CASES[name]
    compiled = thunder.jit(program)
    x = torch.ones(2)
    for factor in (1, 2):
        outcomes = []
        for run in (program, compiled):
            globals()["GLOBAL"] = 1
            box = make()
            outcomes.append((state(run(box, x * factor)), state(box), state(GLOBAL)))
        assert outcomes[0] == outcomes[1]
    if name != "metaclass":  # the class is new at each call
        assert thunder.cache_misses(compiled) == 1


def test_a_refused_program_leaves_the_order_of_a_module_unchanged() -> None:
    class Refused(ModuleWithTables):
        def forward(self, x: Tensor) -> Tensor:
            del self.first, self.mean
            self.last = 3
            return x if x.sum() > 0 else -x

    module, eager = Refused(), Refused()
    with pytest.raises(DataDependent):
        thunder.jit(module, data_dependent="error")(torch.ones(2))
    assert list(vars(module)) == list(vars(eager))
    assert list(module._modules) == ["first", "second"]
    assert module._non_persistent_buffers_set == {"mean"}
    assert list(module.state_dict()) == list(eager.state_dict())


class OwnCall(nn.Module):
    """A module that replaces the method that calls hooks and `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return super()._call_impl(*args, **kwargs) + self.calls

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.mark.parametrize("inside", [False, True], ids=["outermost", "submodule"])
@pytest.mark.parametrize("hooks", [False, True])
def test_own_method_that_calls_forward_is_called(inside: bool, hooks: bool) -> None:
    ours, eagers = OwnCall(), OwnCall()
    for module in (ours, eagers) if hooks else ():
        module.register_forward_hook(lambda module, args, result: result * 3)
    programs = [nn.Sequential(module) if inside else (lambda x, module=module: module(x)) for module in (ours, eagers)]
    compiled = thunder.jit(programs[0])
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), programs[1](torch.ones(2)))
        assert ours.calls == eagers.calls
