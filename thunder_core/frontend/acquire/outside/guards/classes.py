"""Guards on classes: their special methods, and the names that they define or override."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_core.frontend.acquire.outside.guards.guard import Guard, GuardScope
from thunder_core.tracing.ir.constants import bind_constant
from thunder_core.tracing.ir.literal import LibraryFunction, literal

SPECIAL_METHODS = LibraryFunction("thunder_core.frontend.interpreter.special", "special_methods")
DEFINES = LibraryFunction("thunder_core.tracing.library.changes.class_names", "defines")
OVERRIDES = LibraryFunction("thunder_core.tracing.library.changes.class_names", "overrides")
IS_SUBCLASS = LibraryFunction("thunder_core.tracing.library.changes.abstract_classes", "regards")
KEEPS_METHODS = LibraryFunction("thunder_core.tracing.library.changes.module_calls", "keeps_methods")


@dataclass(frozen=True, eq=False)
class SpecialMethods(Guard):
    """Requires a class that defines exactly these special methods itself."""

    names: tuple[str, ...]

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(SPECIAL_METHODS)}({subject}) == {literal(self.names, scope)}"

    @property
    def words(self) -> str:
        return f"had the special methods {', '.join(self.names) or 'of its bases only'}"


@dataclass(frozen=True, eq=False)
class RegardsNone(Guard):
    """Requires an abstract class for which none of these classes is a subclass."""

    kinds: tuple[type, ...]

    def condition(self, subject: str, scope: GuardScope) -> str:
        is_subclass = scope.function(IS_SUBCLASS)
        return " and ".join(f"not {is_subclass}({subject}, {bind_constant(kind, scope)})" for kind in self.kinds)

    @property
    def words(self) -> str:
        return f"had no subclass {' or '.join(kind.__qualname__ for kind in self.kinds)}"


@dataclass(frozen=True, eq=False)
class OfClassNames(Guard):
    """Requires a property of the entries of a class under these names."""

    names: tuple[str, ...]

    @property
    def joined(self) -> str:
        """The names, separated by spaces."""
        return " ".join(sorted(self.names))


@dataclass(frozen=True, eq=False)
class DefinesNone(OfClassNames):
    """Requires a class that defines none of these names, which `__getattr__` has looked up."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"not {scope.function(DEFINES)}({subject}, {self.joined!r})"

    @property
    def words(self) -> str:
        return f"did not define {', '.join(self.names)}"


@dataclass(frozen=True, eq=False)
class OverridesNone(OfClassNames):
    """Requires a class without properties or other data descriptors under names that its instances store."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"not {scope.function(OVERRIDES)}({subject}, {self.joined!r})"

    @property
    def words(self) -> str:
        return f"had no property {', '.join(self.names)}"


@dataclass(frozen=True, eq=False)
class KeepsCall(OfClassNames):
    """Requires a class of modules with PyTorch's own methods of these names, which call `forward`."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(KEEPS_METHODS)}({subject}, {self.joined!r})"

    @property
    def words(self) -> str:
        return f"had PyTorch's own {', '.join(self.names)}"
