"""Constants of traces as plain data. A constant is an object that the source of a trace refers to by name."""

from __future__ import annotations

import builtins
import enum
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import resolve_name

from thunder_core.backend.fusion.machine_code import ENTRY, SHARED_OBJECT, MachineCode, machine_code_of
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import ArtifactForeign, CannotReplay, ThunderError
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.passes.autodiff.rules import applied_class, operation_of
from thunder_core.tracing.capture.torch_facts.compiled_call import CompiledCall
from thunder_core.tracing.ir.literal import dotted_name, is_listed_member
from thunder_core.tracing.library.objects import is_native
from thunder_core.workflow.artifact.format.code import SCRIPTS
from thunder_core.workflow.artifact.format.literals import read_literal, write_literal
from thunder_core.workflow.artifact.format.manifest import KERNELS
from thunder_core.workflow.artifact.format.modules import find_in_modules, find_in_tables
from thunder_core.workflow.artifact.format.object_paths import (
    ObjectPath,
    code_digest,
    find_by_classes,
    find_paths,
    follow,
)
from thunder_core.workflow.artifact.format.program_facts import ConstantFacts, ConstantKind
from thunder_core.workflow.artifact.format.tensors import DTYPE_NAMES
from thunder_core.workflow.artifact.trust.trust import Trust

NO_IMPORT = SCRIPTS | {"builtins"}  # another process cannot import from scripts, and need not import builtins
REPLACED_GUARD_VALUE = type("Replaced", (), {})()  # an object that equals no value of a guard


@dataclass
class ConstantConverter:
    """Converts the constants of all traces of an artifact to plain data; tensors are collected in one table."""

    subject: object
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    _keys: dict[int, str] = field(default_factory=dict)
    _paths: dict[int, str] = field(default_factory=dict)
    _object_paths: dict[int, ObjectPath] = field(default_factory=dict)

    def prepare(self, values: list[object]) -> None:
        """Search once for paths to all objects that cannot be saved by their own text or name."""
        without_name = [value for value in values if self._facts_of_plain_value(value) is None]
        self._paths |= find_in_modules(without_name) if without_name else {}
        harder = [value for value in without_name if id(value) not in self._paths]
        self._object_paths |= find_by_classes(harder, import_path)
        harder = [value for value in harder if id(value) not in self._object_paths]
        self._object_paths |= find_in_tables(harder, import_path) if harder else {}
        hardest = [value for value in harder if id(value) not in self._object_paths]
        self._object_paths |= find_paths(self.subject, hardest) if hardest else {}

    def facts(self, name: str, value: object, *, required: bool) -> ConstantFacts:
        """Return the facts from which an object is restored; raise `CannotReplay` if this fails and `required` is set.

        If the object cannot be restored and `required` is False, the facts are of the kind `lost`.
        """
        facts = self._facts_of_plain_value(value)
        if facts is None and id(value) in self._object_paths:
            facts = ConstantFacts(
                kind="path", text=type(value).__name__, steps=self._object_paths[id(value)], code=code_digest(value)
            )
        if required and isinstance(value, CompiledCall):
            raise CannotReplay(
                f"the program calls the compiled function `{value.name}`, which has its own settings and cannot be "
                "saved in the artifact of another function",
                fix="compile both functions with the same settings, so that one program contains them",
                where=value.where,
            )
        if facts is None and required:
            raise CannotReplay(
                f"the constant `{name}` of a trace, of class {type(value).__name__} ({value!r:.50}), cannot be saved",
                fix="define it at the top level of an importable module, or make it an attribute of the model",
            )
        return facts or ConstantFacts(kind="lost", text=f"{type(value).__name__}: {value!r:.120}")

    def _facts_of_plain_value(self, value: object) -> ConstantFacts | None:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if (code := machine_code_of(value)) is not None:
            return self._region(getattr(value, "__name__", ENTRY), code)
        if (kind := applied_class(value)) is not None:
            path = import_path(kind)
            return None if path is None else ConstantFacts(kind="function", text=path, code=code_location(kind))
        text = write_literal(value)
        if text is not None:
            return ConstantFacts(kind="literal", text=text)
        path = import_path(value) or self._paths.get(id(value))
        return None if path is None else ConstantFacts(kind="import", text=path, code=code_location(value))

    def _region(self, name: str, code: MachineCode) -> ConstantFacts:
        files = {f"{KERNELS}/{digest_of(code.text.encode())[:16]}.py": code.text.encode()}
        if code.library:
            suffix = "so" if code.library.startswith(SHARED_OBJECT) else "cubins"
            files[f"{KERNELS}/{digest_of(code.library)[:16]}.{suffix}"] = code.library
        self.files |= files
        return ConstantFacts(kind="region", text=name, files=tuple(files), needs=code.needs)

    def _tensor(self, tensor: torch.Tensor) -> ConstantFacts | None:
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        if not plain or tensor.dtype not in DTYPE_NAMES:
            return None
        if id(tensor) not in self._keys:
            self._keys[id(tensor)] = f"constant_{len(self._keys)}"
            self.tensors[self._keys[id(tensor)]] = tensor
        return ConstantFacts(
            kind="tensor",
            text=self._keys[id(tensor)],
            device=str(tensor.device),
            stride=tensor.stride(),
            requires_grad=tensor.requires_grad,
            parameter=isinstance(tensor, torch.nn.Parameter),
        )


