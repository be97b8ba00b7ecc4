"""The method `generate` of compiled modules that wrap a model, such as PEFT's wrappers for adapters.

`generate` of such a wrapper calls the inner model's `generate`, which calls the inner model and not the wrapper, so no
program of the wrapper runs. While the wrapper generates, the inner model's `generate` is therefore replaced by the
`generate` of the compiled inner model.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.foundation.errors import EagerMethodWarning
from thunder_core.tracing.capture.torch_facts.modes import is_recording

GENERATE = "generate"
Compile = Callable[[torch.nn.Module], torch.nn.Module]


class InnerGeneration:
    """The inner models of a compiled module whose `generate` the module's `generate` may call.

    `call` are the specializations of the compiled module, and `compile_inner` compiles an inner model; None if inner
    models are not compiled.
    """

    def __init__(self, call: Any, compile_inner: Compile | None) -> None:
        self._call = call
        self._compile_inner = compile_inner
        self._compiled: dict[int, torch.nn.Module] = {}

    def run(self, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module's own `generate` with compiled inner models; warn if no program has run."""
        if is_recording():
            return own(*args, **kwargs)
        calls_before = self._count_calls()
        with self._use_compiled_inner_models():
            result = own(*args, **kwargs)
        if self._count_calls() == calls_before:
            kind = type(self._call.subject).__name__
            warnings.warn(
                f"generate of {kind} ran in eager PyTorch: it calls neither the compiled module nor an inner model "
                "with its own generate; compile the module that it calls, and replace this module by the compiled one",
                EagerMethodWarning,
                stacklevel=4,
            )
        return result

    def _count_calls(self) -> int:
        """Return the number of calls that programs of the module, and of modules within it, have served."""
        within = (attribute_or_none(module, "_thunder") for module in self._call.subject.modules())
        candidates = (*within, *with_inner(self._call), self._call.of_forward)
        distinct = {id(candidate): candidate for candidate in candidates}.values()
        return sum(item.hits + item.misses for item in distinct if isinstance(item, Specializations))

    @contextmanager
    def _use_compiled_inner_models(self) -> Iterator[None]:
        """Replace `generate` of each inner model by the `generate` of the compiled inner model during the block."""
        models = [model for model in inner_models(self._call.subject) if GENERATE not in model.__dict__]
        if self._compile_inner is None:
            models = []
        try:
            for model in models:
                compiled: Any = self._compiled_model(model)
                model.__dict__[GENERATE] = functools.partial(type(compiled).generate, compiled)
            yield
        finally:
            for model in models:
                model.__dict__.pop(GENERATE, None)

    def _compiled_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the compiled inner model, which is compiled at the first call."""
        assert self._compile_inner is not None
        if id(model) not in self._compiled:
            compiled: Any = self._compile_inner(model)
            self._compiled[id(model)] = compiled
            self._call.inner.append(compiled._thunder)
        return self._compiled[id(model)]


def with_inner(specializations: Specializations) -> list[Specializations]:
    """Return the specializations of a compiled module and, recursively, of the inner models compiled for it."""
    return [specializations, *(nested for inner in specializations.inner for nested in with_inner(inner))]


def inner_models(module: Any) -> Iterator[Any]:
    """Yield the outermost submodules whose class has a `generate`, except for compiled submodules."""
    for child in module.children():
        if not callable(getattr(type(child), GENERATE, None)):
            yield from inner_models(child)
        elif attribute_or_none(child, "_thunder") is None:
            yield child


def attribute_or_none(module: Any, name: str) -> Any:
    """Return an attribute of a module; None if reading the attribute raises any error."""
    try:
        return getattr(module, name, None)
    except Exception:  # the user's `__getattr__` may raise any error
        return None


def generating_method(call: Specializations, compile_inner: Compile | None) -> dict[str, Callable[..., Any]]:
    """Return the method `generate` of a compiled module, by its name; empty if the module has no such method."""
    module: Any = call.subject
    kind, state = type(module), module.__dict__
    if not isinstance(attribute_or_none(module, GENERATE), types.MethodType):
        return {}
    inner = InnerGeneration(call, compile_inner)
    own = getattr(kind, GENERATE, None)

    @functools.wraps(own if own is not None else getattr(module, GENERATE))
    def generate(self: object, *args: Any, **kwargs: Any) -> Any:
        # A wrapper whose class has no `generate` finds the inner model's method by `__getattr__`, at each call.
        method = functools.partial(own, self) if own is not None else lookup_of_generate(kind, self)
        return inner.run(method, args, kwargs) if self.__dict__ is state else method(*args, **kwargs)

    return {GENERATE: generate}


def lookup_of_generate(kind: Any, module: Any) -> Callable[..., Any]:
    """Return a function that looks up a module's `generate` by the `__getattr__` of its class, and calls it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return kind.__getattr__(module, GENERATE)(*args, **kwargs)

    return call
