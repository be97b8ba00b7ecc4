"""Guards that are removed from a prologue, and slightly different calls that show their absence."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from tests.planted.plant import Plant
from tests.planted.programs import with_trace
from tests.planted.subject import Subject, state_put_back, subject
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.ir.guard import check_of
from thunder_core.tracing.library.objects import GuardFailed
from thunder_core.workflow.validation.internal_check import Fault
from thunder_core.workflow.validation.leaves import Leaves, leaves_of

CLOSE = 1e-5


@dataclass(frozen=True)
class OtherCall:
    """A call that differs from the traced one: in words, the arguments, and a context for the call."""

    what: str
    arguments: Callable[[], dict[str, Any]]
    changed: Callable[[], AbstractContextManager[Any]] = nullcontext

    def is_wrong(self, own: Subject, program: Program) -> bool:
        """Whether a program accepts the call and returns another result than eager PyTorch."""
        with state_put_back(own.model), torch.set_grad_enabled(own.train), self.changed():
            try:
                prepared = program.prepare(own.model, (), self.arguments())
            except Exception:
                return False
            ours = returned(lambda: program.run(*prepared))
            eager = returned(lambda: own.model(**self.arguments()))
        return not is_near(ours, eager)

    def refused_by(self, own: Subject) -> int | None:
        """The index of the guard that refuses the call."""
        with state_put_back(own.model), torch.set_grad_enabled(own.train), self.changed():
            try:
                own.program.prepare(own.model, (), self.arguments())
            except GuardFailed as error:
                return error.number
            except Exception:
                return None
        return None


def returned(call: Callable[[], Any]) -> Leaves | str:
    """The results of a call, or the class of its error."""
    torch.manual_seed(0)
    try:
        return leaves_of(call())
    except Exception as error:
        return type(error).__name__


def is_near(ours: Leaves | str, eager: Leaves | str) -> bool:
    """Whether two calls have the same results except for rounding, or both raise."""
    if isinstance(ours, str) or isinstance(eager, str):
        return isinstance(ours, str) and isinstance(eager, str)
    if ours.structure != eager.structure or ours.tensors.keys() != eager.tensors.keys():
        return False
    pairs = [(value, eager.tensors[path]) for path, value in ours.tensors.items()]
    return all(
        (left.dtype, left.shape, left.requires_grad) == (right.dtype, right.shape, right.requires_grad)
        and torch.allclose(left, right, rtol=CLOSE, atol=CLOSE, equal_nan=True)
        for left, right in pairs
    )


def guard_plants(family: str) -> Iterator[Plant]:
    """For each of the other calls, the removal of the guard that refuses the call."""
    for train in (False, True):
        own = subject(family, train=train, executors="torch")
        yield from (guard_plant(own, call) for call in other_calls(own))


def guard_plant(own: Subject, call: OtherCall) -> Plant:
    """The removal of the guard that refuses a call. If another guard refuses the call too, nothing changes."""
    number = functools.cache(lambda: call.refused_by(own))

    def planted() -> Program:
        return with_trace(own.program, "prologue", lambda one: without_guard(one, number()))

    def is_named(faults: Sequence[Fault]) -> bool:
        return faults[0].kind == "guard" and faults[0].line == f"guard {own.program.guards[number()]}"

    def changes(program: Program) -> bool:
        return number() is not None and call.is_wrong(own, program)

    what = f"what refuses {call.what}, {'training' if own.train else 'inference'}"
    return Plant("guard", own, what, planted, is_named, probe_guards=True, changes=changes)


def without_guard(prologue: Any, number: int) -> Any:
    """The prologue without a guard."""
    checks = {bsym: check_of(bsym) for bsym in prologue.bound_symbols}
    kept = [bsym for bsym, check in checks.items() if check is None or check.number != number]
    return prologue.having(kept, made_by=prologue.made_by)


def other_calls(own: Subject) -> Iterator[OtherCall]:
    """Calls with other arguments, in other modes, and of a changed model."""
    yield from with_other_tensors(own)
    same = own_arguments(own)
    for name, value in {"use_cache": False, "output_hidden_states": True, "return_dict": False}.items():
        yield OtherCall(f"{name}={value}", lambda n=name, v=value: {**same(), n: v})
    for name in own.inputs:
        yield OtherCall(f"no {name}", lambda n=name: {k: v for k, v in same().items() if k != n})
    yield OtherCall("the other mode", same, lambda: other_mode(own.model))
    for what, changed in PROCESS.items():
        yield OtherCall(what, same, lambda c=changed: c(own.train))
    yield from with_other_model(own, same)


def own_arguments(own: Subject) -> Callable[[], dict[str, Any]]:
    """A function that copies the arguments of the subject's call."""
    return lambda: {name: value.clone() for name, value in own.inputs.items()}


