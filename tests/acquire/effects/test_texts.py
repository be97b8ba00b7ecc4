"""Texts that a program makes of tensors match eager at each call, and are guarded only if the program reads them."""

from __future__ import annotations

import re
import string
import sys
import textwrap
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent


def written_later(x: Tensor) -> Any:
    """Make a text of a tensor that is written to later."""
    y = x.clone()
    text = f"{y}"
    y.add_(1)
    return text, y


def added(x: Tensor) -> str:
    """Extend a text."""
    text = "sum "
    text += f"{x.sum()}"
    return text + " of " + str(x)


def raised(x: Tensor) -> Any:
    """Return the arguments of an error that is caught."""
    try:
        raise ValueError(f"not {x}")
    except ValueError as error:
        return error.args


def in_lists(x: Tensor) -> list[str]:
    """Join texts in lists."""
    first, second = [f"{x}"], [str(x.sum())]
    first.append(str(x.dtype))
    return first + second


def in_closure(x: Tensor) -> Any:
    """Return a function whose closure has a text."""
    text = f"{x}"

    def inner() -> str:
        return text

    return inner()


def printed_otherwise(x: Tensor) -> str:
    """Make a text under print settings that differ from those of the process."""
    with torch._tensor_str.printoptions(precision=2):
        return f"{x / 3}"


def printed_otherwise_later(x: Tensor) -> str:
    """Make a text before the print settings change."""
    text = f"{x / 3}"
    torch.set_printoptions(precision=2)
    torch.set_printoptions(precision=4)
    return text


class Shown:
    """An object whose text holds that of a tensor."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __repr__(self) -> str:
        return f"<{self.x}>"

    def __format__(self, specification: str) -> str:
        return f"{specification} of {self.x}"


class Pair(NamedTuple):
    """Two texts."""

    first: str
    second: str


def executed(x: Tensor) -> Any:
    """Run a text as code."""
    names: dict[str, Any] = {}
    exec(f"y = {x.sum()}", names)
    return names["y"], eval(compile(f"{x.sum()} + 1", "<text>", "eval"))


def warned(x: Tensor) -> list[Any]:
    """Return the messages of recorded warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(f"{x}", stacklevel=1)
        warnings.warn(UserWarning(f"of {x}"), stacklevel=1)
    return [str(warning.message) for warning in caught]


UNREAD: dict[str, Callable[[Tensor], Any]] = {
    "f-string": lambda x: f"{x} and {x.sum():.2f} and {x.sum()!r}",
    "repr": lambda x: repr(x + 1),
    "format": lambda x: "{} {:.2f} {k!r} {0}".replace("{0}", "").format(x, x.sum(), k=x),
    "percent": lambda x: "%s %r %%" % ((x * 2).long(), x.sum()),  # noqa: UP031
    "of one": lambda x: "%s" % x,  # noqa: UP031
    "percent and NUL": lambda x: "%%\0%s" % x,  # noqa: UP031
    "join": lambda x: ", ".join([str(x), "a", repr(x.sum())]),
    "with a gradient": lambda x: f"{x.clone().requires_grad_() * 2}",
    "containers": lambda x: (f"{[x, (x, 1)]}", str({"a": x})),
    "numbers": lambda x: (f"{x.sum().item():.3f} {x.sum().item()}", str(x.sum().item())),
    "the class": lambda x: (isinstance(f"{x}", str), type(str(x)), callable(f"{x}"), f"{x.dtype}"),
    "of a text": lambda x: f"<{f'{x}'}>",
    "written later": written_later,
    "added": added,
    "raised": raised,
    "in a closure": in_closure,
    "kept in a list": in_lists,
    "complex": lambda x: f"{torch.complex(x, x).sum():.1f}",
    "items of others": lambda x: [",".join(item) for item in ({"a": f"{x}"}.values(), deque([f"{x}"]), iter([str(x)]))],
    "boolean": lambda x: f"{(x > 1).all()}",
}
READ: dict[str, Callable[[Tensor], Any]] = {
    "printed otherwise": printed_otherwise,
    "printed otherwise later": printed_otherwise_later,
    "compared": lambda x: f"{x}" == "tensor([1., 1.])",
    "found in another": lambda x: "1." in f"{x}",
    "a key": lambda x: {f"{x.sum()}": 1, "a": f"{x}"},
    "a member": lambda x: {f"{x}"},
    "its length": lambda x: len(f"{x.sum():.0f}"),
    "its letters": lambda x: [*f"{x.sum()}"],
    "a method": lambda x: str(x).upper(),
    "a slice": lambda x: f"{x}"[7:9],
    "its truth": lambda x: bool(f"{x}"),
    "sorted": lambda x: sorted([f"{x}", "a"]),
    "filled": lambda x: f"{f'{x.sum()}':>12}",
    "a generator": lambda x: ", ".join(f"{item}" for item in x),
    "mapped": lambda x: "".join(map(str, x)),
    "an object's": lambda x: ("{:so}".format(Shown(x)), f"{[Shown(x)]}", "%r" % Shown(x)),  # noqa: UP031, UP032
    "compared in containers": lambda x: ([f"{x}"] == [str(x)], (f"{x}", 1) == (str(x), 1), f"{x}" in [str(x)]),
    "in a named tuple": lambda x: "".join(Pair(f"{x}", "a")),
    "a template": lambda x: string.Template("$a and $b").substitute(a=f"{x}", b=x),
    "wrapped": lambda x: textwrap.wrap(f"{x} and more", 6),
    "replaced": lambda x: re.sub(r"[0-9]", "n", f"{x}") + re.escape(f"{x}"),
    "executed": executed,
    "warned": warned,
    "the text of an error": lambda x: str(ValueError(f"{x}")),
}


