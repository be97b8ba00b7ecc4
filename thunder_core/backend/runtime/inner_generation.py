"""`generate` of a compiled module that leaves the work to a model within it, as wrappers for adapters do.

Such a wrapper calls the inner model's `generate`, which calls the inner model: no program of the wrapper runs. So while
the wrapper generates, the inner model's `generate` is that of the inner model compiled likewise.
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
    """The models within one compiled module that generate for it; `compile_inner` compiles one as the module is."""

    def __init__(self, call: Any, compile_inner: Compile | None) -> None:
        self._call = call
        self._compile_inner = compile_inner
        self._compiled: dict[int, torch.nn.Module] = {}

    def run(self, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module's own `generate`, and warn where no program has run."""
        if is_recording():
            return own(*args, **kwargs)
        before = self._calls()
        with self._inner_models_compiled():
            result = own(*args, **kwargs)
        if self._calls() == before:
            kind = type(self._call.subject).__name__
            warnings.warn(
                f"generate of {kind} ran in eager PyTorch: it calls neither the compiled module nor an inner model "
                "with its own generate; compile the module that it calls, and replace this module by the compiled one",
                EagerMethodWarning,
                stacklevel=3,
            )
        return result

    def _calls(self) -> int:
        """The number of calls that programs of the module, and of modules within it, have served."""
        inner = (getattr(module, "_thunder", None) for module in self._call.subject.modules())
        known = (*inner, *with_inner(self._call), self._call.of_forward)
        compiled = {id(one): one for one in known}.values()
        return sum(one.hits + one.misses for one in compiled if isinstance(one, Specializations))

    @contextmanager
    def _inner_models_compiled(self) -> Iterator[None]:
        """While this lasts, `generate` of each model within the module is that of the compiled one."""
        models = [model for model in inner_models(self._call.subject) if GENERATE not in model.__dict__]
        if self._compile_inner is None:
            models = []
        for model in models:
            compiled: Any = self._compiled_model(model)
            model.__dict__[GENERATE] = functools.partial(type(compiled).generate, compiled)
        try:
            yield
        finally:
            for model in models:
                del model.__dict__[GENERATE]

    def _compiled_model(self, model: torch.nn.Module) -> torch.nn.Module:
        assert self._compile_inner is not None
        if id(model) not in self._compiled:
            compiled: Any = self._compile_inner(model)
            self._compiled[id(model)] = compiled
            self._call.inner.append(compiled._thunder)
        return self._compiled[id(model)]


def with_inner(specializations: Specializations) -> list[Specializations]:
    """The programs of a compiled module, and of all models within it that generate for it."""
    return [specializations, *(inner for one in specializations.inner for inner in with_inner(one))]


def inner_models(module: Any) -> Iterator[Any]:
    """The outermost modules within a module whose class has a `generate`, and that are not compiled themselves."""
    for child in module.children():
        if not callable(getattr(type(child), GENERATE, None)):
            yield from inner_models(child)
        elif getattr(child, "_thunder", None) is None:
            yield child


def generating_method(call: Specializations, compile_inner: Compile | None) -> dict[str, Callable[..., Any]]:
    """The method `generate` of a compiled module, by its name; none where the module has no such method."""
    module: Any = call.subject
    kind, state = type(module), module.__dict__
    if not isinstance(getattr(module, GENERATE, None), types.MethodType):
        return {}
    inner = InnerGeneration(call, compile_inner)
    own = getattr(kind, GENERATE, None)

    @functools.wraps(own if own is not None else getattr(module, GENERATE))
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A wrapper without the method of its own finds the inner model's by `__getattr__`, at each call.
        method = functools.partial(own, self) if own is not None else found_by(kind, self)
        return inner.run(method, args, kwargs) if self.__dict__ is state else method(*args, **kwargs)

    return {GENERATE: generate}


def found_by(kind: Any, module: Any) -> Callable[..., Any]:
    """The `generate` that a class without one finds by its `__getattr__` when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return kind.__getattr__(module, GENERATE)(*args, **kwargs)

    return call
