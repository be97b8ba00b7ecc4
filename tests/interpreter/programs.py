"""Small programs, one feature of the language each; every function named `program_*` is run."""

# The programs are odd on purpose.
# ruff: noqa: B007, B011, B015, B023, B028, B030, B904, B905, C400, C416, C417, F401, F841
# ruff: noqa: PERF401, PIE804, PLC3002, PLE0101, PLE0237, PLE0643, PLE0704, PLE1132, RET503, RUF012, RUF059, SIM105, SLOT001

import asyncio
import collections
import contextlib
import enum
import functools
import itertools
import operator
import sys
import traceback
import types
import warnings
from dataclasses import dataclass, field

COUNT = 0


def program_loop_with_branch():
    total = 0
    for i in range(50):
        if i % 3 == 0:
            continue
        total += i if i % 2 else -i
        if total > 200:
            break
    else:
        total = -1
    while total > 3:
        total //= 2
    return total


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


def program_globals():
    global COUNT, fresh_name
    COUNT += 1
    fresh_name = 3
    found = COUNT > 0, fresh_name, "fresh_name" in globals()
    del fresh_name
    try:
        fresh_name
    except NameError as error:
        return found, error.args, error.name


def program_unbound_local():
    if COUNT < 0:
        x = 1
    return x


def program_raise_chain():
    def low():
        raise KeyError("low")

    try:
        try:
            low()
        except KeyError as error:
            raise ValueError("high") from error
    except ValueError as error:
        error.add_note("a note")
        raise RuntimeError("higher")


def program_reraise():
    def f():
        try:
            1 / 0
        except ZeroDivisionError:
            try:
                [][1]
            except IndexError:
                pass
            raise

    try:
        f()
    except ZeroDivisionError as error:
        again = error
    raise again


def program_finally_order():
    order = []

    def f(n):
        for i in range(n):
            try:
                order.append(i)
                if i == 1:
                    continue
                if i == 3:
                    return "returned"
            finally:
                order.append(-i)
        return "ended"

    return f(2), f(9), order


def program_exception_state():
    seen = []

    def generator():
        try:
            yield sys.exc_info()[0]
            raise KeyError(1)
        except KeyError:
            yield sys.exc_info()[0]
        yield sys.exc_info()[0]

    g = generator()
    seen.append(next(g))
    try:
        raise ValueError
    except ValueError:
        seen.append(next(g))
        seen.append(sys.exc_info()[0])
        seen.append(next(g))
    seen.append(sys.exc_info())
    return seen


def program_bare_raise():
    raise


def program_except_not_a_class():
    try:
        1 / 0
    except (ValueError, 3):
        pass


def program_except_star():
    seen = []
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2), ExceptionGroup("h", [KeyError(3), ValueError(4)])])
        except* ValueError as group:
            seen.append(repr(group))
            raise RuntimeError("new")
        except* TypeError as group:
            seen.append(repr(group))
    except BaseExceptionGroup as rest:
        seen.append(repr(rest))
    try:
        raise ValueError("naked")
    except* ValueError as group:
        seen.append(repr(group))
    print(seen)
    try:
        raise ExceptionGroup("left", [OSError(1), ValueError(2)])
    except* OSError:
        raise


def program_generators():
    def inner():
        received = yield 1
        try:
            received = yield received
        except ValueError as error:
            received = yield f"caught {error}"
        return received

    def outer():
        result = yield from inner()
        yield f"result {result}"
        yield from [7, 8]

    g = outer()
    found = [next(g), g.send("a"), g.throw(ValueError("v")), g.send("end"), list(g)]
    h = outer()
    next(h)
    h.close()
    try:
        next(h)
    except StopIteration as stop:
        found.append(stop.value)
    try:
        g.send(1)
    except StopIteration:
        found.append("stopped")
    k = inner()
    try:
        k.send(5)
    except TypeError as error:
        found.append(str(error))
    return found, type(g).__name__, g.__name__, g.__qualname__, g.gi_code.co_name, g.gi_frame


def program_generator_raises_stop():
    def g():
        yield 1
        raise StopIteration(3)

    return list(g())


