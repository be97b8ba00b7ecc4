"""Expressions: each function writes one form; numbers and lists are separate, so that most programs run long."""

from collections.abc import Callable as Function

from tests.fuzz.source import Callable, Scope, Source

Form = Function[[Source, Scope, int], str]
_OPERATORS = ("+", "-", "*", "//", "%", "&", "|", "^")
_COMPARISONS = ("<", "<=", "==", "!=", ">", ">=", "is", "is not")


def number(source: Source, scope: Scope, depth: int = 2) -> str:
    """Write an expression that is most likely a number."""
    if depth <= 0 or source.budget <= 0:
        return source.pick((_literal, _name))(source, scope, 0)
    return source.pick(NUMBERS)(source, scope, depth - 1)


def listing(source: Source, scope: Scope, depth: int = 2) -> str:
    """Write an expression that is most likely a list."""
    if depth <= 0 or source.budget <= 0:
        return source.pick(scope.lists) if scope.lists else f"[{number(source, scope, 0)}]"
    return source.pick(LISTS)(source, scope, depth - 1)


def anything(source: Source, scope: Scope, depth: int = 2) -> str:
    """Write a number, a list, or an object."""
    return source.pick((number, number, number, listing, listing, thing))(source, scope, depth)


def thing(source: Source, scope: Scope, depth: int = 1) -> str:
    """Write an object."""
    values = number(source, scope, depth - 1), number(source, scope, depth - 1)
    return source.pick((
        "Number({0})", "Point({0}, {1})", "Point(x={1})", "Listed([{0}])", "Countdown({0} % 4)", "({0}, {1})",
        "{{'k': {0}, 'm': {1}}}", "None", "'text'", "{{{0}, {1}}}", "Worse({0})", "lambda: {0}",
    )).format(*values)  # fmt: skip


def _literal(source: Source, scope: Scope, depth: int) -> str:
    return str(source.number(0, 9))


def _name(source: Source, scope: Scope, depth: int) -> str:
    return source.pick(scope.readable) if scope.readable else "1"


def _binary(source: Source, scope: Scope, depth: int) -> str:
    left, right = number(source, scope, depth), number(source, scope, depth)
    return f"small({left} {source.pick(_OPERATORS)} {right})"


def _mixed(source: Source, scope: Scope, depth: int) -> str:
    """Write operators of objects: usually compatible objects, sometimes any two."""
    one, two = number(source, scope, depth), number(source, scope, depth)
    if source.one_in(4):
        left, right = thing(source, scope, depth), anything(source, scope, depth)
        return f"small(({left}) {source.pick(('+', '-', '*', '==', '<', 'in', '%', '|'))} ({right}))"
    return source.pick((
        "small(Number({0}) + {1}).value", "small({1} - Number({0}))", "len(Listed([{0}]) + Listed([{1}]))",
        "len([{0}] + Listed([{1}]))", "len(Listed([{0}]) + [{1}])", "(Listed([{0}]) == [{1}])", "({0} in Number({1}))",
        "sum(Listed([{0}]) * 2)", "(Number({0}) < Number({1}))", "max(Number({0}), Number({1}))",
        "[*Number({0})][{1} % 4]",
        "(Number({0}) == {1})", "(Point({0}, {1}).y)", "xs[Number({0} % 3)]", "len(f'{{Number({0}):>3}}')",
    )).format(one, two)  # fmt: skip


def _compare(source: Source, scope: Scope, depth: int) -> str:
    first, second = number(source, scope, depth), number(source, scope, depth)
    text = f"({first}) {source.pick(_COMPARISONS[:6])} ({second})"
    if source.one_in(3):
        text += f" {source.pick(_COMPARISONS[:6])} ({number(source, scope, depth)})"
    return f"({text})"


def _logic(source: Source, scope: Scope, depth: int) -> str:
    left, right = number(source, scope, depth), anything(source, scope, depth)
    return source.pick(("(({0}) and ({1}))", "(({0}) or ({1}))", "(not ({0}))", "(-({0}))", "(~({0}))")).format(
        left, right
    )


