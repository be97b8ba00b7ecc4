"""Compile C++ kernels into a shared object: all in one translation unit, because headers are slow to compile."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import RLock

from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
from torch._inductor.exc import InvalidCxxCompiler

from thunder_core.backend.fusion.machine_code import MODULE
from thunder_core.foundation.errors import CompilerFailed
from thunder_core.foundation.memory_limits import available_memory
from thunder_executors.inductor.building.compilers import Compilers, compilers
from thunder_executors.inductor.building.machine import processors
from thunder_executors.inductor.building.precompiled import with_headers
from thunder_executors.inductor.building.stub_library import with_stub
from thunder_executors.inductor.building.vector_extension import vector_extension
from thunder_executors.inductor.generate import CppKernel, Unsupported

STANDARD = "-std="
# g++ compiles the headers with C++17 in five sixths of the time of Inductor's C++20, and most of a kernel's compile
# time is headers. Kernels that do not compile with C++17 are compiled with Inductor's standard.
LEAN_STANDARD = "-std=c++17"
COMPILER_BYTES = 1 << 30  # memory that a compiler may need for the headers and the kernels of a unit
_SETTINGS_LOCK = RLock()
# The forking thread holds the lock during a fork, so no other thread can, and the child can release it.
os.register_at_fork(
    before=_SETTINGS_LOCK.acquire, after_in_parent=_SETTINGS_LOCK.release, after_in_child=_SETTINGS_LOCK.release
)
POINTER = re.compile(r"(const )?[a-zA-Z_:0-9<>]+ ?\*")
INTEGER = re.compile(r"(const )?int64_t")

HEAD = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdexcept>
static void* (*data_of)(PyObject*);
static inline long long integer_of(PyObject* argument) {
    long long value = PyLong_AsLongLong(argument);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        throw std::invalid_argument("a size has to be an integer of 64 bits");
    }
    return value;
}
"""
BINDING = """
static PyObject* call_{name}(PyObject*, PyObject* const* args, Py_ssize_t count) {{
    if (count != {count}) {{ PyErr_SetString(PyExc_TypeError, "{name} takes {count} arguments"); return nullptr; }}
    try {{ {name}({arguments}); }}
    catch (std::exception const& error) {{ PyErr_SetString(PyExc_RuntimeError, error.what()); return nullptr; }}
    Py_RETURN_NONE;
}}
"""
TAIL = """
static PyMethodDef methods[] = {{ {methods} {{nullptr, nullptr, 0, nullptr}} }};
static PyModuleDef definition = {{ PyModuleDef_HEAD_INIT, "{module}", nullptr, -1, methods }};
PyMODINIT_FUNC PyInit_{module}() {{
    PyObject* object = PyImport_ImportModule("torch._C");
    for (const char* name : {{"_dynamo", "guards", "_torchinductor_pyobject_tensor_data_ptr"}}) {{
        if (!object) return nullptr;
        PyObject* next = PyObject_GetAttrString(object, name);
        Py_DECREF(object);
        object = next;
    }}
    if (!object) return nullptr;
    data_of = reinterpret_cast<void* (*)(PyObject*)>(PyLong_AsVoidPtr(object));
    Py_DECREF(object);
    return PyErr_Occurred() ? nullptr : PyModule_Create(&definition);
}}
"""


def translation_unit(kernels: Mapping[str, CppKernel]) -> str:
    """Return C++ source with all kernels and an extension module whose functions take tensors and integers."""
    parts = [HEAD]
    for name, kernel in kernels.items():
        source = kernel.source.replace("void  kernel(", f"void {name}(").replace("void kernel(", f"void {name}(")
        if f"void {name}(" not in source:
            raise Unsupported(f"{name} has no function `kernel`")
        parts += [source, BINDING.format(name=name, count=len(kernel.arguments), arguments=_arguments(name, kernel))]
    methods = " ".join(f'{{"{name}", (PyCFunction)(void*)call_{name}, METH_FASTCALL, nullptr}},' for name in kernels)
    return "\n".join((*parts, TAIL.format(methods=methods, module=MODULE)))


def _arguments(name: str, kernel: CppKernel) -> str:
    types = enumerate(kernel.arguments)
    return ", ".join(f"({type_name}){_reader(name, type_name)}(args[{index}])" for index, type_name in types)


def _reader(name: str, type_name: str) -> str:
    """Return the C++ function that reads an argument of a type from a Python object."""
    if POINTER.fullmatch(type_name.strip()):
        return "data_of"
    if INTEGER.fullmatch(type_name.strip()):
        return "integer_of"
    raise Unsupported(f"{name} takes an argument of type {type_name}")


def compile_library(kernels: Mapping[str, CppKernel], compilers: Compilers) -> bytes:
    """Return the shared object of all kernels; raise `CompilerFailed` with the compiler's message, or `OutOfDisk`."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        source.write_text(translation_unit(kernels))
        own = _command(source, target)
        for command in (with_standard(own, LEAN_STANDARD), own):
            complete = with_stub(with_headers(command, source, target, compilers), Path(folder), compilers)
            try:
                compilers.run(complete, Path(folder), f"{len(kernels)} kernels")
                break
            except CompilerFailed:
                if command == own:
                    raise
        return target.read_bytes()


def compile_functions(functions: Iterable[tuple[str, tuple[str, ...], str]]) -> bytes:
    """Compile functions, given as (name, argument types, source), into a shared object; raise as `compile_library`."""
    kernels = {name: CppKernel(arguments, source) for name, arguments, source in functions}
    with compilers() as started:
        return compile_library(kernels, started)


def with_standard(command: Sequence[str], standard: str) -> list[str]:
    """Return the compiler's command with another C++ standard."""
    return [standard if word.startswith(STANDARD) else word for word in command]


def compilers_at_once() -> int:
    """Return how many compilers to run in parallel: at most one per core, and one per GiB of free memory."""
    cores, free = len(os.sched_getaffinity(0)), available_memory()
    return cores if free is None else max(1, min(cores, free // COMPILER_BYTES))


def _command(source: Path, target: Path) -> list[str]:
    try:
        with _SETTINGS_LOCK:  # Inductor's settings are global to the process
            return command_for(source, target)
    except InvalidCxxCompiler as error:
        raise CompilerFailed(str(error), fix="install g++, or set CXX to a C++ compiler that works") from None


def command_for(source: Path, target: Path) -> list[str]:
    """Return Inductor's compiler command with `-march` set to `processors()[0]` instead of `native`."""
    options = CppTorchOptions(vec_isa=vector_extension(), include_pytorch=False, shared=True, warning_all=False)
    builder = CppBuilder(name="kernels", sources=str(source), BuildOption=options, output_dir=str(target.parent))
    command = shlex.split(builder.get_command_line())
    name, _ = processors()
    swapped = [f"-march={name}" if word == "-march=native" else word for word in command]
    flags = [word for word in swapped if word not in ("-g1", "-pedantic", "-Wall")]
    return [*flags, "-w", "-o", str(target)]
