"""Whole programs: definitions of functions and classes, and then statements that use them."""

from tests.fuzz.expressions import number
from tests.fuzz.source import Callable, Choose, Scope, Source
from tests.fuzz.statements import body

_NAMES = ("a", "b", "c", "d")
_KINDS = ("function", "function", "generator", "coroutine", "asyncgen")
_INSIDE = {"function": "function", "generator": "generator", "coroutine": "async", "asyncgen": "asyncgen"}
_DECORATORS = ("twice", "functools.lru_cache", "functools.wraps(small)", "functools.cache")


def write_program(choose: Choose) -> str:
    """Return the text of a program that ends and probably runs long, from numbers that `choose(low, high)` returns."""
    source = Source(choose, budget=choose(8, 45))
    scope = Scope(readable=("a", "b"), own=("a", "b"), lists=("xs",))
    source.write("a, b, xs = 1, 2, [3, 1, 2]")
    for _ in range(source.number(1, 4)):
        scope = source.pick((_function, _function, _class))(source, scope)
        source.budget += 3
    source.budget = max(source.budget, 20)
    for _ in range(source.number(2, 6)):
        if source.one_in(6):
            body(source, scope, 1, 2)
            continue
        with source.block("try:"):
            body(source, scope.deeper(), 1, 3)
        source.write("except Exception as error: say(told(error))")
        source.write("else: say(a, b, xs)")
    return source.text()


def _function(source: Source, scope: Scope, depth: int = 0) -> Scope:
    """Define a function; return the scope in which it can be called."""
    kind = source.pick(_KINDS)
    parameters = _NAMES[: source.number(0, 2)]
    optional = ("c",) if source.one_in(3) else ()
    keywords = ("key",) if source.one_in(4) else ()
    starred = source.one_in(5)
    made = Callable(source.name("f"), len(parameters), len(optional), keywords, starred, kind)
    signature = [*parameters, *(f"{name}={number(source, scope, 1)}" for name in optional)]
    signature += ["*rest"] if starred else ["*"] if keywords else []
    signature += list(keywords)
    if kind == "function" and source.one_in(6) and not starred:
        source.write(f"@{source.pick(_DECORATORS)}")
    prefix = "async " if kind in ("coroutine", "asyncgen") else ""
    outside = scope.having(callables=(*scope.callables, made))
    inside = outside if source.one_in(3) else scope
    with source.block(f"{prefix}def {made.name}({', '.join(signature)}):"):
        _definition(source, inside, kind, (*parameters, *optional, *keywords), depth)
    return outside


def _definition(source: Source, scope: Scope, kind: str, parameters: tuple[str, ...], depth: int) -> None:
    """Write a function's body: its declarations, local variables, inner functions, and statements."""
    declared: tuple[str, ...] = ()
    free = [name for name in scope.enclosing if name not in parameters]
    if free and source.one_in(2):
        declared = (source.pick(free),)
        source.write(f"nonlocal {declared[0]}")
    elif source.one_in(4):
        spare = [name for name in ("a", "b") if name not in parameters]
        if spare:
            declared = (source.pick(spare),)
            source.write(f"global {declared[0]}")
    source.write("next(fuel)")
    own = ("x", *(("y",) if source.one_in(2) else ()))
    own = tuple(name for name in own if name not in declared)
    for name in own:
        source.write(f"{name} = {number(source, scope, 1)}")
    own += parameters
    is_global = bool(declared) and declared[0] not in free
    inner = scope.having(
        kind=_INSIDE[kind],
        readable=tuple(dict.fromkeys((*scope.readable, *own))),
        own=(*own, *(() if is_global else declared)) or declared,
        lists=("xs", "ys"),
        enclosing=tuple(dict.fromkeys((*scope.enclosing, *own))),
        loop=False,
        returns=True,
        depth=scope.depth + 1,
    )
    if is_global:
        inner = inner.having(
            own=(*inner.own, *declared), enclosing=tuple(n for n in inner.enclosing if n not in declared)
        )
    source.write("ys = [x]" if "x" in own else "ys = [1]")
    if source.one_in(3) and depth < 2 and source.budget > 3:
        inner = _function(source, inner, depth + 1)
        returned = inner.callables[-1]
        inner = inner.having(kind=_INSIDE[kind])
        if source.one_in(4):
            source.write(f"say(type({returned.name}).__name__)")
    source.budget += 2
    body(source, inner, 1, 4)
    if kind in ("generator", "asyncgen"):
        source.write(f"yield {number(source, inner, 1)}")
    elif source.one_in(2):
        source.write(f"return {number(source, inner, 2)}")


