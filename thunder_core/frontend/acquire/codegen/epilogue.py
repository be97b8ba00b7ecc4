"""The epilogue: the trace that replays the program's writes and builds its result."""

from __future__ import annotations

from collections.abc import Callable

from thunder_core.foundation.errors import CannotReplay
from thunder_core.frontend.acquire.codegen.expressions import Expressions
from thunder_core.frontend.acquire.outside.writes.effect import Effect
from thunder_core.tracing.ir.literal import LibraryFunction, is_source_name, keyword_argument, literal
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import python_statement
from thunder_core.tracing.ir.trace import Trace

SETTLE_DRAWS = LibraryFunction("thunder_core.tracing.library.draws", "settle_draws")


class Epilogue(Expressions):
    """Builds the epilogue: statements that replay the effects, and the expression of the program's result."""

    def trace(self, effects: list[Effect], output: object, *, settles_draws: bool = False) -> Trace:
        """Return the epilogue, which replays the effects in order and returns the output.

        If `settles_draws` is set, the epilogue first makes the draws of the prologue final.
        """
        if settles_draws:
            self.bsyms.append(python_statement(f"{self.scope.function(SETTLE_DRAWS)}()", Proxy(self._name("settled"))))
        for effect in effects:
            for argument in (*effect.arguments, *effect.keywords.values()):
                self._count_mentions(argument, f"{effect.owner}.{effect.name}" if effect.owner else effect.name)
        self._count_mentions(output, "the result")
        for effect in effects:
            STATEMENTS[effect.kind](self, effect)
        returned = self.value(output, "the result")
        name = self._name("result")
        self.bsyms.append(python_statement(returned, Proxy(name)))
        return Trace(
            name="epilogue",
            inputs=(*self.outside_inputs.values(), *self.computed_inputs.values()),
            bound_symbols=tuple(self.bsyms),
            output=Proxy(name),
            imports=frozenset(self.scope.imports),
            constants=dict(self.scope.constants),
        )

    def set_attribute(self, effect: Effect) -> None:
        """Emit `owner.name = value`.

        Emit `Base.__setattr__(owner, "name", value)` if the program called a base class's method, and `setattr` for a
        name that source code cannot use.
        """
        assert effect.owner is not None
        owner = self.outside(effect.owner)
        value = self.value(effect.arguments[0], f"{effect.owner}.{effect.name}")
        if effect.c_class is None and is_source_name(effect.name):
            self.bsyms.append(python_statement(f"{owner}.{effect.name} = {value}"))
        else:
            setter = "setattr" if effect.c_class is None else f"{literal(effect.c_class, self.scope)}.__setattr__"
            self.bsyms.append(python_statement(f"{setter}({owner}, {effect.name!r}, {value})"))

    def delete_attribute(self, effect: Effect) -> None:
        """Emit `del owner.name`.

        Emit `Base.__delattr__(owner, "name")` if the program called a base class's method, and `delattr` for a name
        that source code cannot use.
        """
        assert effect.owner is not None
        owner = self.outside(effect.owner)
        if effect.c_class is None and is_source_name(effect.name):
            self.bsyms.append(python_statement(f"del {owner}.{effect.name}"))
        else:
            deleter = "delattr" if effect.c_class is None else f"{literal(effect.c_class, self.scope)}.__delattr__"
            self.bsyms.append(python_statement(f"{deleter}({owner}, {effect.name!r})"))

    def call_method(self, effect: Effect) -> None:
        """Emit `owner.method(...)`, or `Base.method(owner, ...)` if the program called a base class's method."""
        assert effect.owner is not None
        owner = self.outside(effect.owner)
        if effect.c_class is None:
            self._emit_call(f"{owner}.{effect.name}", effect)
        else:
            self._emit_call(f"{literal(effect.c_class, self.scope)}.{effect.name}", effect, owner)

    def call_function(self, effect: Effect) -> None:
        """Emit the call of a function, with the owner, if any, as its first argument."""
        owners = [] if effect.owner is None else [self.outside(effect.owner)]
        name = effect.name if effect.function is None else literal(effect.function, self.scope)
        self._emit_call(name, effect, *owners)

    def refuse_partial(self, effect: Effect) -> None:
        """Raise `CannotReplay` for a call that raised and that may have changed its owner before."""
        raise CannotReplay(
            f"{effect.name} raises while it changes {effect.owner}, an object from outside, and the program catches "
            "the error",
            fix="change a copy, and update the container after the change has succeeded",
        )

    def _emit_call(self, called: str, effect: Effect, *first: str) -> None:
        """Emit a call with the expressions `first` and the arguments of the effect."""
        where = str(effect.owner or effect.name)
        arguments = [*first, *(self.value(argument, where) for argument in effect.arguments)]
        arguments += [keyword_argument(key, self.value(argument, where)) for key, argument in effect.keywords.items()]
        self.bsyms.append(python_statement(f"{called}({', '.join(arguments)})"))


STATEMENTS: dict[str, Callable[[Epilogue, Effect], None]] = {
    "set": Epilogue.set_attribute,
    "delete": Epilogue.delete_attribute,
    "call": Epilogue.call_method,
    "function": Epilogue.call_function,
    "print": Epilogue.call_function,
    "partial": Epilogue.refuse_partial,
}