def program_generator_ignores_exit():
    def g():
        for _ in range(2):
            try:
                yield
            except GeneratorExit:
                pass

    h = g()
    next(h)
    try:
        h.close()
    except RuntimeError as error:
        return str(error)


def program_generator_cleanup():
    log = []

    def g():
        try:
            yield 1
            yield 2
        finally:
            log.append("cleanup")

    for x in g():
        break
    h = g()
    next(h)
    del h
    return log


def program_coroutines():
    class Later:
        def __await__(self):
            got = yield "later"
            return got

    async def inner(n):
        await asyncio.sleep(0)
        return n + 1

    async def counted(n):
        for i in range(n):
            await asyncio.sleep(0)
            yield i

    class Manager:
        async def __aenter__(self):
            return "entered"

        async def __aexit__(self, kind, error, tb):
            return kind is KeyError

    async def main():
        total = 0
        async for i in counted(4):
            total += await inner(i)
        async with Manager() as m:
            raise KeyError
        found = [x async for x in counted(3) if x]
        gathered = await asyncio.gather(inner(1), inner(2))
        return total, m, found, gathered

    c = Later().__await__()
    first = next(c)
    return asyncio.run(main()), first


def program_async_errors():
    async def f():
        await 3

    async def g():
        async for x in [1]:
            pass

    found = []
    for one in (f, g):
        try:
            asyncio.run(one())
        except TypeError as error:
            found.append(str(error))
    return found


def program_with():
    log = []

    class Manager:
        def __init__(self, swallow):
            self.swallow = swallow

        def __enter__(self):
            log.append("enter")
            return self

        def __exit__(self, kind, error, tb):
            log.append((kind and kind.__name__, error and error.args, tb and tb.tb_lineno > 0))
            return self.swallow

    with Manager(True) as a, Manager(False):
        raise ValueError(1)
    with contextlib.suppress(KeyError):
        {}["x"]

    @contextlib.contextmanager
    def managed():
        log.append("in")
        try:
            yield 5
        finally:
            log.append("out")

    with managed() as five:
        log.append(five)
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, "callback")
    print(log)
    with Manager(False):
        raise ValueError(2)


def program_with_no_manager():
    with 3:
        pass


def program_match():
    @dataclass
    class Point:
        x: int
        y: int

    def kind(value):
        match value:
            case 0 | 1:
                return "small"
            case int(n) if n > 100:
                return f"big {n}"
            case [a, b, *rest]:
                return a, b, rest
            case {"k": k, **rest}:
                return k, rest
            case Point(x=0, y=y):
                return "on axis", y
            case Point(x, y):
                return x, y
            case str() as s:
                return s
            case None:
                return "none"
            case _:
                return "else"

    values = [0, 500, [1, 2, 3, 4], (1, 2), {"k": 1, "z": 2}, Point(0, 3), Point(1, 2), "s", None, 3.5, {"q": 1}]
    return [kind(value) for value in values]


def program_classes():
    log = []

    class Meta(type):
        @classmethod
        def __prepare__(mcls, name, bases, **kwargs):
            log.append(("prepare", name, kwargs))
            return collections.OrderedDict()

        def __new__(mcls, name, bases, names, **kwargs):
            log.append(("new", list(names)))
            return super().__new__(mcls, name, bases, dict(names))

        def __init__(cls, name, bases, names, **kwargs):
            super().__init__(name, bases, names)

        def __call__(cls, *args):
            log.append(("call", args))
            return super().__call__(*args)

    class Descriptor:
        def __set_name__(self, owner, name):
            log.append(("set_name", name))

        def __get__(self, instance, owner):
            return "got", instance is None

        def __set__(self, instance, value):
            log.append(("set", value))

    class Base:
        def __init_subclass__(cls, **kwargs):
            log.append(("init_subclass", cls.__name__, kwargs))

    class A(metaclass=Meta, option=1):
        d = Descriptor()
        __slots__ = ("v",)

        def __init__(self, v):
            self.v = v
            self.d = v

        @property
        def doubled(self):
            return self.v * 2

        @doubled.setter
        def doubled(self, value):
            self.v = value // 2

        @staticmethod
        def s(x):
            return x

        @classmethod
        def c(cls, x):
            return cls.__name__, x, __class__.__name__

    class B(Base, x=1):
        def m(self):
            return super().__init_subclass__, "m"

        def __getattr__(self, name):
            if name == "magic":
                return 42
            raise AttributeError(name)

    a = A(3)
    a.doubled = 20
    b = B()
    print(log)
    return (
        a.v,
        a.doubled,
        a.d,
        A.d,
        a.s(1),
        a.c(2),
        A.c(3),
        b.magic,
        hasattr(b, "nothing"),
        b.m()[1],
        getattr(b, "no", 7),
        A.__qualname__,
        A.__module__,
    )


