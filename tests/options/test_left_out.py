"""Left-out parts in the spelling of users: names, and modules by the end of their path."""

from __future__ import annotations

import pytest

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options.left_out import LeftOut, covers, left_out_texts, parse_left_out, patterns_of

MLP = "model.layers.3.mlp"
COVERED = {
    ("layers.3.mlp", MLP): True,
    ("layers.3.mlp", f"{MLP}.up_proj"): True,
    ("model.layers.3.mlp", f"{MLP}.up_proj"): True,
    ("module.model.layers.3", MLP): True,
    ("mlp", MLP): True,
    ("layers.*.mlp", MLP): True,
    ("layers.[0-3]", MLP): True,
    ("layers.?.mlp", "layers.3.mlp"): True,
    ("*", ""): True,
    ("module", "module"): True,
    ("module", MLP): True,
    ("m.layers.1", "__main__.m.layers[1].mlp"): True,
    ("blocks.first", "__main__.m.blocks['first'].mlp"): True,
    ("layers.3.mlp", "model.layers.3"): False,
    ("layers.3", "model.layers.30"): False,
    ("ayers.3", MLP): False,
    ("layers.3.up_proj", f"{MLP}.up_proj"): False,
    ("Layers.3", MLP): False,
    ("layers.3", "module"): False,
}


@pytest.mark.parametrize("pair", COVERED)
def test_a_pattern_means_a_module_and_all_that_it_contains(pair: tuple[str, str]) -> None:
    assert covers(*pair) is COVERED[pair]


def test_a_text_names_a_part_or_an_executor_in_modules() -> None:
    assert parse_left_out("cse") == LeftOut("cse")
    assert parse_left_out(" inductor : layers.3 ") == LeftOut("inductor", "layers.3")
    assert left_out_texts(["inductor:b", "cse", "inductor:a", "cse"]) == ("cse", "inductor:a", "inductor:b")
    assert patterns_of(("cse", "inductor:a", "inductor:b", "triton:c"), "inductor") == ("a", "b")


@pytest.mark.parametrize("without", ["cse", 3, ["inductor:"], [":layers"], [""], [3], [None]])
def test_values_that_name_no_part_are_refused(without: object) -> None:
    with pytest.raises(BadOption, match="without"):
        left_out_texts(without)
