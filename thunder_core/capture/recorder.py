"""The recorder: torch operations as bound symbols, each with the aten operations that it consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from thunder_core.analysis.data_errors import is_check
from thunder_core.capture.all_sizes import for_all_sizes
from thunder_core.capture.autocast import autocast_state, changes
from thunder_core.capture.batched import Batches, batched_in
from thunder_core.capture.call import Call, named_before
from thunder_core.capture.constants import constants_for, forget_constants, has_symbolic_numbers
from thunder_core.capture.data import DATA, Data
from thunder_core.capture.data_dependent import DataDependentValues
from thunder_core.capture.device_guards import needs_device_guard
from thunder_core.capture.expectations import expected
from thunder_core.capture.failures import hides, located, needs_data, needs_value, unrunnable
from thunder_core.capture.gradients import AUTOGRAD, Gradients
from thunder_core.capture.graph import has_own_memory, memory_of
from thunder_core.capture.memo import Memory
from thunder_core.capture.memories import Memories
from thunder_core.capture.modes import FunctionMode, OperatorMode
from thunder_core.capture.numbers import Numbers, SymbolicNumber, concrete, numbers_in, scalar_kind
from thunder_core.capture.operators import OperatorLevel
from thunder_core.capture.place import ForwardPlaces, Place
from thunder_core.capture.probed_floats import FloatAsked, Named, may_be_symbol, restrict, stand_ins
from thunder_core.capture.quiet_attempts import quiet_attempt
from thunder_core.capture.settings import placed
from thunder_core.capture.shape_changes import ShapeChanges
from thunder_core.capture.shape_env import TraceShapeEnv, number_of
from thunder_core.capture.sizes import SymbolicSizes, without_sizes
from thunder_core.capture.storages import mark_device, storage_class, with_named_size
from thunder_core.capture.subclasses import Subclasses, speaking
from thunder_core.capture.symbolic_calls import OPAQUE
from thunder_core.capture.symbolic_composites import COMPOSITES
from thunder_core.capture.symbolic_probe import (
    COUNTS,
    BackwardOf,
    HiddenNumbers,
    ProbeValues,
    backward_reads_numbers,
    run_on_floats,
    run_on_numbers,
)
from thunder_core.capture.symbols import (
    FACTS,
    LASTING,
    PARTS,
    REPLACES_MEMORY,
    SET_DATA,
    SET_GRAD,
    VALUE_READERS,
    VERSION,
    is_idle,
    is_ordered,
    parts_of,
    symbol_of,
)
from thunder_core.capture.tensors import Tensors, tensors_in
from thunder_core.capture.trial import eager_error
from thunder_core.capture.values import NUMBERS, Evaluation
from thunder_core.capture.wrappers import Wrapped, is_wrapper, run_through, wrappers_in
from thunder_core.capture.writes import may_write
from thunder_core.errors import OperationFailed, ThunderError
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves
from thunder_core.runtime.library.objects import with_data

STORAGES = frozenset({torch.Tensor.storage, torch.Tensor.untyped_storage, torch.Tensor._typed_storage})
WHOLE = OPAQUE | COMPOSITES  # functions that stay what they are where others give their metadata
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
        self._asked = asked
        self.settles = 0  # how many derivatives are being taken of what is recorded now
        self.numbers = Numbers(self.tensors.next_name, self._compute, self._measure)
        self.numbers.sizes = sizes
        evaluation = Evaluation(self.tensors, self.bound_symbols, self.numbers.known)
        self.data_dependent = DataDependentValues(evaluation, self.bound_symbols, self._compute, self._fail, evaluates)
        self.data = Data(self.tensors, self.data_dependent, self.function, asked)
        self.is_differentiating = False
        self.has_hidden = False
        self.hides_numbers = False
        self.batches = Batches(self.tensors, self.numbers, self._is_ruled, self._refuse)
        self._probe_values: ProbeValues = {}
        self.gradients = Gradients(self.tensors, self._switch_grad, self._require_shown)
        self._autocast = autocast_state()
        self._place_of_program = place
        self._forward = ForwardPlaces()
        self.unwrap: Callable[[torch.Tensor], None] = lambda tensor: None
        self.backward_of: BackwardOf = lambda bsym, followed: None
        self.has_rule: Callable[[object], bool] = lambda function: False
        self._operators = OperatorLevel(self.tensors, self._faked, self._function)
        self._defined: set[str] = set()
        self._shape_changes = ShapeChanges(self.tensors.fakes)
        self._memories = Memories(self.tensors, self._operators.take_for_view)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While this lasts, every torch operation of this thread is recorded and none touches data."""
        with quiet_attempt(), self.tensors.mode, OperatorMode(self.dispatch), FunctionMode(self.function):
            yield

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
        self._memories.forget()
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
            self.emit(BoundSymbol(symbol_of(SET_GRAD), (enabled,), {}, None, ordered=True))

    def _is_ruled(self, function: object) -> bool:
        return self.has_rule(function)

    def _require_shown(self) -> None:
        """Have the program recorded anew where what is to be differentiated hides numbers.

        Raises `OperationFailed` where autograd has not seen all that was done.
        """
        if self._shape_changes.misses_writes:
            raise self._refuse(
                "a backward pass is run behind a write to a tensor that got another shape in place and has views",
                "give the new shape a name of its own: `x = x.transpose(0, 1)` in place of `x.transpose_(0, 1)`",
            )
        if self.has_hidden:
            self.hides_numbers = True  # for a program that lets no exception pass
            raise HiddenNumbers

    def _compute(self, bsym: BoundSymbol) -> None:
        """Write down a bound symbol that neither changes nor depends on a state."""
        place = self._place()
        self._append(replace(bsym, source=place.source, module=place.module))

    def _append(self, bsym: BoundSymbol) -> None:
        self.follow_autocast()
        if not self.gradients.is_running:
            self._forward.note(Place(bsym.source, bsym.module))
        self._defined.update(proxy.name for proxy in bsym.outputs)
        self.bound_symbols.append(bsym)

    def exchange(self, start: int, bsyms: Iterable[BoundSymbol]) -> None:
        """Put other bound symbols in the place of those from `start` on."""
        del self.bound_symbols[start:]
        self.data_dependent.evaluation.forget()
        for bsym in bsyms:
            self._append(bsym)

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
        if (kinds := speaking(classes)) and torch._C._is_torch_function_enabled():
            return self.subclasses.run(function, args, kwargs, kinds)
        if self.batches.depth and batched_in((args, kwargs)):
            return self.batches.run(function, args, kwargs)
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
            return self._with_numbers(function, *self.numbers.simplified((args, kwargs)))
        if function in FACTS and self.tensors.is_outside(args[0]):
            answer = function(*args)
            self._asked(args[0], FACTS[function], answer)
            if FACTS[function] in LASTING:
                return answer
            if function == VERSION:
                self._require_own_version(args[0])
        if function is torch.Tensor.storage_offset:
            self._ask_offsets(args[0])
        if function is torch.Tensor.stride and self.sizes is not None and not self.tensors.is_outside(args[0]):
            self.sizes.asks_strides |= bool(self.sizes.sources)
        if function is torch.Tensor.item and (kind := scalar_kind(self.tensors.fake(args[0]))):
            return self._item(args[0], kind)
        args, kwargs = self._faked(args, kwargs)
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
        key = self._memories.key(function, args, kwargs)
        memory = self._memories.find(key)
        if memory is not None:
            return self._recall(memory, args, kwargs)
        call = Call(idle=is_idle(function, args, kwargs))
        output = self._run(function, args, kwargs, call)
        if self.batches.depth and batched_in(output):  # random numbers, other ones for each element
            return self.batches.run(function, args, kwargs)
        if function in STORAGES:
            mark_device(output, args[0].device)
        if function == SET_DATA and self._operators.renew_changed(call, args[0]):
            function, output = with_data, args[0]
        if isinstance(function, torch._ops.OpOverload):  # nothing will be dispatched beneath it
            self._operators.note(call, function, args, kwargs)
        if has_symbolic_numbers((args, kwargs)):
            forget_constants((args, kwargs), output, call.written)
        if not self.data.shared.isdisjoint(call.written):
            raise self._refuse("a tensor is written to whose memory a NumPy array shares", "copy the array")
        bsym = self._bound(function, args, kwargs, output, call)
        if key is not None and call.repeatable:
            self._memories.add(key, bsym, tensors_in((args, kwargs)), output)
        if bsym is not None and call.valued:
            self.data_dependent.asking.append(bsym)
            for check in expected(bsym, output, self.tensors.next_name):
                self._append(check)
        elif bsym is not None:
            (self.emit if is_ordered(bsym.symbol) else self._append)(bsym)
        return self.tensors.to_real(output)

    def _require_own_version(self, tensor: torch.Tensor) -> None:
        """Refuse to tell an input's version once another input in the same memory has been written to.

        Views of one tensor share a counter of versions, and tensors that otherwise lie in the same memory do not.
        """
        for real, _ in self.tensors.inputs.values():
            if real is tensor or real.is_inference() or memory_of(real) != memory_of(tensor):
                continue
            if self.tensors.fake(real)._version != real._version:
                raise self._refuse(
                    "the version of a tensor is asked for after a write to another input that shares its memory",
                    "ask for the version of the tensor that is written to, or give one of the two",
                )

    def _ask_offsets(self, tensor: torch.Tensor) -> None:
        """Ask for the storage offsets of the inputs in whose memory a tensor lies: its own follows from them."""
        memory = memory_of(self.tensors.fake(tensor))
        for real, _ in self.tensors.inputs.values():
            if real.layout is torch.strided and memory_of(self.tensors.fake(real)) == memory:
                self._asked(real, FACTS[torch.Tensor.storage_offset], real.storage_offset())

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

    def _faked_unless_wrapped(self, leaf: Any) -> Any:
        return self.tensors.fake(leaf) if isinstance(leaf, torch.Tensor) and not is_wrapper(leaf) else leaf

    def _item(self, tensor: torch.Tensor, kind: type) -> SymbolicNumber:
        """The value of a tensor, which is known when the trace runs."""
        number = self.numbers.new(kind)
        proxy = self.tensors.proxy(self.tensors.fake(tensor))
        self._compute(BoundSymbol(symbol_of(torch.Tensor.item), (proxy,), {}, number.proxy))
        return number

    def _measure(self, proxy: Proxy) -> Any:
        return self.data_dependent.number(proxy)

    def _with_numbers(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function of numbers that the trace does not know, with values that stand in for them.

        The values are asked for where they decide what the result looks like, and where autograd records the call, but
        hides its numbers: where they come from outside, or the program differentiates itself and a backward computes
        with something else than the number. (PyTorch's autograd records other programs as they run.)
        """
        numbers = numbers_in((args, kwargs))
        args, kwargs = self._faked(args, kwargs)
        followed = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
        outside = any(number.proxy.name in self.numbers.known for number in numbers)
        if self.sizes is not None and self._may_be_symbols(function, numbers):
            return self._with_float_symbols(function, (args, kwargs), numbers, followed=followed)
        hides = outside or (self.is_differentiating and may_write(function, kwargs))
        if (followed and hides) or self.settles or not numbers:
            return self.function(function, *concrete((args, kwargs)))
        before = self.failure

        def run(given: Any) -> tuple[Any, Call]:
            call = Call()
            return self._run(function, given[0], given[1], call), call

        try:
            output, call, probe_values = run_on_numbers(function, run, (args, kwargs), numbers)
        except Exception:  # it may be that values which stand in will not do, and the right ones do
            self.failure = before
            return self.function(function, *concrete((args, kwargs)))
        bsym = self._bound(function, args, kwargs, output, call)
        if followed and self.is_differentiating and bsym is not None:
            needing = frozenset(self.tensors.proxy(t).name for t in tensors_in((args, kwargs)) if t.requires_grad)
            if not backward_reads_numbers(bsym, needing, probe_values, self.backward_of):
                return self.function(function, *concrete((args, kwargs)))
            self._probe_values |= probe_values
        self.has_hidden |= followed and not self.is_differentiating
        if bsym is not None:
            self._append(bsym)
        return self.tensors.to_real(output)

    def _with_float_symbols(
        self, function: Callable[..., Any], given: Any, numbers: Sequence[SymbolicNumber], *, followed: bool
    ) -> Any:
        """Run a function of floats from outside with symbols for these; a backward may compute with them.

        Where its C++ takes plain floats it runs on values that stand in for them, and where that cannot be it asks for
        their values, which are guarded.
        """
        assert self.sizes is not None
        symbols = self.sizes.with_float_symbols(given, self.numbers.known)
        try:
            with self.sizes.environment.withholding_floats():
                return self.function(function, *symbols)
        except FloatAsked:
            pass
        before, values = self.failure, [self.numbers.known[number.proxy.name] for number in numbers]
        floats = [self.sizes.float_symbol(*pair) for pair in zip(numbers, values, strict=True)]
        pairs = stand_ins(floats)
        if pairs is None:
            return self.function(function, *symbols)
        keys = {id(number): pair for number, pair in zip(numbers, pairs, strict=True)}

        def run(args: Any) -> tuple[Any, Call]:
            call = Call()
            return self._run(function, args[0], args[1], call), call

        try:
            names = Named(list(zip(floats, pairs, strict=True)), number_of)
            output, call = run_on_floats(run, given, keys, names)
        except Exception:  # it may be that values which stand in will not do, and the right ones do
            self.failure = before
            return self.function(function, *symbols)
        restrict(floats)
        self.has_hidden |= followed
        bsym = self._bound(function, symbols[0], symbols[1], output, call)
        if bsym is not None:
            (self.emit if is_ordered(bsym.symbol) else self._append)(bsym)
        return self.tensors.to_real(output)

    def _may_be_symbols(self, function: Callable[..., Any], numbers: Sequence[SymbolicNumber]) -> bool:
        """Whether numbers are floats from outside that decide a size, or in a program that autograd follows outside."""
        from_outside = all(number.kind is float and number.source is not None for number in numbers)
        finite = from_outside and all(may_be_symbol(self.numbers.known[number.proxy.name]) for number in numbers)
        followed = torch.is_grad_enabled() and not self.is_differentiating and not self.settles
        return bool(numbers) and finite and (followed or function in COUNTS)

    def _faked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with fakes for real tensors; a tensor that cannot have one fails at the program's line."""
        try:
            return self.tensors.to_fake(tuple(args)), self.tensors.to_fake(dict(kwargs))
        except Wrapped:
            raise
        except OperationFailed as error:
            error.where = self._place().source
            self.failure = error
            raise

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any, call: Call) -> Any:
        self._operators.begin(call, without_device=needs_device_guard(function, args))
        try:
            if function is LISTING or (function in PARTS and args[0].layout is not torch.strided):
                return self.data_dependent.result(function, args, kwargs, call)
            called, given, named = for_all_sizes(function, args, kwargs)
            call.opaque = call.opaque or (called is not function and function in WHOLE)
            with constants_for((given, named)), self._shape_changes.around(function, given, named):
                return called(*given, **named)
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
                self._memories.end()

    def _bound(self, function: Any, args: Any, kwargs: Any, output: Any, call: Call) -> BoundSymbol | None:
        """The bound symbol for a call; None for one that made nothing, changed nothing and checks no values."""
        symbol = symbol_of(function)
        returned = self.tensors.to_proxies(output if self.environment is None else without_sizes(output))
        if call.valued:
            returned = replace_leaves(returned, self._named_number)
        read = [(tensor, self.tensors.proxy(tensor)) for tensor in tensors_in((args, kwargs))]
        before = {proxy.name: call.before[id(tensor)] for tensor, proxy in read if id(tensor) in call.before}
        mutates = [proxy.name for tensor, proxy in read if call.written and memory_of(tensor) in call.written]
        given = {proxy.name for _, proxy in read} - before.keys()
        made = (leaf.name for leaf in leaves(returned) if isinstance(leaf, Proxy))
        fresh = any(name not in given and name not in self._defined for name in made)
        ordered = call.random or (is_ordered(symbol) and not call.idle)
        if not (fresh or mutates or ordered or any(is_check(part.symbol.target) for part in call.subsymbols)):
            return None
        place, opaque = self._place(), call.opaque or call.valued
        args, kwargs = named_before(self.tensors.to_proxies((args, kwargs)), before)
        return BoundSymbol(
            symbol=symbol,
            args=args,
            kwargs=kwargs,
            output=returned,
            subsymbols=() if opaque else parts_of(function, call.subsymbols),
            source=place.source,
            module=place.module,
            mutates=tuple(before[name].name if name in before else name for name in mutates),
            ordered=ordered,
            fresh=opaque and has_own_memory(tensors_in(output), [tensor for tensor, _ in read]),
        )

    def _named_number(self, leaf: Any) -> Any:
        """A name for a number that a bound symbol gives."""
        return Proxy(self.tensors.next_name()) if isinstance(leaf, NUMBERS) else leaf

    def _recall(self, memory: Memory, args: Any, kwargs: Any) -> Any:
        """Do what was done before, in the names of these tensors."""
        bsym, output = self._memories.again(memory, tensors_in((args, kwargs)), self._place)
        if bsym is not None:
            self._append(bsym)
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
        if self._probe_values and self.gradients.is_running and self._operators.call is None:
            args, kwargs = replace_leaves((tuple(args), dict(kwargs)), self._stood_for)
        return self._operators.dispatch(operator, args, kwargs)

    def _stood_for(self, leaf: Any) -> Any:
        return self._probe_values.get(leaf, leaf) if type(leaf) in (int, float) else leaf
