"""Statements: each function writes one form; every loop and function uses a bounded supply of fuel."""

from collections.abc import Callable as Function

from tests.fuzz.expressions import anything, arguments, call, listing, number, thing
from tests.fuzz.source import Scope, Source

Form = Function[[Source, Scope], None]
_ERRORS = ("Oops", "Worse", "ValueError", "(KeyError, Oops)", "Exception", "LookupError", "TypeError", "NameError")


def body(source: Source, scope: Scope, least: int = 1, most: int = 3) -> None:
    """Write some statements, or `pass` if the budget is spent."""
    for _ in range(source.number(least, most)):
        if source.budget <= 0:
            break
        source.budget -= 1
        forms = SIMPLE if scope.depth > 4 else SIMPLE + NESTED
        source.pick(forms)(source, scope)
    source.write("pass")


def _assign(source: Source, scope: Scope) -> None:
    if not scope.own:
        return _say(source, scope)
    target, value = source.pick(scope.own), number(source, scope)
    if source.one_in(20):
        value = thing(source, scope)
    forms = ("{0} = {1}", "{0} = {1}", "{0} += {1}", "{0} -= {1}")
    source.write(source.pick((*forms, "{0}: int = {1}") if scope.kind == "module" else forms).format(target, value))
    if source.lines[-1].split()[1] in ("+=", "-="):
        source.write(f"{target} = small({target})")
    return None


def _assign_list(source: Source, scope: Scope) -> None:
    if not scope.lists:
        return _say(source, scope)
    name, value = source.pick(scope.lists), listing(source, scope)
    source.write(source.pick((
        "{0}.append({2})", "{0}[:1] = {1}", "{0}[0] = {2}", "{0}.extend({1})", "del {0}[0]", "{0} += {1}",
        "{0}.sort(key=lambda p: {2})", "{0}[{2} % 3] += 1",
    )).format(name, value, number(source, scope, 1)))  # fmt: skip
    source.write(f"if len({name}) > 8: del {name}[4:]")
    return None


def _unpack(source: Source, scope: Scope) -> None:
    if len(scope.own) < 2:
        return _say(source, scope)
    first, second = scope.own[0], scope.own[-1]
    source.write(
        source.pick(("{0}, {1} = {1}, {0}", "{0}, {1} = {2}, 3", "{0}, *{1} = {3}", "*{0}, {1} = {3}",
                     "[{0}, ({1}, *_)] = {2}, {3}"))
        .format(first, second, number(source, scope), listing(source, scope))
    )  # fmt: skip
    return None


def _say(source: Source, scope: Scope) -> None:
    source.write(f"say({number(source, scope)}, {anything(source, scope)})")


def _call(source: Source, scope: Scope) -> None:
    source.write(f"say({call(source, scope, 2)})")


def _delete(source: Source, scope: Scope) -> None:
    if not scope.own or not source.one_in(3):
        return _say(source, scope)
    name = source.pick(scope.own)
    source.write(f"del {name}")
    if source.one_in(2):
        source.write(f"{name} = 1")
    return None


def _raise(source: Source, scope: Scope) -> None:
    value = number(source, scope)
    source.write(f"if {number(source, scope)}:")
    source.write("    " + source.pick((
        "raise Oops({0})", "raise Worse({0}) from None", "raise ValueError({0}) from Oops('cause')", "raise KeyError",
        "raise", "raise Oops({0}) from KeyError('c')", "raise StopIteration({0})", "assert not {0}, {0}",
        "raise ExceptionGroup('group', [Oops({0}), ValueError(1)])", "raise Worse", "[][{0}]", "undefined_name",
        "raise {0}",
    )).format(value))  # fmt: skip


def _leave(source: Source, scope: Scope) -> None:
    choices = ["pass"]
    if scope.loop:
        choices += ["break", "continue", "continue"]
    if scope.returns:
        value = "" if scope.kind == "asyncgen" else f" {anything(source, scope, 1)}"
        choices += [f"return{value}"]
    if scope.kind in ("generator", "asyncgen"):
        choices += [f"yield {number(source, scope, 1)}"]
    source.write(f"if {number(source, scope, 1)}: {source.pick(choices)}")


def _if(source: Source, scope: Scope) -> None:
    with source.block(f"if {number(source, scope)}:"):
        body(source, scope.deeper())
    if source.one_in(3):
        with source.block(f"elif {number(source, scope)}:"):
            body(source, scope.deeper())
    if source.one_in(2):
        with source.block("else:"):
            body(source, scope.deeper())


def _for(source: Source, scope: Scope) -> None:
    over = source.pick(
        (f"range({source.number(1, 4)})", listing(source, scope), f"Countdown({number(source, scope, 1)} % 4)")
    )
    target = source.pick(scope.own) if scope.own and source.one_in(2) else "e"
    inner = scope.deeper(loop=True, readable=(*scope.readable, target))
    with source.block(f"for {target} in {over}:"):
        source.write("next(fuel)")
        body(source, inner)
    _else(source, scope)


def _while(source: Source, scope: Scope) -> None:
    with source.block(f"while next(fuel) % {source.number(2, 6)} and {number(source, scope)}:"):
        body(source, scope.deeper(loop=True))
    _else(source, scope)


def _else(source: Source, scope: Scope) -> None:
    if source.one_in(3):
        with source.block("else:"):
            body(source, scope.deeper(), 1, 2)


