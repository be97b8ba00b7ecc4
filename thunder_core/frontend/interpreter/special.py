"""The names of special methods, which Python looks up in the class of an object and not in the object."""

import types

from thunder_core.tracing.library.changes.class_entries import dict_of
from thunder_core.tracing.library.changes.type_versions import ClassCaches, cached_by_version

_C_TYPES = (object, type, int, float, complex, str, bytes, list, dict, set, memoryview, types.GeneratorType, property)
_OTHER_NAMES = (
    "__getattr__ __set__ __delete__ __set_name__ __enter__ __exit__ __aenter__ __aexit__ __await__ __aiter__ __anext__ "
    "__index__ __bool__ __bytes__ __format__ __missing__ __reversed__ __length_hint__ __fspath__ __round__ __trunc__ "
    "__floor__ __ceil__ __complex__ __matmul__ __rmatmul__ __imatmul__ __instancecheck__ __subclasscheck__ __new__ "
    "__ifloordiv__ __imod__ __ipow__ __itruediv__ __ilshift__ __irshift__ __iconcat__ __call__ __del__ __copy__ "
    "__deepcopy__ __class_getitem__ __init_subclass__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __dir__ "
    "__torch_function__ __torch_dispatch__ __array__ __buffer__ __release_buffer__"
)
_SLOT_TYPES = (type(object.__init__), type(str.join))

SPECIAL_METHOD_NAMES = frozenset(
    {name for kind in _C_TYPES for name, entry in vars(kind).items() if name[:2] == "__" and type(entry) in _SLOT_TYPES}
    | set(_OTHER_NAMES.split())
)


def special_methods(kind: type) -> tuple[str, ...]:
    """Return the special methods that a class defines itself, without its bases; cached until the class changes."""
    names: tuple[str, ...] = _special_entries(kind, "")
    return names


@cached_by_version(ClassCaches())
def _special_entries(kind: type, _: str) -> tuple[tuple[str, ...], bool]:
    """Return the names of a class's own special methods. The methods are not cached: they could refer to the class."""
    return tuple(sorted(SPECIAL_METHOD_NAMES.intersection(dict_of(kind)))), True
