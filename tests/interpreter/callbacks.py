"""Programs whose Python code is called by C, each in another way; the called code reads the global PROBE."""

# The programs call C in unusual ways on purpose.
# ruff: noqa: B008, B905, C416
# ruff: noqa: RUF005, UP031

import bisect
import collections
import contextlib
import copy
import functools
import heapq
import io
import itertools
import json
import operator
import re
import sys
import types

PROBE = 2


class Value:
    """A number with every special method that C may call."""

    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return hash(self.n * PROBE)

    def __eq__(self, other):
        return isinstance(other, Value) and self.n * PROBE == other.n * PROBE

    def __lt__(self, other):
        return self.n * PROBE < other.n * PROBE

    def __gt__(self, other):
        return self.n * PROBE > other.n * PROBE

    def __radd__(self, other):
        return other + self.n * PROBE

    def __rmul__(self, other):
        return self.n * PROBE * (other if isinstance(other, int) else 1)

    def __index__(self):
        return self.n * PROBE

    def __int__(self):
        return self.n * PROBE

    def __float__(self):
        return self.n * PROBE * 1.0

    def __bool__(self):
        return self.n * PROBE > 2

    def __round__(self, digits=None):
        return self.n * PROBE

    def __abs__(self):
        return self.n * PROBE

    def __divmod__(self, other):
        return self.n, PROBE

    def __str__(self):
        return f"s{self.n * PROBE}"

    def __repr__(self):
        return f"r{self.n * PROBE}"

    def __format__(self, specification):
        return f"f{self.n * PROBE}{specification}"

    def __call__(self, n):
        return n * PROBE

    @property
    def doubled(self):
        return self.n * PROBE

    def times(self, n):
        return self.n * n * PROBE


