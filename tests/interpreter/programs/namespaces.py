"""Programs that look names up: globals, builtins, imports, `exec` and frames."""

# The programs are odd on purpose.
# ruff: noqa: F401, F841

import collections
import sys
import traceback
import types

from tests.interpreter.programs.hints import hinted

COUNT = 0


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
    return found, "sqrt" in names, [refused_import(names) for names in ({"a"}, {"a": 1}, 5, None, iter("a"), [1], "ab")]


def refused_import(listed):
    """Return the error of `import *` from a module whose `__all__` is an unusual object."""
    module = types.ModuleType("unusual")
    module.__all__, module.a = listed, 1
    sys.modules["unusual"] = module
    try:
        exec("from unusual import *", {})
    except Exception as error:
        return type(error), str(error)
    finally:
        del sys.modules["unusual"]


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