def program_super_chain():
    class A:
        def f(self):
            return ["A"]

        @property
        def p(self):
            return 1

    class B(A):
        def f(self):
            return ["B", *super().f()]

        @property
        def p(self):
            return super().p + 1

    class C(A):
        def f(self):
            return ["C", *super().f()]

    class D(B, C):
        pass

    return D().f(), D().p


def program_operators():
    class N:
        def __init__(self, n):
            self.n = n

        def __add__(self, other):
            return NotImplemented if isinstance(other, str) else ("add", self.n, getattr(other, "n", other))

        def __radd__(self, other):
            return "radd", other

        def __iadd__(self, other):
            self.n += other
            return self

        def __eq__(self, other):
            return isinstance(other, N) and self.n == other.n

        def __lt__(self, other):
            return self.n < other.n

        def __hash__(self):
            return hash(self.n)

        def __bool__(self):
            return self.n > 0

        def __len__(self):
            return 9

        def __contains__(self, item):
            return item == self.n

        def __getitem__(self, key):
            return key

        def __neg__(self):
            return "neg"

        def __call__(self, *args, **kwargs):
            return args, kwargs

        def __format__(self, spec):
            return f"N<{spec}>"

        def __repr__(self):
            return f"N({self.n})"

    class M(N):
        def __radd__(self, other):
            return "M.radd"

    a, b = N(1), N(2)
    a += 5
    found = [
        a + b,
        1 + a,
        N(1) + M(2),
        a == N(6),
        a != b,
        b < a,
        a > b,
        not N(0),
        len(a),
        6 in a,
        a[1:2],
        a[3],
        -a,
        a(1, x=2),
    ]
    found += [f"{a:>3}|{a!r}|{a!s}", {a: 1}[N(6)], sorted([a, b]), max(a, b), [x for x in (N(0), N(1)) if x]]
    for left, right in ((a, "x"), ("x", [])):
        try:
            left + right
        except TypeError as error:
            found.append(str(error))
    try:
        a <= b
    except TypeError as error:
        found.append(str(error))
    return found


def program_inplace_containers():
    x = [1]
    y = x
    x += [2]
    x *= 2
    s = {1}
    s |= {2}
    d = {"a": 1}
    d |= {"b": 2}
    t = (1,)
    t += (2,)
    del x[0], d["a"]
    x[1:2] = [9, 9]
    return x, y is x, s, d, t


def program_iteration_protocol():
    class Old:
        def __getitem__(self, i):
            if i > 2:
                raise IndexError
            return i

    class New:
        def __init__(self):
            self.i = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.i += 1
            if self.i > 3:
                raise StopIteration
            return self.i

    a, *b, c = New()
    found = [list(Old()), list(New()), a, b, c, [*New(), *Old()], sum(New()), max(New()), list(zip(New(), Old()))]
    found += [
        list(map(lambda x: x * 2, New())),
        dict(enumerate(New())),
        any(x > 2 for x in New()),
        2 in New(),
        tuple(New()),
    ]
    found += [
        list(itertools.chain(New(), Old())),
        functools.reduce(operator.add, New()),
        sorted(New(), key=lambda x: -x),
    ]
    try:
        p, q = New()
    except ValueError as error:
        found.append(str(error))
    try:
        p, *q, r, s, t = New()
    except ValueError as error:
        found.append(str(error))
    try:
        p, q = 3
    except TypeError as error:
        found.append(str(error))
    return found


