"""The classes of C, and how a prologue checks that C code would find the same in an instance as while tracing.

A Python class has the answer of its C base, because C code calls its special methods, which are interpreted. Functions
that read all attributes of an object are treated separately (`native_reads`).
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.reductions import ITERATORS
from thunder_core.frontend.interpreter.lookup import remember, shortcut, type_lookup
from thunder_core.tracing.ir.constants import BY_IDENTITY, CONSTANT_TYPES
from thunder_core.tracing.library.changes.class_entries import mro_of
from thunder_core.tracing.library.objects import is_native
from thunder_core.tracing.library.states import STATES


class NativeAnswer(enum.Enum):
    """The reason why C code finds the same in an object of a class at a later call."""

    FIXED = "it never changes; a guard checks its value, its identity or its class"
    SAME = "it never changes: a guard checks its identity"
    ITEMS = "its items are guarded one by one"
    ATTRIBUTES = "its attributes are guarded one by one"
    STATE = "its state is compared as a whole"
    STEPS = "it is an iterator: taking an item is refused"
    CODE = "it calls Python code, whose reads are known"
    TENSOR = "PyTorch's own: recorded, or guarded by its metadata"
    RANDOM = "its draws are replayed"
    GETTERS = "methods that only read are called again; all others are sharp edges"
    OPAQUE = "its reads are unknown: calling one of its methods is a sharp edge"


DISTRIBUTED = "torch.distributed.distributed_c10d"
# Classes whose objects are numbers, although the classes are not enumerations.
NUMBERS_IN_C: tuple[type, ...] = (torch.distributed.ReduceOp,) if torch.distributed.is_available() else ()


def _answers(answer: NativeAnswer, module: str, *names: str) -> dict[type | str, NativeAnswer]:
    """Return the answer for classes of one module, by name, because the module may not be installed."""
    return dict.fromkeys((f"{module}.{name}" for name in names), answer)


_NONE: dict[Any, Any] = {}
_CODE = (types.FunctionType, types.MethodType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_WRAPPING = (functools.partial, functools._lru_cache_wrapper, staticmethod, super)
_PLAIN = (object, bool, complex, type(None), types.CellType, types.FrameType, types.TracebackType)
_VIEWS = (type(_NONE.keys()), type(_NONE.values()), type(_NONE.items()))
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict, types.MappingProxyType)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType)

# By class, or by module and name. Other classes have the answer of their first listed base.
ANSWERS: dict[type | str, NativeAnswer] = {
    **dict.fromkeys((*_PLAIN, *CONSTANT_TYPES, *BY_IDENTITY, weakref.ref, *weakref.ProxyTypes), NativeAnswer.FIXED),
    **dict.fromkeys((*_CODE, *_WRAPPING), NativeAnswer.CODE),
    **dict.fromkeys((*_CONTAINERS, *_VIEWS), NativeAnswer.ITEMS),
    **dict.fromkeys((types.SimpleNamespace, BaseException), NativeAnswer.ATTRIBUTES),
    **dict.fromkeys(ITERATORS, NativeAnswer.STEPS),
    **dict.fromkeys(STATES, NativeAnswer.STATE),
    **dict.fromkeys((*_DESCRIPTORS, types.CodeType), NativeAnswer.SAME),
    torch.Generator: NativeAnswer.TENSOR,
    # Classes that the interpreter uses internally, or whose objects C code creates temporarily.
    **_answers(
        NativeAnswer.FIXED, "builtins", "PyCapsule", "moduledef", "symtable entry", "stderrprinter", "managedbuffer"
    ),
    **_answers(NativeAnswer.FIXED, "builtins", "InterpreterID", "hamt", "hamt_array_node", "hamt_bitmap_node"),
    **_answers(NativeAnswer.FIXED, "builtins", "hamt_collision_node", "EncodingMap", "StgDict", "CArgObject"),
    **_answers(
        NativeAnswer.FIXED, "builtins", "instancemethod", "builtin_method", "_RunningLoopHolder", "NoDefaultType"
    ),
    **_answers(NativeAnswer.FIXED, "builtins", "PyContextVar", "Py_tracing_event", "_buffer_wrapper"),
    **_answers(NativeAnswer.FIXED, "_collections", "_tuplegetter"),
    **_answers(NativeAnswer.FIXED, "collections", "_tuplegetter"),
    **_answers(NativeAnswer.FIXED, "sys", "legacy_event_handler"),
    **_answers(NativeAnswer.FIXED, "_ctypes", "CArgObject"),
    **_answers(NativeAnswer.FIXED, "Token", "MISSING"),
    **_answers(NativeAnswer.FIXED, "_functools", "_lru_list_elem", "KeyWrapper"),
    **_answers(NativeAnswer.FIXED, "functools", "_lru_list_elem", "KeyWrapper", "_PlaceholderType"),
    **_answers(NativeAnswer.FIXED, "_operator", "itemgetter", "attrgetter", "methodcaller"),
    **_answers(NativeAnswer.FIXED, "_abc", "_abc_data"),
    **_answers(NativeAnswer.FIXED, "_typing", "_idfunc"),
    **_answers(
        NativeAnswer.FIXED, "typing", "TypeVar", "ParamSpec", "TypeVarTuple", "TypeAliasType", "Generic", "Union"
    ),
    **_answers(NativeAnswer.FIXED, "typing", "ParamSpecArgs", "ParamSpecKwargs", "NoDefaultType"),
    **_answers(NativeAnswer.FIXED, "_ast", "AST"),
    **_answers(NativeAnswer.FIXED, "ast", "AST"),
    **_answers(
        NativeAnswer.FIXED, "_ctypes", "CField", "CThunkObject", "DictRemover", "StructParam_Type", "CType_Type"
    ),
    # Immutable classes whose objects are compared by identity.
    **_answers(NativeAnswer.SAME, "re", "Match"),
    **_answers(NativeAnswer.SAME, "zoneinfo", "ZoneInfo"),
    **_answers(NativeAnswer.SAME, "_sre", "template", "SRE_Template"),
    **_answers(NativeAnswer.SAME, "unicodedata", "UCD"),
    **_answers(NativeAnswer.SAME, "numpy", "ufunc", "broadcast", "busdaycalendar"),
    **_answers(
        NativeAnswer.FIXED, "numpy", "_ArrayFunctionDispatcher", "_ArrayMethod", "_BoundArrayMethod", "flagsobj"
    ),
    **_answers(NativeAnswer.STEPS, "numpy", "flatiter", "nditer", "mapiter", "neigh_internal_iter", "_array_converter"),
    **_answers(NativeAnswer.ITEMS, "builtins", "odict_keys", "odict_values", "odict_items", "keys", "values", "items"),
    **_answers(NativeAnswer.ITEMS, "builtins", "FrameLocalsProxy"),
    **_answers(
        NativeAnswer.STEPS, "builtins", "callable_iterator", "iterator", "dict_reversekeyiterator", "memory_iterator"
    ),
    **_answers(
        NativeAnswer.STEPS, "builtins", "dict_reversevalueiterator", "dict_reverseitemiterator", "odict_iterator"
    ),
    **_answers(NativeAnswer.STEPS, "builtins", "generic_alias_iterator", "str_ascii_iterator", "fieldnameiterator"),
    **_answers(
        NativeAnswer.STEPS, "builtins", "formatteriterator", "line_iterator", "positions_iterator", "str_iterator"
    ),
    **_answers(NativeAnswer.STEPS, "_collections", "_deque_iterator", "_deque_reverse_iterator"),
    **_answers(NativeAnswer.STEPS, "collections", "_deque_iterator", "_deque_reverse_iterator"),
    **_answers(NativeAnswer.STEPS, "array", "arrayiterator"),
    **_answers(NativeAnswer.STEPS, "itertools", "_grouper", "_tee", "_tee_dataobject", "pairwise", "batched"),
    **_answers(NativeAnswer.STEPS, "re", "SREScanner"),
    **_answers(NativeAnswer.STEPS, "_sre", "SRE_Scanner"),
    **_answers(NativeAnswer.STEPS, "_struct", "unpack_iterator"),
    **_answers(NativeAnswer.STEPS, "_elementtree", "_element_iterator"),
    **_answers(NativeAnswer.STEPS, "_asyncio", "FutureIter"),
    **_answers(NativeAnswer.STEPS, "_tokenize", "TokenizerIter"),
    **_answers(NativeAnswer.CODE, "builtins", "coroutine_wrapper", "async_generator_asend", "async_generator_athrow"),
    **_answers(
        NativeAnswer.CODE, "builtins", "anext_awaitable", "async_generator_wrapped_value", "TaskStepMethWrapper"
    ),
    **_answers(NativeAnswer.CODE, "_asyncio", "TaskStepMethWrapper"),
    **_answers(NativeAnswer.CODE, "builtins", "coroutine", "async_generator"),
    **_answers(NativeAnswer.GETTERS, "_thread", "lock", "RLock"),
    **_answers(NativeAnswer.GETTERS, DISTRIBUTED, "ProcessGroup", "Store", "PrefixStore", "Work", "ProcessGroupGloo"),
    **_answers(
        NativeAnswer.GETTERS, "torch._C._distributed_c10d", "Backend", "_SymmetricMemory", "HashStore", "FileStore"
    ),
    **_answers(NativeAnswer.GETTERS, "torch._C._distributed_c10d", "TCPStore", "FakeWork", "PythonCallbackWork"),
    **_answers(NativeAnswer.GETTERS, "torch._C._distributed_c10d", "FakeProcessGroup", "_ProcessGroupWrapper"),
    **_answers(NativeAnswer.OPAQUE, "torch._C._distributed_c10d", "Reducer", "Logger", "GradBucket", "_WorkerServer"),
    **_answers(
        NativeAnswer.OPAQUE, "torch._C._distributed_c10d", "_ControlCollectives", "_StoreCollectives", "_Request"
    ),
    **_answers(NativeAnswer.OPAQUE, "torch._C._monitor", "Stat", "Event", "_WaitCounter", "_WaitCounterTracker"),
    **_answers(NativeAnswer.OPAQUE, "torch._C._distributed_autograd", "DistAutogradContext"),
    **_answers(NativeAnswer.OPAQUE, "torch._C._distributed_rpc", "PyRRef", "RpcAgent", "TensorPipeAgent", "WorkerInfo"),
    **_answers(NativeAnswer.OPAQUE, "torch", "Future", "ScriptDict", "ScriptList", "ScriptObject", "BufferDict"),
    **_answers(NativeAnswer.OPAQUE, "torch", "ParameterDict", "ModuleDict", "PyTorchFileReader", "PyTorchFileWriter"),
    **_answers(NativeAnswer.GETTERS, "_multiprocessing", "SemLock"),
    **_answers(NativeAnswer.GETTERS, "_queue", "SimpleQueue"),
    **_answers(NativeAnswer.GETTERS, "_contextvars", "ContextVar"),
    **_answers(NativeAnswer.FIXED, "_thread", "_local"),
    **_answers(NativeAnswer.RANDOM, "_random", "Random"),
    **_answers(NativeAnswer.OPAQUE, "_thread", "_localdummy", "_ThreadHandle"),
    **_answers(NativeAnswer.OPAQUE, "_contextvars", "Context", "Token"),
    **_answers(
        NativeAnswer.OPAQUE,
        "_io",
        "_IOBase",
        "_BufferedIOBase",
        "_RawIOBase",
        "_TextIOBase",
        "IncrementalNewlineDecoder",
        "_BytesIOBuffer",
    ),
    **_answers(
        NativeAnswer.OPAQUE, "_pickle", "Pickler", "Unpickler", "Pdata", "PicklerMemoProxy", "UnpicklerMemoProxy"
    ),
    **_answers(NativeAnswer.OPAQUE, "pickle", "PickleBuffer"),
    **_answers(NativeAnswer.OPAQUE, "decimal", "SignalDictMixin", "ContextManager"),
    **_answers(NativeAnswer.OPAQUE, "_asyncio", "Future", "Task"),
    **_answers(NativeAnswer.OPAQUE, "_ctypes", "_CData"),
    **_answers(NativeAnswer.OPAQUE, "_csv", "Dialect", "reader", "writer"),
    **_answers(NativeAnswer.OPAQUE, "_json", "Scanner", "Encoder"),
    **_answers(NativeAnswer.OPAQUE, "xml.etree.ElementTree", "TreeBuilder", "Element", "XMLParser"),
    **_answers(NativeAnswer.OPAQUE, "pyexpat", "xmlparser"),
    **_answers(NativeAnswer.OPAQUE, "_socket", "socket"),
    **_answers(NativeAnswer.OPAQUE, "_ssl", "_SSLSocket", "_SSLContext", "MemoryBIO", "SSLSession", "Certificate"),
    **_answers(NativeAnswer.OPAQUE, "select", "epoll", "poll", "kqueue", "kevent"),
    **_answers(NativeAnswer.OPAQUE, "mmap", "mmap"),
    **_answers(NativeAnswer.OPAQUE, "zlib", "Compress", "Decompress", "_ZlibDecompressor"),
    **_answers(NativeAnswer.OPAQUE, "_bz2", "BZ2Compressor", "BZ2Decompressor"),
    **_answers(NativeAnswer.OPAQUE, "_lzma", "LZMACompressor", "LZMADecompressor"),
    **_answers(NativeAnswer.GETTERS, "_hashlib", "HASH", "HASHXOF", "HMAC"),
    **_answers(NativeAnswer.GETTERS, "_blake2", "blake2b", "blake2s"),
    **_answers(NativeAnswer.GETTERS, "_sha3", "sha3_224", "sha3_256", "sha3_384", "sha3_512", "shake_128", "shake_256"),
    **_answers(NativeAnswer.GETTERS, "_md5", "md5"),
    **_answers(NativeAnswer.GETTERS, "_sha1", "sha1"),
    **_answers(NativeAnswer.GETTERS, "_sha256", "sha224", "sha256"),
    **_answers(NativeAnswer.GETTERS, "_sha512", "sha384", "sha512"),
    **_answers(NativeAnswer.GETTERS, "_sha2", "SHA224Type", "SHA256Type", "SHA384Type", "SHA512Type"),
    **_answers(NativeAnswer.OPAQUE, "_curses", "window"),
    **_answers(NativeAnswer.OPAQUE, "_curses_panel", "panel"),
    **_answers(NativeAnswer.OPAQUE, "_lsprof", "Profiler"),
    **_answers(NativeAnswer.CODE, "datetime", "tzinfo"),
    **_answers(NativeAnswer.OPAQUE, "posix", "DirEntry", "ScandirIterator"),
    **_answers(NativeAnswer.OPAQUE, "ossaudiodev", "oss_audio_device", "oss_mixer_device"),
    **_answers(NativeAnswer.OPAQUE, "sqlite3", "Connection", "Cursor", "Row", "Blob", "PrepareProtocol", "Statement"),
    **_answers(NativeAnswer.OPAQUE, "_tkinter", "tkapp", "Tcl_Obj", "tktimertoken"),
    **_answers(NativeAnswer.OPAQUE, "_dbm", "dbm"),
    **_answers(NativeAnswer.OPAQUE, "_gdbm", "gdbm"),
    **_answers(NativeAnswer.OPAQUE, "_multibytecodec", "MultibyteCodec", "MultibyteIncrementalEncoder"),
    **_answers(NativeAnswer.OPAQUE, "_multibytecodec", "MultibyteIncrementalDecoder", "MultibyteStreamReader"),
    **_answers(NativeAnswer.OPAQUE, "_multibytecodec", "MultibyteStreamWriter"),
}

# Methods that only read, and are called again at each call.
GROUP_GETTERS = frozenset(
    {
        *("rank", "size", "name", "_id", "_backend_id", "_get_backend_name", "_get_sequence_number_for_group"),
        *("_has_hooks", "_device_types", "supports_splitting", "supports_coalescing", "supports_time_estimate"),
        *("supports_shrinking", "supports_tensor_alloc", "_allows_splitting"),
    }
)
GETTERS: dict[str, frozenset[str]] = {
    "_thread.lock": frozenset({"locked", "locked_lock"}),
    "_queue.SimpleQueue": frozenset({"qsize", "empty"}),
    "_contextvars.ContextVar": frozenset({"get"}),
    f"{DISTRIBUTED}.ProcessGroup": GROUP_GETTERS,
    "torch._C._distributed_c10d.Backend": GROUP_GETTERS,
    f"{DISTRIBUTED}.Store": frozenset({"num_keys", "check", "has_extended_api", "queue_len"}),
    f"{DISTRIBUTED}.Work": frozenset({"is_completed", "is_success", "source_rank"}),
    "torch._C._distributed_c10d._SymmetricMemory": frozenset({"has_multicast_support", "is_symm_mem_tensor"}),
}
DIGESTS = frozenset({"digest", "hexdigest"})  # methods of hash objects
LOCK_METHODS = frozenset({"acquire", "release", "__enter__", "__exit__", "acquire_lock", "release_lock", "_is_owned"})
TORCH = ("torch", "functorch", "triton", "thunder_core")


def answer_of(kind: type) -> NativeAnswer:
    """Return the answer for the instances of a class."""
    answer: NativeAnswer | None = shortcut(kind, "answer")
    if answer is None:
        type_lookup(kind, "__class__")
        answer = stated_answer(kind) or NativeAnswer.OPAQUE
        remember(kind, "answer", answer)
    return answer


def stated_answer(kind: type) -> NativeAnswer | None:
    """Return the answer of the table or of a whole package; None for a class of C that is not listed."""
    is_unknown = False
    for base in mro_of(kind)[:-1]:
        answer = ANSWERS.get(base) or ANSWERS.get(name_of(base))
        if answer is None and is_native(base):
            answer = _answer_of_package(str(base.__module__))
        if answer is not None:
            return answer
        if is_enumeration(base):
            return NativeAnswer.FIXED
        is_unknown |= is_native(base) and not is_graph_node(base)
    return None if is_unknown else NativeAnswer.FIXED


def is_enumeration(kind: type) -> bool:
    """Whether a class is an enumeration of pybind11, whose members never change."""
    return type(kind).__module__ == "pybind11_builtins" and {"__members__", "__entries"} <= vars(kind).keys()


def is_number_in_c(kind: type) -> bool:
    """Whether the objects of a pybind11 class are named numbers, which their hashes distinguish."""
    return kind in NUMBERS_IN_C or is_enumeration(kind)


def is_graph_node(kind: type) -> bool:
    """Whether a C class is a node class of autograd's graph. PyTorch does not put these classes into a module."""
    return "next_functions" in vars(kind) and "register_prehook" in vars(kind)


def _answer_of_package(module: str) -> NativeAnswer | None:
    if module.startswith("numpy.random"):
        return NativeAnswer.RANDOM
    return NativeAnswer.TENSOR if module.partition(".")[0] in TORCH else None


def name_of(kind: type) -> str:
    """Return the module and the name of a class."""
    return f"{kind.__module__}.{kind.__name__}"


def is_getter(kind: type, method: str) -> bool:
    """Whether a method of a C class changes nothing, and can be called again."""
    of_hash = method in DIGESTS and hasattr(kind, "block_size")
    return of_hash or any(method in GETTERS.get(name_of(base), ()) for base in mro_of(kind))
