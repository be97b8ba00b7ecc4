"""Types of models that each run compares with eager PyTorch: a fixed set, and some of the others in turn.

A type is compared in a process of its own, in inference, in training and with several sizes. `make zoo` compares all
types, also in generation.
"""

from __future__ import annotations

import os

import pytest

from tests.conftest import ROTATION
from tests.zoo import __main__ as zoo
from tests.zoo.examine import EAGER

FIXED = (
    *(
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "phi3",
        "olmo2",
        "smollm3",
        "granite",
        "gpt2",
        "gpt_neox",
        "opt",
    ),
    *("bert", "roberta", "xlm-roberta", "mpnet", "albert", "layoutlm", "bart", "whisper", "wav2vec2"),
    *("vit", "deit", "convnext", "dpt", "siglip", "videomae", "llava", "smolvlm", "patchtst"),
)
IN_TURN = 15
LONGEST = 12.0  # seconds of all comparisons of a type in `make zoo`
NAMES = ("inference", "training", "symbolic")


def others() -> list[str]:
    """The other types that were right in `make zoo` and take few seconds."""
    rows = (row for row in zoo.read_results(zoo.RESULTS).values() if zoo.shelf_of(row["type"]) == zoo.TRANSFORMERS)
    quick = (
        row for row in rows if zoo.is_right(row) and sum(row.get(f"{name} seconds", 0) for name in NAMES) < LONGEST
    )
    return sorted({row["type"] for row in quick} - set(FIXED))


def types_in_turn(rotation: int, types: list[str]) -> list[str]:
    """The types of a rotation; after as many rotations as there are groups, each type had its turn."""
    groups = -(-len(types) // IN_TURN)
    return types[rotation % groups :: groups]


@pytest.mark.parametrize("model_type", FIXED + tuple(types_in_turn(int(os.environ[ROTATION]), others())))
def test_results_and_gradients_match_eager(model_type: str) -> None:
    row = zoo.examine_type(model_type, 120, 8, NAMES)
    if model_type not in FIXED and str(row.get("eager")).startswith("ImportError"):
        pytest.skip("the type needs a package that is not installed")
    assert "eager" not in row, row
    assert "inference" in row
    wrong = {name: row[name] for name in NAMES if name in row and not str(row[name]).startswith(("right", EAGER))}
    assert not wrong, row
    assert "running" not in row


def test_all_types_have_their_turn() -> None:
    types = [f"type {number}" for number in range(38)]
    turns = [types_in_turn(rotation, types) for rotation in range(3)]
    assert sorted(name for turn in turns for name in turn) == sorted(types)
    assert max(map(len, turns)) <= IN_TURN
    assert types_in_turn(3, types) == turns[0]
    assert len(FIXED) == len(set(FIXED)) == 30
