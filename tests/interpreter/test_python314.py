"""The language of Python 3.14: template strings, deferred annotations, and the handlers of its opcodes."""

import dis
import sys

import pytest

from tests.interpreter.oracle import assert_same
from thunder_core.frontend.interpreter import table

PROGRAMS = {
    "template": """
        name, width = "x", 12
        found = t"a{name!r:>{width}}b{name}{width + 1:05}"
        return found.strings, [(one.value, one.expression, one.conversion, one.format_spec) for one in found]
    """,
    "template without values": "return t'plain'.strings, t''.strings, t'{1}'.values",
    "template that raises": "return t'{1 // 0}'",
    "annotation that is undefined": """
        def function(value: Undefined) -> int: ...
        return function.__annotations__
    """,
    "annotation that is defined later": """
        def function(value: Later) -> list[Later]: ...
        class Later: ...
        return function(1), [str(kind) for kind in function.__annotations__.values()]
    """,
    "annotations of a class": """
        import annotationlib
        class Node:
            following: Node | None = None
            missing: Undefined
        return annotationlib.get_annotations(Node, format=annotationlib.Format.STRING)
    """,
    "annotations of a class as references": """
        import annotationlib
        class Node:
            missing: Undefined
        found = annotationlib.get_annotations(Node, format=annotationlib.Format.FORWARDREF)
        return {name: type(value).__name__ for name, value in found.items()}
    """,
    "annotate is set and read": """
        def function(value: int): ...
        before = function.__annotate__(1)
        function.__annotate__ = lambda format: {"value": format}
        return before, function.__annotations__
    """,
    "annotations under a condition": """
        class Kind:
            if True:
                first: int
            else:
                second: str
        return Kind.__annotations__
    """,
    "error without parentheses": """
        try:
            [][0]
        except IndexError, KeyError:
            return "caught"
    """,
    "a with of the wrong kind": """
        class Asynchronous:
            async def __aenter__(self): ...
            async def __aexit__(self, *error): ...
        with Asynchronous():
            pass
    """,
}


def program_of(name):
    lines = PROGRAMS[name].strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    source = "def program():\n" + "\n".join("    " + line[indent:] for line in lines)
    namespace = {}
    exec(compile(source, "<program>", "exec"), namespace)
    return namespace["program"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs Python 3.14")
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_python_3_14_runs_as_in_cpython(name):
    assert_same(program_of(name))


# SETUP: instructions that set up frames and need no handler. ABSENT: instructions that occur in no code object.
SETUP = {"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME", "COPY_FREE_VARS", "RETURN_GENERATOR"}
ABSENT = {"RESERVED", "INTERPRETER_EXIT", "EXIT_INIT_CHECK", "ENTER_EXECUTOR"}


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs the opcodes of Python 3.14")
@pytest.mark.parametrize("observed", [True, False])
def test_every_opcode_has_a_handler(observed):
    written = {name for name, code in dis.opmap.items() if code < 256 and not name.startswith("INSTRUMENTED_")}
    assert written - SETUP - ABSENT <= table.handlers(observed).keys()