def with_other_tensors(own: Subject) -> Iterator[OtherCall]:
    """Calls with another length, another batch, other dtypes and other layouts."""
    same = own_arguments(own)
    yield OtherCall("one row", lambda: {name: value[:1] for name, value in same().items()})
    if "pixel_values" not in own.inputs:
        yield OtherCall("shorter", lambda: {name: value[:, :-2] for name, value in same().items()})
    for name, value in own.inputs.items():
        other = {torch.int64: torch.int32, torch.float32: torch.float64}[value.dtype]
        yield OtherCall(f"{name} of {other}", lambda n=name, o=other: {**same(), n: same()[n].to(o)})
        if value.ndim > 1:
            yield OtherCall(
                f"{name} transposed",
                lambda n=name: {**same(), n: same()[n].transpose(0, 1).contiguous().transpose(0, 1)},
            )
        if value.is_floating_point():
            yield OtherCall(f"{name} requires a gradient", lambda n=name: {**same(), n: same()[n].requires_grad_()})


@contextmanager
def other_mode(model: torch.nn.Module) -> Iterator[None]:
    """The model in the opposite mode of training and evaluation."""
    model.train(not model.training)
    try:
        yield
    finally:
        model.train(not model.training)


@contextmanager
def default_dtype(_: bool) -> Iterator[None]:
    """Set float64 as the default dtype."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


PROCESS: dict[str, Callable[[bool], AbstractContextManager[Any]]] = {
    "another grad mode": lambda train: torch.set_grad_enabled(not train),
    "inference mode": lambda _: torch.inference_mode(),
    "autocast": lambda _: torch.autocast("cpu", torch.bfloat16),
    "default dtype float64": default_dtype,
}


def with_other_model(own: Subject, same: Callable[[], dict[str, Any]]) -> Iterator[OtherCall]:
    """Calls of the model with another attribute, hook, submodule, parameter or function."""
    config = own.model.config
    for name, value in vars(config).items():
        if isinstance(value, bool):
            yield OtherCall(
                f"config.{name}={not value}", same, lambda n=name, v=value: mock.patch.dict(vars(config), {n: not v})
            )
    for path, module in own.model.named_modules():
        attributes = {
            name: value
            for name, value in vars(module).items()
            if type(value) in (float, bool) and name != "call_super_init"
        }
        for name, value in attributes.items():
            other = (not value) if isinstance(value, bool) else value * 3 + 0.125
            yield OtherCall(f"{path}.{name}", same, lambda m=module, n=name, o=other: mock.patch.object(m, n, o))
        if path:
            yield OtherCall(f"{path} with a hook", same, lambda m=module: hooked(m))
            yield OtherCall(
                f"{path}.forward", same, lambda m=module: mock.patch.dict(vars(m), {"forward": doubled(m.forward)})
            )
            yield OtherCall(f"{path} of another class", same, lambda m=module: of_another_class(m))
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield OtherCall(f"{path}.{name} in float64", same, lambda m=module, n=name: another_parameter(m, n))
    for kind in {type(module) for module in own.model.modules()}:
        yield OtherCall(
            f"{kind.__name__}.forward", same, lambda k=kind: mock.patch.object(k, "forward", doubled(k.forward))
        )


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a first result tensor that is twice as large."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return twice(function(*args, **kwargs))

    return call


def twice(output: Any) -> Any:
    """A result whose first tensor is twice as large."""
    if isinstance(output, torch.Tensor):
        return output * 2
    if isinstance(output, tuple):
        return (twice(output[0]), *output[1:])
    for key, value in vars(output).items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            output[key] = value * 2
    return output


@contextmanager
def hooked(module: torch.nn.Module) -> Iterator[None]:
    """A module with a forward hook that changes its result."""
    handle = module.register_forward_hook(lambda _, args, output: twice(output))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def of_another_class(module: torch.nn.Module) -> Iterator[None]:
    """Give the module a subclass that computes another result."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": doubled(kind.forward)})
    try:
        yield
    finally:
        module.__class__ = kind


@contextmanager
def another_parameter(module: torch.nn.Module, name: str) -> Iterator[None]:
    """A module with a parameter of another dtype."""
    before = module._parameters[name]
    assert before is not None
    module._parameters[name] = torch.nn.Parameter(before.detach().double(), before.requires_grad)
    try:
        yield
    finally:
        module._parameters[name] = before
