"""The interpreter's call events: lookasides, recorded operations, native calls and interpreted functions."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from thunder_core.backend.runtime.module import compiled_of
from thunder_core.frontend.acquire.code_origins import CodeOrigins, has_line
from thunder_core.frontend.acquire.lookasides import LOOKASIDES, is_native_code, late_lookaside_of, runs_alone
from thunder_core.frontend.acquire.lookasides.compiled import compiled_function, owner_of
from thunder_core.frontend.acquire.lookasides.functions.backward_hooks import method_of_node
from thunder_core.frontend.acquire.lookasides.functions.function import call_from_c
from thunder_core.frontend.acquire.lookasides.functions.generators import is_method_of_generator, method_of_generator
from thunder_core.frontend.acquire.lookasides.functions.tensors import maker_of_tensors
from thunder_core.frontend.acquire.lookasides.operators.collectives import collective_call
from thunder_core.frontend.acquire.lookasides.operators.foreign import foreign
from thunder_core.frontend.acquire.lookasides.operators.higher_order import called_operator
from thunder_core.frontend.acquire.lookasides.replaced import Replacements
from thunder_core.frontend.acquire.lookasides.state.drawn_arrays import (
    computed_call,
)
from thunder_core.frontend.acquire.lookasides.state.draws import drawing_call
from thunder_core.frontend.acquire.lookasides.state.lookups import LOOKUPS, settle_method
from thunder_core.frontend.acquire.lookasides.state.output import method_of_stream, method_that_logs_once
from thunder_core.frontend.acquire.lookasides.state.process_questions import process_question
from thunder_core.frontend.acquire.lookasides.state.world import world_call
from thunder_core.frontend.acquire.numbers import on_values
from thunder_core.frontend.acquire.outside.call_traits import (
    is_fixed,
    without_self,
)
from thunder_core.frontend.acquire.outside.sharp import LOUD, edge_of, is_users_code
from thunder_core.frontend.acquire.run.observed_reads import ObservedReads
from thunder_core.frontend.acquire.texts import method_of_text
from thunder_core.frontend.acquire.traced_run import InEager
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.torch_versions import applied_in_c
from thunder_core.tracing.library.objects import is_native

REPLACEMENT_FINDERS = (maker_of_tensors, method_of_stream, method_that_logs_once, method_of_text, method_of_node)
# Special methods whose results C code converts.
CONVERTING = frozenset(f"__{name}__" for name in ("index", "int", "float", "complex", "len", "length_hint", "hash"))
# the code of all functions with `torch._disable_dynamo`
DYNAMO_DISABLED_CODE = torch.optim.Optimizer.zero_grad.__code__


class ObservedCalls(ObservedReads):
    """An observer that decides how each call of the program runs."""

    subject: Callable[..., Any]
    replacements: Replacements
    in_eager: InEager | None
    operations: frozenset[Callable[..., Any]]
    code_origins: CodeOrigins
    own_interrupt: KeyboardInterrupt | None

    def on_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Return a function to call natively in place of this one, or None to leave the call unchanged.

        Lookasides come first. Torch operations are recorded when they run. Containers that C code receives are guarded.
        """
        if self.replacements and (replacement := self.replacements.of(self, function)) is not None:
            return replacement
        kind = type(function)
        if issubclass(kind, type):
            self.classes.met(function)
        plain = function.__func__ if kind is types.MethodType else function
        try:
            lookaside = LOOKASIDES.get(plain)
        except TypeError:  # an unhashable callable
            lookaside = None
        if lookaside is not None:
            if plain is not function:
                args = (function.__self__, *args)
            replacement = lookaside(self, plain, args, kwargs)
            if replacement is not None:
                return without_self(replacement, function) if plain is not function else replacement
        drawing = (
            drawing_call(self, function)
            or collective_call(self, function)
            or world_call(self, function)
            or (self.draws.arrays and computed_call(self, function, args, kwargs))
        )
        if drawing:
            return drawing
        if type(plain) is types.FunctionType:
            return self._python_function(function, plain, args, kwargs)
        if isinstance(function, HigherOrderOperator):
            return called_operator(self, function)
        if is_method_of_generator(function):
            method = method_of_generator(self, function)
            return None if method is None else on_values(method)
        for find in REPLACEMENT_FINDERS:
            if (replacement := find(self, function)) is not None:
                return replacement
        if (replacement := self.context_variables.method(self, function)) is not None:
            return replacement
        if (applied := applied_in_c(function)) is not None:
            return call_from_c(self, function, applied, args, kwargs)
        if kind is not type or is_native(function):
            self.outside.effects.announced = None
            if getattr(function, "__name__", "") in LOOKUPS and settle_method(self, function, args, kwargs):
                return None
            native = self.before_native(function, args, kwargs) or self.numbers.before_native(function, args, kwargs)
            return self.native_calls.attempted(self.machine, function, native)
        return None

    def _python_function(
        self, function: Any, plain: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        inner: Any = compiled_of(plain) if "_thunder" in plain.__dict__ else None
        if inner is not None:
            return compiled_function(self, function, plain, inner)
        if (lookaside := late_lookaside_of(plain)) is not None:
            return lookaside(self, plain, args, kwargs)
        replacement = foreign(self, function, plain)
        if replacement is not None:
            return replacement
        if plain.__code__ is DYNAMO_DISABLED_CODE:
            return functools.partial(self.machine.call, plain.__wrapped__, *owner_of(function))  # type: ignore[attr-defined]
        edge = self._check_edge(plain)
        if edge or plain in self.operations or is_native_code(plain):
            if (query := process_question(self, function, plain)) is not None:
                return query
            for arg in (*args, *kwargs.values()):
                self.outside.expand_whole(arg)
            native: Callable[..., Any] = function
            if plain not in self.operations:
                native = self.numbers.before_native(function, args, kwargs) or function
            return functools.partial(native) if runs_alone(plain.__module__, plain.__name__) else native
        if self.in_eager is not None and has_line(plain.__code__, self.in_eager.lines) and self._is_called(function):
            return functools.partial(self.in_eager, self, function)
        owned = (function.__self__, *args) if plain is not function else args
        self.classes.called(plain, owned)
        self.outside.defaults(plain)
        return None

    def _is_called(self, function: Any) -> bool:
        """Whether the program calls a function, which is neither the program nor what the program consists of."""
        return function is not self.subject and getattr(function, "__self__", None) is not self.subject

    def on_raise(self, error: BaseException) -> None:
        """Store a `KeyboardInterrupt` that the program raises itself, to distinguish it from one sent by the user."""
        if isinstance(error, KeyboardInterrupt):
            self.own_interrupt = error

    def on_cached(self, cached: Any, value: Any, hit: bool) -> bool:
        """Return whether a new value stays in the cache of `functools.lru_cache`. Guard a value that was in the cache.

        A new value enters the cache if no part of the trace can be in it. Then eager PyTorch and this program both
        return the cached value, even if the sources of the value change later. Other values are computed at each call
        of the trace, although eager PyTorch would reuse the first one.
        """
        if hit:
            self.outside.cached(cached)
            return True
        is_kept = is_fixed(value)
        if not is_kept and is_users_code(getattr(cached.__wrapped__, "__code__", None)):
            self.note_edge(f"{cached.__qualname__} under functools.lru_cache makes a new object at each call")
        return is_kept

    def interprets(self, function: types.FunctionType) -> bool:
        """Whether a function that C code calls is interpreted: not native functions, nor most of PyTorch's."""
        return self.code_origins.interprets(function)

    def on_called_back(self, function: types.FunctionType, value: Any) -> Any:
        """Return a plain number if C code converts the function's result.

        Other special methods keep a symbolic number.
        """
        name = function.__name__
        if isinstance(value, SymbolicNumber) and (name in CONVERTING or name[:2] != "__"):
            return value.concretize()
        return self.for_caller(value)

    def on_native_code(self, code: types.CodeType) -> None:
        """Report user code that C code ran natively, because its reads are not guarded."""
        if is_users_code(code):
            self.note_edge(f"{code.co_qualname} ran natively, and no guard checks what it reads")

    def _check_edge(self, function: Any) -> bool:
        edge = edge_of(function)
        if edge is not None:
            self.note_edge(edge, loud=edge.startswith(LOUD) and self.outside.surprises is None)
        return edge is not None

    def before_native(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Note the effects of a C function on its arguments. Return a function to call in its place, or None."""
        self._check_edge(function)
        self.native_reads.before(function, args, kwargs)
        return self.native_calls.before(self.machine, function, args, kwargs)