def program_comprehensions():
    n = 3
    x = "outer"
    return (
        [x for x in range(n)],
        {x: x * n for x in range(n)},
        {x % 2 for x in range(n)},
        list((x, y) for x in range(2) for y in range(2) if x != y),
        x,
    )


def program_walrus_and_lambda():
    if (n := 10) > 5:
        return [y := n, y**2, (lambda a, b=n: a + b)(1), [last := i for i in range(3)], last]


def program_fstrings():
    value, width = 3.14159, 10
    return f"{value:{width}.2f}|{value!r:>10}|{'nested ' + f'{width}'}|{width=}|{{}}"


def program_exec_eval():
    names = {"x": 2}
    exec("y = x * 3\ndef f(a):\n    return a + y\nz = f(1)", names)
    local = 5
    return (
        names["y"],
        names["z"],
        eval("local + 1"),
        eval("x + 1", names),
        eval(compile("[i for i in range(3)]", "<c>", "eval")),
    )


def program_exec_error():
    exec("def f():\n    raise KeyError('inside')\nf()", {})


def program_locals_and_frames():
    a = 1

    def inner(b):
        frame = sys._getframe()
        return (
            sorted(locals()),
            frame.f_code.co_name,
            frame.f_back.f_code.co_name,
            sorted(frame.f_locals),
            frame.f_lineno - frame.f_code.co_firstlineno,
        )

    stack = [entry.name for entry in traceback.extract_stack()][-2:]
    return inner(2), stack[-1], sorted(vars()), sorted(dir())


def program_imports():
    import collections.abc as abc
    import os.path
    from os import path, sep

    found = [abc.Mapping.__name__, os.path is path, sep]
    try:
        from os import nothing_of_that_name
    except ImportError as error:
        found += [error.name, str(error).split("(")[0]]
    names = {}
    exec("from math import *", names)
    return found, "sqrt" in names


def program_warnings():
    def deep():
        warnings.warn("deep", UserWarning, stacklevel=2)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        deep()
        warnings.warn("here")
    return [(str(w.message), w.category.__name__, w.lineno, w.filename) for w in caught]


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


def program_dataclass_and_enum():
    @dataclass(order=True)
    class P:
        x: int
        tags: list = field(default_factory=list)

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

        @property
        def label(self):
            return self.name.lower()

    Pair = collections.namedtuple("Pair", "a b")
    return (
        P(1),
        P(1) < P(2),
        Color(1),
        Color["BLUE"].label,
        list(Color),
        Pair(1, b=2),
        Pair(1, 2)._replace(a=5),
        Pair.__module__,
    )


def program_default_dict_and_counter():
    d = collections.defaultdict(lambda: [0])
    d["a"].append(1)
    c = collections.Counter("hello")
    return dict(d), c.most_common(1), c + c


def program_class_namespace():
    x = "outer"

    class A:
        x = "inner"
        copies = [x for x in range(2)]

        def f(self):
            return x

        annotated: int = 3

    return A.x, A().f(), A.copies, A.__annotations__


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


def program_attribute_errors():
    class A:
        @property
        def p(self):
            return self.missing

        def __getattr__(self, name):
            raise AttributeError(f"no {name}")

    found = []
    for name in ("p", "q"):
        try:
            getattr(A(), name)
        except AttributeError as error:
            found.append((str(error), error.name))
    try:
        None.foo
    except AttributeError as error:
        found.append((str(error), error.name, error.obj))
    try:
        object().x = 1
    except AttributeError as error:
        found.append(str(error))
    return found


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


def program_assert():
    assert 1 + 1 == 2
    assert False, "message"


def program_deep_traceback():
    class A:
        def __init__(self):
            self.x

        def __getattr__(self, name):
            return next(iter([self.fail(z) for z in (0,)]))

        def fail(self, z):
            def g():
                yield 1
                yield 1 / z

            return sum(g(), start=sorted([0], key=lambda v: v)[0])

    A()