@pytest.mark.parametrize("name", [*UNREAD, *READ])
def test_texts_match_eager_and_are_guarded_if_they_are_read(name: str) -> None:
    program = UNREAD.get(name) or READ[name]
    compiled = thunder.jit(program, executors=("torch",))
    for step in (1, 2, 1, 2):
        x = torch.ones(2) * step
        assert repr(compiled(x)) == repr(program(x))
    assert thunder.cache_misses(compiled) == (1 if name in UNREAD else 2)


@pytest.mark.parametrize("name", ["compared", "a key", "a method"])
def test_text_that_is_read_is_refused_if_values_are_refused(name: str) -> None:
    with pytest.raises(DataDependent):
        thunder.jit(READ[name], data_dependent="error")(torch.ones(2))


def test_unused_text_leaves_no_line_in_the_program() -> None:
    def program(x: Tensor) -> Tensor:
        text = f"a line that is not printed: {x.sum()} of {x}"
        if len(x) > 5:
            raise ValueError(text)
        return x + 1

    compiled = thunder.jit(program, data_dependent="error", sharp_edges="error")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    names = [bsym.symbol.short_name for bsym in thunder.last_traces(compiled)[-1].bound_symbols]
    assert not {"clone", "sum", "item"}.intersection(names), names
    with pytest.raises(ValueError, match=r"not printed: 6.0 of tensor\(\[1., 1., 1., 1., 1., 1.\]\)"):
        compiled(torch.ones(6))


def test_printed_and_stored_texts_have_the_values_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    class Box:
        text = ""

    box = Box()

    def program(x: Tensor) -> Tensor:
        box.text = f"{x.sum():.1f}"
        print(f"sum {x.sum():.1f}", box.text)
        return x

    compiled = thunder.jit(program, executors=("torch",))
    for step in (1, 2, 3):
        compiled(torch.ones(2) * step)
        assert box.text == f"{2.0 * step}"
    assert capsys.readouterr().out == "sum 2.0 2.0\nsum 4.0 4.0\nsum 6.0 6.0\n"
    assert thunder.cache_misses(compiled) == 1


def test_invalid_format_specification_is_refused_as_in_eager() -> None:
    with pytest.raises(ValueError, match="Unknown format code 'd'"):
        thunder.jit(lambda x: f"{x.sum():d}")(torch.ones(2))
    with pytest.raises(TypeError, match="unsupported format string"):
        thunder.jit(lambda x: f"{x:.2f}")(torch.ones(2))


def test_a_size_in_a_text_stays_symbolic() -> None:
    compiled = thunder.jit(lambda x: (x + 1, f"{x.shape[0]} rows"), symbolic=["x.size(0)"])
    for size in (3, 4, 5):
        assert compiled(torch.ones(size))[1] == f"{size} rows"
    assert thunder.cache_misses(compiled) == 1


def test_template_with_numbered_and_automatic_fields_is_refused_as_in_eager() -> None:
    with pytest.raises(ValueError, match="cannot switch from automatic field numbering"):
        thunder.jit(lambda x: "{} {0}".format(x))(torch.ones(2))  # noqa: F525


def test_written_lines_have_the_values_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Tensor) -> Tensor:
        sys.stdout.writelines([f"{x.sum()}\n", "a\n"])
        return x

    compiled = thunder.jit(program, executors=("torch",))
    for step in (1, 2, 3):
        compiled(torch.ones(2) * step)
    assert capsys.readouterr().out == "2.0\na\n4.0\na\n6.0\na\n"
    assert thunder.cache_misses(compiled) == 1
