"""The recorder: torch operations as bound symbols, each with the aten operations that it consists of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.capture.fake import fake_of, new_mode
from thunder_core.capture.symbols import VALUE_READERS, is_ordered, is_random, symbol_of, written_arguments
from thunder_core.errors import DataDependent, OperationFailed, SourceLine, ThunderError
from thunder_core.ir.proxy import TensorProxy, tensor_proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves

QUERIES = frozenset({torch.ops.prim.device.default})
LIFTS = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})
SET_GRAD = torch._C._set_grad_enabled
NEEDS_VALUE = (DataDependentOutputException, DynamicOutputShapeException)
NEEDS_DATA = (UnsupportedFakeTensorException, UnsupportedOperatorException)


@dataclass(frozen=True)
class Place:
    """Where the program is: the user's line and the path of the innermost module."""

    source: SourceLine | None = None
    module: str = ""


@dataclass
class Call:
    """One torch function while it runs: the aten operations seen so far and what they do.

    `written`: the storages that it writes to; `random`: it draws random numbers; `opaque`: it uses tensors that have no name; `idle`: it sets a state to what
    the state already is.
    """

    subsymbols: list[BoundSymbol] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    random: bool = False
    opaque: bool = False
    idle: bool = False


def memory_of(fake: torch.Tensor) -> int:
    """What a tensor has in common with its views: the identity of their storage."""
    return fake.untyped_storage()._cdata