def _choice(source: Source, scope: Scope, depth: int) -> str:
    parts = [number(source, scope, depth) for _ in range(3)]
    return "(({}) if ({}) else ({}))".format(*parts)


def _walrus(source: Source, scope: Scope, depth: int) -> str:
    if not scope.walrus or not scope.own:
        return number(source, scope, depth)
    return f"({source.pick(scope.own)} := {number(source, scope, depth)})"


def _length(source: Source, scope: Scope, depth: int) -> str:
    return source.pick(("len({})", "sum({})", "max({}, default=0)", "({})[0]", "({})[-1]", "min({})")).format(
        listing(source, scope, depth)
    )


def _text(source: Source, scope: Scope, depth: int) -> str:
    one, two = number(source, scope, depth), anything(source, scope, depth - 1)
    name = source.pick(scope.readable) if scope.readable else "1"
    return source.pick((
        "len(f'{{{name}}} {{{name}!r:>5}}')", "len(f'{{{name}:03}}')", "len(str({one}))", "len(repr({two}))",
        "len('%s %r' % ({one}, {two}))", "len(format({one}, '>4'))",
    )).format(one=one, two=two, name=name)  # fmt: skip


def _lambda(source: Source, scope: Scope, depth: int) -> str:
    inner = scope.having(readable=(*scope.readable, "p", "q"), walrus=False, kind="lambda")
    body, value = number(source, inner, depth), number(source, scope, depth)
    return source.pick(
        ("(lambda p, q=2: {0})({1})", "(lambda p, *, q: {0})({1}, q=3)", "(lambda *p, **q: len(p))(*[{1}])")
    ).format(body, value)


def call(source: Source, scope: Scope, depth: int) -> str:
    """Write a call of a function of the program, most likely with matching arguments."""
    known = scope.callables
    if not known:
        return number(source, scope, depth)
    return called(source, scope, source.pick(known), depth)


def called(source: Source, scope: Scope, function: Callable, depth: int) -> str:
    """Write a call of one function as a number or a list."""
    text = f"{function.name}({arguments(source, scope, function, depth)})"
    return GIVEN[function.kind](source, scope, text)


def arguments(source: Source, scope: Scope, function: Callable, depth: int) -> str:
    """Write arguments for a function; one time in 12 there is one too many or too few."""
    count = function.positional + (source.number(0, function.optional) if function.optional else 0)
    if source.one_in(12):
        count += source.pick((-1, 1))
    parts = [number(source, scope, depth) for _ in range(count)]
    if function.starred and source.one_in(2):
        parts.append(f"*{listing(source, scope, depth)}")
    elif parts and source.one_in(6):
        parts[-1] = f"*[{parts[-1]}]"
    named = [f"{name}={number(source, scope, depth)}" for name in function.keywords]
    if named and source.one_in(4):
        named = [f"**dict({', '.join(named)})"]
    return ", ".join(parts + named)


def _of_generator(source: Source, scope: Scope, text: str) -> str:
    plan = source.pick(("[1, 2]", "[None, 1]", "[3, None, None]", "[]"))
    return source.pick(("sum({0})", "next({0}, 5)", "len(list({0}))", "len(exhaust({0}, {1}))", "max(*{0})")).format(
        text, plan
    )


def _of_coroutine(source: Source, scope: Scope, text: str) -> str:
    if scope.kind == "async" and source.one_in(2) and scope.walrus:
        return f"(await {text})"
    return f"drive({text}{source.pick(('', ', (1,)', ', (0, 2)'))})"


def _of_async_generator(source: Source, scope: Scope, text: str) -> str:
    plan = source.pick(("[1, 2]", "[None, 1]", "[3, None, None]", "[]"))
    return source.pick(("drive(total({0}))", "drive(total({0}), (1,))", "drive(asked({0}, {1}))", "len([{0}])")).format(
        text, plan
    )


