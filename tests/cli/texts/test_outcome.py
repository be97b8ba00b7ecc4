"""The tables of `thunder optimize` and `thunder validate` fit the console."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.report import samples
from thunder_cli.views.outcome import validation_view

NAME = "past_key_values.cross_attention_cache.layers.{}.values"


@pytest.mark.parametrize("width", [80, 100, 101, 120])
@pytest.mark.parametrize("passed", [True, False])
def test_an_output_takes_one_line_of_the_console(width, passed):
    outputs = [samples.output(NAME.format(layer), 1.2e-7, passed=passed) for layer in range(2)]
    console = Console(width=width, file=io.StringIO())
    console.print(validation_view(samples.validation(samples.output("logits", 1.2e-7), *outputs), width=width))
    lines = console.file.getvalue().splitlines()
    rows = [line for line in lines if line.rstrip().endswith("ok" if passed else "out of tolerance")]
    assert len(rows) == (3 if passed else 2)
    assert sum("values" in row for row in rows) == 2
    assert any(line.startswith("logits ") for line in lines)
    assert ("mean" in lines[1]) == (width >= (101 if passed else 116))