def import_path(value: Any) -> str | None:
    """Return `module:qualname` for an object that another process can import; None for other objects."""
    if is_builtin(value) and vars(builtins).get(value.__name__) is value:
        return f"builtins:{getattr(value, '__name__', '')}"
    if value is types.NoneType:  # its `__module__` is `builtins`, but `builtins` has no attribute `NoneType`
        return "types:NoneType"
    if isinstance(value, enum.Enum) or _is_native_member(value):
        owner = import_path(type(value)) if not isinstance(value, enum.Enum) or is_listed_member(value) else None
        return None if owner is None else f"{owner}.{value.name}"
    if isinstance(value, OpOverloadPacket):
        return f"torch.ops:{value._qualified_op_name.replace('::', '.')}"
    if isinstance(value, OpOverload):
        return f"{import_path(value.overloadpacket)}.{value._overloadname}"
    if type(value) is dict:
        return _namespace_path(value)
    dotted = dotted_name(value)
    if dotted is None and isinstance(value, types.ModuleType):
        return _replaced_module_path(value)
    if dotted is None and not isinstance(value, type) and hasattr(value, "__objclass__"):
        owner = import_path(value.__objclass__)
        return None if owner is None else f"{owner}.{value.__name__}"
    if dotted is None and callable(value):
        dotted = _torch_name(value)
    if dotted is None or dotted[1].partition(".")[0] in NO_IMPORT:
        return None
    if isinstance(value, types.ModuleType):
        return _module_path(value)
    return f"{dotted[1]}:{dotted[0].removeprefix(dotted[1]).lstrip('.')}"


def _is_native_member(value: object) -> bool:
    """Whether an object is a member of a C++ enumeration that pybind11 wraps."""
    members = getattr(type(value), "__members__", None)
    return isinstance(members, dict) and members.get(getattr(value, "name", None)) is value


def _module_path(module: types.ModuleType) -> str:
    """Return the path of a module.

    A module without a file, such as `torch.ops.aten`, is an attribute of another module.
    """
    home, rest = module.__name__, ""
    while home not in sys.modules and "." in home:
        home, _, part = home.rpartition(".")
        rest = f"{part}.{rest}".rstrip(".")
    return f"{home}:{rest}".rstrip(":")


def _replaced_module_path(module: types.ModuleType) -> str | None:
    """Return the path of a module that has replaced itself in `sys.modules`, such as `torch.backends.cudnn`.

    The object in `sys.modules` has the original module as an attribute.
    """
    attributes = vars(sys.modules[module.__name__]) if module.__name__ in sys.modules else {}
    return next((f"{module.__name__}:{name}" for name, value in attributes.items() if value is module), None)


def _namespace_path(namespace: dict[Any, Any]) -> str | None:
    """Return the path of a module's namespace, including the namespace of a replaced module."""
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None:
        return None
    candidates = (owner for owner in (module, *vars(module).values()) if isinstance(owner, types.ModuleType))
    owner = next((owner for owner in candidates if vars(owner) is namespace), None)
    path = None if owner is None else import_path(owner)
    if path is None:
        return None
    return f"{path}.__dict__" if ":" in path else f"{path}:__dict__"


def code_location(value: object) -> str:
    """Return the module and qualified name of the code of a function or class; empty for other objects.

    The location shows whether a function was replaced: the replacement has another location.
    """
    if isinstance(value, types.FunctionType):
        return f"{value.__globals__.get('__name__')}:{value.__code__.co_qualname}"
    return f"{value.__module__}:{value.__qualname__}" if isinstance(value, type) else ""


def is_builtin(value: object) -> bool:
    """Whether an object is a function or class that is written in C."""
    if isinstance(value, type):
        return is_native(value)
    return isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType)


