"""The C functions of the standard library, by the state that they read.

What a function reads of an argument is guarded as the argument's class requires (`native_kinds`). A test checks that
all C modules of the standard library are listed here.
"""

from __future__ import annotations

import datetime as dt
import enum
import sys
import types
from typing import Any

from thunder_core.frontend.interpreter.callables import callable_attribute


class CFunctionKind(enum.Enum):
    """The state that a C function reads, and how tracing treats its calls."""

    ARGUMENTS = "it reads only its arguments"
    QUERY = "it only reads a state: each call of the compiled program first calls it again"
    QUERY_OR_CHANGE = (
        "without a new value it only reads a state, and is called again; with one it changes the outside world"
    )
    FRESH = "its result changes from call to call: each call of the compiled program first calls it again"
    TRACING = "it belongs to tracing itself, or does not affect results"
    OTHERWISE = "it has its own lookaside"
    WORLD = "it reads or changes the outside world: a sharp edge, which is reported"
    DEEP = "it reads its arguments, and everything that they contain"
    UNKNOWN = "it belongs to another package and its reads are unknown: a sharp edge, which is reported"


def _row(kind: CFunctionKind, module: str, names: str) -> dict[tuple[str, str], CFunctionKind]:
    """Return the entries for functions of a module, whose names are separated by spaces."""
    return {(module, name): kind for name in names.split()}


PURE_MODULES = """_ast _bisect _blake2 _bz2 _codecs _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr
    _codecs_tw _collections _contextvars _csv _datetime _decimal _elementtree _functools _hashlib _heapq _hmac _io _json
    _lsprof _lzma _md5 _multibytecodec _operator _pickle _queue _random _sha1 _sha2 _sha256 _sha3 _sha512 _sre _stat
    _statistics _string _struct _symtable _tokenize _typing _weakref _zoneinfo _zstd array audioop binascii builtins
    cmath decimal errno io itertools marshal math pyexpat unicodedata zlib"""