GIVEN: dict[str, Function[[Source, Scope, str], str]] = {
    "function": lambda source, scope, text: text,
    "generator": _of_generator,
    "coroutine": _of_coroutine,
    "asyncgen": _of_async_generator,
}


def _method(source: Source, scope: Scope, depth: int) -> str:
    if not scope.classes:
        return number(source, scope, depth)
    kind, value = source.pick(scope.classes), number(source, scope, depth)
    return source.pick((
        "{0}({1}).method({1})", "{0}({1}).value", "{0}.total", "{0}({1}).size", "{0}.made({1}).value",
        "{0}.plain({1})", "{0}({1}).lazy_one", "small({0}({1}) + {1})", "len({0}({1}))", "{0}({1}).nothing",
        "getattr({0}({1}), 'size', 3)", "{0}({1})({1})", "hasattr({0}({1}), 'rank')",
    )).format(kind, value)  # fmt: skip


def _display(source: Source, scope: Scope, depth: int) -> str:
    first, second, rest = number(source, scope, depth), anything(source, scope, depth), listing(source, scope, depth)
    return source.pick(("[{0}, {1}]", "[{0}, *{2}]", "[*{2}, {0}]", "list(({0}, {1}))", "[{0}]", "[]")).format(
        first, second, rest
    )


def comprehension(source: Source, scope: Scope, depth: int) -> str:
    """Write a comprehension of any kind, as a list."""
    variable = source.pick(("i", "j", "k"))
    over = listing(source, scope.having(walrus=False), depth)
    walrus = scope.walrus and scope.kind != "class"
    inner = scope.having(readable=(*scope.readable, variable), walrus=walrus, kind="lambda")
    value = number(source, inner, depth)
    tail = f"for {variable} in {over}"
    if source.one_in(3):
        other = "n" if variable != "n" else "m"
        tail += f" for {other} in range({variable} if type({variable}) is int and {variable} < 4 else 2)"
    if source.one_in(2):
        tail += f" if {number(source, inner, depth)}"
    return source.pick((
        "[{0} {1}]", "list({0} {1})", "sorted({{{0} {1}}})", "list({{{2}: {0} {1}}}.values())",
        "[lambda: {0} {1}]", "list(map(lambda one: one(), [lambda: {2} {1}]))", "[*({0} {1})]",
    )).format(value, tail, variable)  # fmt: skip


def _mapped(source: Source, scope: Scope, depth: int) -> str:
    inner = scope.having(readable=(*scope.readable, "p"), walrus=False, kind="lambda")
    body, over = number(source, inner, depth), listing(source, scope, depth)
    return source.pick((
        "list(map(lambda p: {0}, {1}))", "sorted({1}, key=lambda p: {0})", "list(filter(lambda p: {0}, {1}))",
        "list(zip({1}, {1}))", "list(enumerate({1}))", "list(reversed({1}))",
    )).format(body, over)  # fmt: skip


def _sliced(source: Source, scope: Scope, depth: int) -> str:
    over = listing(source, scope, depth)
    return source.pick(
        ("({})[1:]", "({})[::-1]", "({})[:2]", "list({} or [1])", "list(Countdown(len({}) % 5))")
    ).format(over)


def _listed_call(source: Source, scope: Scope, depth: int) -> str:
    generators = [helper for helper in scope.callables if helper.kind == "generator"]
    if not generators:
        return _display(source, scope, depth)
    function = source.pick(generators)
    text = f"{function.name}({arguments(source, scope, function, depth)})"
    return source.pick(("list({0})", "exhaust({0}, [1, None])", "[*{0}]", "[1, *{0}]", "sorted({0})")).format(text)


NUMBERS: tuple[Form, ...] = (
    _literal, _name, _name, _binary, _binary, _compare, _logic, _choice, _walrus, _length, _text, _lambda, call, call,
    call, _method, _method, _mixed,
)  # fmt: skip
LISTS: tuple[Form, ...] = (_display, _display, comprehension, comprehension, _mapped, _sliced, _listed_call)
