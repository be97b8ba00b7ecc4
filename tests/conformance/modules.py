"""The test modules of the standard library that must pass in the interpreter."""

MODULES = (
    "test_asyncgen", "test_augassign", "test_builtin", "test_class", "test_collections", "test_compare",
    "test_contextlib", "test_coroutines", "test_dataclasses", "test_decorators", "test_descr", "test_dictcomps",
    "test_enum", "test_except_star", "test_exceptions", "test_extcall", "test_fstring", "test_funcattrs",
    "test_functools", "test_generators", "test_genexps", "test_grammar", "test_iter", "test_itertools",
    "test_keywordonlyarg", "test_listcomps", "test_metaclass", "test_named_expressions", "test_opcodes",
    "test_operator", "test_patma", "test_positional_only_arg", "test_property", "test_raise", "test_scope",
    "test_setcomps", "test_super", "test_unpack_ex", "test_with",
)  # fmt: skip

# The modules that a pytest run includes: together under ten seconds.
FAST = ("test_augassign", "test_decorators", "test_keywordonlyarg", "test_property", "test_raise", "test_super")
