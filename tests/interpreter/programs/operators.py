"""Programs with loops, operators, comprehensions, subscripts and pattern matching."""

# The programs are odd on purpose.
# ruff: noqa: B015, B905, C400, C416, C417, PLC3002, RET503, RUF059

import collections
import datetime as dt
import functools
import itertools
import operator
from dataclasses import dataclass


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


def program_match_errors():
    class Name(str):
        __slots__ = ()

    class Odd:
        __match_args__ = (Name("x"), "y", 3)
        x = y = 1

    def error_of(pattern):
        try:
            pattern()
        except TypeError as error:
            return str(error)

    def matches_no_class():
        match 1:
            case error_of():
                pass

    def matches_odd_names():
        match Odd():
            case Odd(1):
                pass

    def matches_too_many():
        match collections.OrderedDict():
            case collections.OrderedDict(1, 2):
                pass

    def matches_too_many_of_int():
        match 1:
            case int(1, 2):
                pass

    def matches_twice():
        match Odd():
            case Odd(x=1, y=1):
                pass

    def adds_to_a_date():
        return dt.date(2020, 1, 1) + "1"

    def compares_a_date():
        return dt.date(2020, 1, 1) < 1

    def unpacks_a_date():
        first, second = dt.date(2020, 1, 1)

    patterns = (
        matches_no_class,
        matches_odd_names,
        matches_too_many,
        matches_too_many_of_int,
        matches_twice,
        adds_to_a_date,
        compares_a_date,
        unpacks_a_date,
    )
    return [error_of(pattern) for pattern in patterns]


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


def program_default_dict_and_counter():
    d = collections.defaultdict(lambda: [0])
    d["a"].append(1)
    c = collections.Counter("hello")
    return dict(d), c.most_common(1), c + c


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


def program_subscripts_of_every_kind():
    class Keyed:
        def __getitem__(self, key):
            return key

    matrix = {"a": [1, 2, 3], (1, 2): "pair"}
    return matrix["a"][-1], matrix[1, 2], "text"[1:3], Keyed()[1, ..., 2:3], [[4]][0][0], (1, 2)[True], list[int]


def program_small_and_large_integers():
    return 0, 1, 255, 256, 257, -1, -5, 2**62, [n + 255 for n in range(3)]


def program_unpacking_an_object_that_is_not_iterable():
    class Without:
        pass

    class Forbidden:
        __iter__ = None

    messages = []
    for value in (Without(), Forbidden(), 3):
        try:
            first, second = value
        except TypeError as error:
            messages.append(str(error))
        try:
            first, *rest = value
        except TypeError as error:
            messages.append(str(error))
    return messages