# The kind of the functions of a module that are not in `KIND_OF_FUNCTION`.
KIND_OF_MODULE: dict[str, CFunctionKind] = {
    **dict.fromkeys(
        ("posix", "nt", "_socket", "_posixsubprocess", "select", "fcntl", "mmap", "resource"), CFunctionKind.WORLD
    ),
    **dict.fromkeys(
        ("termios", "syslog", "readline", "_curses", "_curses_panel", "ossaudiodev", "nis"), CFunctionKind.WORLD
    ),
    **dict.fromkeys(("pwd", "grp", "spwd", "_dbm", "_gdbm", "_posixshmem", "_multiprocessing"), CFunctionKind.WORLD),
    **dict.fromkeys(("_signal", "_sqlite3", "_ctypes", "_ctypes_test", "_tracemalloc", "atexit"), CFunctionKind.WORLD),
    **dict.fromkeys(
        ("_locale", "_ssl", "_crypt", "_interpreters", "_interpchannels", "_interpqueues"), CFunctionKind.WORLD
    ),
    **dict.fromkeys(("faulthandler", "_imp", "_warnings", "_abc", "_asyncio", "_tkinter"), CFunctionKind.TRACING),
    **dict.fromkeys(("sys", "gc", "_thread", "_sysconfig", "_suggestions", "_opcode"), CFunctionKind.TRACING),
    **dict.fromkeys(PURE_MODULES.split(), CFunctionKind.ARGUMENTS),
    "_uuid": CFunctionKind.FRESH,
    "time": CFunctionKind.FRESH,
}
KIND_OF_FUNCTION: dict[tuple[str, str], CFunctionKind] = {
    **_row(CFunctionKind.WORLD, "time", "clock_settime clock_settime_ns tzset"),
    **_row(CFunctionKind.OTHERWISE, "time", "sleep"),
    **_row(CFunctionKind.ARGUMENTS, "time", "mktime strptime get_clock_info clock_getres pthread_getcpuclockid"),
    **_row(
        CFunctionKind.QUERY,
        "posix",
        "access cpu_count getcwd getcwdb getegid geteuid getgid getgroups getlogin getpgrp",
    ),
    **_row(
        CFunctionKind.QUERY,
        "posix",
        "getpid getppid getuid get_terminal_size isatty listdir listxattr lstat readlink stat",
    ),
    **_row(
        CFunctionKind.QUERY,
        "posix",
        "sched_getaffinity statvfs sysconf uname pathconf confstr fstat getloadavg device_encoding",
    ),
    **_row(
        CFunctionKind.ARGUMENTS, "posix", "WCOREDUMP WEXITSTATUS WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED WSTOPSIG"
    ),
    **_row(
        CFunctionKind.ARGUMENTS, "posix", "WTERMSIG _path_normpath _path_splitroot fspath major makedev minor strerror"
    ),
    **_row(CFunctionKind.ARGUMENTS, "posix", "waitstatus_to_exitcode _inputhook _path_splitroot_ex"),
    **_row(CFunctionKind.TRACING, "posix", "register_at_fork sched_yield"),
    **_row(CFunctionKind.FRESH, "posix", "urandom getrandom"),
    **_row(
        CFunctionKind.WORLD,
        "_thread",
        "start_new start_new_thread start_joinable_thread interrupt_main exit exit_thread",
    ),
    **_row(CFunctionKind.QUERY, "_thread", "get_ident get_native_id"),
    **_row(
        CFunctionKind.WORLD, "gc", "get_objects get_referrers disable enable freeze unfreeze set_debug set_threshold"
    ),
    **_row(CFunctionKind.WORLD, "gc", "get_count get_stats"),
    **_row(CFunctionKind.QUERY, "gc", "get_threshold get_debug get_freeze_count"),
    **_row(CFunctionKind.OTHERWISE, "gc", "isenabled"),
    **_row(CFunctionKind.OTHERWISE, "sys", "getrecursionlimit setrecursionlimit"),
    **_row(
        CFunctionKind.WORLD, "sys", "settrace setprofile setswitchinterval setdlopenflags addaudithook call_tracing"
    ),
    **_row(CFunctionKind.WORLD, "sys", "set_asyncgen_hooks set_coroutine_origin_tracking_depth set_int_max_str_digits"),
    **_row(CFunctionKind.WORLD, "sys", "excepthook unraisablehook"),
    **_row(CFunctionKind.WORLD, "sys", "getrefcount getallocatedblocks _current_frames getunicodeinternedsize"),
    **_row(CFunctionKind.QUERY, "sys", "getswitchinterval get_int_max_str_digits getdlopenflags"),
    **_row(CFunctionKind.QUERY, "sys", "get_coroutine_origin_tracking_depth get_asyncgen_hooks"),
    **_row(CFunctionKind.WORLD, "_thread", "stack_size"),
    **_row(CFunctionKind.QUERY, "_thread", "_count"),
    **_row(CFunctionKind.QUERY, "faulthandler", "is_enabled"),
    **_row(CFunctionKind.QUERY, "_tracemalloc", "is_tracing get_traceback_limit"),
    **_row(CFunctionKind.FRESH, "_tracemalloc", "get_traced_memory get_tracemalloc_memory"),
    **_row(CFunctionKind.QUERY, "_csv", "list_dialects"),
    **_row(CFunctionKind.QUERY_OR_CHANGE, "_csv", "field_size_limit"),
    **_row(CFunctionKind.WORLD, "_csv", "get_dialect"),
    **_row(CFunctionKind.QUERY, "_codecs", "lookup_error"),
    **_row(CFunctionKind.QUERY, "torch._C._autograd", "_profiler_enabled _profiler_type"),
    **_row(CFunctionKind.QUERY_OR_CHANGE, "_locale", "setlocale"),
    **_row(CFunctionKind.WORLD, "_weakref", "getweakrefcount getweakrefs"),
    **_row(
        CFunctionKind.QUERY,
        "posix",
        "getpriority get_blocking get_inheritable getpgid getsid getresuid getresgid ctermid",
    ),
    **_row(CFunctionKind.QUERY, "posix", "ttyname getgrouplist fpathconf getxattr sched_getscheduler"),
    **_row(CFunctionKind.QUERY, "posix", "sched_get_priority_max sched_get_priority_min"),
    **_row(CFunctionKind.FRESH, "posix", "times"),
    **_row(CFunctionKind.QUERY, "_locale", "getlocale localeconv getencoding nl_langinfo strcoll strxfrm"),
    **_row(CFunctionKind.ARGUMENTS, "_locale", "gettext dgettext dcgettext"),
    **_row(CFunctionKind.WORLD, "_locale", "textdomain bindtextdomain bind_textdomain_codeset"),
    **_row(CFunctionKind.QUERY, "_signal", "getsignal getitimer"),
    **_row(CFunctionKind.ARGUMENTS, "_signal", "strsignal valid_signals default_int_handler"),
    **_row(
        CFunctionKind.ARGUMENTS,
        "_socket",
        "htonl htons ntohl ntohs inet_aton inet_ntoa inet_ntop inet_pton CMSG_LEN CMSG_SPACE",
    ),
    **_row(CFunctionKind.QUERY, "_socket", "gethostname getdefaulttimeout"),
    **_row(
        CFunctionKind.ARGUMENTS,
        "_ctypes",
        "POINTER pointer sizeof alignment addressof byref buffer_info",
    ),
    **_row(CFunctionKind.QUERY, "_ctypes", "get_errno"),
    **_row(CFunctionKind.ARGUMENTS, "_ctypes", "Py_INCREF Py_DECREF PyObj_FromPtr resize _unpickle CopyComPointer"),
    **_row(CFunctionKind.QUERY, "resource", "getrlimit getpagesize"),
    **_row(CFunctionKind.QUERY, "pwd", "getpwall getpwnam getpwuid"),
    **_row(CFunctionKind.QUERY, "grp", "getgrall getgrgid getgrnam"),
    **_row(CFunctionKind.ARGUMENTS, "_ssl", "txt2obj nid2obj RAND_status"),
    **_row(CFunctionKind.OTHERWISE, "builtins", "print"),
    **_row(CFunctionKind.OTHERWISE, "_io", "open open_code"),
    **_row(CFunctionKind.OTHERWISE, "io", "open open_code"),
    **_row(CFunctionKind.WORLD, "decimal", "setcontext"),
    **_row(CFunctionKind.WORLD, "_csv", "register_dialect unregister_dialect"),
    **_row(CFunctionKind.WORLD, "_codecs", "register unregister register_error"),
    **_row(CFunctionKind.WORLD, "builtins", "input breakpoint"),
}


