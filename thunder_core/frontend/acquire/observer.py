"""The observer of an acquisition, which turns the interpreter's events into reads and writes of the outside world."""

# ruff: noqa: ARG002 (each event has the arguments of the protocol)

from __future__ import annotations

import contextvars
import functools
import operator
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.backend.runtime.module import compiled_of
from thunder_core.foundation.errors import CannotReplay, SourceLine
from thunder_core.frontend.acquire.applied_functions import AppliedFunctions
from thunder_core.frontend.acquire.backward_hooks import BackwardHooks
from thunder_core.frontend.acquire.code_origins import CodeOrigins, has_line
from thunder_core.frontend.acquire.counts import CountSources
from thunder_core.frontend.acquire.detours import Detours
from thunder_core.frontend.acquire.gradients import OutsideGradients
from thunder_core.frontend.acquire.lookasides import LOOKASIDES, is_native_code, late_lookaside_of, runs_alone
from thunder_core.frontend.acquire.lookasides.compiled import InEager, Nested, compiled_function, owner_of
from thunder_core.frontend.acquire.lookasides.functions.backward_hooks import method_of_node
from thunder_core.frontend.acquire.lookasides.functions.function import call_from_c
from thunder_core.frontend.acquire.lookasides.functions.function_transforms import FUNCTION_TRANSFORMS
from thunder_core.frontend.acquire.lookasides.functions.generators import is_method_of_generator, method_of_generator
from thunder_core.frontend.acquire.lookasides.functions.tensors import maker_of_tensors
from thunder_core.frontend.acquire.lookasides.operators.collectives import collective_call
from thunder_core.frontend.acquire.lookasides.operators.foreign import foreign
from thunder_core.frontend.acquire.lookasides.operators.higher_order import called_operator
from thunder_core.frontend.acquire.lookasides.replaced import Replacements
from thunder_core.frontend.acquire.lookasides.state.classes import CLASSES, shown_class
from thunder_core.frontend.acquire.lookasides.state.context_variables import ContextVariables
from thunder_core.frontend.acquire.lookasides.state.drawn_arrays import (
    computed_call,
    computed_operation,
    is_drawn,
    stored,
)
from thunder_core.frontend.acquire.lookasides.state.draws import drawing_call, is_generator
from thunder_core.frontend.acquire.lookasides.state.lookups import LOOKUPS, settle_lookup, settle_method
from thunder_core.frontend.acquire.lookasides.state.output import method_of_stream, method_that_logs_once
from thunder_core.frontend.acquire.lookasides.state.process_questions import process_question
from thunder_core.frontend.acquire.lookasides.state.world import world_call
from thunder_core.frontend.acquire.numbers import OutsideNumbers, for_native, on_values
from thunder_core.frontend.acquire.outside.attributes import MISSING
from thunder_core.frontend.acquire.outside.call_traits import (
    is_fixed,
    is_making_class,
    is_plain_mapping,
    is_shallow,
    reference_asked,
    without_self,
)
from thunder_core.frontend.acquire.outside.classes import Classes
from thunder_core.frontend.acquire.outside.draws import NotReplayedError, ProgramDraws
from thunder_core.frontend.acquire.outside.namespaces import is_index_into, is_question_for_member
from thunder_core.frontend.acquire.outside.native_reads import NativeReads
from thunder_core.frontend.acquire.outside.observed_writes import ObservedWrites
from thunder_core.frontend.acquire.outside.outside import TOGETHER
from thunder_core.frontend.acquire.outside.paths import Path, expression_path
from thunder_core.frontend.acquire.outside.sharp import LOUD, edge_of, is_users_code
from thunder_core.frontend.acquire.outside.symbolic import CONSTANT, Symbolic
from thunder_core.frontend.acquire.saved_tensors_hooks import SavedTensorsHooks
from thunder_core.frontend.acquire.settings import Settings
from thunder_core.frontend.acquire.texts import Texts, method_of_text, plain
from thunder_core.frontend.acquire.works import TracedWork
from thunder_core.frontend.interpreter.catching import is_caught
from thunder_core.passes.autodiff.vjp import backward_of
from thunder_core.tracing.analysis.data_errors import ERRORS_BY_VALUES
from thunder_core.tracing.capture.place import Place
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.capture.torch_facts.storages import shown_device
from thunder_core.tracing.capture.torch_facts.symbols import operations
from thunder_core.tracing.capture.torch_facts.torch_versions import applied_in_c
from thunder_core.tracing.ir.attention import FlexAttention
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.library.objects import is_native