def _torch_name(value: object) -> tuple[str, str] | None:
    try:
        name = resolve_name(value)
    except TypeError:  # not hashable
        return None
    return (
        (name, "torch")
        if name and name.startswith("torch.") and plugins.import_object(_with_colon(name)) is value
        else None
    )


def _with_colon(name: str) -> str:
    return name.replace("torch.", "torch:", 1)


@dataclass
class ConstantFinder:
    """Restores constants: `tensors` by their keys, other constants from their text or from the subject.

    `content` reads and verifies a file of the artifact. `trust` lists the modules that may be imported.
    """

    subject: object
    tensors: Mapping[str, torch.Tensor]
    content: Callable[[str], bytes]
    trust: Trust
    _tensors_by_key: dict[str, torch.Tensor] = field(default_factory=dict)

    def value(self, name: str, facts: ConstantFacts) -> object:
        """Return the object of a constant; raise `ArtifactForeign` if the model or the environment lacks the object."""
        try:
            return FINDERS[facts.kind](self, facts)
        except ThunderError:
            raise
        except Exception as error:  # modules and attributes of libraries may raise anything
            raise ArtifactForeign(
                f"the constant `{name}` of the artifact's traces ({facts.text}) cannot be found: {error}",
                fix="load the artifact with the model and the packages that it was made with",
            ) from error

    def compared_object(self, name: str, facts: ConstantFacts) -> object:
        """Return the object that a guard compares with; `REPLACED_GUARD_VALUE` if it was replaced."""
        value = self.value(name, facts)
        return (
            REPLACED_GUARD_VALUE if facts.kind == "import" and facts.code not in ("", code_location(value)) else value
        )

    def from_literal(self, facts: ConstantFacts) -> object:
        """Read the value from its text."""
        return read_literal(facts.text)

    def from_import(self, facts: ConstantFacts) -> object:
        """Import the object; raise LookupError if a builtin has been replaced."""
        value = self.trust.import_object(facts.text)
        if facts.text.startswith("builtins:") and not is_builtin(value):
            raise LookupError("its name refers to another object")
        return value

    def from_tensors(self, facts: ConstantFacts) -> torch.Tensor:
        """Return the tensor from the file of tensors; all traces share one object for each key."""
        if facts.text not in self._tensors_by_key:
            self._tensors_by_key[facts.text] = lay_out(self.tensors[facts.text], facts)
        return self._tensors_by_key[facts.text]

    def from_subject(self, facts: ConstantFacts) -> object:
        """Follow the path from the subject to the object; raise LookupError if the object has changed."""
        value = follow(self.subject, facts.steps, self.trust)
        if type(value).__name__ != facts.text or code_digest(value) != facts.code:
            raise LookupError("its code has changed since the artifact was made")
        return value

    def from_kernels(self, facts: ConstantFacts) -> object:
        """Return the function of a compiled region, which loads its machine code at its first call."""
        text, *library = (self.content(name) for name in facts.files)
        return MachineCode(text.decode(), b"".join(library), facts.needs).function_at_first_call(facts.text)

    def from_function(self, facts: ConstantFacts) -> object:
        """Return the operation that applies a `torch.autograd.Function`, whose class is imported."""
        kind = self.trust.import_object(facts.text)
        if not (isinstance(kind, type) and issubclass(kind, torch.autograd.Function)):
            raise LookupError("it is not a `torch.autograd.Function`")
        if facts.code != code_location(kind):
            raise LookupError("its name refers to another class")
        return operation_of(kind)

    def missing_constant(self, facts: ConstantFacts) -> object:
        """Raise LookupError for a constant that was not saved."""
        raise LookupError(f"{facts.text} could not be saved")


FINDERS: dict[ConstantKind, Callable[[ConstantFinder, ConstantFacts], object]] = {
    "literal": ConstantFinder.from_literal,
    "import": ConstantFinder.from_import,
    "tensor": ConstantFinder.from_tensors,
    "path": ConstantFinder.from_subject,
    "region": ConstantFinder.from_kernels,
    "function": ConstantFinder.from_function,
    "lost": ConstantFinder.missing_constant,
}


def lay_out(stored: torch.Tensor, facts: ConstantFacts) -> torch.Tensor:
    """Return a stored tensor on its device, with its original strides and class."""
    tensor = torch.empty_strided(stored.shape, facts.stride, dtype=stored.dtype, device=facts.device)
    with torch.no_grad():
        tensor.copy_(stored)
    if facts.parameter:
        return torch.nn.Parameter(tensor, facts.requires_grad)
    return tensor.requires_grad_(facts.requires_grad)
