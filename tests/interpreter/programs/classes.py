"""Programs that define classes and use their attributes."""

# The programs are odd on purpose.
# ruff: noqa: B023, C416, PLE0101, PLE0237, RUF012, SLOT001

import collections
import enum
import sys
import types
from dataclasses import dataclass, field

from tests.interpreter.programs.hints import hinted


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


def program_class_namespace():
    x = "outer"

    class A:
        x = "inner"
        copies = [x for x in range(2)]

        def f(self):
            return x

        annotated: int = 3

    return A.x, A().f(), A.copies, A.__annotations__


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
