"""Programs with generators, coroutines and context managers."""

# The programs are odd on purpose.
# ruff: noqa: B007, F841, PERF401, SIM105

import asyncio
import contextlib
import types


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
    for coroutine in (f, g):
        try:
            asyncio.run(coroutine())
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
        async for number in Counting(last):
            found.append(number)
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
