"""Weak references, proxies, mappings and sets are read, guarded and written to as in CPython."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, RecompileWarning

X = torch.ones(2)
Scene = tuple[Callable[[Tensor, Any], Any], Callable[[Any], Any]]


class Level:
    """An object that programs reach through weak references."""

    def __init__(self, height: float = 2.0) -> None:
        self.height = height

    @property
    def above(self) -> Level:
        """Return a new level at each read."""
        return Level(self.height + 1)

    def doubled(self) -> float:
        return 2 * self.height

    def __len__(self) -> int:
        return int(self.height)

    def __getitem__(self, index: int) -> float:
        return self.height + index

    def __call__(self) -> float:
        return self.height

    def __add__(self, other: float) -> float:
        return self.height + other

    def __contains__(self, other: float) -> bool:
        return other == self.height

    def __iter__(self) -> Any:
        return iter([self.height, 1.0])

    def __float__(self) -> float:
        return self.height


class World:
    """Two objects that stay alive, and weak references to them."""

    def __init__(self) -> None:
        self.one, self.other = Level(2.0), Level(3.0)
        self.by_key: Any = weakref.WeakKeyDictionary({self.one: 2.0})
        self.by_name: Any = weakref.WeakValueDictionary(one=self.one)
        self.members: Any = weakref.WeakSet([self.one])
        self.proxy: Any = weakref.proxy(self.one)
        self.method = weakref.WeakMethod(self.one.doubled)


def raise_one(world: World) -> None:
    world.one.height = 7.0


def add_other(world: World) -> None:
    world.by_key[world.other] = 5.0
    world.by_name["other"] = world.other
    world.members.add(world.other)


def drop_one(world: World) -> None:
    world.one = world.other


def caught(proxy: Any) -> float:
    try:
        return float(proxy.height)
    except ReferenceError:
        return -1.0


READS: dict[str, Scene] = {
    "an item by an object": (lambda x, w: x * w.by_key[w.one], lambda w: w.by_key.update({w.one: 3.0})),
    "an item that comes": (lambda x, w: x * w.by_key.get(w.other, 9.0), add_other),
    "a key that comes": (lambda x, w: x if w.other in w.by_key else -x, add_other),
    "a key that goes": (lambda x, w: x * len(w.by_key), drop_one),
    "a number of keys": (lambda x, w: x * len(w.by_key), add_other),
    "keys and items": (lambda x, w: x * sum(k.height * v for k, v in w.by_key.items()), raise_one),
    "keys": (lambda x, w: x * sum(k.height for k in w.by_key), add_other),
    "a value": (lambda x, w: x * w.by_name["one"].height, raise_one),
    "another value": (lambda x, w: x * w.by_name["one"].height, lambda w: w.by_name.update(one=w.other)),
    "a value that goes": (lambda x, w: x if "one" in w.by_name else -x, drop_one),
    "values": (lambda x, w: x * sum(v.height for v in w.by_name.values()), add_other),
    "a value of several": (lambda x, w: x * list(w.by_name.items())[0][1].height, raise_one),  # noqa: RUF015
    "a member": (lambda x, w: x if w.other in w.members else -x, add_other),
    "members": (lambda x, w: x * sum(m.height for m in w.members), raise_one),
    "a number of members": (lambda x, w: x * len(w.members), add_other),
    "a method": (lambda x, w: x * w.method()(), raise_one),
    "an attribute of a proxy": (lambda x, w: x * w.proxy.height, raise_one),
    "a fresh value of a proxy": (lambda x, w: x * w.proxy.above.height, raise_one),
    "a method of a proxy": (lambda x, w: x * w.proxy.doubled(), raise_one),
    "an item of a proxy": (lambda x, w: x * w.proxy[1], raise_one),
    "the length of a proxy": (lambda x, w: x * len(w.proxy), raise_one),
    "a proxy as an operand": (lambda x, w: x * (w.proxy + 1), raise_one),
    "a proxy that is called": (lambda x, w: x * w.proxy(), raise_one),
    "a proxy that holds": (lambda x, w: x if 2.0 in w.proxy else -x, raise_one),
    "a proxy that is gone through": (lambda x, w: x * sum(v for v in w.proxy), raise_one),
    "a proxy as a list": (lambda x, w: x * list(w.proxy)[0], raise_one),  # noqa: RUF015
    "a proxy as a number": (lambda x, w: x * float(w.proxy), raise_one),
    "a proxy of nothing": (lambda x, w: x * caught(w.proxy), drop_one),
    "a proxy that the program makes": (lambda x, w: x * weakref.proxy(w.one).above.height, raise_one),
}


@pytest.mark.parametrize("name", READS)
def test_changed_object_of_a_weak_reference_is_noticed(name: str) -> None:
    program, change = READS[name]
    world = World()
    compiled = thunder.jit(lambda x: program(x, world))
    before = program(X, world)
    for _ in range(2):
        assert torch.equal(compiled(X), before)
    assert thunder.cache_misses(compiled) == 1
    change(world)
    assert not torch.equal(program(X, world), before)
    assert torch.equal(compiled(X), program(X, world))


def test_argument_can_be_a_weak_key() -> None:
    world = World()
    compiled = thunder.jit(lambda x, world, level: x * world.by_key[level])
    add_other(world)
    for level, value in ((world.one, 2.0), (world.other, 5.0), (world.one, 2.0)):
        assert torch.equal(compiled(X, world, level), X * value)
    world.by_key[world.other] = 8.0
    assert torch.equal(compiled(X, world, world.other), X * 8)


def counted(x: Tensor, world: World, level: Level) -> Tensor:
    if level not in world.by_key:
        world.by_key[level] = torch.zeros(2)
    world.by_key[level] = world.by_key[level] + x
    return world.by_key[level] * 1


def kept_by_name(x: Tensor, world: World, level: Level) -> Tensor:
    world.by_name["kept"] = level
    return x * 2


def kept_as_member(x: Tensor, world: World, level: Level) -> Tensor:
    world.members.discard(world.one)
    world.members.add(level)
    return x * 2


def taken_out(x: Tensor, world: World, level: Level) -> Tensor:
    world.by_key.setdefault(level, x * 3)
    world.by_key.pop(world.one, None)
    world.by_name.pop("one", None)
    return x * 2


def set_by_proxy(x: Tensor, world: World, level: Level) -> Tensor:
    world.proxy.height = level.height
    del world.proxy.height
    world.proxy.height = x * 4
    return x * 2


def seen(world: World) -> list[Any]:
    """Return the contents of a world, with its objects by number."""
    names = {id(world.one): "one", id(world.other): "other"}
    by_key = {names.get(id(key), "?"): value for key, value in world.by_key.items()}
    by_name = {key: names.get(id(value), "?") for key, value in world.by_name.items()}
    members = sorted(names.get(id(member), "?") for member in world.members)
    return [repr(part) for part in (by_key, by_name, members, vars(world.one))]


@pytest.mark.parametrize("program", [counted, kept_by_name, kept_as_member, taken_out, set_by_proxy])
def test_writes_are_replayed(program: Callable[..., Tensor]) -> None:
    ours, theirs = World(), World()
    compiled = thunder.jit(program)
    for step in range(6):
        levels = [(world.one, world.other)[step % 2] for world in (ours, theirs)]
        assert torch.equal(compiled(X * step, ours, levels[0]), program(X * step, theirs, levels[1]))
        assert seen(ours) == seen(theirs)
    assert thunder.cache_misses(compiled) <= 4


@pytest.mark.parametrize("program", [kept_by_name, kept_as_member, counted])
def test_object_that_is_only_held_weakly_is_freed(program: Callable[..., Tensor]) -> None:
    compiled, world = thunder.jit(program), World()
    for _ in range(2):
        level = Level(5.0)
        compiled(X, world, level)
        lengths = [len(world.by_key), len(world.by_name), len(world.members)]
        del level
        assert [len(world.by_key), len(world.by_name), len(world.members)] != lengths


def test_new_tensor_is_held_weakly() -> None:
    names: Any = weakref.WeakValueDictionary()

    def program(x: Tensor) -> Tensor:
        names["last"] = result = x + 1
        return result

    compiled = thunder.jit(program)
    for step in range(3):
        result = compiled(X * step)
        assert names["last"] is result
        del result
        assert not names


def test_weak_mappings_that_the_program_makes_are_new_at_each_call() -> None:
    def program(x: Tensor, level: Level) -> Any:
        by_key = weakref.WeakKeyDictionary({level: x + 1})
        return by_key, weakref.WeakValueDictionary(a=level), weakref.ref(level, lambda _: by_key.clear())

    compiled, level = thunder.jit(program), Level()
    first, second = compiled(X, level), compiled(X * 2, level)
    assert torch.equal(first[0][level], X + 1) and torch.equal(second[0][level], X * 2 + 1)
    assert first[1]["a"] is level and second[2]() is level
    del level
    assert not first[0] and not first[1] and second[2]() is None


def test_eager_makes_calls_that_create_finalizers() -> None:
    level = Level()

    def program(x: Tensor) -> Tensor:
        weakref.finalize(level, print)
        return x

    with pytest.raises(CannotReplay, match=r"weakref\.finalize"):
        thunder.jit(program, data_dependent="error")(X)
    assert not weakref.getweakrefcount(level)
    compiled = thunder.jit(program)
    with pytest.warns(RecompileWarning, match=r"weakref\.finalize"):
        compiled(X)
    compiled(X)
    assert weakref.getweakrefcount(level) == 2


def test_eager_makes_calls_that_create_objects_with_del() -> None:
    ended: list[int] = []

    class Ending:
        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None:
            ended.append(self.number)

    def program(x: Tensor) -> tuple[Tensor, int]:
        ending = Ending(len(x))
        x = x * ending.number
        del ending
        return x, len(ended)

    compiled = thunder.jit(program)
    with pytest.warns(
        RecompileWarning, match="creates an object of class Ending, whose `__del__` runs when the object dies"
    ):
        counts = [compiled(torch.ones(size))[1] for size in (2, 3, 2)]
    assert (counts, ended) == ([1, 2, 3], [2, 3, 2])


class Listed:
    """An object that lists itself weakly, and is often gone at the end of the program that makes it."""

    members: ClassVar[Any] = weakref.WeakSet()
    by_name: ClassVar[Any] = weakref.WeakValueDictionary()
    by_key: ClassVar[Any] = weakref.WeakKeyDictionary()

    def __init__(self, name: str) -> None:
        Listed.members.add(self)
        Listed.by_name[name] = self
        Listed.by_key[self] = name


def listed() -> list[Any]:
    return [len(Listed.members), sorted(Listed.by_name), sorted(Listed.by_key.values())]


def counts_the_living(x: Tensor) -> Any:
    first = Listed("first")
    count = len(Listed.members)
    del first
    return x * count, listed()


def keeps_the_last(x: Tensor) -> Any:
    return [Listed(name) for name in ("one", "two", "one")][-1], x + len(Listed.by_key)


def removes_it_itself(x: Tensor) -> Any:
    first = Listed("first")
    Listed.members.remove(first)
    del Listed.by_key[first]
    return x * len(Listed.by_name)


def replaces_a_living_value(x: Tensor) -> Any:
    Listed("living")
    return x + len(Listed.by_name)


@pytest.mark.parametrize("program", [counts_the_living, keeps_the_last, removes_it_itself, replaces_a_living_value])
def test_objects_that_die_in_the_program_leave_weak_containers(program: Callable[[Tensor], Any]) -> None:
    compiled, outcomes = thunder.jit(program), []
    for run in (compiled, program):
        living, found = Listed("living"), []
        for _ in range(3):
            result = run(X)
            found.append([item.tolist() if isinstance(item, Tensor) else type(item).__name__ for item in result])
            found.append(listed())
            del result
            found.append(listed())
        outcomes.append(found)
        del living
        assert listed() == [0, [], []]
    assert outcomes[0] == outcomes[1]


class Equal(Level):
    """An object that equals each object of its height."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and self.height == other.height

    def __hash__(self) -> int:
        return hash(self.height)


