"""The recorder: torch operations as bound symbols, each with the aten operations that it consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from thunder_core.analysis.own_derivatives import has_own_derivative
from thunder_core.capture.all_sizes import for_all_sizes
from thunder_core.capture.autocast import autocast_state, changes
from thunder_core.capture.binding import Binding
from thunder_core.capture.call import Call
from thunder_core.capture.call_cache import CallCache
from thunder_core.capture.constants import constants_for, forget_constants, has_symbolic_numbers
from thunder_core.capture.data import DATA, Data
from thunder_core.capture.data_dependent import DataDependentValues
from thunder_core.capture.device_guards import needs_device_guard
from thunder_core.capture.expectations import expected
from thunder_core.capture.failures import hides, located, needs_data, needs_value, unrunnable
from thunder_core.capture.gradients import AUTOGRAD, Gradients
from thunder_core.capture.kernel_types import KERNEL_TYPES
from thunder_core.capture.memo import CachedCall
from thunder_core.capture.modes import FunctionMode, OperatorMode
from thunder_core.capture.number_calls import NumberCalls
from thunder_core.capture.numbers import Numbers, SymbolicNumber, numbers_in, scalar_kind
from thunder_core.capture.operators import AtenOperations
from thunder_core.capture.place import ForwardPlaces, Place
from thunder_core.capture.questions import Questions
from thunder_core.capture.settings import placed
from thunder_core.capture.shape_changes import ShapeChanges
from thunder_core.capture.shape_env import TraceShapeEnv
from thunder_core.capture.sizes import SymbolicSizes
from thunder_core.capture.storages import mark_device, storage_class, with_named_size
from thunder_core.capture.subclasses import Subclasses, torch_function_classes
from thunder_core.capture.symbolic_calls import OPAQUE
from thunder_core.capture.symbolic_composites import COMPOSITES
from thunder_core.capture.symbolic_probe import (
    BackwardOf,
    HiddenNumbers,
)
from thunder_core.capture.symbols import (
    PARTS,
    REPLACES_MEMORY,
    SET_DATA,
    SET_GRAD,
    VALUE_READERS,
    is_idle,
    is_ordered,
    symbol_of,
)
from thunder_core.capture.tensors import Tensors, tensors_in
from thunder_core.capture.transform_levels import TransformLevels, wrapped_in
from thunder_core.capture.trial import eager_error
from thunder_core.capture.triton_launches import attempt_without_data
from thunder_core.capture.values import Evaluation
from thunder_core.capture.wrappers import Wrapped, is_wrapper, run_through, wrappers_in
from thunder_core.errors import OperationFailed, ThunderError
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import replace_leaves
from thunder_core.runtime.library.objects import with_data

STORAGES = frozenset({torch.Tensor.storage, torch.Tensor.untyped_storage, torch.Tensor._typed_storage})
WHOLE = OPAQUE | COMPOSITES  # functions that stay what they are where others give their metadata
ZEROS = torch.ops.aten._efficientzerotensor.default  # tangents that are none, of a kind that no fake can be
LISTING = torch.Tensor.tolist  # gives values, and refuses fakes by itself


class Recorder:
    """Runs torch functions on fake tensors and writes down what they were.

    Real tensors are handles: the program may hold them, and each is exchanged for its fake when it meets an
    operation. `place()` tells where the program is, and `device_of` on which device a real tensor is taken to be;
    `asked` is told what real tensors were asked for and what they answered. With `evaluates`, an operation that needs
    the values of tensors is run on them, and bound symbols of the trace check that it gives the same at each call.
    `sizes` are the symbols of a program from outside; without, those of fakes that are given are of the `environment`.
    """

    def __init__(
        self,
        name_input: Callable[[torch.Tensor], str],
        place: Callable[[], Place],
        device_of: Callable[[torch.Tensor], torch.device] = lambda tensor: tensor.device,
        asked: Callable[[torch.Tensor, str, object], None] = lambda tensor, query, answer: None,
        evaluates: bool = False,
        sizes: SymbolicSizes | None = None,
        environment: TraceShapeEnv | None = None,
    ) -> None:
        self.sizes = sizes
        self.environment = environment if sizes is None else sizes.environment
        self.tensors = Tensors(name_input, device_of, sizes, self.environment)
        self.subclasses = Subclasses(self.tensors, self.function)
        self.bound_symbols: list[BoundSymbol] = []
        self.failure: ThunderError | None = None
        self._questions = Questions(self.tensors, sizes, asked, self._refuse)
        self.derivatives_in_progress = 0  # how many derivatives are being taken of what is recorded now
        self.numbers = Numbers(self.tensors.next_name, self._compute, self._measure)
        self.numbers.sizes = sizes
        evaluation = Evaluation(self.tensors, self.bound_symbols, self.numbers.outside_values)
        self.data_dependent = DataDependentValues(evaluation, self.bound_symbols, self._compute, self._fail, evaluates)
        self.data = Data(self.tensors, self.data_dependent, self.function, asked)
        self.is_differentiating = False
        self.hides_numbers = False
        self.levels = TransformLevels(self.tensors, self.numbers, self._refuse, self._note_grad_mode)
        self.gradients = Gradients(self.tensors, self._switch_grad, self._require_shown)
        self._autocast = autocast_state()
        self._place_of_program = place
        self._forward = ForwardPlaces()
        self.unwrap: Callable[[torch.Tensor], None] = lambda tensor: None
        self.backward_of: BackwardOf = lambda bsym, followed: None
        self._operators = AtenOperations(self.tensors, self.faked, self._function)
        self._binding = Binding(self.tensors, self._place, symbolic_sizes=self.environment is not None)
        self._number_calls = NumberCalls(self, self._binding, self.tensors, self.numbers)
        self._shape_changes = ShapeChanges(self.tensors.fakes)
        self._call_cache = CallCache(self.tensors, self._operators.take_for_view)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While this lasts, every torch operation of this thread is recorded and none touches data."""
        with attempt_without_data(), self.tensors.mode, OperatorMode(self.dispatch), FunctionMode(self.function):
            try:
                yield
            finally:
                self.levels.leave_all()

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
        """Record a bound symbol that changes a state, at the program's present place: calls may change with it."""
        self._call_cache.clear()
        self._autocast = autocast_state()
        self._compute(bsym)

    def follow_autocast(self) -> None:
        """Write down what code that ran natively did to autocast's state since the last bound symbol."""
        state = autocast_state()
        if state != self._autocast:
            for bsym in changes(self._autocast, state):
                self.emit(bsym)

    def _place(self) -> Place:
        """The place of the program; while it differentiates, the place of what is being differentiated."""
        return (self._forward.of_backward() if self.gradients.is_running else None) or self._place_of_program()

    def _switch_grad(self, enabled: bool) -> None:
        if enabled != torch.is_grad_enabled():
            with torch._C.DisableTorchFunction():
                SET_GRAD(enabled)
            self._note_grad_mode(enabled)

    def _note_grad_mode(self, enabled: bool) -> None:
        self.emit(BoundSymbol(symbol_of(SET_GRAD), (enabled,), {}, None, ordered=True))

    def _require_shown(self) -> None:
        """Have the program recorded anew where what is to be differentiated hides numbers.

        Raises `OperationFailed` where autograd has not seen all that was done.
        """
        if self._shape_changes.misses_writes:
            raise self._refuse(
                "a backward pass is run behind a write to a tensor that got another shape in place and has views",
                "give the new shape a name of its own: `x = x.transpose(0, 1)` in place of `x.transpose_(0, 1)`",
            )
        if self._number_calls.has_hidden:
            self.hides_numbers = True  # for a program that lets no exception pass
            raise HiddenNumbers

    def _compute(self, bsym: BoundSymbol) -> None:
        """Write down a bound symbol that neither changes nor depends on a state."""
        place = self._place()
        self.append(replace(bsym, source=place.source, module=place.module))

    def append(self, bsym: BoundSymbol) -> None:
        """Write down a bound symbol that has its place."""
        self.follow_autocast()
        self.levels.follow_grad_mode()
        if not self.gradients.is_running:
            self._forward.note(Place(bsym.source, bsym.module))
        self._binding.note(bsym)
        self.bound_symbols.append(bsym)

    def exchange(self, start: int, bsyms: Iterable[BoundSymbol]) -> None:
        """Put other bound symbols in the place of those from `start` on."""
        del self.bound_symbols[start:]
        self.data_dependent.evaluation.forget()
        for bsym in bsyms:
            self.append(bsym)

    # ---- level one: what the user wrote ---------------------------------------------------------------------

    def function(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        classes: tuple[type, ...] = (),
    ) -> Any:
        """Run one torch function on fakes, record it if it matters, and give the program its result.

        Where some of the `classes` of its tensors have a say in it, they do what they do in eager.
        """
        if self.sizes is not None:
            args, kwargs = self.sizes.to_symints((tuple(args), dict(kwargs)))
            return self.sizes.to_program(self._called(function, args, kwargs, classes), self.numbers)
        return self._called(function, args, kwargs, classes)

    def _called(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], classes: tuple[type, ...]
    ) -> Any:
        if (kinds := torch_function_classes(classes)) and torch._C._is_torch_function_enabled():
            return self.subclasses.run(function, args, kwargs, kinds)
        if self.levels.take(function, args, kwargs):
            return self.levels.run(function, args, placed(function, kwargs))
        try:
            return self._function(function, args, kwargs)
        except Wrapped:
            return self._through(function, args, kwargs)

    def _function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a function on tensors of which none is a wrapper; raises `Wrapped` where one is."""
        args, kwargs = with_named_size(function, args, placed(function, kwargs))
        if function in VALUE_READERS and not (
            self.data_dependent.allowed and (function is LISTING or function in DATA)
        ):
            raise self._fail(function)
        if function in DATA:
            return DATA[function](self.data, *args, **kwargs)
        self._require_traceable(function)
        if function in AUTOGRAD:
            return AUTOGRAD[function](self.gradients, *args, **kwargs)
        if self.numbers.any_symbolic and numbers_in((args, kwargs)):
            return self._number_calls.run(function, *self.numbers.simplified((args, kwargs)))
        if (answer := self._questions.lasting_answer(function, args)) is not None:
            return answer
        if function is torch.Tensor.item and (kind := scalar_kind(self.tensors.fake(args[0]))):
            return self._item(args[0], kind)
        args, kwargs = self.faked(args, kwargs)
        if function is torch.Tensor.storage_type:
            return storage_class(args[0])
        return self._recorded(function, args, kwargs)

    def _require_traceable(self, function: Callable[..., Any]) -> None:
        """Raise the error for a function of which a trace cannot tell what it does."""
        if isinstance(function, HigherOrderOperator):
            self.failure = hides(function, self._place().source)
            raise self.failure
        if getattr(function, "overloadpacket", function) in REPLACES_MEMORY:
            raise self._refuse("`set_` gives a tensor the memory of another one", "assign to a variable instead")

    def _recorded(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function on fakes, or recall what an equal call did, write it down, and give the program its result."""
        key = self._call_cache.key(function, args, kwargs)
        cached_call = self._call_cache.find(key)
        if cached_call is not None:
            return self._replay(cached_call, args, kwargs)
        if (refusal := KERNEL_TYPES.refusal(function, args, kwargs, self.tensors)) is not None:
            raise located(refusal, self._place().source)
        call = Call(idle=is_idle(function, args, kwargs))
        output = self.run(function, args, kwargs, call)
        if self.levels.depth and wrapped_in(output):  # random numbers, other ones for each element
            return self.levels.run(function, args, kwargs)
        if function in STORAGES:
            mark_device(output, args[0].device)
        if function == SET_DATA and self._operators.rename_if_changed(call, args[0]):
            function, output = with_data, args[0]
        if isinstance(function, torch._ops.OpOverload):  # nothing will be dispatched beneath it
            self._operators.note(call, function, args, kwargs)
        if has_symbolic_numbers((args, kwargs)):
            forget_constants((args, kwargs), output, call.written)
        if call.written and has_own_derivative(function):  # what it consists of has another derivative
            call.opaque = True
        if not self.data.shared.isdisjoint(call.written):
            raise self._refuse("a tensor is written to whose memory a NumPy array shares", "copy the array")
        bsym = self._binding.bound(function, args, kwargs, output, call)
        if key is not None and call.repeatable:
            self._call_cache.add(key, bsym, tensors_in((args, kwargs)), output)
        if bsym is not None and call.valued:
            self.data_dependent.asking.append(bsym)
            for check in expected(bsym, output, self.tensors.next_name):
                self.append(check)
        elif bsym is not None:
            (self.emit if is_ordered(bsym.symbol) else self.append)(bsym)
        return self.tensors.to_real(output)

    def _through(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function on wrapper subclasses of Tensor, recording what they do with what they hold."""
        if function in DATA or function in VALUE_READERS:
            raise self._fail(function)
        for tensor in wrappers_in((args, kwargs)):
            self.unwrap(tensor)
        args, kwargs = replace_leaves((tuple(args), dict(kwargs)), self._faked_unless_wrapped)
        try:
            return self.tensors.to_real(run_through(function, args, kwargs))
        except OperationFailed as error:
            error.where = error.where or self._place().source
            self.failure = error
            raise

    def _item(self, tensor: torch.Tensor, kind: type) -> SymbolicNumber:
        """The value of a tensor, which is known when the trace runs."""
        number = self.numbers.new(kind)
        proxy = self.tensors.proxy(self.tensors.fake(tensor))
        self._compute(BoundSymbol(symbol_of(torch.Tensor.item), (proxy,), {}, number.proxy))
        return number

    def _measure(self, proxy: Proxy) -> Any:
        return self.data_dependent.number(proxy)

    def _faked_unless_wrapped(self, leaf: Any) -> Any:
        return self.tensors.fake(leaf) if isinstance(leaf, torch.Tensor) and not is_wrapper(leaf) else leaf

    def faked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with fakes for real tensors; a tensor that cannot have one fails at the program's line."""
        try:
            return self.tensors.to_fake(tuple(args)), self.tensors.to_fake(dict(kwargs))
        except Wrapped:
            raise
        except OperationFailed as error:
            error.where = self._place().source
            self.failure = error
            raise

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any, call: Call) -> Any:
        """Run a function on fakes, noting what it does in the `call`; raises eager's exception, or our own."""
        self._operators.begin(call, without_device=needs_device_guard(function, args))
        try:
            if function is LISTING or (function in PARTS and args[0].layout is not torch.strided):
                return self.data_dependent.result(function, args, kwargs, call)
            called, arguments, named = for_all_sizes(function, args, kwargs)
            call.opaque = call.opaque or (called is not function and function in WHOLE)
            with constants_for((arguments, named)), self._shape_changes.around(function, arguments, named):
                return called(*arguments, **named)
        except Exception as error:
            if isinstance(error, ThunderError):
                raise
            valued = needs_value(error)
            eager = eager_error(function, args, kwargs, self.tensors, valued=valued)
            if eager is not None:
                raise located(eager, self._place().source) from None
            if valued and self.data_dependent.allowed:
                return self.data_dependent.result(function, args, kwargs, call)
            if valued or needs_data(error):
                raise self._fail(function, error) from error
            located(error, self._place().source)
            raise
        finally:
            self._operators.end()
            if call.reshapes or function == SET_DATA:
                self._call_cache.disable()

    def _replay(self, call: CachedCall, args: Any, kwargs: Any) -> Any:
        """Record a cached call again, with these tensors."""
        bsym, output = self._call_cache.replay(call, tensors_in((args, kwargs)), self._place)
        if bsym is not None:
            self.append(bsym)
        return self.tensors.to_real(output)

    def _refuse(self, what: str, fix: str) -> ThunderError:
        """The error for what is not traced; kept, in case the program swallows it."""
        self.failure = OperationFailed(what, fix=fix, where=self._place().source)
        return self.failure

    def _fail(self, function: Callable[..., Any], error: Exception | None = None) -> ThunderError:
        """The error for an operation that cannot run without data; kept, in case the program swallows it."""
        self.failure = unrunnable(function, self._place().source, error)
        return self.failure

    # ---- level two: what it means ---------------------------------------------------------------------------

    def dispatch(self, operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one aten operation on fakes and note it under the torch function that issued it.

        In a backward pass, what stands in for a number is the number.
        """
        if self._number_calls.probe_values and self.gradients.is_running and self._operators.call is None:
            args, kwargs = replace_leaves((tuple(args), dict(kwargs)), self._stood_for)
        if operator is ZEROS:
            operator = torch.ops.aten.zeros.default
        return self._operators.dispatch(operator, args, kwargs)

    def _stood_for(self, leaf: Any) -> Any:
        return self._number_calls.probe_values.get(leaf, leaf) if type(leaf) in (int, float) else leaf
