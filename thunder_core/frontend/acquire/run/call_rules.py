"""The rules for calls that no table names: lookasides that decide themselves which functions they replace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.frame import Frame

# Called as `(run, function, args, kwargs)`; returns `NOT_TAKEN` for functions that it does not replace.
CallRule = Callable[[TracedRun, Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class CallRules:
    """The rules for the calls of a program. `acquire.lookasides.rules` has the rules of all lookasides.

    - `python_functions`, `callables`, `objects`: rules for Python functions; for Python functions, bound methods and
      objects; and for objects and functions in C that are no methods. They are asked in this order.
    - `of_c_function(owner, name)`: the rules for a C function with this name, by the class of its `__self__`.
    - `compiled`: the rule for functions that Thunder has compiled.
    - `foreign`: the rule for functions that another tracer or compiler has made.
    - `uninterpreted`: the rule for functions that are not interpreted.
    - `higher_order`: calls a higher-order operator.
    - `from_c`: calls the `apply` of an autograd function that code in C++ applies.
    - `branch`: records the arms of a branch on a tensor.
    - `instantiation`: checks a class before the program makes an instance.
    """

    python_functions: tuple[CallRule, ...]
    callables: tuple[CallRule, ...]
    objects: tuple[CallRule, ...]
    of_c_function: Callable[[type, str], tuple[CallRule, ...]]
    compiled: CallRule
    foreign: CallRule
    uninterpreted: CallRule
    higher_order: CallRule
    from_c: Callable[[TracedRun, Any, Any, tuple[Any, ...], dict[str, Any]], Any]
    branch: Callable[[TracedRun, Frame, object, int, int], Any]
    instantiation: Callable[[TracedRun, type], None]
