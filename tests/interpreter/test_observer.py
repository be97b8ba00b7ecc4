"""The events that an observer receives from a program, and the use of its answers."""

import functools

import pytest

from thunder_core.frontend.interpreter import NOT_TAKEN, Observer, interpret

SCALE = 3


class Recorder(Observer):
    """Records every event."""

    def __init__(self):
        self.events = []

    def note(self, *event):
        self.events.append(event)

    def named(self, *names):
        return [event[1:] for event in self.events if event[0] in names]

    def on_load_global(self, frame, name, value):
        self.note("global", name, name in frame.globals)
        return value

    def on_load_deref(self, frame, name, cell, value):
        self.note("deref", name, value)
        return value

    def on_load_attr(self, owner, name, value):
        self.note("attr", name, value)
        return value

    def on_missing_attr(self, owner, name):
        self.note("missing", name)

    def on_subscript(self, container, key, value):
        self.note("subscript", key, value)
        return value

    def on_call(self, function, args, kwargs):
        self.note("call", getattr(function, "__qualname__", repr(function)).rpartition(".<locals>.")[2], args, kwargs)
        return NOT_TAKEN

    def on_call_result(self, function, args, kwargs, value):
        self.note("result", function.__name__, value)
        return value

    def on_operation(self, function, operands):
        self.note("operation", function.__name__, operands)
        return NOT_TAKEN

    def on_store_attr(self, owner, name, value):
        self.note("store", name, value)
        return value

    def on_delete_attr(self, owner, name):
        self.note("delete", name)

    def on_store_subscript(self, container, key, value):
        self.note("store item", key, value)
        return value

    def on_delete_subscript(self, container, key):
        self.note("delete item", key)

    def on_store_global(self, frame, name, value):
        self.note("store global", name, value)
        return value

    def on_delete_global(self, frame, name):
        self.note("delete global", name)

    def on_store_deref(self, frame, name, cell, value):
        self.note("store deref", name, value)
        return value

    def on_delete_deref(self, frame, name, cell):
        self.note("delete deref", name)

    def on_enter(self, frame):
        self.note("enter", frame.code.co_name, frame.lineno > 0)

    def on_exit(self, frame):
        self.note("exit", frame.code.co_name)


def observe(function, *args):
    recorder = Recorder()
    value = interpret(function, recorder)(*args)
    return value, recorder


def test_reads_and_writes_of_names_are_reported():
    free = 5

    def program():
        global made
        nonlocal free
        made = SCALE + free
        free = 6
        del made
        return len("abc")

    value, recorder = observe(program)
    assert value == 3 and free == 6
    assert recorder.named("global") == [("SCALE", True), ("len", False)]
    assert recorder.named("deref") == [("free", 5)]
    assert recorder.named("store deref") == [("free", 6)]
    assert recorder.named("store global", "delete global") == [("made", 8), ("made",)]


def test_own_cells_are_not_free():
    def program():
        own = 1

        def inner():
            return own

        return inner() + own

    assert observe(program)[1].named("deref") == [("own", 1)]


class Thing:
    plain = 1

    def __init__(self, value):
        self.value = value

    @property
    def doubled(self):
        return self.value * 2

    def method(self, x):
        return x

    def __getattr__(self, name):
        if name == "magic":
            return 9
        raise AttributeError(name)


def test_attribute_accesses_are_reported():
    thing = Thing(4)

    def program(thing):
        thing.other = thing.plain
        del thing.other
        return thing.doubled, thing.magic, thing.value, hasattr(thing, "nothing"), getattr(thing, "no", 1)

    value, recorder = observe(program, thing)
    assert value == (8, 9, 4, False, 1)
    assert recorder.named("attr") == [("plain", 1), ("value", 4), ("doubled", 8), ("magic", 9), ("value", 4)]
    assert recorder.named("missing") == [("nothing",), ("no",)]
    assert recorder.named("store", "delete") == [("other", 1), ("other",)]