class Items:
    """An iterable whose iterator is Python's."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return Steps(self.count)

    def __len__(self):
        return self.count * PROBE


class Steps:
    """An iterator in Python."""

    def __init__(self, count):
        self.left = count

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration(PROBE)
        self.left -= 1
        return self.left * PROBE


class Indexed:
    """A sequence with only `__getitem__`."""

    def __getitem__(self, index):
        if index > PROBE:
            raise IndexError(index)
        return index * PROBE

    def __len__(self):
        return PROBE + 1


class Unsized:
    """A sequence with only `__getitem__`, whose length is unknown."""

    def __getitem__(self, index):
        if index > PROBE:
            raise IndexError(index)
        return index * PROBE


class Hinted(Items):
    """An iterable that guesses its length."""

    def __iter__(self):
        return iter(Indexed())

    def __len__(self):
        seen.append(PROBE)
        return PROBE


class Named:
    """A mapping with only `keys` and `__getitem__`, whose keys are a sequence with only `__getitem__`."""

    def keys(self):
        return Letters()

    def __getitem__(self, key):
        return key * PROBE


class Letters:
    """The first letters."""

    def __getitem__(self, index):
        if index >= PROBE:
            raise IndexError(index)
        return "abcdef"[index]


class Renamed(dict):
    """A dictionary whose `keys` returns other keys."""

    def __iter__(self):
        return iter("ab"[: PROBE - 1])

    def keys(self):
        return list(self)

    def __getitem__(self, key):
        return key * PROBE


class Asked:
    """An object that looks up its attributes itself."""

    def __getattr__(self, name):
        if name == "keys":
            return lambda: "ab"[: PROBE - 1]
        raise AttributeError(name)

    def __getitem__(self, key):
        return key * PROBE

    def __dir__(self):
        return ["a"] * PROBE


class Lengthy(list):
    """A list whose `__len__` is wrong."""

    def __len__(self):
        seen.append(PROBE)
        return PROBE


class Empty:
    """An object whose truth value is its length."""

    def __len__(self):
        return PROBE - 2


class Both:
    """An iterable that is callable."""

    def __iter__(self):
        return iter([PROBE])

    def __call__(self):
        return PROBE


class Wrapped:
    """Attributes by descriptors that are not functions."""

    first = property(operator.methodcaller("times"))
    second = property(functools.partial(lambda factor, self: factor * PROBE, 3))
    third = classmethod(functools.partial(lambda factor, kind: factor * PROBE, 4))

    def times(self):
        return PROBE * 2


class Added(list):
    """A list whose addition returns NotImplemented, so that the other operand is called."""

    def __add__(self, other):
        return NotImplemented if PROBE else self


class Missing(dict):
    """A dict with `__missing__`."""

    def __missing__(self, key):
        return PROBE


class Sink(io.TextIOBase):
    """A file in Python."""

    def __init__(self):
        self.text = []

    def write(self, text):
        self.text.append(text * PROBE)
        return len(text)


class Announced:
    """A descriptor with `__set_name__`."""

    def __set_name__(self, owner, name):
        owner.told = name * PROBE


class Base:
    """A class with `__init_subclass__`."""

    def __init_subclass__(cls, **keywords):
        cls.heard = PROBE


class Buffer(io.RawIOBase):
    """A raw file in Python, wrapped by a buffered file in C."""

    def readable(self):
        return True

    def readinto(self, buffer):
        buffer[:PROBE] = b"x" * PROBE
        return PROBE


class Kind(type):
    """A metaclass whose methods C calls."""

    def __instancecheck__(cls, one):
        return PROBE == 2

    def __len__(cls):
        return PROBE


class Checked(metaclass=Kind):
    """An instance of the metaclass."""


@functools.total_ordering
class Ordered:
    """A class with one comparison, from which the others are derived."""

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def __lt__(self, other):
        return self.n * PROBE < other.n * PROBE


class Holder:
    """A class with a cached property."""

    @functools.cached_property
    def made(self):
        return PROBE * 3


def key(n):
    return -n * PROBE


def add(a, b=0):
    return a + b * PROBE


def generator():
    for n in (3, 1, 2):
        yield n * PROBE


seen = []


def noted(program):
    """Return the result of a program, and the recorded calls."""
    seen.clear()
    return program(), tuple(seen)


def given(*arguments, **keywords):
    return arguments, keywords


def split(iterable):
    first, *rest = iterable
    return first, rest


def popped(container, *arguments):
    return container.pop(*arguments), len(container)


def inserted(index):
    items = [1, 2, 3, 4]
    items.insert(index, 0)
    return items


def delegating(iterable):
    yield from iterable


def values(*numbers):
    return [Value(n) for n in numbers]


def later(*numbers):
    for n in numbers:
        yield Value(n)


def through(iterable):
    return (yield from iterable)


def dispatched():
    @functools.singledispatch
    def shown(value):
        return PROBE

    @shown.register
    def _(value: int):
        return value * PROBE

    return shown("a"), shown(3)


def cached(n):
    function = functools.lru_cache(add)
    return function(n, 1), function(n, 1), function.cache_info()[:2]


def lacking():
    module = types.ModuleType("lacking")
    module.__getattr__ = lambda name: name * PROBE
    return module.thing


def printed():
    sink = Sink()
    print("a", file=sink)
    return sink.text


def set_with(items):
    found = set()
    for item in items:
        found.add(item)
    return len(found)


def sorted_in_place(items, **keywords):
    items.sort(**keywords)
    return [getattr(item, "n", item) for item in items]


def heaped(items):
    heap = []
    for item in items:
        heapq.heappush(heap, item)
    return [heapq.heappop(heap).n for _ in range(len(heap))]


def made_class():
    class Made(Base):
        field = Announced()

    return Made.heard, Made.told


@contextlib.contextmanager
def managed():
    yield PROBE


def entered():
    with managed() as found, contextlib.suppress(KeyError):
        return found


def defaulted(ask):
    made = collections.defaultdict(lambda: PROBE)
    return ask(made), dict(made)


def unpacked():
    first, *rest = Steps(3)
    return first, rest


CALLBACKS = {
    # callables
    "sorted key": lambda: sorted([1, 2, 3], key=key),
    "list.sort key": lambda: sorted_in_place([1, 3, 2], key=key),
    "min key": lambda: min([1, 2, 3], key=key),
    "max key": lambda: max([1, 2, 3], key=key),
    "map": lambda: list(map(key, [1, 2])),
    "filter": lambda: list(filter(key, [0, 1])),
    "reduce": lambda: functools.reduce(add, [1, 2, 3]),
    "partial": lambda: functools.partial(add, 1)(b=2),
    "partial in C": lambda: list(map(functools.partial(add, 1), [2])),
    "callable object": lambda: list(map(Value(1), [1, 2])),
    "bound method": lambda: list(map(Value(1).times, [1, 2])),
    "class in map": lambda: [one.doubled for one in map(Value, [1, 2])],
    "iter with sentinel": lambda: list(iter(lambda steps=Steps(3): next(steps), 0)),
    "cmp_to_key": lambda: sorted([1, 3, 2], key=functools.cmp_to_key(lambda a, b: (b - a) * PROBE)),
    "lru_cache": lambda: cached(3),
    "cached_property": lambda: Holder().made,
    "singledispatch": dispatched,
    "total_ordering": lambda: (Ordered(1) >= Ordered(2), sorted([Ordered(2), Ordered(1)])[0].n),
    "re.sub": lambda: re.sub("a+", lambda match: match[0] * PROBE, "baac"),
    "pattern.sub": lambda: re.compile("a").sub(lambda match: match[0] * PROBE, "bac"),
    "attrgetter": lambda: operator.attrgetter("doubled")(Value(3)),
    "attrgetter in C": lambda: list(map(operator.attrgetter("doubled"), values(1, 2))),
    "methodcaller": lambda: operator.methodcaller("times", 3)(Value(3)),
    "methodcaller in C": lambda: list(map(operator.methodcaller("times", 3), values(1, 2))),
    "itemgetter": lambda: operator.itemgetter(1)(Indexed()),
    "accumulate": lambda: list(itertools.accumulate([1, 2, 3], add)),
    "groupby": lambda: [(name, list(items)) for name, items in itertools.groupby([1, 2, 3], key)],
    "takewhile": lambda: list(itertools.takewhile(lambda n: n < PROBE, [1, 2, 3])),
    "dropwhile": lambda: list(itertools.dropwhile(lambda n: n < PROBE, [1, 2, 3])),
    "filterfalse": lambda: list(itertools.filterfalse(lambda n: n < PROBE, [1, 2, 3])),
    "starmap": lambda: list(itertools.starmap(add, [(1, 2)])),
    "chain": lambda: list(itertools.chain(Items(2), [1])),
    "islice": lambda: list(itertools.islice(Items(3), 2)),
    "product": lambda: list(itertools.product(Items(2), repeat=2)),
    "chain.from_iterable": lambda: list(itertools.chain.from_iterable([Items(2)])),
    "nlargest": lambda: heapq.nlargest(2, [1, 2, 3], key=key),
    "bisect key": lambda: bisect.bisect([1, 2, 3], 4, key=lambda n: n * PROBE),
    "insort": lambda: len(bisect.insort([], Value(1)) or []) + bisect.bisect(values(1, 2), Value(2)),
    "defaultdict item": lambda: defaulted(lambda made: made["a"]),
    "defaultdict in C": lambda: defaulted(lambda made: operator.getitem(made, "a")),
    "defaultdict map": lambda: defaulted(lambda made: list(map(made.__getitem__, "ab"))),
    "defaultdict format_map": lambda: defaulted(lambda made: "{a}".format_map(made)),
    "setdefault on a defaultdict": lambda: defaulted(lambda made: made.setdefault(Value(1), made["b"]))[0],
    "__missing__": lambda: Missing()["a"],
    "__missing__ in C": lambda: "{a}".format_map(Missing()),
    "module __getattr__": lacking,
    "json default": lambda: json.dumps({"a": Value(1)}, default=lambda value: PROBE),
    "setprofile": lambda: sys.getprofile() or key(1),
    # iterables
    "list": lambda: list(Items(3)),
    "tuple": lambda: tuple(Steps(3)),
    "set": lambda: set(Items(3)),
    "dict of pairs": lambda: dict(zip(Items(2), Items(2))),
    "dict.fromkeys": lambda: dict.fromkeys(Items(2)),
    "list of a sequence": lambda: list(Indexed()),
    "loop over a sequence": lambda: [one for one in Indexed()],
    "reversed": lambda: list(reversed(Indexed())),
    "in a sequence": lambda: 4 in Indexed(),
    "extend": lambda: [1].extend(Items(2)),
    "list +=": lambda: operator.iadd([1], Items(2)),
    "slice assignment": lambda: operator.setitem([1], slice(0, 1), Items(2)),
    "update": lambda: {1}.update(Items(2)),
    "set |=": lambda: {1}.union(Items(2)),
    "zip": lambda: list(zip(Items(2), [1, 2])),
    "enumerate": lambda: list(enumerate(Items(2))),
    "sum": lambda: sum(Items(3)),
    "any": lambda: any(Items(3)),
    "all": lambda: all(Items(3)),
    "min of": lambda: min(Items(3)),
    "join": lambda: "".join(str(n) for n in generator()),
    "join of an iterator": lambda: "".join(map(str, Items(3))),
    "deque": lambda: list(collections.deque(Items(2))),
    "Counter": lambda: collections.Counter(Items(2)),
    "bytes": lambda: bytes(Items(2)),
    "unpacking": unpacked,
    "star arguments": lambda: max(*Items(3)),
    "any over a generator": lambda: any(n > 5 for n in generator()),
    "sum over a generator": lambda: sum(generator()),
    "yield from an iterator": lambda: list(through(Steps(3))),
    "yield from an iterable": lambda: list(through(Items(3))),
    "display of a sequence": lambda: [*Unsized()],
    "tuple display of a sequence": lambda: (0, *Unsized()),
    "set display of a sequence": lambda: {*Unsized()},
    "arguments of a sequence": lambda: given(*Unsized()),
    "arguments of two sequences": lambda: given(0, *Unsized(), *Indexed(), key=1),
    "unpacking of a sequence": lambda: split(Unsized()),
    "display of an iterator over a sequence": lambda: [*iter(Unsized())],
    "display of a reversed sequence": lambda: [*reversed(Indexed())],
    "list of an iterator over a sequence": lambda: list(iter(Unsized())),
    "yield from a sequence": lambda: list(delegating(Unsized())),
    "length of an iterator over a sequence": lambda: operator.length_hint(iter(Indexed())),
    "length of what is unpacked": lambda: noted(lambda: [*Hinted(2)]),
    "length of what is listed": lambda: noted(lambda: list(Hinted(2))),
    "length of arguments": lambda: noted(lambda: given(*Hinted(2))),
    "keywords of a mapping": lambda: given(**Named()),
    "further keywords of a mapping": lambda: given(z=1, **Named()),
    "dict display of a mapping": lambda: {**Named()},
    "keywords of a dict": lambda: given(**Renamed(c=1)),
    "dict display of a dict": lambda: {**Renamed(c=1)},
    "keywords of what finds its attributes": lambda: given(**Asked()),
    "dict display of what finds its attributes": lambda: {**Asked()},
    "dict of a mapping": lambda: dict(Named()),
    "union with a mapping": lambda: operator.ior({}, Named()),
    "tee": lambda: list(itertools.tee(Items(2))[1]),
    "chain of what can be called": lambda: list(itertools.chain(Both(), Both())),
    "islice of what can be called": lambda: list(itertools.islice(Both(), 1)),
    "repeat of an iterable": lambda: [list(one) for one in itertools.repeat(Items(2), 2)],
    "repeat of a function": lambda: [one(3) for one in itertools.repeat(key, 2)],
    "accumulate without a function": lambda: [one for one in itertools.accumulate([1, Value(2)])],
    "groupby without a key": lambda: [len(list(items)) for _, items in itertools.groupby(values(1, 1, 2))],
    "compress": lambda: list(itertools.compress([1, 2], values(1, 2))),
    "filterfalse without a function": lambda: len(list(itertools.filterfalse(None, values(1, 2)))),
    "takewhile by truth": lambda: len(list(itertools.takewhile(Value, [2, 1]))),
    "step of an iterator over a sequence": lambda: iter(Unsized()).__next__() + next(iter(Indexed())) + PROBE,
    "method of a slot": lambda: [Value(2)].__contains__(Value(2)),
    # special methods
    "dir": lambda: dir(Asked()),
    "insert at": lambda: inserted(Value(1)),
    "pop at": lambda: popped([1, 2, 3, 4, 5], Value(1)),
    "pop a key": lambda: popped({Value(1): 2}, Value(1)),
    "rotate by": lambda: collections.deque(range(5)).rotate(Value(1)),
    "operator.index": lambda: operator.index(Value(1)),
    "text of an exception": lambda: str(ValueError(Value(1))) + repr(KeyError(Value(2))),
    "truth by length": lambda: (bool(Empty()), [*filter(None, [Empty()])] == [], any([Empty()])),
    "property of a partial": lambda: Wrapped().second,
    "property of a method caller": lambda: Wrapped().first,
    "class method of a partial": lambda: Wrapped.third(),
    "deep copy of an iterator": lambda: list(copy.deepcopy(map(key, Unsized()))),
    "dict key": lambda: {Value(1): 5}[Value(1)],
    "dict.get": lambda: {Value(1): 5}.get(Value(1)),
    "dict store": lambda: operator.setitem({}, Value(1), 2),
    "in a dict": lambda: Value(1) in {Value(1): 5},
    "dict comprehension": lambda: len({Value(n): n for n in (1, 1)}),
    "in a set": lambda: Value(1) in set(values(1, 2)),
    "set.add": lambda: set_with(values(1, 1, 2)),
    "set of": lambda: len({*values(1, 1)}),
    "set display": lambda: len({Value(1), Value(1)}),
    "set of a generator": lambda: len(set(later(1, 1, 2))),
    "frozenset": lambda: len(frozenset(values(1, 1))),
    "hash": lambda: hash(Value(3)),
    "hash of a tuple": lambda: hash((Value(3),)),
    "in a list": lambda: Value(2) in values(1, 2),
    "list.index": lambda: values(1, 2).index(Value(2)),
    "list.count": lambda: values(1, 2).count(Value(2)),
    "list ==": lambda: values(1, 2) == values(1, 2),
    "tuple <": lambda: (Value(1),) < (Value(2),),
    "dict ==": lambda: {1: Value(1)} == {1: Value(1)},
    "nested ==": lambda: [[values(1)]] == [[values(1)]],
    "sorted": lambda: [value.n for value in sorted(values(3, 1, 2))],
    "sorted generator": lambda: [one.n for one in sorted(later(3, 1, 2))],
    "sorted by key": lambda: [value.n for value in sorted(values(3, 1), key=lambda one: Value(-one.n))],
    "list.sort": lambda: sorted_in_place(values(3, 1, 2)),
    "min": lambda: min(values(3, 1, 2)).n,
    "max of a generator": lambda: max(later(3, 1, 2)).n,
    "max of two": lambda: max(Value(1), Value(2)).n,
    "heap": lambda: heaped(values(3, 1, 2)),
    "sum of": lambda: sum(values(1, 2)),
    "sum of a generator": lambda: sum(later(1, 2)),
    "any of": lambda: any(values(1, 2)),
    "all of a generator": lambda: all(later(1, 2)),
    "filter None": lambda: len(list(filter(None, values(1, 2)))),
    "reflected": lambda: 1 + Value(2),
    "reflected in C": lambda: functools.reduce(operator.add, [1, Value(2)]),
    "sequence *": lambda: [1] * Value(2),
    "reflected after a list": lambda: Added([1]) + Value(2) if False else Added([1]).__add__([2]),
    "list subclass +": lambda: Added([1]) + [2],
    "index": lambda: [1, 2, 3, 4, 5][Value(1)],
    "slice": lambda: [1, 2, 3, 4, 5][Value(1) :],
    "range": lambda: list(range(Value(2))),
    "int": lambda: int(Value(2)),
    "float": lambda: float(Value(2)),
    "round": lambda: round(Value(2)),
    "abs": lambda: abs(Value(2)),
    "divmod": lambda: divmod(Value(2), 3),
    "hex": lambda: hex(Value(2)),
    "bytes index": lambda: bytes(Value(1)),
    "str": lambda: str(Value(1)),
    "repr of a list": lambda: repr(values(1, 2)),
    "f-string": lambda: f"{Value(1)} {Value(1)!r} {Value(1):x}",
    "f-string of a list": lambda: f"{values(1)}",
    "str.format": lambda: "{0} {0!r} {0.doubled} {1[0]}".format(Value(1), Indexed()),
    "percent": lambda: "%s %r" % (Value(1), Value(2)),
    "join of str": lambda: "".join(map(str, values(1, 2))),
    "print": printed,
    "isinstance": lambda: isinstance(3, Checked),
    "len of a class": lambda: len(Checked),
    "__set_name__ and __init_subclass__": made_class,
    "type()": lambda: type("Made", (Base,), {"field": Announced()}).told,
    "contextmanager": entered,
    "buffered": lambda: io.BufferedReader(Buffer()).read(3),
    "copy": lambda: copy.copy(values(1))[0].doubled,
    "deepcopy": lambda: copy.deepcopy(Value(1)).doubled,
    "namedtuple": lambda: collections.namedtuple("Pair", "a b")(Value(1), 2) == (Value(1), 2),
    "ChainMap": lambda: collections.ChainMap({}, {Value(1): 2})[Value(1)],
    "OrderedDict": lambda: collections.OrderedDict([(Value(1), 2)])[Value(1)],
    "deque.remove": lambda: collections.deque(values(1, 2)).remove(Value(2)),
}
if sys.version_info < (3, 14):  # later releases of CPython do not call `__len__`
    CALLBACKS["length of a list"] = lambda: noted(lambda: tuple(Lengthy([1, 2])))