def _try(source: Source, scope: Scope) -> None:
    with source.block("try:"):
        body(source, scope.deeper())
    handlers = source.number(0, 2)
    if handlers and source.one_in(5):
        return _except_star(source, scope)
    for _ in range(handlers):
        with source.block(f"except {source.pick(_ERRORS)} as error:"):
            source.write("say(type(error).__name__, error.args and type(error.args[0]).__name__)")
            _handle(source, scope)
    if handlers and source.one_in(4):
        with source.block("except:"):
            _handle(source, scope)
    if handlers and source.one_in(3):
        with source.block("else:"):
            body(source, scope.deeper(), 1, 2)
    if not handlers or source.one_in(3):
        with source.block("finally:"):
            body(source, scope.deeper(), 1, 2)
    return None


def _handle(source: Source, scope: Scope) -> None:
    inner = scope.deeper()
    body(source, inner, 1, 2)
    if source.one_in(4):
        source.write(
            source.pick(("raise", "raise Oops('again')", "raise error from Worse(3)", "say(repr(error)); raise error"))
        )


def _except_star(source: Source, scope: Scope) -> None:
    for kind in source.pick((("Oops",), ("ValueError", "Oops"), ("Exception",), ("(TypeError, Worse)", "LookupError"))):
        with source.block(f"except* {kind} as group:"):
            source.write("say([type(one).__name__ for one in group.exceptions])")
            body(source, scope.deeper(loop=False, returns=False), 1, 2)


def _with(source: Source, scope: Scope) -> None:
    first = f"Manager(say, {source.number(0, 3)})"
    head = source.pick(
        ("with {0}:", "with {0} as m:", "with {0}, Manager(say, 1) as m:", "with contextlib.suppress(Oops):")
    )
    if scope.kind in ("async", "asyncgen") and source.one_in(2):
        head = "async with {0} as m:"
    with source.block(head.format(first)):
        body(source, scope.deeper())


def _match(source: Source, scope: Scope) -> None:
    names = scope.own or ("u",)
    first, last = names[0], names[-1] if len(names) > 1 else "w"
    patterns = (
        "{2}", "[{0}, *_]", "[{0}, {1}]", "Point(x={0}, y={2})", "Point({0}, {1})", "{{'k': {0}, **rest}}",
        "int() as {0}",
        "1 | 2 | {2}", "[1, *{0}] | {{'k': {0}}}", "str({0})", "None", "(Number() | Worse()) as {0}",
        "-1", "Worse(value={0})",
    )  # fmt: skip
    with source.block(f"match {anything(source, scope)}:"):
        for _ in range(source.number(1, 3)):
            pattern = source.pick(patterns).format(first, last, source.number(0, 9))
            guard = f" if {number(source, scope.having(walrus=False), 1)}" if source.one_in(4) else ""
            with source.block(f"case {pattern}{guard}:"):
                body(source, scope.deeper(), 1, 2)
        if source.one_in(2):
            with source.block("case _:"):
                body(source, scope.deeper(), 1, 2)


def _yield(source: Source, scope: Scope) -> None:
    """Write yield or yield from in generators, await in coroutines, and a call elsewhere."""
    own = source.pick(scope.own) if scope.own else "got"
    value = number(source, scope, 1)
    known = [helper for helper in scope.callables if helper.kind == _INNER.get(scope.kind)]
    inner = source.pick(known) if known else None
    made = f"{inner.name}({arguments(source, scope, inner, 1)})" if inner else "Countdown(3)"
    if scope.kind == "generator":
        source.write(source.pick((
            "{0} = yield {1}", "yield {1}", "{0} = yield from {2}", "yield from [{1}, 2]", "yield from Countdown(2)",
            "{0} = (yield {1}) or (yield)",
        )).format(own, value, made))  # fmt: skip
    elif scope.kind in ("async", "asyncgen"):
        made = made if inner else f"Pause({value})"
        lines = ["{0} = await Pause({1})", "{0} = await {2}", "await Pause({1})"]
        lines += ["yield {1}", "{0} = yield {1}"] if scope.kind == "asyncgen" else []
        source.write(source.pick(lines).format(own, value, made))
    else:
        _call(source, scope)


_INNER = {"generator": "generator", "async": "coroutine", "asyncgen": "coroutine"}


def _async_for(source: Source, scope: Scope) -> None:
    known = [helper for helper in scope.callables if helper.kind == "asyncgen"]
    if scope.kind not in ("async", "asyncgen") or not known:
        return _yield(source, scope)
    one = source.pick(known)
    made = f"{one.name}({arguments(source, scope.having(walrus=False), one, 1)})"
    if source.one_in(3) and scope.lists:
        source.write(f"{scope.lists[0]}[:] = [small(e) async for e in {made} if e != 3]")
        return None
    with source.block(f"async for e in {made}:"):
        source.write("next(fuel)")
        body(source, scope.deeper(loop=True, readable=(*scope.readable, "e")))
    return _else(source, scope)


SIMPLE: tuple[Form, ...] = (
    _assign, _assign, _assign, _assign_list, _unpack, _say, _call, _call, _delete, _raise, _leave, _leave, _yield,
    _yield,
)  # fmt: skip
NESTED: tuple[Form, ...] = (_if, _for, _for, _while, _try, _try, _try, _with, _match, _async_for)