def program_getattribute():
    class A:
        def __getattribute__(self, name):
            if name.startswith("x"):
                return name
            return super().__getattribute__(name)

        def m(self):
            return self.xyz

    return A().m(), A().xq


def program_set_and_delete_attributes():
    log = []

    class A:
        def __setattr__(self, name, value):
            log.append(name)
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            log.append(f"del {name}")
            super().__delattr__(name)

    a = A()
    a.x = 1
    a.y = 2
    del a.x
    delattr(a, "y")
    return log, a.__dict__


def program_new():
    class Single:
        made = None

        def __new__(cls, *args):
            if cls.made is None:
                cls.made = super().__new__(cls)
            return cls.made

        def __init__(self, *args):
            self.args = args

    class Other:
        def __new__(cls):
            return 3

        def __init__(self):
            raise ValueError

    class T(tuple):
        def __new__(cls, a, b):
            return super().__new__(cls, (a, b))

    class BadInit:
        def __init__(self):
            return 3

    found = [Single(1) is Single(2), Single(5).args, Other(), T(1, 2)]
    try:
        BadInit()
    except TypeError as error:
        found.append(str(error))
    return found


def program_error_in_class_attribute():
    class Abstract(collections.abc.Sequence):
        pass

    Abstract()


def program_naked_error_in_except_star():
    try:
        1 // 0
    except* ZeroDivisionError as group:
        found = group.__traceback__ is None, group.message, [type(exception).__name__ for exception in group.exceptions]
    return found


def program_naked_error_in_except_star_as_context():
    try:
        [][1]
    except* LookupError:
        raise KeyError("after")


class _Dying:
    """Says when it dies."""

    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("dies", self.name)


def program_arguments_die_where_the_function_lets_them_go():
    def function(first, second, *, key=None):
        del first
        print("first has gone")
        del key
        print("key has gone")

    class Class:
        def method(self, argument):
            del argument
            print("argument has gone")

    function(_Dying("first"), _Dying("second"), key=_Dying("key"))
    function(*[_Dying("first"), _Dying("second")])
    Class().method(_Dying("argument"))
    len([_Dying("item")])
    isinstance(_Dying("one"), type(_Dying("two")))


def program_variables_die_in_order():
    def function(one, two):
        three, four = _Dying("three"), _Dying("four")
        return lambda: one

    def generator():
        one, two = _Dying("one"), _Dying("two")
        yield 1

    function(_Dying("one"), _Dying("two"))
    list(generator())


def program_what_is_yielded_is_not_held():
    def generator():
        yield _Dying("first")
        got = yield _Dying("second")
        del got
        print("got has gone")
        yield 3

    iterator = generator()
    next(iterator)
    print("after first")
    next(iterator)
    print("after second")
    iterator.send(_Dying("sent"))


def program_abandoned_coroutine_dies_before_its_caller_goes_on():
    @types.coroutine
    def pause():
        yield 1

    async def inner():
        try:
            await pause()
        finally:
            try:
                await pause()
            finally:
                print("inner ends")

    async def outer():
        try:
            await inner()
        finally:
            print("outer ends")

    coroutine = outer()
    coroutine.send(None)
    try:
        coroutine.close()
    except RuntimeError as error:
        return str(error)


def program_deaths_inside_deaths_are_not_put_off():
    order = []

    def generator(depth):
        try:
            yield depth
        finally:
            order.append(depth)
            if depth < 80:
                next(generator(depth + 1), None)
            order.append(-depth)

    next(generator(0))
    return order


def program_endless_recursion_is_counted_where_frames_wait():
    deep = []

    def delegating():
        deep.append(1)
        yield from delegating()

    def in_class_body():
        deep.append(1)

        class Body:
            in_class_body()

    found = []
    for endless in (lambda: next(delegating()), in_class_body):
        deep.clear()
        try:
            endless()
        except RecursionError as error:
            found.append((type(error).__name__, error.__context__, len(deep) <= sys.getrecursionlimit()))
    return found


