"""Functions that compute a derivative as `torch.func` does. `jit` compiles them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.compilation.gradients.trees import Argnums


@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient of a function with a scalar result."""

    function: Callable[..., Any]
    argnums: Argnums
    has_aux: bool
    with_value: bool

    @property
    def name(self) -> str:
        """The name of the user's function: `grad` or `value_and_grad`."""
        return "value_and_grad" if self.with_value else "grad"

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the gradient, with the value and the auxiliary result if requested."""
        return self.call_by(operator.call, self.function, args, kwargs)

    def call_by(
        self, call: Callable[..., Any], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of `call` for the gradient of the function by `torch.func`."""
        transformed = call(torch.func.grad_and_value, function, self.argnums, self.has_aux)
        gradient, value = call(transformed, *args, **kwargs)
        return self.result(gradient, *(value if self.has_aux else (value, None)))

    def result(self, gradient: object, value: object, aux: object) -> Any:
        """Return the result in the form that the user requested."""
        if self.with_value:
            return (value, aux) if self.has_aux else value, gradient
        return (gradient, aux) if self.has_aux else gradient


@dataclass(frozen=True, eq=False)
class JvpFunction:
    """The function of `jvp`: it returns the results of a function and the tangents of the results."""

    function: Callable[..., Any]
    has_aux: bool

    def call(self, primals: object, tangents: object) -> Any:
        """Return the results and their tangents, and the auxiliary result if the function returns one."""
        return torch.func.jvp(self.function, primals, tangents, has_aux=self.has_aux)
