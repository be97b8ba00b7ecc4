"""The recorder: it records torch operations as bound symbols, each with its aten operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from thunder_core.foundation.errors import OperationFailed, SourceLine, ThunderError
from thunder_core.tracing.analysis.own_derivatives import has_own_derivative
from thunder_core.tracing.capture.binding import Binding
from thunder_core.tracing.capture.call import RecordedCall
from thunder_core.tracing.capture.call_cache import CallCache
from thunder_core.tracing.capture.caught_errors import CaughtErrors
from thunder_core.tracing.capture.constants import constants_removed_for, forget_constants, has_symbolic_numbers
from thunder_core.tracing.capture.counts import Counts
from thunder_core.tracing.capture.data import DATA, Data
from thunder_core.tracing.capture.data_dependent import DataDependentValues
from thunder_core.tracing.capture.failures import needs_data, needs_value, with_source_line
from thunder_core.tracing.capture.fakes.absent_gpu import hide
from thunder_core.tracing.capture.fakes.device_guards import hidden_device_of
from thunder_core.tracing.capture.fakes.faithful import WITH_UNSIZED_PARTS
from thunder_core.tracing.capture.fakes.kernel_types import KERNEL_TYPES
from thunder_core.tracing.capture.fakes.memo import CachedCall
from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.fakes.trial import overlap_error, try_in_eager
from thunder_core.tracing.capture.gradients import AUTOGRAD, Gradients
from thunder_core.tracing.capture.location import ForwardLocations
from thunder_core.tracing.capture.masks import INDEXING, SELECTING, Masks
from thunder_core.tracing.capture.number_calls import NumberCalls
from thunder_core.tracing.capture.operators import AtenOperations
from thunder_core.tracing.capture.queries import Queries
from thunder_core.tracing.capture.recorded_lines import RecordedLines
from thunder_core.tracing.capture.recorded_program import RecordedProgram
from thunder_core.tracing.capture.shape_changes import ShapeChanges
from thunder_core.tracing.capture.sizes_of_values import RULES as FUNCTIONS_WITH_SIZES
from thunder_core.tracing.capture.sizes_of_values import SizesOfValues
from thunder_core.tracing.capture.subclasses import Subclasses, torch_function_classes
from thunder_core.tracing.capture.symbolic.all_sizes import for_all_sizes
from thunder_core.tracing.capture.symbolic.calls import OPAQUE
from thunder_core.tracing.capture.symbolic.composites import COMPOSITES
from thunder_core.tracing.capture.symbolic.numbers import numbers_in, scalar_kind
from thunder_core.tracing.capture.symbolic.recorded_numbers import Numbers
from thunder_core.tracing.capture.symbolic.shape_env import TraceShapeEnv
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.capture.symbolic.tensors_as_numbers import (
    RetryWithNumbers,
    has_few_items,
    has_integers,
    items,
    with_numbers,
)
from thunder_core.tracing.capture.symbolic_probe import BackwardOf
from thunder_core.tracing.capture.torch_facts.autocast import autocast_state
from thunder_core.tracing.capture.torch_facts.modes import FunctionMode, OperatorMode
from thunder_core.tracing.capture.torch_facts.new_leaves import make_leaf, makes_leaf
from thunder_core.tracing.capture.torch_facts.settings import with_default_device
from thunder_core.tracing.capture.torch_facts.storages import mark_device, storage_class, with_named_size
from thunder_core.tracing.capture.torch_facts.symbols import (
    PLAIN_CALLABLES,
    QUERY_EXPRESSIONS,
    REFERENCES,
    REPLACES_MEMORY,
    SET_DATA,
    SPARSE_PARTS,
    VALUE_READERS,
    VERSION,
    is_idle,
    replaces_memory,
    symbol_of,
)
from thunder_core.tracing.capture.torch_facts.triton_launches import attempt_without_data
from thunder_core.tracing.capture.torch_facts.wrappers import Wrapped, run_through, wrappers_in
from thunder_core.tracing.capture.transform_levels import TransformLevels, wrapped_tensors
from thunder_core.tracing.capture.values import NUMBERS, TracedValues
from thunder_core.tracing.ir.retrace import HidesNumbers, Retrace
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.objects import with_data

TOLIST = torch.Tensor.tolist  # returns values, and refuses fakes itself
DETACH = torch.ops.aten.detach.default
STORAGES = frozenset({torch.Tensor.storage, torch.Tensor.untyped_storage, torch.Tensor._typed_storage})
# The functions of `PLAIN_CALLABLES` that `_run_by_rules` does not simply record.
FUNCTIONS_WITH_RULES = frozenset(
    {
        *(TOLIST, torch.Tensor.item, torch.Tensor.new, torch.Tensor.stride, torch.Tensor.storage_type),
        *(VERSION, *QUERY_EXPRESSIONS, *REFERENCES, *VALUE_READERS, *DATA, *REPLACES_MEMORY, *AUTOGRAD),
        *(*FUNCTIONS_WITH_SIZES, *INDEXING, *SELECTING),
    }
)
OPAQUE_WHEN_REPLACED = OPAQUE | COMPOSITES  # recorded without subsymbols if another call computed their metadata
ZEROS = torch.ops.aten._efficientzerotensor.default  # makes zero tangents of a kind that fakes do not support

# The parts of a recorder that refer to the recorder, by its methods.
PARTS_WITH_CYCLES = (
    *("program", "subclasses", "numbers", "counts", "data_dependent", "caught_errors", "data", "levels", "gradients"),
    *("backward_of", "_queries", "_sizes_of_values", "_masks", "_operators", "_call_cache", "_binding"),
    "_number_calls",
)


class Recorder(RecordedLines):
    """A recorder that runs the torch functions of a program on fake tensors and records them as bound symbols.

    The program refers to real tensors. When it passes a real tensor to an operation, the operation runs on its fake.
    With `evaluates_tensor_values`, an operation that needs the values of tensors runs on the values, and bound symbols
    of the trace check that its result is the same at each call. At `lines_that_raised`, operations run on the values,
    and raise the errors that these values cause. With `counts_values`, sizes that the values of tensors determine are
    symbols. With `derivatives_read_numbers`, for programs that call `backward`, the values of numbers are read where a
    derivative would otherwise be computed from stand-in values.

    `sizes` are the symbols for sizes from outside. A program whose inputs are fakes has no `sizes`: the symbols of the
    fakes belong to `environment`.
    """

    def __init__(
        self,
        program: RecordedProgram,
        *,
        evaluates_tensor_values: bool = False,
        lines_that_raised: frozenset[SourceLine] = frozenset(),
        counts_values: bool = False,
        derivatives_read_numbers: bool = False,
        sizes: SymbolicSizes | None = None,
        environment: TraceShapeEnv | None = None,
    ) -> None:
        self.program = program
        self.sizes = sizes
        self.environment = environment if sizes is None else sizes.environment
        self.tensors = Tensors(program.name_input, program.device_of, sizes, self.environment)
        self.subclasses = Subclasses(self.tensors, self.function, program.call_torch_function)
        self.bound_symbols: list[BoundSymbol] = []
        self.failure: ThunderError | None = None
        self._queries = Queries(self.tensors, sizes, program.on_query, self._refuse)
        self.derivatives_in_progress = 0  # the number of derivatives that are being taken of the recorded operations
        self.numbers = Numbers(
            program, sizes, self.tensors.next_name, self._append_here, self._read_number, self._are_values_needed
        )
        self._set_up_values(
            lines_that_raised,
            evaluates_tensor_values=evaluates_tensor_values,
            counts_values=evaluates_tensor_values or counts_values,
        )
        self.derivatives_read_numbers = derivatives_read_numbers
        self.met_hidden_numbers = False
        self.levels = TransformLevels(self.tensors, self.numbers, self._refuse, self._note_grad_mode)
        self.gradients = Gradients(
            self.tensors, program.outside_gradients, self._switch_grad, self._require_differentiable
        )
        self._autocast = autocast_state()
        self._forward = ForwardLocations()
        self.backward_of: BackwardOf = program.backward_of
        # The running functions that were tried with symbolic numbers.
        self._functions_tried_with_numbers: list[Callable[..., Any]] = []
        self._operators = AtenOperations(self.tensors, self.with_fakes, self._run_function, self._refuse)
        self._binding = Binding(self.tensors, self._location, symbolic_sizes=self.environment is not None)
        self._number_calls = NumberCalls(self, self._binding, self.tensors, self.numbers)
        self._shape_changes = ShapeChanges(self.tensors.fakes)
        self._call_cache = CallCache(self.tensors, self._operators.make_view)

    def _set_up_values(
        self, lines_that_raised: frozenset[SourceLine], *, evaluates_tensor_values: bool, counts_values: bool
    ) -> None:
        """Set up the recording of operations whose results depend on the values of tensors."""
        evaluation = TracedValues(self.tensors, self.bound_symbols, self.numbers.outside_values)
        self.counts = Counts(self.sizes, self.tensors, evaluation, counts_values, self.program.count_source)
        self.data_dependent = DataDependentValues(
            evaluation,
            self.bound_symbols,
            self._append_here,
            self._fail,
            self.counts.are_constants,
            self.program.is_check,
            allowed=evaluates_tensor_values,
        )
        self.caught_errors = CaughtErrors(
            self.tensors,
            self.data_dependent,
            lambda: self._location().source,
            self._append_here,
            self.program.catches_errors,
            lines_that_raised,
        )
        self._sizes_of_values = SizesOfValues(
            self._run_function, lambda tensor: self._record_item(tensor, int), self.tensors.fake
        )
        self._masks = Masks(self._run_function, self.tensors.fake, self.counts.can_use_count)
        self.data = Data(self.tensors, self.data_dependent, self.function, self.program.on_query)

    def begin_derivative(self) -> None:
        """Note that a derivative of the recorded operations is about to be taken."""
        self.derivatives_in_progress += 1

    def end_derivative(self) -> None:
        """Note that the derivative that was begun last has been taken."""
        self.derivatives_in_progress -= 1

    def _are_values_needed(self) -> bool:
        """Whether computations at the program's present line need the values of numbers."""
        return self.caught_errors.is_at_line_that_raised()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record every torch operation of this thread during the block; no operation accesses data."""
        with attempt_without_data(), self.tensors.mode, OperatorMode(self.dispatch), FunctionMode(self.function):
            try:
                yield
            finally:
                self.levels.leave_all()

    def release(self) -> None:
        """Release the objects of the recording, which refer to each other."""
        if self.sizes is not None:
            self.sizes.leave_program()
        self.tensors.release()
        for name in PARTS_WITH_CYCLES:
            delattr(self, name)

    def _require_differentiable(self) -> None:
        """Check, before a backward pass, that autograd saw all recorded operations.

        Raises `Retrace` if autograd saw the stand-in of a symbolic number, so that the program is recorded again with
        the values of its numbers. Raises `OperationFailed` if autograd missed a write.
        """
        if self._shape_changes.misses_writes:
            raise self._refuse(
                "a backward runs after a write to a tensor that has views and whose shape was changed in place",
                "make a new tensor for the new shape: `x = x.transpose(0, 1)` instead of `x.transpose_(0, 1)`",
            )
        if self._number_calls.has_hidden:
            self.met_hidden_numbers = True  # for a program that catches all exceptions
            raise Retrace(HidesNumbers())

    # ---- torch functions (TorchFunctionMode) ----------------------------------------------------------------

    def function(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        classes: tuple[type, ...] = (),
    ) -> Any:
        """Run one torch function on fakes, and return its result for the program; record the call if necessary.

        If some of the `classes` define `__torch_function__`, it is called as in eager PyTorch.
        """
        if self.sizes is not None:
            args, kwargs = self.sizes.to_symints((tuple(args), dict(kwargs)))
            return self.sizes.to_program(self._dispatch_function(function, args, kwargs, classes), self.numbers)
        return self._dispatch_function(function, args, kwargs, classes)

    def _dispatch_function(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], classes: tuple[type, ...]
    ) -> Any:
        """Run a function with `__torch_function__` of classes, at a level of torch.func, or on plain tensors."""
        if (kinds := torch_function_classes(classes)) and torch._C._is_torch_function_enabled():
            return self.subclasses.run(function, args, kwargs, kinds)
        if self.levels.runs_in_level(function, args, kwargs):
            return self.levels.run(function, args, with_default_device(function, kwargs))
        try:
            return self._run_function(function, args, kwargs)
        except Wrapped:
            return self._run_on_wrappers(function, args, kwargs)

    def _run_function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a function on tensors without wrappers; raise `Wrapped` if one is a wrapper."""
        kwargs = with_default_device(function, kwargs)
        if type(function) not in PLAIN_CALLABLES or function in FUNCTIONS_WITH_RULES or "requires_grad" in kwargs:
            return self._run_by_rules(function, args, kwargs)
        if self.numbers.has_symbolic and numbers_in((args, kwargs)):
            return self._number_calls.run(function, *self.numbers.simplify_number((args, kwargs)))
        return self._record(function, *self.with_fakes(args, kwargs))

    def _run_by_rules(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a function that a rule may concern, such as a read of values; record the call if none does."""
        args, kwargs = with_named_size(function, args, kwargs)
        if makes_leaf(function, args, kwargs):
            return make_leaf(self._run_function, function, args, kwargs)
        if function is TOLIST and has_few_items(self.tensors.fake(args[0])):
            return items(args[0], self.tensors.fake(args[0]), self._run_function, self._record_item)
        if function in VALUE_READERS and not (self.data_dependent.allowed and (function is TOLIST or function in DATA)):
            raise self._fail(function)
        if function in DATA:
            return DATA[function](self.data, *args, **kwargs)
        if replaces_memory(function):
            self._require_data_assignment(args, kwargs)
            self._run_function(SET_DATA, args, kwargs)
            return args[0]
        self._require_traceable(function)
        if function in AUTOGRAD:
            return AUTOGRAD[function](self.gradients, *args, **kwargs)
        if self.numbers.has_symbolic and numbers_in((args, kwargs)):
            return self._number_calls.run(function, *self.numbers.simplify_number((args, kwargs)))
        if (answer := self._queries.constant_answer(function, args)) is not None:
            return answer
        if function is torch.Tensor.item and (kind := scalar_kind(self.tensors.fake(args[0]))):
            return self._record_item(args[0], kind)
        if (sized := self._sizes_of_values.with_size(function, args, kwargs)) is not None:
            return self._run_function(*sized)
        if (by_indices := self._masks.without(function, args, kwargs)) is not None:
            return self._run_function(*by_indices)
        args, kwargs = self.with_fakes(args, kwargs)
        is_class = function is torch.Tensor.storage_type
        return storage_class(args[0]) if is_class else self._record(function, args, kwargs)

    def _record(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function on fakes or replay an equal cached call, record it, and return the program's result."""
        self.caught_errors.raise_as_in_call(function, args, kwargs)
        key, read = self._call_cache.key(function, args, kwargs)
        cached_call = self._call_cache.find(key)
        if cached_call is not None and autocast_state() == self._autocast:
            return self._replay(cached_call, read)
        trial = KERNEL_TYPES.trial(function, args, kwargs, self.tensors, self.caught_errors.is_caught)
        if trial is not None and trial.error is not None:
            raise with_source_line(trial.error, self._location().source)
        call = RecordedCall(sets_present_value=is_idle(function, args, kwargs))
        try:
            output = self.run(function, args, kwargs, call)
        except RetryWithNumbers:
            return self._with_numbers(function, args, kwargs)
        if not KERNEL_TYPES.agrees(trial, output):
            raise self._refuse(
                f"`{symbol_of(function).name}` has a result of another dtype on tensors without data than in eager",
                "convert the arguments to the same dtype",
            )
        if call.is_constant:
            return output
        # a random function under `vmap`, which draws other numbers for each element
        if self.levels.depth and wrapped_tensors(output):
            return self.levels.run(function, args, kwargs)
        if function in STORAGES:
            mark_device(output, args[0].device)
            self.program.on_storage(self.tensors.to_real(args[0]))
        if function == SET_DATA and self._operators.rename_if_changed(call, args[0]):
            function, output = with_data, args[0]
        self._note_effects(call, function, args, kwargs, output)
        bsym = self._binding.bind(function, args, kwargs, output, call)
        if key is not None and call.is_repeatable:
            self._call_cache.add(key, bsym, read, output)
        if bsym is not None:
            self._append_call(bsym, output, call)
        return self.tensors.to_real(output)

    def _note_effects(
        self,
        call: RecordedCall,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: object,
    ) -> None:
        """Note the tensors that a call has written to; refuse a write to the memory of a NumPy array."""
        if isinstance(function, torch._ops.OpOverload):  # no operation is dispatched beneath it
            self._operators.note(call, function, args, kwargs)
        if has_symbolic_numbers((args, kwargs)):
            forget_constants((args, kwargs), output, call.written)
        # the derivative of the call is not the derivative of its operations
        if call.written and has_own_derivative(function):
            call.opaque = True
        if call.written and (error := overlap_error(function, args, kwargs, self.tensors, call.written)) is not None:
            raise with_source_line(error, self._location().source)
        self.data.written |= call.written
        if not self.data.shared.isdisjoint(call.written):
            raise self._refuse(
                "the program writes to a tensor that shares its memory with a NumPy array", "copy the array"
            )

    def _with_numbers(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function with symbolic numbers in place of tensors of one integer, or on their values if that fails."""
        before = self.failure
        self._functions_tried_with_numbers.append(function)
        try:
            return self._run_function(
                function, *with_numbers(args, kwargs, lambda tensor: self._record_item(tensor, int))
            )
        except Exception:  # the function does not accept a number in place of one of the tensors
            self.failure = before
            return self._record(function, args, kwargs)
        finally:
            self._functions_tried_with_numbers.pop()

    def _run_on_wrappers(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function on wrapper subclasses of Tensor, and record the functions that they call on inner tensors."""
        if function in DATA or function in VALUE_READERS:
            raise self._fail(function)
        for tensor in wrappers_in((args, kwargs)):
            self.program.on_wrapper(tensor)
        args, kwargs = replace_leaves((tuple(args), dict(kwargs)), self._to_fake_unless_wrapped)
        try:
            return self.tensors.to_real(run_through(function, args, kwargs))
        except OperationFailed as error:
            error.where = error.where or self._location().source
            self.failure = error
            raise

    def _is_constant(self, arguments: object) -> bool:
        """Whether the tensors among arguments are the same at each call."""
        return self.counts.are_constants([self.tensors.proxy(fake) for fake in tensors_in(arguments)])

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any, call: RecordedCall) -> Any:
        """Run a function on fakes, or on the tensors' values if necessary, and record its effects in `call`."""
        hidden = hidden_device_of(function, (args, kwargs))
        self._operators.begin(call, hidden=hidden)
        try:
            if function is TOLIST or (function in SPARSE_PARTS and args[0].layout is not torch.strided):
                return self.data_dependent.result(function, args, kwargs, call)
            called, arguments, named = for_all_sizes(function, args, kwargs)
            if hidden is not None:
                arguments, named = hide(hidden, (tuple(arguments), dict(named)))
            is_replaced = called is not function and function in OPAQUE_WHEN_REPLACED
            call.opaque = call.opaque or is_replaced or function in WITH_UNSIZED_PARTS
            shapes = self._shape_changes.preserve_versions(function, arguments, named)
            with (
                constants_removed_for((arguments, named)),
                shapes,
                self.tensors.mode.estimating(function),
                self.counts.symbolic_result_size(called, arguments, named, call),
            ):
                return called(*arguments, **named)
        except ThunderError:
            raise
        except Exception as error:
            return self._run_without_fakes(error, function, args, kwargs, call)
        finally:
            self._operators.end()
            if call.reshapes or function == SET_DATA:
                self._call_cache.disable()

    def _run_without_fakes(
        self, error: Exception, function: Callable[..., Any], args: object, kwargs: object, call: RecordedCall
    ) -> Any:
        """Run a function that fakes refused with an `error` on the tensors' values, if that is allowed.

        Otherwise, raise `RetryWithNumbers` if symbolic numbers may replace its tensors, or eager PyTorch's error if the
        operation fails there too, or Thunder's error.
        """
        valued = needs_value(error)
        if valued and function not in self._functions_tried_with_numbers and has_integers(args, kwargs):
            raise RetryWithNumbers from error
        is_constant = valued and self._is_constant((args, kwargs))
        if valued and (is_constant or self.data_dependent.allows(function)):
            with self.caught_errors.expecting(function, args, kwargs):
                result = self.data_dependent.result(function, args, kwargs, call)
            call.is_constant = is_constant and type(result) in NUMBERS and not (call.written or call.random)
            return result
        trial = try_in_eager(function, args, kwargs, self.tensors, valued=valued)
        is_caught = self.caught_errors.is_caught()
        if trial.error is not None and not (valued and is_caught):
            raise with_source_line(trial.error, self._location().source) from None
        if valued or needs_data(error) or (is_caught and trial.is_accepted):  # the program must not catch a wrong error
            raise self._fail(function, error) from error
        raise with_source_line(error, self._location().source)

    def _replay(self, call: CachedCall, read: list[torch.Tensor]) -> Any:
        """Record a cached call again, for these tensors, while autocast's state is the recorded one."""
        bsym, output = self._call_cache.replay(call, read, self._location)
        if bsym is not None:
            self.append(bsym, autocast_is_recorded=True)
        return self.tensors.to_real(output)

    # ---- aten operations (TorchDispatchMode) ----------------------------------------------------------------

    def dispatch(self, operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one aten operation on fakes, and record it as a part of the torch function that called it.

        In a backward pass, the stand-in values of symbolic numbers are replaced by the numbers.
        """
        in_backward = self.gradients.is_running and self._operators.call is None
        if in_backward and self._number_calls.probe_values:
            args, kwargs = self._number_calls.without_stand_ins((tuple(args), dict(kwargs)))
        if in_backward:
            args, kwargs = replace_leaves((tuple(args), dict(kwargs)), self.tensors.saved_result)
        if operator is ZEROS:
            operator = torch.ops.aten.zeros.default
        output = self._operators.dispatch(operator, args, kwargs)
        if operator is DETACH and isinstance(output, torch.Tensor):
            self.tensors.note_detached(output, args[0])
        return output