class Recorder:
    """Runs torch functions on fake tensors and writes down what they were.

    Real tensors are handles: the program may hold them, and each is exchanged for its fake when it meets an
    operation. `name_input(tensor)` is asked for the name of a real tensor that is met for the first time.
    """

    def __init__(self, name_input: Callable[[torch.Tensor], str], place: Callable[[], Place]) -> None:
        self.mode = new_mode()
        self.bound_symbols: list[BoundSymbol] = []
        self.inputs: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self.failure: ThunderError | None = None
        self._name_input = name_input
        self._place = place
        self._fakes: dict[int, torch.Tensor] = {}
        self._reals: dict[int, torch.Tensor] = {}
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._call: Call | None = None
        self._count = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While this lasts, every torch operation of this thread is recorded and none touches data."""
        complaints = logging.getLogger("torch._subclasses.fake_tensor")
        before, complaints.disabled = complaints.disabled, True
        try:
            with self.mode, _Dispatch(self), _Function(self):
                yield
        finally:
            complaints.disabled = before

    def proxy_of(self, tensor: torch.Tensor) -> TensorProxy:
        """The proxy that stands for a tensor of the program, real or fake."""
        fake = self.fake(tensor)
        return self._proxies[id(fake)][1]

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has met an operation, or came out of one."""
        return id(tensor) in self._fakes or id(tensor) in self._proxies

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake behind a real tensor, made on first sight; a fake itself."""
        if isinstance(tensor, FakeTensor):
            return tensor
        fake = self._fakes.get(id(tensor))
        if fake is None:
            fake = fake_of(tensor, self.mode)
            proxy = tensor_proxy(self._name_input(tensor), fake)
            self._fakes[id(tensor)] = fake
            self._reals[id(fake)] = tensor
            self._proxies[id(fake)] = (fake, proxy)
            self.inputs[id(tensor)] = (tensor, proxy)
        return fake

    def emit(self, bsym: BoundSymbol) -> None:
        """Append a line that no torch function stands for, at the program's present place."""
        place = self._place()
        self.bound_symbols.append(replace(bsym, source=place.source, module=place.module))

    # ---- level one: what the user wrote ---------------------------------------------------------------------

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one torch function on fakes, record it if it matters, and give the program its result."""
        if function in VALUE_READERS:
            raise self._fail(function)
        args, kwargs = self._to_fake(tuple(args)), self._to_fake(dict(kwargs))
        call = self._call = Call(idle=function is SET_GRAD and args[0] == torch.is_grad_enabled())
        try:
            output = function(*args, **kwargs)
        except (*NEEDS_VALUE, *NEEDS_DATA) as error:
            raise self._fail(function, error) from error
        finally:
            self._call = None
        self._record(function, args, kwargs, output, call)
        return self._to_real(output)

    def _record(self, function: Callable[..., Any], args: Any, kwargs: Any, output: Any, call: Call) -> None:
        symbol = symbol_of(function)
        read = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        known = {id(tensor) for tensor in read}
        fresh = [t for t in leaves(output) if isinstance(t, torch.Tensor) and id(t) not in known]
        mutates = [self._proxies[id(t)][1].name for t in read if call.written and memory_of(t) in call.written]
        ordered = call.random or is_ordered(symbol) and not call.idle
        if not (fresh or mutates or ordered):
            return
        place = self._place()
        self.bound_symbols.append(
            BoundSymbol(
                symbol=symbol,
                args=self._to_proxies(args),
                kwargs=self._to_proxies(kwargs),
                output=self._to_proxies(output),
                subsymbols=() if call.opaque else tuple(call.subsymbols),
                source=place.source,
                module=place.module,
                mutates=tuple(dict.fromkeys(mutates)),
                ordered=ordered,
            )
        )

    def _fail(self, function: Callable[..., Any], error: Exception | None = None) -> ThunderError:
        """The error for an operation that cannot run without data; kept, in case the program swallows it."""
        name, source = symbol_of(function).name, self._place().source
        if error is None or isinstance(error, NEEDS_VALUE):
            self.failure = DataDependent(
                f"`{name}` asks for the value of a tensor, which a trace does not have",
                fix="use torch.where, pass the decision in as a Python value, or keep the branch out of the compiled part",
                where=source,
            )
        else:
            self.failure = OperationFailed(
                f"`{name}` cannot run on tensors without data: {error}",
                fix="keep the operation out of the compiled part",
                where=source,
            )
        return self.failure

    # ---- level two: what it means ---------------------------------------------------------------------------

    def dispatch(self, operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one aten operation on fakes and note it under the torch function that issued it."""
        if operator in LIFTS and self._call is not None:
            self._call.opaque = True
            return operator(*args, **kwargs)
        args, kwargs = self._to_fake(tuple(args)), self._to_fake(dict(kwargs))
        if operator in QUERIES:
            return operator(*args, **kwargs)
        if self._call is None:
            return self.function(operator, args, kwargs)
        unknown = [t for t in leaves((args, kwargs)) if isinstance(t, torch.Tensor) and id(t) not in self._proxies]
        output = operator(*args, **kwargs)
        call = self._call
        call.random |= is_random(operator)
        for position, name in written_arguments(operator):
            written = args[position] if position < len(args) else kwargs.get(name)
            call.written.update(memory_of(t) for t in leaves(written) if isinstance(t, torch.Tensor))
        if unknown:
            call.opaque = True
            return output
        call.subsymbols.append(
            BoundSymbol(
                symbol=symbol_of(operator),
                args=self._to_proxies(args),
                kwargs=self._to_proxies(kwargs),
                output=self._to_proxies(output),
            )
        )
        return output

    # ---- tensors, fakes and proxies -------------------------------------------------------------------------

    def _to_fake(self, tree: Any) -> Any:
        return replace_leaves(tree, lambda leaf: self.fake(leaf) if isinstance(leaf, torch.Tensor) else leaf)

    def _to_real(self, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return self._reals.get(id(output), output)
        if type(output) in (tuple, list):
            return type(output)(self._to_real(item) for item in output)
        return output

    def _to_proxies(self, tree: Any) -> Any:
        return replace_leaves(tree, lambda leaf: self._proxy(leaf) if isinstance(leaf, torch.Tensor) else leaf)

    def _proxy(self, fake: torch.Tensor) -> TensorProxy:
        """The proxy of a fake, made and named on first sight."""
        known = self._proxies.get(id(fake))
        if known is None:
            known = self._proxies[id(fake)] = (fake, tensor_proxy(f"t{self._count}", fake))
            self._count += 1
        return known[1]


class _Function(TorchFunctionMode):
    """Hands each torch function of the program to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.function(func, args, kwargs or {})


class _Dispatch(TorchDispatchMode):
    """Hands each aten operation beneath to the recorder."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo takes no part here; its guard around each dispatch would cost an import and 20 us a call."""
        return False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.dispatch(func, args, kwargs or {})
