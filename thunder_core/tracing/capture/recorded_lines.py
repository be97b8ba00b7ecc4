"""The lines of a recording: bound symbols in their order, with locations, grad mode and autocast, and its failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from thunder_core.foundation.errors import OperationFailed, ThunderError
from thunder_core.tracing.capture.binding import Binding
from thunder_core.tracing.capture.call import RecordedCall
from thunder_core.tracing.capture.call_cache import CallCache
from thunder_core.tracing.capture.caught_errors import CaughtErrors
from thunder_core.tracing.capture.data_dependent import DataDependentValues
from thunder_core.tracing.capture.failures import hides, unrunnable
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.gradients import Gradients
from thunder_core.tracing.capture.location import ForwardLocations, Location
from thunder_core.tracing.capture.recorded_program import RecordedProgram
from thunder_core.tracing.capture.symbolic.expectations import with_count_checks, with_result_checks
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.recorded_numbers import Numbers
from thunder_core.tracing.capture.torch_facts.autocast import autocast_state, changes
from thunder_core.tracing.capture.torch_facts.symbols import (
    SET_GRAD,
    is_data_assignment,
    is_higher_order,
    is_ordered,
    symbol_of,
)
from thunder_core.tracing.capture.torch_facts.wrappers import Wrapped, is_wrapper
from thunder_core.tracing.capture.transform_levels import TransformLevels
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol

Failure = TypeVar("Failure", bound=ThunderError)


class RecordedLines:
    """The bound symbols of a recording so far, their tensors, and the `failure` that ends the recording."""

    program: RecordedProgram
    tensors: Tensors
    numbers: Numbers
    bound_symbols: list[BoundSymbol]
    failure: ThunderError | None
    data_dependent: DataDependentValues
    caught_errors: CaughtErrors
    levels: TransformLevels
    gradients: Gradients
    _autocast: tuple[Any, ...]
    _forward: ForwardLocations
    _binding: Binding
    _call_cache: CallCache

    @property
    def inputs(self) -> Mapping[int, tuple[torch.Tensor, TensorProxy]]:
        """The real tensors that an operation has read, by identity, with their proxies."""
        return self.tensors.inputs

    def is_used(self, tensor: torch.Tensor) -> bool:
        """Whether an operation has read or made the tensor."""
        return self.tensors.is_used(tensor)

    def proxy_of(self, tensor: torch.Tensor) -> TensorProxy:
        """Return the proxy of a tensor of the program, real or fake."""
        return self.tensors.proxy(self.tensors.fake(tensor))

    def emit(self, bsym: BoundSymbol) -> None:
        """Append a bound symbol that changes a state, and clear the call cache, because equal calls may now differ."""
        self._call_cache.clear()
        self._autocast = autocast_state()
        self._append_here(bsym)

    def record_autocast_changes(self) -> None:
        """Record how native code has changed autocast's state since the last bound symbol."""
        state = autocast_state()
        if state != self._autocast:
            for bsym in changes(self._autocast, state):
                self.emit(bsym)

    def append(self, bsym: BoundSymbol, *, autocast_is_recorded: bool = False) -> None:
        """Append a bound symbol whose location is set; refuse a collective within a transform of torch.func.

        Native code may have changed autocast's state before, unless `autocast_is_recorded`.
        """
        if self.levels.depth and bsym.communicates:
            raise self._refuse(
                f"`{bsym.symbol.name}` is called within a transform of torch.func, where eager does not wait for it",
                "call the collective outside of `torch.vmap` and the derivatives of torch.func",
                runs_in_eager=False,
            )
        if not autocast_is_recorded:
            self.record_autocast_changes()
        self.levels.record_grad_mode_change()
        if not self.gradients.is_running:
            self._forward.note(bsym.source, bsym.module)
        self._binding.note(bsym)
        self.caught_errors.note(bsym)
        self.bound_symbols.append(bsym)

    def _append_here(self, bsym: BoundSymbol) -> None:
        """Append a bound symbol with the program's present line and module as its source."""
        location = self._location()
        self.append(replace(bsym, source=location.source, module=location.module))

    def _append_call(self, bsym: BoundSymbol, output: object, call: RecordedCall) -> None:
        """Append the bound symbol of a call, or the checks of its result if the result depends on values."""
        if call.depends_on_values:
            self.data_dependent.bsyms_read.append(bsym)
            for check in with_result_checks(bsym, output, self.tensors.next_name):
                self.append(check)
        else:
            (self.emit if is_ordered(bsym.symbol) else self.append)(bsym)
            for check in with_count_checks(bsym) if call.has_counted_size else ():
                self.append(check)

    def replace_from(self, start: int, bsyms: Iterable[BoundSymbol]) -> None:
        """Replace the recorded bound symbols from position `start` on by others."""
        del self.bound_symbols[start:]
        self.data_dependent.evaluation.forget()
        for bsym in bsyms:
            self.append(bsym)

    def _location(self) -> Location:
        """Return the location of the program; in a backward pass, the location of the forward operation."""
        return (self._forward.of_backward() if self.gradients.is_running else None) or self.program.location()

    def _switch_grad(self, enabled: bool) -> None:
        """Switch grad mode, and record it."""
        if enabled != torch.is_grad_enabled():
            with torch._C.DisableTorchFunction():
                SET_GRAD(enabled)
            self._note_grad_mode(enabled)

    def _note_grad_mode(self, enabled: bool) -> None:
        self.emit(BoundSymbol(symbol_of(SET_GRAD), (enabled,), {}, None, ordered=True))

    def fail(self, error: Failure) -> Failure:
        """Store the error that the recording fails with, because the program may swallow it, and return the error."""
        self.failure = error
        return error

    def reset_failure(self, failure: ThunderError | None) -> None:
        """Restore the failure that was stored before an attempt, whose own failure has no consequence."""
        self.failure = failure

    def _refuse(self, what: str, fix: str, *, runs_in_eager: bool = True) -> ThunderError:
        """Return the error for something that is not traced. The error is also stored, because the program may swallow
        it.
        """
        failure = self.fail(OperationFailed(what, fix=fix, where=self._location().source))
        failure.runs_in_eager = runs_in_eager
        return failure

    def _fail(self, function: Callable[..., Any], error: Exception | None = None) -> ThunderError:
        """Return the error for an operation that needs data. The error is also stored, because the program may swallow
        it.
        """
        return self.fail(unrunnable(function, self._location().source, error))

    def _require_traceable(self, function: Callable[..., Any]) -> None:
        """Raise the error for a function whose effect cannot be recorded."""
        if is_higher_order(function):
            raise self.fail(hides(function, self._location().source))

    def _require_data_assignment(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse a call of `x.set_` that is not equivalent to an assignment to `x.data`."""
        if not is_data_assignment(args, kwargs):
            raise self._refuse(
                "`set_` gives a tensor the memory of a storage, of another dtype, or of a tensor that autograd tracks",
                "assign to a variable, copy the values with `copy_`, or call `set_` on tensors under torch.no_grad()",
            )

    def with_fakes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with fakes for real tensors. The error for an unsupported tensor has the program's
        line.
        """
        try:
            return self.tensors.to_fake(tuple(args)), self.tensors.to_fake(dict(kwargs)) if kwargs else {}
        except Wrapped:
            raise
        except OperationFailed as error:
            error.where = self._location().source
            self.fail(error)
            raise

    def _to_fake_unless_wrapped(self, leaf: object) -> Any:
        return self.tensors.fake(leaf) if isinstance(leaf, torch.Tensor) and not is_wrapper(leaf) else leaf

    def _record_item(self, tensor: torch.Tensor, kind: type) -> SymbolicNumber:
        """Record `tensor.item()`, and return its result as a symbolic number."""
        number = self.numbers.new(kind)
        proxy = self.tensors.proxy(self.tensors.fake(tensor))
        self._append_here(BoundSymbol(symbol_of(torch.Tensor.item), (proxy,), {}, number.proxy))
        return number

    def _read_number(self, proxy: Proxy) -> Any:
        return self.data_dependent.number(proxy)