def program_nothing_is_handled_while_a_delegate_is_closed():
    class Refusing:
        def __iter__(self):
            return self

        def __next__(self):
            return 1

        def close(self):
            raise RuntimeError("not now")

        def throw(self, error):
            raise KeyError("thrown into")

    def delegating():
        yield from Refusing()

    found = []
    for end in (lambda one: one.close(), lambda one: one.throw(ValueError("given"))):
        one = delegating()
        next(one)
        try:
            end(one)
        except (RuntimeError, KeyError) as error:
            found.append((repr(error), repr(error.__context__)))
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


class Letters:
    """A mapping of three names that stores written values in another object."""

    def __init__(self):
        self.written = {}

    def __getitem__(self, name):
        if name in "abc":
            return name * 2
        raise KeyError(name)

    def __setitem__(self, name, value):
        self.written[name] = value

    def __delitem__(self, name):
        raise ValueError(name)

    def keys(self):
        return ["c", "b", "a"]


class Raising(dict):
    """A dictionary whose items and methods are not those that it holds."""

    def __getitem__(self, name):
        if name == "broken":
            raise ValueError(name)
        if name == "computed":
            return 42
        return dict.__getitem__(self, name)

    def __setitem__(self, name, value):
        raise OSError(name)

    def __delitem__(self, name):
        raise OSError(name)

    def get(self, name, default=None):
        raise LookupError(name)

    def setdefault(self, name, default=None):
        raise LookupError(name)

    def __contains__(self, name):
        raise LookupError(name)


def outcomes(calls):
    """The values of calls, or their errors."""
    found = []
    for function, *arguments in calls:
        try:
            found.append(function(*arguments))
        except Exception as error:
            found.append((type(error).__name__, error.args, getattr(error, "name", None), error.__context__))
    return found


def program_namespace_is_a_mapping():
    letters = Letters()
    found = outcomes(
        [
            (eval, "a + b", {}, letters),
            (eval, "dir()", {}, letters),
            (eval, "locals() is l", {"l": letters}, letters),
            (eval, "[len(d) for d in ['', c]]", {}, collections.ChainMap({"c": "x"})),
            (eval, "z", {}, letters),
            (exec, "x = a; y = dir()", {}, letters),
            (exec, "del a", {}, letters),
            (exec, "class A: z = a", {}, letters),
            (eval, "1", {}, 5),
            (eval, "1", letters),
            (eval, "1", {}, letters, {}),
            (eval, "dir()", {}, types.MappingProxyType({"u": 1, "t": 2})),
        ]
    )
    return found, letters.written


def program_keys_of_a_namespace():
    class Odd(Letters):
        def __init__(self, listed):
            self.listed = listed

        def keys(self):
            return self.listed

    return outcomes(
        [(eval, "dir()", {}, Odd(listed)) for listed in (5, (2, 1), iter("ba"), ["a", 1], {"y": 1, "x": 2})]
        + [(eval, "dir()", {}, types.SimpleNamespace()), (eval, "dir()", {}, [])]
    )


def program_globals_that_raise():
    loads = "def f(): return {}\nfound = f()"
    names = {}
    local = {}

    def ran(source):
        local.clear()
        exec(source, Raising(names, n=1), local)
        return local

    return outcomes(
        [
            (ran, "found = n"),
            (ran, "found = computed"),
            (ran, "found = broken"),
            (ran, loads.format("n")),
            (ran, loads.format("computed")),
            (ran, loads.format("broken")),
            (ran, loads.format("missing")),
            (ran, loads.format("len('abc')")),
            (ran, "global n\nn = 2\nfound = n"),
            (ran, "global n\ndel n\nfound = n"),
            (ran, "global o\ndel o"),
            (exec, "n = 2", Raising()),
            (exec, "del n", Raising(n=1)),
            (eval, "n", Raising(n=1)),
            (eval, "'__builtins__' in list(globals())", Raising()),
        ]
    )


