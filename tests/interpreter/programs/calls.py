"""Programs with calls: arguments, closures, unpacking, recursion and decorators."""

# The programs are odd on purpose.
# ruff: noqa: B023, PERF401, PIE804, PLE1132

import functools
import itertools
import types

COUNT = 0


def program_arguments():
    def f(a, b=2, /, c=3, *args, d, e=5, **kwargs):
        return a, b, c, args, d, e, kwargs

    return [f(1, d=4), f(1, 2, 3, 4, 5, d=6, e=7, z=8), f(*(1, 2), d=4, c=9), f(1, d=2, a=3)]


def program_argument_errors():
    def f(a, /, b, *, c):
        return a

    found = []
    for args, kwargs in [
        ((), {}),
        ((1,), {}),
        ((1, 2), {}),
        ((1, 2, 3), {"c": 1}),
        ((1,), {"b": 1, "c": 2, "x": 3}),
        ((), {"a": 1}),
    ]:
        try:
            f(*args, **kwargs)
        except TypeError as error:
            found.append(str(error))
    try:
        f(1, b=2, **{"b": 3})
    except TypeError as error:
        found.append(str(error))
    return found


def program_closures():
    def outer():
        x = 1
        cells = []

        def inner():
            nonlocal x
            x += 1
            return x

        def deleting():
            nonlocal x
            del x

        for i in range(3):
            cells.append(lambda: i)
        first = inner(), inner(), [c() for c in cells]
        deleting()
        try:
            inner()
        except NameError as error:
            first += (str(error), type(error).__name__)
        return first

    return outer(), outer.__code__.co_cellvars


def program_recursion():
    def f(n):
        return n if n == 0 else 1 + f(n - 1)

    def endless():
        return endless()

    found = [f(60), f(300)]
    try:
        endless()
    except RecursionError as error:
        found.append(str(error))
    return found


def program_functools():
    calls = []

    @functools.lru_cache
    def cached(x):
        calls.append(x)
        return x * 2

    @functools.wraps(cached)
    def wrapped(*args):
        return cached(*args)

    class Lazy:
        @functools.cached_property
        def value(self):
            calls.append("lazy")
            return 3

        @functools.singledispatchmethod
        def kind(self, x):
            return "other"

        @kind.register
        def _(self, x: int):
            return "int"

    lazy = Lazy()
    add = functools.partial(lambda a, b, c=0: (a, b, c), 1, c=5)
    return (
        cached(2),
        cached(2),
        wrapped(3),
        lazy.value,
        lazy.value,
        calls,
        add(2),
        add(2, c=7),
        lazy.kind(1),
        lazy.kind("x"),
        lazy.__dict__,
    )


def program_annotations_and_decorators():
    def twice(f):
        return lambda *args: f(f(*args))

    def tagged(tag):
        def decorate(f):
            f.tag = tag
            return f

        return decorate

    @twice
    @tagged("t")
    def f(x: int, *, y: str = "y") -> float:
        return x + 1

    @tagged(1)
    def g(x: int, *, y: str = "y") -> float:
        """Doc."""

    return f(1), g.tag, g.__annotations__, g.__doc__, g.__kwdefaults__, g.__qualname__


def program_kwargs_errors():
    def f(**kwargs):
        return kwargs

    found = []
    for bad in (
        lambda: f(**3),
        lambda: f(*3),
        lambda: f(**{1: 2}),
        lambda: f(**{"a": 1}, **{"a": 2}),
        lambda: COUNT(),
        lambda: f(1),
    ):
        try:
            bad()
        except TypeError as error:
            found.append(str(error).replace(__name__, "m"))
    return found


def program_what_is_unpacked_is_asked_for_its_keys_and_its_length():
    asked = []

    class Mapping:
        def __init__(self, keys, error=None):
            self.names, self.error = keys, error

        def keys(self):
            asked.append("keys")
            if isinstance(self.names, Exception):
                raise self.names
            return self.names

        def __getitem__(self, key):
            asked.append(key)
            if self.error is not None:
                raise self.error
            return key

    class Sized:
        def __init__(self, length):
            self.length = length

        def __iter__(self):
            asked.append("iter")
            return iter([1, 2])

        def __len__(self):
            asked.append("len")
            if isinstance(self.length, Exception):
                raise self.length
            return self.length

    def given(*arguments, **keywords):
        return arguments, keywords

    mappings = [
        Mapping(["a", "b"]), Mapping(iter("ab")), Mapping(["a", "a"]), Mapping([1]), Mapping(3),
        Mapping(AttributeError("not there")), Mapping(["a"], AttributeError("nor there")),
        Mapping(["a"], KeyError("q")), Mapping(["a"], KeyError()), Mapping(["a"], ValueError("odd")),
    ]  # fmt: skip
    sized = [Sized(2), Sized(-1), Sized(ValueError("odd")), Sized(TypeError("none"))]
    unpack = [
        lambda one: given(**one), lambda one: given(b=1, **one), lambda one: {**one}, lambda one: {"b": 1, **one},
    ]  # fmt: skip
    gather = [
        lambda one: [*one], lambda one: {*one}, lambda one: given(*one), lambda one: given(0, *one), list, tuple, set,
        sorted, sum,
    ]  # fmt: skip
    found = []
    for ways, things in ((unpack, mappings), (gather, sized)):
        for way, thing in itertools.product(ways, things):
            asked.clear()
            try:
                value = way(thing)
            except Exception as error:
                value = repr(error), repr(error.__context__)
            found.append((value, tuple(asked)))
    return found


def program_function_of_module_code():
    names = {"a": 1}
    function = types.FunctionType(compile("a = a + 1\nb = dir()", "f", "exec"), names)
    function()
    function()
    return names["a"], names["b"]


def program_annotations_of_a_function_and_a_class():
    def function(first: int, *, second: "str" = "a") -> list[int]:
        inner: float = 1.0
        return [first, second, inner]

    class Annotated:
        number: int = 3
        text: "str"
        if COUNT == 0:
            conditional: dict[str, int]

    return function(1), function.__annotations__, Annotated.__annotations__, Annotated.number


def program_unpacked_arguments_with_and_without_keywords():
    def given(*args, **kwargs):
        return args, kwargs

    some, more = [1, 2], {"a": 3}
    return given(*some), given(*some, **more), given(0, *some, b=1, **more), given(**more), given(*(), **{})