def discards_an_equal_member(x: Tensor, world: World) -> None:
    world.members.discard(Equal(2.0))


def removes_the_first_of_equal_members(x: Tensor, world: World) -> Any:
    world.members.discard(world.one)
    first, second = Equal(7.0), Equal(7.0)
    world.members.add(first)
    world.members.add(second)
    return second


def sets_an_equal_key(x: Tensor, world: World) -> None:
    world.by_key[Equal(2.0)] = 5.0


def pops_an_equal_key(x: Tensor, world: World) -> None:
    world.by_key.pop(Equal(2.0), None)


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize(
    "program",
    [discards_an_equal_member, removes_the_first_of_equal_members, sets_an_equal_key, pops_an_equal_key],
)
def test_dead_object_that_equals_another_object_changes_its_entry(program: Callable[..., Any]) -> None:
    worlds = World(), World()
    for world in worlds:
        world.one = Equal(2.0)
        world.by_key[world.one], world.members = 1.0, weakref.WeakSet([world.one])
    compiled = thunder.jit(lambda x, world: (x + 1, program(x, world)))
    for _ in range(3):
        results = compiled(X, worlds[0]), (X + 1, program(X, worlds[1]))
        assert seen(worlds[0])[:3] == seen(worlds[1])[:3]
        del results