def _class(source: Source, scope: Scope, depth: int = 0) -> Scope:
    """Define a class; return the scope in which it can be used."""
    name = source.name("K")
    bases = source.pick(("", "", "Registered", "Registered, rank=2", "Number", "Listed", *(scope.classes or ("",))))
    with source.block(f"class {name}({bases}):"):
        source.write(f"total = {number(source, scope, 1)}")
        source.write("size = Described()")
        if source.one_in(3):
            inside = scope.having(
                kind="class", own=("total", "t"), walrus=False, returns=False, loop=False, lists=("xs",), depth=3
            )
            body(source, inside, 1, 2)
        for write in source.pick(_METHODS):
            write(source, scope, name)
    return scope.having(classes=(*scope.classes, name))


def _method_scope(scope: Scope) -> Scope:
    return scope.having(
        kind="function", readable=(*scope.readable, "v", "self.value"), own=("v",), returns=True, lists=("xs",),
        enclosing=(*scope.enclosing, "v"), depth=2,
    )  # fmt: skip


def _write_init(source: Source, scope: Scope, name: str) -> None:
    with source.block("def __init__(self, v=2):"):
        source.write(
            source.pick(("pass", "super().__init__(v) if len(type(self).__mro__) > 3 else None", "self.extra = v"))
        )
        source.write(f"self.value = {number(source, _method_scope(scope).having(readable=('v',)), 1)}")
        source.write("self.size = v")


def _write_method(source: Source, scope: Scope, name: str) -> None:
    with source.block("def method(self, v):"):
        source.write("next(fuel)")
        if source.one_in(3):
            source.write(f"if hasattr(super(), 'method'): v = super({source.pick(('', f'{name}, self'))}).method(v)")
        body(source, _method_scope(scope), 1, 3)
        source.write(f"return {number(source, _method_scope(scope))}")


def _write_property(source: Source, scope: Scope, name: str) -> None:
    decorator = source.pick(("property", "functools.cached_property"))
    source.write(f"@{decorator}")
    with source.block("def lazy_one(self):"):
        source.write("next(fuel)")
        source.write("say('property')")
        source.write(f"return {number(source, _method_scope(scope).having(readable=('self.value',), own=()), 1)}")


def _write_class_methods(source: Source, scope: Scope, name: str) -> None:
    source.write("@classmethod")
    with source.block("def made(cls, v):"):
        source.write("return cls(v)")
    source.write("@staticmethod")
    with source.block("def plain(v):"):
        source.write(f"return {number(source, scope.having(readable=('v',), own=('v',), kind='function'), 2)}")


def _write_operators(source: Source, scope: Scope, name: str) -> None:
    inner = _method_scope(scope)
    for special in source.pick(
        (("add", "radd"), ("add", "eq"), ("radd", "lt"), ("call", "len"), ("getattr",), ("getattribute",))
    ):
        if special == "len":
            source.write(f"def __len__(self): return {source.number(-1, 3)}")
        elif special == "getattr":
            source.write("def __getattr__(self, v): return 4 if v[0] in 'nl' else super().__getattribute__(v)")
        elif special == "getattribute":
            source.write("def __getattribute__(self, v): return 5 if v == 'nothing' else super().__getattribute__(v)")
        else:
            with source.block(f"def __{special}__(self, v):"):
                source.write(f"if type(v) is not int: return {source.pick(('NotImplemented', 'False'))}")
                source.write("next(fuel)")
                source.write(f"return {number(source, inner, 1)}")


_METHODS = (
    (_write_init, _write_method),
    (_write_init, _write_method, _write_operators),
    (_write_init, _write_class_methods, _write_property, _write_operators),
    (_write_init, _write_method, _write_class_methods),
    (_write_init, _write_operators, _write_operators),
)