# Packages whose C functions read only numbers and arrays. Calls of PyTorch's operations are recorded anyway. "None" is
# the text of a missing `__module__`.
PURE_PACKAGES = frozenset(
    {
        *sys.stdlib_module_names,
        *("torch", "functorch", "triton", "thunder_core", "thunder_executors", "numpy", "scipy", "ml_dtypes", "None"),
    }
)
# Packages whose C functions read all contents of their arguments.
DEEP_PACKAGES = frozenset(
    {
        *(
            "orjson",
            "ujson",
            "msgpack",
            "regex",
            "_regex",
            "yaml",
            "markupsafe",
            "xxhash",
            "mmh3",
            "blake3",
            "rapidfuzz",
        ),
        *("Levenshtein", "pydantic_core", "rpds", "charset_normalizer", "frozenlist"),
    }
)
CAPSULE = type(dt.datetime_CAPI)


def function_kind_of(function: Any) -> CFunctionKind:
    """Return the kind of a C function: that of its module or package, or `ARGUMENTS` for a bound method in C."""
    owner = callable_attribute(function, "__self__")
    if type(owner) is types.ModuleType:
        module = owner.__name__
        kind = KIND_OF_FUNCTION.get((module, function.__name__)) or KIND_OF_MODULE.get(module)
        return kind or _function_kind_of_package(module)
    if owner is not None and not is_function_of_pybind11(function):
        return CFunctionKind.ARGUMENTS
    module = str(function.__module__)
    return KIND_OF_FUNCTION.get((module, function.__name__)) or _function_kind_of_package(module)


def is_function_of_pybind11(function: object) -> bool:
    """Whether a builtin is a function of pybind11, whose `__self__` is the record of its overloads."""
    return is_record_of_pybind11(type(callable_attribute(function, "__self__")))


def is_record_of_pybind11(kind: type) -> bool:
    """Whether a class is that of the `__self__` of pybind11's functions."""
    return kind is CAPSULE or kind.__module__ == "pybind11_builtins"


def _function_kind_of_package(module: str) -> CFunctionKind:
    package = module.partition(".")[0]
    if package in PURE_PACKAGES:
        return CFunctionKind.ARGUMENTS
    return CFunctionKind.DEEP if package in DEEP_PACKAGES else CFunctionKind.UNKNOWN
