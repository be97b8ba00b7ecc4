"""The state that C code reads from objects, by class, and how guards check that the state has not changed.

A Python class has the entry of its C base: C code calls special methods of the Python class, which are interpreted.
`native_reads` guards the reads of functions that read all attributes of an object.
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


class NativeState(enum.Enum):
    """The state that C code reads from an object, and how guards check it."""

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
    MEMORY = "it refers to memory that is not compared: eager PyTorch makes calls that read it"
    OPAQUE = "its reads are unknown: calling one of its methods is a sharp edge"


DISTRIBUTED = "torch.distributed.distributed_c10d"
# Classes whose objects are numbers, although the classes are not enumerations.
NUMBERS_IN_C: tuple[type, ...] = (torch.distributed.ReduceOp,) if torch.distributed.is_available() else ()


def _rows(state: NativeState, module: str, *names: str) -> dict[type | str, NativeState]:
    """Return the entries for classes of a module. They are given by name, because the module may not be installed."""
    return dict.fromkeys((f"{module}.{name}" for name in names), state)


_NONE: dict[Any, Any] = {}
_CODE = (types.FunctionType, types.MethodType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_WRAPPING = (functools.partial, functools._lru_cache_wrapper, staticmethod, super)
_PLAIN = (object, bool, complex, type(None), types.CellType, types.FrameType, types.TracebackType)
_VIEWS = (type(_NONE.keys()), type(_NONE.values()), type(_NONE.items()))
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict, types.MappingProxyType)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType)

# By class, or by module and name. Another class has the entry of the first class in its MRO that is listed.
STATE_OF_CLASS: dict[type | str, NativeState] = {
    **dict.fromkeys((*_PLAIN, *CONSTANT_TYPES, *BY_IDENTITY, weakref.ref, *weakref.ProxyTypes), NativeState.FIXED),
    **dict.fromkeys((*_CODE, *_WRAPPING), NativeState.CODE),
    **dict.fromkeys((*_CONTAINERS, *_VIEWS), NativeState.ITEMS),
    **dict.fromkeys((types.SimpleNamespace, BaseException), NativeState.ATTRIBUTES),
    **dict.fromkeys(ITERATORS, NativeState.STEPS),
    **dict.fromkeys(STATES, NativeState.STATE),
    **dict.fromkeys((*_DESCRIPTORS, types.CodeType), NativeState.SAME),
    torch.Generator: NativeState.TENSOR,
    # Classes that the interpreter uses internally, or whose objects C code creates temporarily.
    **_rows(
        NativeState.FIXED, "builtins", "PyCapsule", "moduledef", "symtable entry", "stderrprinter", "managedbuffer"
    ),
    **_rows(NativeState.FIXED, "builtins", "InterpreterID", "hamt", "hamt_array_node", "hamt_bitmap_node"),
    **_rows(NativeState.FIXED, "builtins", "hamt_collision_node", "EncodingMap", "StgDict", "CArgObject"),
    **_rows(NativeState.FIXED, "builtins", "instancemethod", "builtin_method", "_RunningLoopHolder", "NoDefaultType"),
    **_rows(NativeState.FIXED, "builtins", "PyContextVar", "Py_tracing_event", "_buffer_wrapper"),
    **_rows(NativeState.FIXED, "_collections", "_tuplegetter"),
    **_rows(NativeState.FIXED, "collections", "_tuplegetter"),
    **_rows(NativeState.FIXED, "sys", "legacy_event_handler"),
    **_rows(NativeState.FIXED, "_ctypes", "CArgObject"),
    **_rows(NativeState.FIXED, "Token", "MISSING"),
    **_rows(NativeState.FIXED, "_functools", "_lru_list_elem", "KeyWrapper"),
    **_rows(NativeState.FIXED, "functools", "_lru_list_elem", "KeyWrapper", "_PlaceholderType"),
    **_rows(NativeState.FIXED, "_operator", "itemgetter", "attrgetter", "methodcaller"),
    **_rows(NativeState.FIXED, "_abc", "_abc_data"),
    **_rows(NativeState.FIXED, "_typing", "_idfunc"),
    **_rows(NativeState.FIXED, "typing", "TypeVar", "ParamSpec", "TypeVarTuple", "TypeAliasType", "Generic", "Union"),
    **_rows(NativeState.FIXED, "typing", "ParamSpecArgs", "ParamSpecKwargs", "NoDefaultType"),
    **_rows(NativeState.FIXED, "_ast", "AST"),
    **_rows(NativeState.FIXED, "ast", "AST"),
    **_rows(NativeState.FIXED, "_ctypes", "CField", "CThunkObject", "DictRemover", "StructParam_Type", "CType_Type"),
    # Immutable classes whose objects are compared by identity.
    **_rows(NativeState.SAME, "re", "Match"),
    **_rows(NativeState.SAME, "zoneinfo", "ZoneInfo"),
    **_rows(NativeState.SAME, "_sre", "template", "SRE_Template"),
    **_rows(NativeState.SAME, "unicodedata", "UCD"),
    **_rows(NativeState.SAME, "numpy", "ufunc", "broadcast", "busdaycalendar"),
    **_rows(NativeState.FIXED, "numpy", "_ArrayFunctionDispatcher", "_ArrayMethod", "_BoundArrayMethod", "flagsobj"),
    **_rows(NativeState.STEPS, "numpy", "flatiter", "nditer", "mapiter", "neigh_internal_iter", "_array_converter"),
    **_rows(NativeState.ITEMS, "builtins", "odict_keys", "odict_values", "odict_items", "keys", "values", "items"),
    **_rows(NativeState.ITEMS, "builtins", "FrameLocalsProxy"),
    **_rows(
        NativeState.STEPS, "builtins", "callable_iterator", "iterator", "dict_reversekeyiterator", "memory_iterator"
    ),
    **_rows(NativeState.STEPS, "builtins", "dict_reversevalueiterator", "dict_reverseitemiterator", "odict_iterator"),
    **_rows(NativeState.STEPS, "builtins", "generic_alias_iterator", "str_ascii_iterator", "fieldnameiterator"),
    **_rows(NativeState.STEPS, "builtins", "formatteriterator", "line_iterator", "positions_iterator", "str_iterator"),
    **_rows(NativeState.STEPS, "_collections", "_deque_iterator", "_deque_reverse_iterator"),
    **_rows(NativeState.STEPS, "collections", "_deque_iterator", "_deque_reverse_iterator"),
    **_rows(NativeState.STEPS, "array", "arrayiterator"),
    **_rows(NativeState.STEPS, "itertools", "_grouper", "_tee", "_tee_dataobject", "pairwise", "batched"),
    **_rows(NativeState.STEPS, "re", "SREScanner"),
    **_rows(NativeState.STEPS, "_sre", "SRE_Scanner"),
    **_rows(NativeState.STEPS, "_struct", "unpack_iterator"),
    **_rows(NativeState.STEPS, "_elementtree", "_element_iterator"),
    **_rows(NativeState.STEPS, "_asyncio", "FutureIter"),
    **_rows(NativeState.STEPS, "_tokenize", "TokenizerIter"),
    **_rows(NativeState.CODE, "builtins", "coroutine_wrapper", "async_generator_asend", "async_generator_athrow"),
    **_rows(NativeState.CODE, "builtins", "anext_awaitable", "async_generator_wrapped_value", "TaskStepMethWrapper"),
    **_rows(NativeState.CODE, "_asyncio", "TaskStepMethWrapper"),
    **_rows(NativeState.CODE, "builtins", "coroutine", "async_generator"),
    **_rows(NativeState.GETTERS, "_thread", "lock", "RLock"),
    **_rows(NativeState.GETTERS, DISTRIBUTED, "ProcessGroup", "Store", "PrefixStore", "Work", "ProcessGroupGloo"),
    **_rows(NativeState.GETTERS, "torch._C._distributed_c10d", "Backend", "_SymmetricMemory", "HashStore", "FileStore"),
    **_rows(NativeState.GETTERS, "torch._C._distributed_c10d", "TCPStore", "FakeWork", "PythonCallbackWork"),
    **_rows(NativeState.GETTERS, "torch._C._distributed_c10d", "FakeProcessGroup", "_ProcessGroupWrapper"),
    **_rows(NativeState.OPAQUE, "torch._C._distributed_c10d", "Reducer", "Logger", "GradBucket", "_WorkerServer"),
    **_rows(NativeState.OPAQUE, "torch._C._distributed_c10d", "_ControlCollectives", "_StoreCollectives", "_Request"),
    **_rows(NativeState.OPAQUE, "torch._C._monitor", "Stat", "Event", "_WaitCounter", "_WaitCounterTracker"),
    **_rows(NativeState.OPAQUE, "torch._C._distributed_autograd", "DistAutogradContext"),
    **_rows(NativeState.OPAQUE, "torch._C._distributed_rpc", "PyRRef", "RpcAgent", "TensorPipeAgent", "WorkerInfo"),
    **_rows(NativeState.OPAQUE, "torch", "Future", "ScriptDict", "ScriptList", "ScriptObject", "BufferDict"),
    **_rows(NativeState.OPAQUE, "torch", "ParameterDict", "ModuleDict", "PyTorchFileReader", "PyTorchFileWriter"),
    **_rows(NativeState.GETTERS, "_multiprocessing", "SemLock"),
    **_rows(NativeState.GETTERS, "_queue", "SimpleQueue"),
    **_rows(NativeState.GETTERS, "_contextvars", "ContextVar"),
    **_rows(NativeState.FIXED, "_thread", "_local"),
    **_rows(NativeState.RANDOM, "_random", "Random"),
    **_rows(NativeState.OPAQUE, "_thread", "_localdummy", "_ThreadHandle"),
    **_rows(NativeState.OPAQUE, "_contextvars", "Context", "Token"),
    **_rows(
        NativeState.OPAQUE,
        "_io",
        "_IOBase",
        "_BufferedIOBase",
        "_RawIOBase",
        "_TextIOBase",
        "IncrementalNewlineDecoder",
        "_BytesIOBuffer",
    ),
    **_rows(NativeState.OPAQUE, "_pickle", "Pickler", "Unpickler", "Pdata", "PicklerMemoProxy", "UnpicklerMemoProxy"),
    **_rows(NativeState.OPAQUE, "pickle", "PickleBuffer"),
    **_rows(NativeState.OPAQUE, "decimal", "SignalDictMixin", "ContextManager"),
    **_rows(NativeState.OPAQUE, "_asyncio", "Future", "Task"),
    **_rows(NativeState.STATE, "_ctypes", "Structure", "Union", "Array", "_SimpleCData"),
    **_rows(NativeState.MEMORY, "_ctypes", "_Pointer", "CFuncPtr"),
    **_rows(NativeState.MEMORY, "mmap", "mmap"),
    **_rows(NativeState.OPAQUE, "_ctypes", "_CData"),
    **_rows(NativeState.OPAQUE, "_csv", "Dialect", "reader", "writer"),
    **_rows(NativeState.OPAQUE, "_json", "Scanner", "Encoder"),
    **_rows(NativeState.OPAQUE, "xml.etree.ElementTree", "TreeBuilder", "Element", "XMLParser"),
    **_rows(NativeState.OPAQUE, "pyexpat", "xmlparser"),
    **_rows(NativeState.OPAQUE, "_socket", "socket"),
    **_rows(NativeState.OPAQUE, "_ssl", "_SSLSocket", "_SSLContext", "MemoryBIO", "SSLSession", "Certificate"),
    **_rows(NativeState.OPAQUE, "select", "epoll", "poll", "kqueue", "kevent"),
    **_rows(NativeState.OPAQUE, "zlib", "Compress", "Decompress", "_ZlibDecompressor"),
    **_rows(NativeState.OPAQUE, "_bz2", "BZ2Compressor", "BZ2Decompressor"),
    **_rows(NativeState.OPAQUE, "_lzma", "LZMACompressor", "LZMADecompressor"),
    **_rows(NativeState.GETTERS, "_hashlib", "HASH", "HASHXOF", "HMAC"),
    **_rows(NativeState.GETTERS, "_blake2", "blake2b", "blake2s"),
    **_rows(NativeState.GETTERS, "_sha3", "sha3_224", "sha3_256", "sha3_384", "sha3_512", "shake_128", "shake_256"),
    **_rows(NativeState.GETTERS, "_md5", "md5"),
    **_rows(NativeState.GETTERS, "_sha1", "sha1"),
    **_rows(NativeState.GETTERS, "_sha256", "sha224", "sha256"),
    **_rows(NativeState.GETTERS, "_sha512", "sha384", "sha512"),
    **_rows(NativeState.GETTERS, "_sha2", "SHA224Type", "SHA256Type", "SHA384Type", "SHA512Type"),
    **_rows(NativeState.OPAQUE, "_curses", "window"),
    **_rows(NativeState.OPAQUE, "_curses_panel", "panel"),
    **_rows(NativeState.OPAQUE, "_lsprof", "Profiler"),
    **_rows(NativeState.CODE, "datetime", "tzinfo"),
    **_rows(NativeState.OPAQUE, "posix", "DirEntry", "ScandirIterator"),
    **_rows(NativeState.OPAQUE, "ossaudiodev", "oss_audio_device", "oss_mixer_device"),
    **_rows(NativeState.OPAQUE, "sqlite3", "Connection", "Cursor", "Row", "Blob", "PrepareProtocol", "Statement"),
    **_rows(NativeState.OPAQUE, "_tkinter", "tkapp", "Tcl_Obj", "tktimertoken"),
    **_rows(NativeState.OPAQUE, "_dbm", "dbm"),
    **_rows(NativeState.OPAQUE, "_gdbm", "gdbm"),
    **_rows(NativeState.OPAQUE, "_multibytecodec", "MultibyteCodec", "MultibyteIncrementalEncoder"),
    **_rows(NativeState.OPAQUE, "_multibytecodec", "MultibyteIncrementalDecoder", "MultibyteStreamReader"),
    **_rows(NativeState.OPAQUE, "_multibytecodec", "MultibyteStreamWriter"),
}

# Methods of process groups that only read, and that the prologue calls again.
GROUP_GETTERS = frozenset(
    {
        *("rank", "size", "name", "_id", "_backend_id", "_get_backend_name", "_get_sequence_number_for_group"),
        *("_has_hooks", "_device_types", "supports_splitting", "supports_coalescing", "supports_time_estimate"),
        *("supports_shrinking", "supports_tensor_alloc", "_allows_splitting"),
    }
)
# By module and name of a class: methods that only read, and that the prologue calls again.
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


def native_state_of(kind: type) -> NativeState:
    """Return the native state of the instances of a class."""
    state: NativeState | None = shortcut(kind, "native state")
    if state is None:
        type_lookup(kind, "__class__")
        state = listed_native_state(kind) or NativeState.OPAQUE
        remember(kind, "native state", state)
    return state


def listed_native_state(kind: type) -> NativeState | None:
    """Return the native state of a class by the table or by its package; None for a C class that is not listed."""
    is_unknown = False
    for base in mro_of(kind)[:-1]:
        state = STATE_OF_CLASS.get(base) or STATE_OF_CLASS.get(name_of(base))
        if state is None and is_native(base):
            state = _native_state_of_package(str(base.__module__))
        if state is not None:
            return state
        if is_enumeration(base):
            return NativeState.FIXED
        is_unknown |= is_native(base) and not is_graph_node(base)
    return None if is_unknown else NativeState.FIXED


def is_enumeration(kind: type) -> bool:
    """Whether a class is an enumeration of pybind11, whose members never change."""
    return type(kind).__module__ == "pybind11_builtins" and {"__members__", "__entries"} <= vars(kind).keys()


def is_number_in_c(kind: type) -> bool:
    """Whether the instances of a pybind11 class are named numbers, which differ by their hashes."""
    return kind in NUMBERS_IN_C or is_enumeration(kind)


def is_graph_node(kind: type) -> bool:
    """Whether a C class is a node class of autograd's graph. PyTorch does not put these classes into a module."""
    return "next_functions" in vars(kind) and "register_prehook" in vars(kind)


def _native_state_of_package(module: str) -> NativeState | None:
    if module.startswith("numpy.random"):
        return NativeState.RANDOM
    return NativeState.TENSOR if module.partition(".")[0] in TORCH else None


def name_of(kind: type) -> str:
    """Return the module and the name of a class."""
    return f"{kind.__module__}.{kind.__name__}"


def is_getter(kind: type, method: str) -> bool:
    """Whether a method of a C class only reads, so that the prologue can call it again."""
    of_hash = method in DIGESTS and hasattr(kind, "block_size")
    return of_hash or any(method in GETTERS.get(name_of(base), ()) for base in mro_of(kind))
