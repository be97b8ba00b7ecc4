"""Definitions for all generated programs: small classes, one for each protocol, and functions that drive coroutines."""

import bisect
import dis
import functools
import inspect
import itertools
import operator
import sys

# Instructions that never continue with the next instruction.
ENDS = (
    "RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT",
)  # fmt: skip
LOSES_ENTRIES = sys.version_info < (3, 12)
SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def bounded(value):
    """Return the value, or a smaller value in its place, so that no loop can make it grow endlessly."""
    if type(value) in (int, bool):
        return value if -100_000 < value < 100_000 else value % 9973
    return value if _weight(value, 4) < 40 else 7


def _weight(value, depth):
    if type(value) is str:
        return len(value)
    if type(value) not in (list, tuple, dict, set) or not depth:
        return 1
    total = 1
    for item in list(value.items()) if type(value) is dict else value:
        total += _weight(item, depth - 1)
        if total > 60:
            break
    return total


class Oops(Exception):
    """An error of the generated programs."""


class Worse(Oops):
    """A derived error that keeps a value."""

    def __init__(self, value=0):
        super().__init__("worse", value)
        self.value = value


class Manager:
    """A context manager that prints its calls and may suppress or replace errors."""

    def __init__(self, say, mode):
        self.say = say
        self.mode = mode

    def __enter__(self):
        self.say("enter", self.mode)
        if self.mode == 3:
            raise Oops("enter")
        return self.mode

    def __exit__(self, kind, error, traceback):
        self.say("exit", self.mode, kind and kind.__name__)
        if self.mode == 2:
            raise Worse(2)
        return self.mode == 1

    async def __aenter__(self):
        await Pause(self.mode)
        return self.__enter__()

    async def __aexit__(self, *error):
        await Pause(self.mode)
        return self.__exit__(*error)


class Pause:
    """An awaitable that yields its number and returns the sent value."""

    def __init__(self, number):
        self.number = number

    def __await__(self):
        got = yield self.number
        return got if got is not None else self.number


class Point:
    """A class for patterns."""

    __match_args__ = ("x", "y")

    def __init__(self, x=0, y=0):
        self.x = x
        self.y = y

    def __repr__(self):
        return f"Point({self.x!r}, {self.y!r})"