def program_builtins_of_globals():
    class Built(dict):
        def __getitem__(self, name):
            if name == "broken":
                raise ValueError(name)
            return dict.__getitem__(self, name)

        def __missing__(self, name):
            return name

        def get(self, name, default=None):
            return "got"

    class Names(dict):
        def __missing__(self, name):
            return "missing"

    return outcomes(
        [
            (exec, "print('here')", {"__builtins__": {}}),
            (exec, "print('here')", {"__builtins__": 123}),
            (exec, "def f(): return print\nf()", {"__builtins__": 123}),
            (exec, "class A: pass", {"__builtins__": {}}),
            (exec, "import sys", {"__builtins__": {}}),
            (eval, "(lambda: print)()", {"__builtins__": {"print": 3}}),
            (eval, "print", {"__builtins__": Built(print=3)}),
            (eval, "(lambda: print)()", {"__builtins__": Built(print=3)}),
            (eval, "other", {"__builtins__": Names()}),
            (eval, "(lambda: other)()", {"__builtins__": Names()}),
            (eval, "broken", {"__builtins__": Built()}),
            (eval, "(lambda: broken)()", {"__builtins__": Built()}),
            (eval, "print", {"__builtins__": types.MappingProxyType({"print": 4})}),
            (eval, "(lambda: print)()", {"__builtins__": types.MappingProxyType({"print": 4})}),
            (eval, "(lambda: none)()", {"__builtins__": types.MappingProxyType({"print": 4})}),
            (eval, "type(__builtins__)", {}),
            (exec, "def f(): return print\nf()", Names(__builtins__={})),
        ]
    )


def program_namespaces_by_name():
    return outcomes(
        [
            (lambda: eval("a", globals={"a": 1}),),
            (lambda: eval("a + COUNT", locals={"a": 1}),),
            (lambda: eval("a", {"a": 1}, globals={"a": 2}),),
            (lambda: eval("a", {"a": 1}, locals={"a": 2}),),
            (lambda: exec("a", {"a": 1}, locals={"b": 2}, closure=None),),
            (lambda: eval("a", closure=None),),
            (lambda: exec("print(a)", globals={"a": 1}),),
        ]
    )


def program_function_of_module_code():
    names = {"a": 1}
    function = types.FunctionType(compile("a = a + 1\nb = dir()", "f", "exec"), names)
    function()
    function()
    return names["a"], names["b"]