def appends(x: Tensor, calls: list[Any]) -> Tensor:
    level = Level()
    reference = weakref.ref(level, lambda _: calls.append(x.shape))
    del level
    return x + (reference() is None)


def drops_the_reference(x: Tensor, calls: list[Any]) -> Any:
    level = Level()
    return x * weakref.ref(level, calls.append)().height  # type: ignore[union-attr]


def appends_for_a_proxy(x: Tensor, calls: list[Any]) -> Any:
    level = Level()
    proxy = weakref.proxy(level, lambda _: calls.append(1))
    return x * proxy.height


class Reference(weakref.ref[Any]):
    """A reference of the user's class."""


def appends_for_a_subclass(x: Tensor, calls: list[Any]) -> Any:
    level = Level()
    reference = Reference(level, lambda _: calls.append(1))
    del level
    return x + (reference() is None)


class OwnReference(weakref.ref[Any]):
    """A reference that is made in Python."""

    def __new__(cls, value: Any, calls: list[Any]) -> Any:
        return super().__new__(cls, value, lambda _: calls.append(1))

    def __init__(self, value: Any, calls: list[Any]) -> None:
        super().__init__(value, None)


def appends_for_an_own_class(x: Tensor, calls: list[Any]) -> Any:
    level = Level()
    reference = OwnReference(level, calls)
    del level
    return x + (reference() is None)