def test_calls_are_reported():
    def added(a, b=0):
        return a + b

    def program():
        thing = Thing(2)
        return thing.method(3), functools.partial(added, 1)(b=2), max(1, 2)

    value, recorder = observe(program)
    thing_args = [event for event in recorder.named("call") if event[0] in ("Thing", "Thing.__init__")]
    assert value == (3, 3, 2)
    assert [event[0] for event in thing_args] == ["Thing", "Thing.__init__"]
    assert thing_args[0][1] == (2,) and thing_args[1][1][1:] == (2,)
    names = [event[0] for event in recorder.named("call")]
    assert names.count("Thing.method") == 1
    assert names.index("added") > names.index("partial")
    assert ("max", 2) in recorder.named("result")
    assert not [event for event in recorder.named("result") if event[0] == "added"]


def test_calls_of_implicit_methods_are_reported():
    class Manager:
        def __enter__(self):
            return [1]

        def __exit__(self, *args):
            return None

        def __iter__(self):
            return iter(())

        def __len__(self):
            return 0

    def program(manager):
        with manager as m:
            for _ in manager:
                pass
            return bool(manager), m

    names = [event[0] for event in observe(program, Manager())[1].named("call")]
    for expected in ("Manager.__enter__", "Manager.__iter__", "Manager.__len__", "Manager.__exit__"):
        assert expected in names


def test_operations_are_reported():
    def program(items, named):
        _a, _b = items
        for _ in named:
            pass
        if items:
            items += [3]
        items[0] = 5
        del items[1]
        return items == [5, 3], 2 in items, named["k"], items[0:1], [*items], dict(**named)

    value, recorder = observe(program, [1, 2], {"k": 1})
    assert value[:4] == (True, False, 1, [5])
    kinds = [name for name, _ in recorder.named("operation")]
    for expected in ("iter", "next", "bool", "iadd", "eq", "contains", "getitem"):
        assert expected in kinds
    assert recorder.named("store item", "delete item") == [(0, 5), (1,)]
    assert [key for key, _ in recorder.named("subscript")] == ["k", slice(0, 1)]


def test_operations_on_plain_operands_are_not_reported():
    def program(n):
        return ((n + 1 > 2) and -n * 3.5) or f"{n}"

    assert observe(program, 4)[1].named("operation") == []


def test_frames_are_reported():
    def inner():
        yield 1

    def program():
        return list(inner())

    assert [event[0] for event in observe(program)[1].named("enter")] == ["program", "inner"]
    assert [event[0] for event in observe(program)[1].named("exit")] == ["inner", "program"]


class Answers(Observer):
    """Answers with other values."""

    def on_load_global(self, frame, name, value):
        return 10 if name == "SCALE" else value

    def on_load_attr(self, owner, name, value):
        return 20 if name == "value" else value

    def on_subscript(self, container, key, value):
        return 30

    def on_call(self, function, args, kwargs):
        if getattr(function, "__name__", "") == "replaced":
            return self.machine.call(max, *args)
        return NOT_TAKEN

    def on_call_result(self, function, args, kwargs, value):
        return -value if getattr(function, "__name__", "") == "replaced" else value

    def on_store_attr(self, owner, name, value):
        return value + 1


def test_answers_of_an_observer_are_used():
    def replaced(*args):
        raise AssertionError

    def program(thing):
        thing.x = 1
        return SCALE, thing.value, [1][0], replaced(1, 2), thing.x

    assert interpret(program, Answers())(Thing(1)) == (10, 20, 30, -2, 2)


def test_machine_reports_the_current_line():
    class Where(Observer):
        def on_call(self, function, args, kwargs):
            if function is len:
                frame = self.machine.frame
                self.seen = (
                    frame.code.co_name,
                    frame.lineno,
                    frame.back.code.co_name,
                    dict(frame.locals),
                    frame.filename,
                )
            return NOT_TAKEN

    def inner(a):
        return len(a)

    def program():
        return inner("abc")

    where = Where()
    interpret(program, where)()
    assert where.seen == ("inner", inner.__code__.co_firstlineno + 1, "program", {"a": "abc"}, __file__)


def test_errors_pass_observers():
    class Refuses(Observer):
        def on_call(self, function, args, kwargs):
            raise LookupError("refused")

    with pytest.raises(LookupError, match="refused"):
        interpret(lambda: len("a"), Refuses())()
