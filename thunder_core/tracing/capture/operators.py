"""The aten operations of a torch function call: each runs on fakes and is recorded as a part of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.tracing.capture.call import RecordedCall
from thunder_core.tracing.capture.fakes.absent_gpu import DEVICE_QUERIES, META, is_on_absent_gpu, restore, stand_in_for
from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.symbols import LIFTS, is_process_group_method, is_random, symbol_of
from thunder_core.tracing.capture.torch_facts.wrappers import Wrapped
from thunder_core.tracing.capture.torch_facts.writes import (
    has_out_argument,
    is_reshaping,
    out_of_place,
    written_values,
)
from thunder_core.tracing.ir.proxy import tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.operators.unsized_results import SAVING

ALIAS = torch.ops.aten.alias.default
Run = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]


class AtenOperations:
    """The execution of the aten operations of torch functions on fakes; they become subsymbols of the call.

    A `TorchDispatchMode` passes each operation to `dispatch`. `with_fakes` returns arguments with fakes in place of
    real tensors. `record` records an operation that C++ code called outside of any torch function. `refuse` returns the
    error for an operation that is not traced.
    """

    def __init__(
        self,
        tensors: Tensors,
        with_fakes: Callable[[Sequence[Any], Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]],
        record: Run,
        refuse: Callable[..., Exception],
    ) -> None:
        self.call: RecordedCall | None = None
        self._tensors = tensors
        self._with_fakes = with_fakes
        self._record = record
        self._refuse = refuse
        self._hidden: torch.device | None = None  # of the tensors of the present call
        self._view: torch.Tensor | None = None

    def begin(self, call: RecordedCall, *, hidden: torch.device | None) -> None:
        """Record operations as parts of `call` from now on; its tensors report no device if theirs is `hidden`."""
        self.call = call
        self._hidden = hidden

    def end(self) -> None:
        """Stop recording operations as parts of a call."""
        self.call = None
        self._hidden = None

    def make_view(self, fake: torch.Tensor, base: torch.Tensor) -> None:
        """Make `fake` a view of `base` in autograd's graph: call `aten.alias` on `base`, and return `fake` as the
        result.
        """
        self._view, self._hidden = fake, base.device if is_on_absent_gpu(base) else None
        try:
            ALIAS(base)
        finally:
            self._view, self._hidden = None, None

    def dispatch(self, operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one aten operation on fakes, and record it as a part of the torch function that called it."""
        if is_process_group_method(operator):
            return self._run_on_process_group(operator, args, kwargs)
        if self._view is not None and operator is ALIAS:
            return self._view
        if self._hidden is None:
            return self._dispatch(operator, args, restore(kwargs))
        if operator in DEVICE_QUERIES:
            return stand_in_for(self._hidden)
        hidden, self._hidden = self._hidden, None
        try:
            output = self._dispatch(operator, args, restore(kwargs))
        finally:
            self._hidden = hidden
        if self.call is not None and any(tensor.device.type == META for tensor in tensors_in(output)):
            self.call.opaque = True
        return output

    def _device_of(self, fake: FakeTensor) -> torch.device:
        """Return the device that C++ code gets for a fake; code outside of torch functions may be autograd's."""
        if self.call is None and is_on_absent_gpu(fake):
            return stand_in_for(fake.device)
        return fake.device

    def _run_on_process_group(self, operator: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an operator of a process group on fakes. Its call becomes opaque, so that the trace runs the whole
        call.
        """
        if self.call is None:
            raise self._refuse(
                f"`{operator._schema.name}` is called by code that the tracer cannot see",
                "keep the code that communicates out of the compiled program, or call torch.distributed yourself",
            )
        self.call.opaque = self.call.uses_process_group = True
        self.call.written.update(memory_of(tensor) for tensor in tensors_in((args, kwargs)))
        return operator(*args, **kwargs)

    def _dispatch(self, operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = self.call
        if operator in LIFTS and call is not None:
            call.opaque = True
            return operator(*args, **kwargs)
        if call is None and operator not in DEVICE_QUERIES:
            try:
                with torch._C.DisableTorchFunction():  # only C++ code outside of any torch function gets here
                    return self._record(operator, args, kwargs)
            except Wrapped:
                return NotImplemented
        try:
            args, kwargs = self._with_fakes(args, kwargs)
        except Wrapped:
            return NotImplemented  # so that PyTorch calls the wrappers
        if operator in DEVICE_QUERIES:
            return self._device_of(args[0]) if type(args[0]) is FakeTensor else operator(*args, **kwargs)
        assert call is not None
        return self._run_and_note(call, operator, args, kwargs)

    def _run_and_note(
        self, call: RecordedCall, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an aten operation on fakes, and add it to the subsymbols of a call."""
        unknown = not all(self._tensors.is_named(tensor) for tensor in tensors_in((args, kwargs)))
        renames = (is_reshaping(operator) or has_out_argument(operator)) and not unknown
        arguments = self._tensors.to_proxies((tuple(args), dict(kwargs))) if renames else None
        plain = out_of_place(operator) if arguments and call.has_made(arguments[0][0]) else None
        is_tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(args))
        saving = SAVING.get(operator) if is_tracked else None
        output = operator(*args, **kwargs)
        if plain is not None:
            self._tensors.renew(args[0])
        else:
            self.note(call, operator, args, kwargs)
        if unknown:
            call.opaque = True
            return output
        args, kwargs = arguments or self._tensors.to_proxies((tuple(args), dict(kwargs)))
        symbol, results = symbol_of(saving or plain or operator), self._tensors.to_proxies(output)
        call.subsymbols.append(BoundSymbol(symbol, tuple(args), kwargs, results, fresh=saving is not None))
        return output

    def note(
        self, call: RecordedCall, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record an operation's effects on memory, on random numbers and on the metadata of tensors.

        Tensors whose metadata has changed get a new name, because a name represents one tensor with one metadata.
        """
        call.random |= is_random(operator, args, kwargs)
        call.reshapes |= is_reshaping(operator)
        for written in written_values(operator, args, kwargs):
            call.written.update(memory_of(tensor) for tensor in tensors_in(written))
        if is_reshaping(operator):
            for tensor in tensors_in([*written_values(operator, args, kwargs)]):
                call.before.setdefault(id(tensor), self._tensors.proxy(tensor))
                self._tensors.renew(tensor)
        elif has_out_argument(operator):
            for tensor in filter(self._tensors.is_named, tensors_in([*written_values(operator, args, kwargs)])):
                call.reshapes |= self.rename_if_changed(call, tensor)

    def rename_if_changed(self, call: RecordedCall, tensor: torch.Tensor) -> bool:
        """Give a tensor a new name if a write or new data has changed its metadata; return whether it has."""
        before = self._tensors.proxy(tensor)
        with torch._C.DisableTorchFunction():
            now = replace(tensor_proxy(before.name, tensor), requires_grad=before.requires_grad)
        if now == before:
            return False
        call.before.setdefault(id(tensor), before)
        self._tensors.renew(tensor)
        return True