def appends_for_a_method(x: Tensor, calls: list[Any]) -> Any:
    level = Level()
    reference = weakref.WeakMethod(level.doubled, lambda _: calls.append(1))
    del level
    return x + (reference() is None)


@pytest.mark.parametrize(
    "program",
    [
        *(appends, appends_for_a_proxy, appends_for_a_subclass, appends_for_an_own_class, appends_for_a_method),
    ],
)
def test_callback_of_an_object_that_dies_is_called_at_each_call(program: Callable[..., Tensor]) -> None:
    fast = thunder.jit(program, executors=("torch",))
    calls: list[Any] = []
    for count in (1, 2, 3):
        if count == 1:
            with pytest.warns(RecompileWarning, match="an object dies in the program"):
                result = fast(X, calls)
        else:
            result = fast(X, calls)
        assert len(calls) == count
        assert torch.equal(result, program(X, []))
    with pytest.raises(CannotReplay, match="an object dies in the program"):
        thunder.jit(program, data_dependent="error")(X, [])


def test_callback_of_an_object_that_outlives_its_reference_is_not_called() -> None:
    fast = thunder.jit(drops_the_reference, executors=("torch",))
    calls: list[Any] = []
    for run in (drops_the_reference, fast, fast):
        run(X, calls)
    assert len(calls) == 0
    assert thunder.cache_misses(fast) == 1