class Number:
    """A number whose operators are written in Python; it refuses odd operands."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"Number({self.value})"

    def _of(name, swapped=False):
        function = getattr(operator, name)

        def apply(self, other):
            if type(other) is Number:
                other = other.value
            if type(other) not in (int, bool) or other % 5 == 3:
                return NotImplemented
            return Number(bounded(function(other, self.value) if swapped else function(self.value, other)))

        return apply

    __add__, __radd__ = _of("add"), _of("add", True)
    __sub__, __rsub__ = _of("sub"), _of("sub", True)
    __mul__, __rmul__ = _of("mul"), _of("mul", True)
    __iadd__ = _of("add")
    __mod__ = _of("mod")
    __floordiv__ = _of("floordiv")
    del _of

    def __eq__(self, other):
        return self.value == other.value if type(other) is Number else NotImplemented

    def __lt__(self, other):
        return self.value < (other.value if type(other) is Number else other)

    def __hash__(self):
        return hash(self.value)

    def __neg__(self):
        return Number(-self.value)

    def __bool__(self):
        return self.value % 2 == 1

    def __index__(self):
        return self.value

    def __len__(self):
        return self.value % 4

    def __getitem__(self, key):
        if key > 3:
            raise IndexError(key)
        return bounded(self.value + key)

    def __call__(self, *arguments, **keywords):
        return bounded(self.value + len(arguments) + len(keywords))

    def __format__(self, specification):
        return f"<{self.value}:{specification}>"


class Listed(list):
    """A list whose operators sometimes defer to those of C."""

    def __add__(self, other):
        return Listed(list.__add__(self, other)) if type(other) is Listed else NotImplemented

    def __radd__(self, other):
        return Listed([*other, *self]) if type(other) is list else NotImplemented

    def __eq__(self, other):
        return NotImplemented if len(self) % 2 else list.__eq__(self, other)

    __hash__ = None


class Countdown:
    """An iterator with `__next__` in Python, and with `send` and `throw`."""

    def __init__(self, number):
        self.number = number

    def __iter__(self):
        return self

    def __next__(self):
        if self.number <= 0:
            raise StopIteration(self.number)
        self.number -= 1
        return self.number

    def send(self, value):
        return next(self)

    def throw(self, error):
        if isinstance(error, Oops):
            return self.number
        raise error


class Described:
    """A data descriptor that stores its attribute name."""

    def __set_name__(self, owner, name):
        self.key = f"_{name}"

    def __get__(self, owner, kind):
        return self if owner is None else getattr(owner, self.key, -1)

    def __set__(self, owner, value):
        setattr(owner, self.key, bounded(value))


class Registered:
    """A base class with `__init_subclass__` and `__getattr__`."""

    def __init_subclass__(cls, rank=0):
        cls.rank = rank

    def __getattr__(self, name):
        if name.startswith("lazy"):
            return len(name)
        raise AttributeError(name)


def twice(function):
    """Call the function twice; used as a decorator."""

    def decorated(*arguments, **keywords):
        function(*arguments, **keywords)
        return function(*arguments, **keywords)

    return decorated


def drive(coroutine, errors=()):
    """Run a coroutine to its end: send each number back, or throw at the steps in `errors`."""
    try:
        got = coroutine.send(None)
        for step in range(40):
            got = coroutine.throw(Oops("thrown", step)) if step in errors else coroutine.send(got)
    except StopIteration as end:
        return end.value
    coroutine.close()
    return -1


def exhaust(generator, plan):
    """Drive a generator by a plan: send the numbers, and throw for each None."""
    got = []
    try:
        got.append(next(generator))
        for step in plan:
            got.append(generator.throw(Oops("thrown")) if step is None else generator.send(step))  # noqa: PERF401
    except StopIteration as end:
        got.append(("end", end.value))
    finally:
        generator.close()
    return bounded(got)


def entries_of(entry):
    """Return the entries of a traceback; on 3.11 stop at a generator that handles an error: `throw` may drop some."""
    entries = []
    while entry is not None:
        entries.append(entry)
        if LOSES_ENTRIES and entry.tb_frame.f_code.co_flags & SUSPENDS and _handles(entry):
            break
        entry = entry.tb_next
    return entries


def _handles(entry):
    """Whether a frame was handling an error at a traceback offset, which may lie in an instruction cache."""
    offsets, depths = _handled(entry.tb_frame.f_code)
    place = bisect.bisect_right(offsets, entry.tb_lasti)
    return place > 0 and depths[place - 1] > 0


@functools.lru_cache(64)
def _handled(code):
    """Return the offsets of a code object's instructions, and the number of errors being handled at each.

    Every path is followed. Interpreted programs call this for each entry of a traceback.
    """
    instructions = list(dis.get_instructions(code))
    following = {one.offset: two.offset for one, two in itertools.pairwise(instructions)}
    found = {}
    left = [(0, 0)]
    by_offset = {instruction.offset: instruction for instruction in instructions}
    guarded = dis._parse_exception_table(code)
    while left:
        offset, depth = left.pop()
        if offset in found or offset not in by_offset:
            continue
        found[offset] = depth
        one = by_offset[offset]
        left += [(entry.target, depth) for entry in guarded if entry.start <= offset < entry.end]
        depth += {"PUSH_EXC_INFO": 1, "POP_EXCEPT": -1}.get(one.opname, 0)
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            left.append((one.argval, depth))
        if one.opname not in ENDS:
            left.append((following.get(offset), depth))
    offsets = sorted(found)
    return offsets, [found[offset] for offset in offsets]


def told(error):
    """Describe an error: its class, its arguments, its traceback, and its chain of causes."""
    lines = [(entry.tb_frame.f_code.co_name, entry.tb_lineno) for entry in entries_of(error.__traceback__)]
    chain = []
    other = error
    while other is not None and len(chain) < 6:
        chain.append(type(other).__name__)
        other = other.__cause__ or other.__context__
    return type(error).__name__, error.args, lines, chain, error.__suppress_context__


async def total(generator):
    """Return the sum of the values of an asynchronous generator."""
    found = 0
    async for value in generator:
        found += value
    return found


async def asked(generator, plan):
    """Drive an asynchronous generator by a plan, like `exhaust`."""
    count = 0
    try:
        await anext(generator)
        for step in plan:
            await (generator.athrow(Oops("thrown")) if step is None else generator.asend(step))
            count += 1
    except StopAsyncIteration:
        count += 10
    finally:
        await generator.aclose()
    return count