def program_top_level_await():
    import ast

    async def numbers():
        yield 1
        yield 2

    async def value():
        return 7

    found = []
    for source, mode in [
        ("a = await value()", "exec"),
        ("await value()", "eval"),
        ("a = [n async for n in numbers()]", "exec"),
        ("async for n in numbers(): a = n", "exec"),
        ("a = 5", "exec"),
        ("def f(): await value()", "exec"),
    ]:
        for flags in (0, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
            try:
                code = compile(source, "await", mode, flags)
            except SyntaxError as error:
                found.append(error.msg)
                continue
            names = {"value": value, "numbers": numbers, "a": 0}
            made = eval(code, names)
            found.append((type(made).__name__, made and asyncio.run(made), names["a"]))
            called = types.FunctionType(code, {**names, "a": 0})
            made = called()
            found.append((made and asyncio.run(made), called.__globals__["a"]))
    return found


def hinted(call):
    """The error of a call as the traceback module shows it, and its attributes for hints."""
    try:
        return call()
    except Exception as error:
        about = type(getattr(error, "obj", None)).__name__
        names = (getattr(error, "name", None), getattr(error, "name_from", None), getattr(error, "path", None))
        return about, names, traceback.format_exception_only(error)


def program_hints_for_attributes():
    import math

    def refuse(name):
        raise AttributeError(name)

    class Derived(types.ModuleType):
        blech = 1

    class Meta(type):
        blech = 1

    class Owner(metaclass=Meta):
        nothing = property()

        @property
        def failing(self):
            raise AttributeError("own")

    module, lazy, nameless = types.ModuleType("module"), types.ModuleType("lazy"), types.ModuleType("nameless")
    module.blech = lazy.blech = 1
    lazy.__getattr__ = refuse
    del nameless.__name__
    calls = [
        lambda: module.bluch,
        lambda: getattr(module, "blu" + "ch"),
        lambda: Derived("derived").bluch,
        lambda: lazy.bluch,
        lambda: nameless.bluch,
        lambda: math.coss,
        lambda: sys.pth,
        lambda: types.ModuleType.__getattribute__(module, "bluch"),
        lambda: delattr(module, "bluch"),
        lambda: Owner.bluch,
        lambda: Owner().bluch,
        lambda: Owner().nothing,
        lambda: Owner().failing,
        lambda: object.__getattribute__(Owner(), "failing"),
        lambda: object.__getattribute__(Owner(), "bluch"),
    ]
    return [hinted(call) for call in calls]


def program_hints_for_what_is_not_callable():
    import pprint

    nameless, other = types.ModuleType("nameless"), types.ModuleType("other")
    del nameless.__name__
    other.other = 5
    return [
        hinted(lambda: thing(*arguments)) for thing in (pprint, nameless, other, 5, None) for arguments in ((), (1,))
    ]


def program_hints_for_imports():
    def of_math():
        from math import coss

    def of_package():
        from collections.abc import Iterabl

    def of_other():
        from odd import bluch

    def of_name():
        return eval("maths")

    class Odd:
        __file__ = "odd.py"
        blech = 1

    shadow = types.ModuleType("shadow")
    shadow.blech = 1
    shadow.__spec__ = types.SimpleNamespace(_initializing=True, has_location=True, origin="shadow.py")
    found = [hinted(call) for call in (of_math, of_package, of_name)]
    for module in (Odd(), shadow, types.ModuleType("plain"), 5):
        sys.modules["odd"] = module
        try:
            found.append(hinted(of_other))
        finally:
            del sys.modules["odd"]
    return found


def program_iterators_made_again():
    import builtins

    class Never:
        def __getitem__(self, index):
            raise IndexError

    found = []
    for iterator in (iter([1, 2]), iter((1,)), iter(Never()), reversed([1, 2]), iter("ab"), iter(int, 1)):
        original = builtins.iter, builtins.reversed
        try:
            builtins.iter, builtins.reversed = "iter", "reversed"
            reduced = [iterator.__reduce__(), type(iterator).__reduce__(iterator), iterator.__reduce_ex__(2)]
        finally:
            builtins.iter, builtins.reversed = original
        found.append([[one for one in each if one == "iter" or one == "reversed"] for each in reduced])
    return found


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


def program_all_any_and_tuple_of_generators():
    numbers = [3, 0, 5]
    return all(n for n in numbers), any(n > 4 for n in numbers), tuple(n * 2 for n in numbers), all(n < 9 for n in ())


def program_manager_without_its_methods():
    class OnlyEnters:
        def __enter__(self):
            return self

    class OnlyAsynchronous:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            return None

    told = []
    for kind in (OnlyEnters, OnlyAsynchronous, int):
        try:
            with kind():
                told.append("inside")
        except TypeError as error:
            told.append(str(error))
    return told


def program_subscripts_of_every_kind():
    class Keyed:
        def __getitem__(self, key):
            return key

    matrix = {"a": [1, 2, 3], (1, 2): "pair"}
    return matrix["a"][-1], matrix[1, 2], "text"[1:3], Keyed()[1, ..., 2:3], [[4]][0][0], (1, 2)[True], list[int]


def program_small_and_large_integers():
    return 0, 1, 255, 256, 257, -1, -5, 2**62, [n + 255 for n in range(3)]


def program_unpacked_arguments_with_and_without_keywords():
    def given(*args, **kwargs):
        return args, kwargs

    some, more = [1, 2], {"a": 3}
    return given(*some), given(*some, **more), given(0, *some, b=1, **more), given(**more), given(*(), **{})


def program_asynchronous_loop_that_ends_and_one_that_raises():
    class Counting:
        def __init__(self, last):
            self.left = last

        def __aiter__(self):
            return self

        async def __anext__(self):
            self.left -= 1
            if self.left < -1:
                raise ValueError("too far")
            if self.left < 0:
                raise StopAsyncIteration
            return self.left

    async def collected(last):
        found = []
        async for one in Counting(last):
            found.append(one)
        else:
            found.append("else")
        return found

    def driven(coroutine):
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
        except ValueError as error:
            return str(error)

    return driven(collected(2)), driven(collected(-1))
