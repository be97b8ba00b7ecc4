"""The recorder: torch operations as bound symbols, each with the aten operations that it consists of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.capture import gradients
from thunder_core.capture.autocast import autocast_state, changes
from thunder_core.capture.call import Call
from thunder_core.capture.gradients import Gradients
from thunder_core.capture.graph import memory_of
from thunder_core.capture.memo import Memory, fresh_fake, rebuilt, remember, signature
from thunder_core.capture.numbers import Number, Numbers, numbers_in, run_on_numbers, settled
from thunder_core.capture.place import ForwardPlaces, Place
from thunder_core.capture.symbols import (
    FACTS,
    HISTORY,
    LASTING,
    QUESTIONS,
    REPLACES_MEMORY,
    VALUE_READERS,
    is_ordered,
    is_random,
    symbol_of,
    written_values,
)
from thunder_core.capture.tensors import Tensors, tensors_in
from thunder_core.capture.trial import eager_error
from thunder_core.capture.values import NUMBERS, Unknowable, evaluated
from thunder_core.errors import DataDependent, OperationFailed, ThunderError
from thunder_core.ir.objects import expect_items, expect_layout, expect_value
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves

QUERIES = frozenset({torch.ops.prim.device.default})
ALIAS = torch.ops.aten.alias.default
LIFTS = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})
LISTING = torch.Tensor.tolist  # gives values, and refuses fakes by itself
NOWHERE = torch.device("meta")
SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
SET_GRAD = torch._C._set_grad_enabled
GUARDED = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.Tensor.contiguous})
IDLE: dict[Callable[..., Any], Callable[..., bool]] = {
    SET_GRAD: lambda enabled: bool(enabled == torch.is_grad_enabled()),
    torch.Tensor.requires_grad_: lambda tensor, required=True: bool(tensor.requires_grad == required),
}
AUTOGRAD: dict[Callable[..., Any], Callable[..., Any]] = {
    gradients.GET: Gradients.get,
    gradients.SET: Gradients.set,
    gradients.DELETE: Gradients.delete,
    torch.Tensor.backward: Gradients.backward,
    torch.autograd.backward: Gradients.backward,
    torch.autograd.grad: Gradients.grad,
}
NEEDS_VALUE = (DataDependentOutputException, DynamicOutputShapeException)
NO_MEMORY = ("its data is not allocated yet", "Cannot access data pointer")  # C++ that reads values by itself says this
NEEDS_DATA = (UnsupportedFakeTensorException, UnsupportedOperatorException)


def is_unknown_float(fake: torch.Tensor) -> bool:
    """Whether a fake is one float, and nothing says which."""
    return fake.numel() == 1 and fake.is_floating_point() and getattr(fake, "constant", None) is None


def is_unguarded(args: Sequence[Any]) -> bool:
    """Whether a tensor is on a GPU and this build of PyTorch knows none.

    The C++ of the functions in `GUARDED` then fails as it makes the GPU current, unless it is told that the tensor is
    on no device, which is all that it asks for.
    """
    return not torch.cuda._is_compiled() and any(tensor.device.type == "cuda" for tensor in tensors_in(args))


def needs_value(error: Exception) -> bool:
    """Whether an operation failed because fakes have no values."""
    return isinstance(error, NEEDS_VALUE) or any(text in str(error) for text in NO_MEMORY)


class Recorder:
    """Runs torch functions on fake tensors and writes down what they were.

    Real tensors are handles: the program may hold them, and each is exchanged for its fake when it meets an
    operation. `place()` tells where the program is, and `device_of` on which device a real tensor is taken to be;
    `asked` is told what real tensors were asked for and what they answered. With `evaluates`, an operation that needs
    the values of tensors is run on them, and lines of the trace check that it gives the same at each call.
    """

    def __init__(
        self,
        name_input: Callable[[torch.Tensor], str],
        place: Callable[[], Place],
        device_of: Callable[[torch.Tensor], torch.device] = lambda tensor: tensor.device,
        asked: Callable[[torch.Tensor, str, object], None] = lambda tensor, query, answer: None,
        evaluates: bool = False,
    ) -> None:
        self.evaluates = evaluates
        self.expectations: list[BoundSymbol] = []
        self._written: set[int] = set()
        self.tensors = Tensors(name_input, device_of)
        self.bound_symbols: list[BoundSymbol] = []
        self.failure: ThunderError | None = None
        self._asked = asked
        self.numbers = Numbers(self.tensors.next_name, self._compute)
        self.gradients = Gradients(self.tensors, self._switch_grad)
        self._autocast = autocast_state()
        self._place_of_program = place
        self._forward = ForwardPlaces()
        self._call: Call | None = None
        self._nowhere = False
        self._view: torch.Tensor | None = None
        self._defined: set[str] = set()
        self._memories: dict[Hashable, Memory] | None = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While this lasts, every torch operation of this thread is recorded and none touches data."""
        complaints = logging.getLogger("torch._subclasses.fake_tensor")
        before, complaints.disabled = complaints.disabled, True
        try:
            with self.tensors.mode, _Dispatch(self), _Function(self):
                yield
        finally:
            complaints.disabled = before

    @property
    def inputs(self) -> Mapping[int, tuple[torch.Tensor, TensorProxy]]:
        """The real tensors that met an operation, by their id, with their proxies."""
        return self.tensors.inputs

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has met an operation, or came out of one."""
        return self.tensors.knows(tensor)

    def proxy_of(self, tensor: torch.Tensor) -> TensorProxy:
        """The proxy that stands for a tensor of the program, real or fake."""
        return self.tensors.proxy(self.tensors.fake(tensor))

    def emit(self, bsym: BoundSymbol) -> None:
        """Write a line down that changes a state, at the program's present place: calls may mean something else now."""
        if self._memories:
            self._memories.clear()
        self._autocast = autocast_state()
        self._compute(bsym)

    def follow_autocast(self) -> None:
        """Write down what code that ran natively did to autocast's state since the last line."""
        state = autocast_state()
        if state != self._autocast:
            for bsym in changes(self._autocast, state):
                self.emit(bsym)

    def _place(self) -> Place:
        """Where the program is; while it differentiates, the line that is being differentiated."""
        return (self._forward.of_backward() if self.gradients.is_running else None) or self._place_of_program()

    def _switch_grad(self, enabled: bool) -> None:
        if enabled != torch.is_grad_enabled():
            with torch._C.DisableTorchFunction():
                SET_GRAD(enabled)
            self.emit(BoundSymbol(symbol_of(SET_GRAD), (enabled,), {}, None, ordered=True))

    def _compute(self, bsym: BoundSymbol) -> None:
        """Write down a line that neither changes nor depends on a state."""
        place = self._place()
        self._append(replace(bsym, source=place.source, module=place.module))

    def _append(self, bsym: BoundSymbol) -> None:
        self.follow_autocast()
        if not self.gradients.is_running:
            self._forward.note(Place(bsym.source, bsym.module))
        self._defined.update(proxy.name for proxy in bsym.outputs)
        self.bound_symbols.append(bsym)

    def exchange(self, start: int, lines: Iterable[BoundSymbol]) -> None:
        """Put other lines in the place of those from `start` on."""
        del self.bound_symbols[start:]
        for line in lines:
            self._append(line)

    # ---- level one: what the user wrote ---------------------------------------------------------------------

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one torch function on fakes, record it if it matters, and give the program its result."""
        if function in VALUE_READERS and not (self.evaluates and function is LISTING):
            raise self._fail(function)
        if getattr(function, "overloadpacket", function) in REPLACES_MEMORY:
            raise self._refuse("`set_` gives a tensor the memory of another one", "assign to a variable instead")
        if function in AUTOGRAD:
            return AUTOGRAD[function](self.gradients, *args, **kwargs)
        if self.numbers.are_there and (numbers := numbers_in((args, kwargs))):
            return self._with_numbers(function, args, kwargs, numbers)
        if function in FACTS and type(args[0]) is not FakeTensor:
            answer = function(*args)
            self._asked(args[0], FACTS[function], answer)
            if FACTS[function] in LASTING:
                return answer
        unknown = function is torch.Tensor.item and not self.evaluates
        if unknown and is_unknown_float(self.tensors.fake(args[0])):
            return self._item(args[0])
        args, kwargs = self._faked(args, kwargs)
        key = self._key(function, args, kwargs)
        memory = self._memories.get(key) if self._memories and key is not None else None
        if memory is not None:
            return self._recall(memory, args, kwargs)
        call = Call(idle=function in IDLE and IDLE[function](*args, **kwargs))
        output = self._run(function, args, kwargs, call)
        if isinstance(function, torch._ops.OpOverload):  # nothing will be dispatched beneath it
            self._note_effects(call, function, args, kwargs)
        bsym = self._bound(function, args, kwargs, output, call)
        if key is not None and call.repeatable:
            self._remember(key, bsym, tensors_in((args, kwargs)), output)
        if bsym is not None and call.valued:
            self._expect(bsym, output)
        elif bsym is not None:
            (self.emit if is_ordered(bsym.symbol) else self._append)(bsym)
        self._written |= call.written
        return self.tensors.to_real(output)

    def _key(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Hashable | None:
        """What the call is remembered by; None for one that cannot be."""
        if self._memories is None or function in QUESTIONS or function in HISTORY:
            return None
        return signature(function, args, kwargs, self.tensors.describe)

    def _item(self, tensor: torch.Tensor) -> Number:
        """The value of a tensor, which is known when the trace runs."""
        number = self.numbers.new(self._refuse_value)
        proxy = self.tensors.proxy(self.tensors.fake(tensor))
        self._compute(BoundSymbol(symbol_of(torch.Tensor.item), (proxy,), {}, number.proxy))
        return number

    def _refuse_value(self) -> float:
        raise self._fail(torch.Tensor.item)

    def _with_numbers(self, function: Callable[..., Any], args: Any, kwargs: Any, numbers: list[Number]) -> Any:
        """Run a function of numbers that the trace does not know, with values that stand in for them.

        The values are asked for where they decide what the result looks like, and where autograd records the call:
        derivatives hide their numbers in C++.
        """
        args, kwargs = self._faked(args, kwargs)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in((args, kwargs))):
            return self.function(function, *settled((args, kwargs)))
        before = self.failure

        def run(given: Any) -> tuple[Any, Call]:
            call = Call()
            return self._run(function, given[0], given[1], call), call

        try:
            output, call = run_on_numbers(run, (args, kwargs), numbers)
        except Exception:  # it may be that values which stand in will not do, and the right ones do
            self.failure = before
            return self.function(function, *settled((args, kwargs)))
        bsym = self._bound(function, args, kwargs, output, call)
        if bsym is not None:
            self._append(bsym)
        return self.tensors.to_real(output)

    def _faked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with fakes for real tensors; a tensor that cannot have one fails at the program's line."""
        try:
            return self.tensors.to_fake(tuple(args)), self.tensors.to_fake(dict(kwargs))
        except OperationFailed as error:
            error.where = self._place().source
            self.failure = error
            raise

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any, call: Call) -> Any:
        self._call = call
        self._nowhere = function in GUARDED and is_unguarded(args)
        try:
            return self._evaluated(function, args, kwargs, call) if function is LISTING else function(*args, **kwargs)
        except Exception as error:
            if isinstance(error, ThunderError):
                raise
            valued = needs_value(error)
            eager = eager_error(function, args, kwargs, self.tensors, valued=valued)
            if eager is not None:
                raise self._located(eager) from None
            if valued and self.evaluates:
                return self._evaluated(function, args, kwargs, call)
            if valued or isinstance(error, NEEDS_DATA):
                raise self._fail(function, error) from error
            self._located(error)
            raise
        finally:
            self._call = None
            self._nowhere = False
            if call.reshapes or function == SET_DATA:
                self._memories = None

    def _evaluated(self, function: Callable[..., Any], args: Any, kwargs: Any, call: Call) -> Any:
        """What the function gives on the values of this call's inputs, which nothing may have changed yet."""
        call.valued = True
        try:
            if any(memory_of(self.tensors.fake(real)) in self._written for real, _ in self.inputs.values()):
                raise Unknowable("the program has written to an input before it")
            return evaluated(function, args, kwargs, self.tensors, self.bound_symbols)
        except Unknowable as reason:
            raise self._fail(function, reason) from reason

    def _expect(self, bsym: BoundSymbol, output: Any) -> None:
        """The line, and lines that end a call for which it gives something else."""
        self.expectations.append(bsym)
        if type(output) in (tuple, list):
            whole = Proxy(self.tensors.next_name())
            self._append(replace(bsym, output=whole))
            self._check(bsym, expect_items, whole, len(output), output=bsym.output)
        else:
            self._append(bsym)
        for proxy, value in zip(leaves(bsym.output), leaves(output), strict=True):
            if isinstance(proxy, TensorProxy):
                self._check(bsym, expect_layout, proxy, proxy.shape, proxy.stride)
            elif isinstance(proxy, Proxy):
                self._check(bsym, expect_value, proxy, value)

    def _check(self, bsym: BoundSymbol, check: Callable[..., Any], *args: Any, output: Any = None) -> None:
        """A line, at the place of another, that checks what that one gave."""
        self._append(BoundSymbol(symbol_of(check), args, {}, output, (), bsym.source, bsym.module, ordered=True))

    def _located(self, error: Exception) -> Exception:
        """An error of PyTorch's with a note of the line; it stays what it is, since the program may catch it."""
        source = self._place().source
        if source is not None and not hasattr(error, "__notes__"):
            error.add_note(f"  at: {source}")
        return error

    def _bound(self, function: Any, args: Any, kwargs: Any, output: Any, call: Call) -> BoundSymbol | None:
        """The line for a call; None for one that made nothing and changed nothing."""
        symbol = symbol_of(function)
        returned = self.tensors.to_proxies(output)
        if call.valued:
            returned = replace_leaves(returned, self._named_number)
        read = tensors_in((args, kwargs))
        mutates = [self.tensors.proxy(t).name for t in read if call.written and memory_of(t) in call.written]
        known = self._defined | {self.tensors.proxy(tensor).name for tensor in read}
        fresh = any(isinstance(leaf, Proxy) and leaf.name not in known for leaf in leaves(returned))
        ordered = call.random or (is_ordered(symbol) and not call.idle)
        if not (fresh or mutates or ordered):
            return None
        place = self._place()
        return BoundSymbol(
            symbol=symbol,
            args=self.tensors.to_proxies(args),
            kwargs=self.tensors.to_proxies(kwargs),
            output=returned,
            subsymbols=() if call.opaque or call.valued else tuple(call.subsymbols),
            source=place.source,
            module=place.module,
            mutates=tuple(mutates),
            ordered=ordered,
        )

    def _named_number(self, leaf: Any) -> Any:
        """A name for a number that a line gives."""
        return Proxy(self.tensors.next_name()) if isinstance(leaf, NUMBERS) else leaf

    def _remember(self, key: Hashable, bsym: BoundSymbol | None, read: list[torch.Tensor], output: Any) -> None:
        memory = remember(bsym, [(tensor, self.tensors.proxy(tensor)) for tensor in read], output, self.tensors.proxy)
        if memory is not None and self._memories is not None:
            self._memories[key] = memory

    def _recall(self, memory: Memory, args: Any, kwargs: Any) -> Any:
        """Do what was done before, in the names of these tensors."""
        read = tensors_in((args, kwargs))
        names: dict[str, Proxy] = {}
        fakes: dict[int, torch.Tensor] = {}
        for (old, proxy), tensor in zip(memory.read, read, strict=True):
            names[proxy.name] = self.tensors.proxy(tensor)
            fakes[id(old)] = tensor
        for inner in memory.inner:
            names[inner.name] = inner.named(self.tensors.next_name())
        for made, old in zip(memory.made, memory.fresh, strict=True):
            fake = fakes[id(old)] = fresh_fake(made, read, self.tensors.mode)
            if made.follows and made.view_of is not None:
                self._follow(fake, read[made.view_of])
            names[made.proxy.name] = self.tensors.adopt(fake, made.proxy.named(self.tensors.next_name()))
        if memory.bsym is not None:
            place = self._place()
            self._append(memory.bsym.renamed(names, at=(place.source, place.module)))
        return self.tensors.to_real(rebuilt(memory.result, fakes))

    def _follow(self, fake: torch.Tensor, base: torch.Tensor) -> None:
        """Have autograd take a fake for a view of another one: for what it is told that `alias` returned."""
        self._view = fake
        try:
            ALIAS(base)
        finally:
            self._view = None

    def _refuse(self, what: str, fix: str) -> ThunderError:
        """The error for what is not traced; kept, in case the program swallows it."""
        self.failure = OperationFailed(what, fix=fix, where=self._place().source)
        return self.failure

    def _fail(self, function: Callable[..., Any], error: Exception | None = None) -> ThunderError:
        """The error for an operation that cannot run without data; kept, in case the program swallows it."""
        name, source = symbol_of(function).name, self._place().source
        if error is None or isinstance(error, Unknowable) or needs_value(error):
            why = f", and {error}" if isinstance(error, Unknowable) else ""
            self.failure = DataDependent(
                f"`{name}` asks for the value of a tensor, which a trace does not have{why}",
                fix='use torch.where, pass the decision in as a Python value, or compile with data_dependent="guard"',
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
        if self._view is not None and operator is ALIAS:
            return self._view
        if not self._nowhere:
            return self._dispatch(operator, args, kwargs)
        if operator in QUERIES:
            return NOWHERE
        self._nowhere = False
        try:
            output = self._dispatch(operator, args, kwargs)
        finally:
            self._nowhere = True
        if self._call is not None and any(tensor.device == NOWHERE for tensor in tensors_in(output)):
            self._call.opaque = True
        return output

    def _dispatch(self, operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = self._call
        if operator in LIFTS and call is not None:
            call.opaque = True
            return operator(*args, **kwargs)
        args, kwargs = self._faked(args, kwargs)
        if operator in QUERIES:
            return operator(*args, **kwargs)
        if call is None:
            return self.function(operator, args, kwargs)
        unknown = not all(self.tensors.is_named(tensor) for tensor in tensors_in((args, kwargs)))
        output = operator(*args, **kwargs)
        self._note_effects(call, operator, args, kwargs)
        if unknown:
            call.opaque = True
            return output
        call.subsymbols.append(
            BoundSymbol(
                symbol=symbol_of(operator),
                args=self.tensors.to_proxies(args),
                kwargs=self.tensors.to_proxies(kwargs),
                output=self.tensors.to_proxies(output),
            )
        )
        return output

    def _note_effects(self, call: Call, operator: torch._ops.OpOverload, args: Any, kwargs: Any) -> None:
        call.random |= is_random(operator, args, kwargs)
        call.reshapes |= torch.Tag.inplace_view in operator.tags
        for written in written_values(operator, args, kwargs):
            call.written.update(memory_of(tensor) for tensor in tensors_in(written))


@contextmanager
def without_functions() -> Iterator[None]:
    """While this lasts, torch functions are not seen, but the operations beneath them are."""
    with ExitStack() as stack:
        for _ in range(torch._C._len_torch_function_stack()):
            stack.enter_context(_pop_mode_temporarily())
        yield


class _Function(TorchFunctionMode):
    """Hands each torch function of the program to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.function(func, args, kwargs or {})


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands each aten operation beneath to the recorder."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo takes no part here; its guard around each dispatch would cost an import and 20 us a call."""
        return False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.dispatch(func, args, kwargs or {})