REPLACEMENT_FINDERS = (maker_of_tensors, method_of_stream, method_that_logs_once, method_of_text, method_of_node)
READ_STATE = "read the state before the first draw, or outside the compiled program"
KEYED = (operator.contains, operator.getitem)
# Special methods whose results C code converts.
CONVERTING = frozenset(f"__{name}__" for name in ("index", "int", "float", "complex", "len", "length_hint", "hash"))
# Objects whose attributes are not looked up in the user's classes.
QUIET_OWNERS = (torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)
# the code of all functions with `torch._disable_dynamo`
DYNAMO_DISABLED_CODE = torch.optim.Optimizer.zero_grad.__code__


class Acquisition(ObservedWrites):
    """One run of the program under the interpreter, with its reads, writes and recorded operations."""

    quiet = frozenset({torch.Tensor, torch.nn.Parameter, FakeTensor, torch.dtype, torch.device, torch.Size})

    def __init__(self, module_names: Mapping[int, str], evaluates: bool = False, symbolic: Symbolic = CONSTANT) -> None:
        super().__init__(self.note_edge)
        self.classes = Classes(self.outside)
        self.settings = Settings()
        self.native_reads = NativeReads(self.outside, self.classes.is_users, self.note_edge, self.settings.asked)
        self.outside.symbolic = symbolic
        sizes = self._sizes(symbolic) if symbolic.sizes else None
        self.recorder = Recorder(self.name_input, self.place, self.device_of, self.outside.asked, evaluates, sizes)
        self.recorder.counts.allowed |= symbolic.counts
        self.recorder.counts.source_of = self.counts = CountSources(self.outside, self.recorder, self._line)
        self.recorder.gradients.outside = OutsideGradients(self)
        self.recorder.subclasses.ask = self._call_torch_function
        self.detours = Detours()
        self.recorder.caught_errors.is_caught = lambda: is_caught(self.machine.frame, ERRORS_BY_VALUES)
        self.recorder.unwrap = self.outside.wrapper
        self.recorder.backward_of = backward_of
        self.device: torch.device | None = None  # of the program, if this machine does not have it
        self.modules: list[str] = []
        self.module_names = module_names
        self.checkpointed_ranges: list[range] = []
        self.kept_operations: dict[str, frozenset[str]] = {}
        self.attentions: dict[str, FlexAttention] = {}
        self.seeds: dict[int, int | None] = {}
        self.asyncio_run_depth = 0  # number of active calls of asyncio.run
        self.contexts: dict[int, tuple[Any, Proxy]] = {}
        self.capturing_hooks: dict[int, list[Callable[..., Any]]] = {}  # by the `id` of their modules
        self.sharp_edges: dict[str, SourceLine | None] = {}
        self.loud_edges: set[str] = set()
        # number of bound symbols before a print, and the printed value
        self.printed: list[tuple[int, Any, SourceLine | None]] = []
        self.streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        self.warning_filters: Any = warnings.filters
        self.numbers = self.recorder.numbers.sources = OutsideNumbers(self)
        self.texts = Texts(self)
        self.context_variables = ContextVariables(self)
        self.draws = ProgramDraws(self)
        self.outside.draw_looked_into = self.draws.looked_into
        self.functions = AppliedFunctions(self)
        self.backward_hooks = BackwardHooks(self)
        self.saved_tensors_hooks = SavedTensorsHooks(self)
        self.runs_through_functions = False  # also if autograd follows a `torch.autograd.Function`
        self.nested: Nested | None = None
        self.in_eager: InEager | None = None
        self.works: list[TracedWork] = []
        self.replacements = Replacements()
        self.own_interrupt: BaseException | None = None
        self._operations = operations()
        self._code_origins = CodeOrigins()

    def _line(self) -> SourceLine | None:
        """Return the program's line; None before the program runs."""
        return self.place().source if hasattr(self, "machine") else None

    def _sizes(self, symbolic: Symbolic) -> SymbolicSizes:
        """Return the symbols of the recording."""
        return SymbolicSizes(
            self._line,
            self.symbolic_sizes,
            self.symbolic_strides,
            expression_path,
            range_of=symbolic.range_of,
            group_of=symbolic.group_of,
            avoid_one_hints=symbolic.avoid_one_hints,
            decides_ones=symbolic.decides_ones,
            real_hints_for=symbolic.real_hints_for,
        )

    def refuse(self, action: str, fix: str = TOGETHER) -> NoReturn:
        """Raise the error for an action that a trace cannot represent, and store the error."""
        self.recorder.failure = CannotReplay(action, fix=fix, where=self.place().source)
        raise self.recorder.failure

    # ---- reads ----------------------------------------------------------------------------------------------

    def on_load_global(self, frame: Any, name: str, value: Any) -> Any:
        """Guard a global or builtin that is read.

        Globals in a dict subclass with its own lookup are interpreted instead.
        """
        stored = dict.get(frame.globals, name, MISSING)
        if dict.get(frame.globals, "__name__") in FUNCTION_TRANSFORMS:
            return value
        if stored is value:
            changing = self.outside.changing_global(frame.globals, name, value)
            if changing is not None:
                return self.numbers.at(changing)
            self.outside.global_variable(frame.globals, name, value)
        elif stored is MISSING:
            self.outside.builtin(frame.globals, frame.builtins, name, value)
        return value

    def on_load_deref(self, frame: Any, name: str, cell: Any, value: Any) -> Any:
        """Guard a read of a closure variable of an outside function."""
        changing = self.outside.changing(cell, "cell_contents", value, is_item=False)
        if changing is not None:
            return self.numbers.at(changing)
        self.outside.attribute(cell, "cell_contents", value)
        return value

    def on_load_attr(self, owner: Any, name: str, value: Any) -> Any:
        """Guard an attribute of an outside object. Replacements show the `__class__` that the program expects."""
        if name == "__class__" and (shown := shown_class(owner)) is not None:
            return shown
        if (device := shown_device(owner, name)) is not None:
            return device
        if name == "state" and self.draws.paths and is_generator(owner):
            self.refuse("the program reads the state of a NumPy generator after a draw", READ_STATE)
        changing = self.outside.changing(owner, name, value, is_item=False)
        if changing is not None:
            return self.numbers.at(changing)
        if self.outside.path_of(owner) is None:
            if issubclass(type(owner), type):
                self.classes.reached(owner)
            elif not isinstance(owner, QUIET_OWNERS):
                self.classes.attribute(owner, name)
        self.outside.attribute(owner, name, value)
        return value

    def on_load_stored(self, owner: Any, name: str, value: Any) -> None:
        """Guard a value that is stored in an object with its own `__getattribute__`."""
        self.outside.stored(owner, name, value)

    def on_call_result(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
        """Note a class that the program makes, and the object of a weak reference."""
        if function is weakref.ref and len(args) == 1 and not kwargs:
            self.outside.referenced(value, args[0])
        elif (reference := reference_asked(function)) is not None:
            self.outside.referent(reference, value)
        elif not self.context_variables.has_set(function):
            self.native_reads.after(function, args, kwargs, value)
        if isinstance(value, type) and (function is __build_class__ or is_making_class(function, args)):
            self.classes.made(value)
        return value

    def on_missing_attr(self, owner: Any, name: str) -> None:
        """Guard the absence of an attribute."""
        self.outside.missing(owner, name)

    def on_subscript(self, container: Any, key: Any, value: Any) -> Any:
        """Guard a read of an item of an outside container."""
        changing = self.outside.changing(container, key, value, is_item=True)
        if changing is not None:
            return self.numbers.at(changing)
        self.outside.item(container, key, value)
        return value

    def on_store_subscript(self, container: Any, key: Any, value: Any) -> Any:
        """Log a write to an item. The prologue repeats a write to a random array."""
        if self.draws.arrays and is_drawn(self, container):
            with suppress(NotReplayedError):
                return stored(self, container, key, value)
        return super().on_store_subscript(container, key, value)

    def class_of(self, value: Any) -> type:
        """Return an operand's class in eager PyTorch: a fake's class would change the order of reflected operators."""
        return CLASSES.get(type(value), type(value))

    @property
    def substitutes(self) -> bool:  # type: ignore[override]
        """Whether the program has symbolic texts or numbers, which native functions must receive as plain values."""
        return self.texts.any_symbolic or self.recorder.numbers.any_symbolic

    def on_text(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return a symbolic text for a text of unknown values. It is guarded only if the program reads it."""
        return self.texts.made_by(function, operands)

    def for_native(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of a native function with the strings and numbers of this call for symbolic ones."""
        if self.recorder.numbers.any_symbolic:
            args, kwargs = for_native(function, args, kwargs)
        return self.texts.for_native(function, args, kwargs) if self.texts.any_symbolic else (args, kwargs)

    def for_caller(self, value: Any) -> Any:
        """Return a value that an iterator of the program passes to C code, with symbolic texts replaced by strings."""
        return plain(value, set()) if self.texts.any_symbolic else value

    def on_refusal(self, error: TypeError) -> None:
        """Note an error of a native function that may have received a symbolic text within an object."""
        if self.texts.any_symbolic:
            self.texts.met_refusal(error)

    def on_operation(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Callable[[], Any] | None:
        """Return the replacement of an operator on random arrays or contexts, or None."""
        if self.draws.arrays and (computed := computed_operation(self, function, operands)) is not None:
            return computed
        if function is operator.getitem and type(operands[0]) is contextvars.Context:
            return self.context_variables.item(*operands)
        self._before_operation(function, operands)
        return None

    def _before_operation(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        """Guard the reads of a native operator, and note an in-place operator as a write to its first operand."""
        self.outside.effects.announced = None
        if function is operator.is_:
            self.outside.compared(*operands)
            return
        if function is operator.contains and settle_lookup(self, *operands):
            return
        if function is operator.getitem and self.outside.symbolic.may_be and is_plain_mapping(operands[0]):
            return  # `on_subscript` guards the item
        if function in KEYED and is_plain_mapping(operands[0]):
            self.outside.lookup(operands[0], operands[1])
            return
        if function is operator.contains and is_question_for_member(*operands):
            self.outside.member(*operands)
            return
        if function is operator.getitem and is_index_into(*operands):
            return  # `on_subscript` guards the item
        self.native_reads.operation(function, operands)
        expand = self.outside.expand if is_shallow(function) else self.outside.expand_whole
        for operand in operands:
            expand(operand)
        if function.__name__ in ("iadd", "ior", "iand", "isub", "ixor", "imul"):
            self.native_calls.mutate(operands[0], f"__{function.__name__}__", operands[1:], {})

    # ---- calls ----------------------------------------------------------------------------------------------

    def on_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Return a function to call natively in place of this one, or None to leave the call unchanged.

        Lookasides come first. Torch operations are recorded when they run. Containers that C code receives are guarded.
        """
        if self.replacements and (replacement := self.replacements.of(self, function)) is not None:
            return replacement
        kind = type(function)
        if issubclass(kind, type):
            self.classes.met(function)
        plain = function.__func__ if kind is types.MethodType else function
        try:
            lookaside = LOOKASIDES.get(plain)
        except TypeError:  # an unhashable callable
            lookaside = None
        if lookaside is not None:
            if plain is not function:
                args = (function.__self__, *args)
            replacement = lookaside(self, plain, args, kwargs)
            if replacement is not None:
                return without_self(replacement, function) if plain is not function else replacement
        drawing = (
            drawing_call(self, function)
            or collective_call(self, function)
            or world_call(self, function)
            or (self.draws.arrays and computed_call(self, function, args, kwargs))
        )
        if drawing:
            return drawing
        if type(plain) is types.FunctionType:
            return self._python_function(function, plain, args, kwargs)
        if isinstance(function, HigherOrderOperator):
            return called_operator(self, function)
        if is_method_of_generator(function):
            method = method_of_generator(self, function)
            return None if method is None else on_values(method)
        for find in REPLACEMENT_FINDERS:
            if (replacement := find(self, function)) is not None:
                return replacement
        if (replacement := self.context_variables.method(self, function)) is not None:
            return replacement
        if (applied := applied_in_c(function)) is not None:
            return call_from_c(self, function, applied, args, kwargs)
        if kind is not type or is_native(function):
            self.outside.effects.announced = None
            if getattr(function, "__name__", "") in LOOKUPS and settle_method(self, function, args, kwargs):
                return None
            native = self.before_native(function, args, kwargs) or self.numbers.before_native(function, args, kwargs)
            return self.native_calls.attempted(self.machine, function, native)
        return None

    def _python_function(
        self, function: Any, plain: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        inner: Any = compiled_of(plain) if "_thunder" in plain.__dict__ else None
        if inner is not None:
            return compiled_function(self, function, plain, inner)
        if (lookaside := late_lookaside_of(plain)) is not None:
            return lookaside(self, plain, args, kwargs)
        replacement = foreign(self, function, plain)
        if replacement is not None:
            return replacement
        if plain.__code__ is DYNAMO_DISABLED_CODE:
            return functools.partial(self.machine.call, plain.__wrapped__, *owner_of(function))  # type: ignore[attr-defined]
        edge = self._check_edge(plain)
        if edge or plain in self._operations or is_native_code(plain):
            if (query := process_question(self, function, plain)) is not None:
                return query
            for arg in (*args, *kwargs.values()):
                self.outside.expand_whole(arg)
            native: Callable[..., Any] = function
            if plain not in self._operations:
                native = self.numbers.before_native(function, args, kwargs) or function
            return functools.partial(native) if runs_alone(plain.__module__, plain.__name__) else native
        if self.in_eager is not None and has_line(plain.__code__, self.in_eager.lines) and self._is_called(function):
            return functools.partial(self.in_eager, self, function)
        owned = (function.__self__, *args) if plain is not function else args
        self.classes.called(plain, owned)
        self.outside.defaults(plain)
        return None

    def _is_called(self, function: Any) -> bool:
        """Whether the program calls a function, which is neither the program nor what the program consists of."""
        subject = getattr(self, "subject", None)
        return function is not subject and getattr(function, "__self__", None) is not subject

    def _call_torch_function(self, method: Callable[..., Any], *args: Any) -> Any:
        """Interpret the `__torch_function__` of a subclass of Tensor."""
        self.outside.class_method(method.__self__, "__torch_function__")  # type: ignore[attr-defined]
        return self.machine.call_back(method, args, {})

    def on_raise(self, error: BaseException) -> None:
        """Store a `KeyboardInterrupt` that the program raises itself, to distinguish it from one sent by the user."""
        if isinstance(error, KeyboardInterrupt):
            self.own_interrupt = error

    def on_cached(self, cached: Any, value: Any, hit: bool) -> bool:
        """Return whether a new value stays in the cache of `functools.lru_cache`. Guard a value that was in the cache.

        A new value enters the cache if no part of the trace can be in it. Then eager PyTorch and this program both
        return the cached value, even if the sources of the value change later. Other values are computed at each call
        of the trace, although eager PyTorch would reuse the first one.
        """
        if hit:
            self.outside.cached(cached)
            return True
        is_kept = is_fixed(value)
        if not is_kept and is_users_code(getattr(cached.__wrapped__, "__code__", None)):
            self.note_edge(f"{cached.__qualname__} under functools.lru_cache makes a new object at each call")
        return is_kept

    def interprets(self, function: types.FunctionType) -> bool:
        """Whether a function that C code calls is interpreted: not native functions, nor most of PyTorch's."""
        return self._code_origins.interprets(function)

    def on_called_back(self, function: types.FunctionType, value: Any) -> Any:
        """Return a plain number if C code converts the function's result.

        Other special methods keep a symbolic number.
        """
        name = function.__name__
        if isinstance(value, SymbolicNumber) and (name in CONVERTING or name[:2] != "__"):
            return value.concretize()
        return self.for_caller(value)

    def on_native_code(self, code: types.CodeType) -> None:
        """Report user code that C code ran natively, because its reads are not guarded."""
        if is_users_code(code):
            self.note_edge(f"{code.co_qualname} ran natively, and no guard checks what it reads")

    def note_edge(self, description: str, *, loud: bool = False) -> None:
        """Note a sharp edge at the program's current line.

        A `loud` edge is reported even if sharp edges are allowed.
        """
        self.sharp_edges.setdefault(description, self.place().source)
        self.loud_edges |= {description} if loud else set()

    def _check_edge(self, function: Any) -> bool:
        edge = edge_of(function)
        if edge is not None:
            self.note_edge(edge, loud=edge.startswith(LOUD) and self.outside.surprises is None)
        return edge is not None

    def before_native(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Note the effects of a C function on its arguments. Return a function to call in its place, or None."""
        self._check_edge(function)
        self.native_reads.before(function, args, kwargs)
        return self.native_calls.before(self.machine, function, args, kwargs)

    # ---- the program's position -----------------------------------------------------------------------------

    def name_input(self, value: torch.Tensor | torch.Generator) -> str:
        """Return the name of an outside tensor or generator that an operation uses first; set by the acquisition."""
        raise NotImplementedError

    def symbolic_sizes(self, tensor: torch.Tensor) -> dict[int, Path]:
        """Return the paths to the symbolic sizes of a tensor, by dimension; set by the acquisition."""
        raise NotImplementedError

    def symbolic_strides(self, tensor: torch.Tensor) -> dict[int, Path]:
        """Return the paths to the symbolic strides of a tensor with gaps, by dimension; set by the acquisition."""
        raise NotImplementedError

    def name_number(self, path: Path) -> str:
        """Return the name of a number from outside; set by the acquisition."""
        raise NotImplementedError

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the device that an outside tensor is assumed to be on."""
        return tensor.device

    def place(self) -> Place:
        """Return the innermost line that is neither in PyTorch nor in a context manager, and the innermost module."""
        return self._code_origins.users_place(self.machine.frame, self.modules[-1] if self.modules else "")
