"""Programs that notice when an object is freed, and how deep frames are."""

# The programs are odd on purpose.
# ruff: noqa: F841

import sys
import types


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