def asks_after_its_death(x: Tensor) -> tuple[Tensor, bool, bool]:
    doubled = x * 2
    reference = weakref.ref(doubled)
    is_alive = reference() is not None
    result = doubled + 1
    del doubled
    return result, is_alive, reference() is None


def asks_for_a_saved_tensor(x: Tensor) -> tuple[Tensor, bool]:
    doubled = x.detach().requires_grad_() * 2
    reference = weakref.ref(doubled)
    squared = doubled * doubled
    del doubled
    return squared.detach(), reference() is None


def calls_back(x: Tensor) -> tuple[Tensor, int]:
    calls: list[int] = []
    doubled = x * 2
    reference = weakref.ref(doubled, lambda _: calls.append(1))
    doubled = reference() + 1  # type: ignore[operator]
    return doubled, len(calls)


def counts_weak_values(x: Tensor) -> tuple[Tensor, int]:
    by_name = weakref.WeakValueDictionary({"doubled": x * 2})
    return x + 1, sum(value is not None for value in by_name.values())


def asks_by_a_proxy(x: Tensor) -> tuple[Tensor, Any]:
    doubled = x * 2
    proxy: Any = weakref.proxy(doubled)
    del doubled
    try:
        return x + proxy.sum(), 1
    except ReferenceError:
        return x - 1, 2


@pytest.mark.parametrize(
    "program", [asks_after_its_death, asks_for_a_saved_tensor, calls_back, counts_weak_values, asks_by_a_proxy]
)
def test_weak_reference_to_a_computed_tensor_dies_as_in_eager(program: Callable[[Tensor], tuple[Any, ...]]) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    expected = program(X)
    with pytest.warns(RecompileWarning, match=r"a (weak reference to|`weakref.proxy` of) a computed tensor"):
        results = [compiled(X), compiled(X)]
    for result in results:
        assert torch.equal(result[0], expected[0])
        assert result[1:] == expected[1:]
    with pytest.raises(CannotReplay, match=r"a (weak reference to|`weakref.proxy` of) a computed tensor"):
        thunder.jit(program, data_dependent="error")(X)


class Holder:
    """An object with a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def holds_it_in_a_variable(x: Tensor) -> Any:
    doubled = x * 2
    return weakref.ref(doubled)()


def holds_it_in_an_object(x: Tensor) -> Any:
    holders = [Holder(x * 2)]
    reference = weakref.ref(holders[0].tensor)
    return reference() + 1  # type: ignore[operator]


def holds_it_in_a_closure(x: Tensor) -> Any:
    doubled = x * 2

    def added() -> Tensor:
        return doubled + 1

    del x
    return added() + weakref.ref(doubled)()  # type: ignore[operator]


@pytest.mark.parametrize("program", [holds_it_in_a_variable, holds_it_in_an_object, holds_it_in_a_closure])
def test_weak_reference_to_a_computed_tensor_that_a_variable_holds_is_traced(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    for _ in range(2):
        assert torch.equal(compiled(X), program(X))
    assert thunder.cache_misses(compiled) == 1
