"""Examine ten families in three dtypes under the recipes that quantize, with ranges of sizes and in generation.

The findings of `thunder debug` are printed, and the exit status is the number of combinations with a wrong line or an
error that is not a refusal.

Usage: python -m tests.examined [FAMILY ...] [--dtypes float32,bfloat16,float16] [--only plain,dynamic,generate]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.families import FAMILIES, WITH_CACHE
from thunder_core.foundation.errors import Bug, ThunderError
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import Request
from thunder_core.workflow.pipeline.debug import debug_model
from thunder_core.workflow.pipeline.request.debug_request import DebugRequest

DTYPES = ("float32", "bfloat16", "float16")
QUANTIZED = ("int8-weight-only", "int4-weight-only", "int8-dynamic")
RECIPES = (("default",), *(("default", name) for name in QUANTIZED), ("default", "bf16"), ("reduce-overhead",))
WAYS = ("plain", "dynamic", "generate")
LENGTHS = {"batch": 1, "prompt_length": 8, "new_tokens": 2}


@dataclass(frozen=True)
class Combination:
    """A family, a dtype, the recipes of a sum, and the kind of call."""

    family: str
    dtype: str
    recipe: tuple[str, ...]
    way: str

    def __str__(self) -> str:
        return f"{self.family:8} {self.dtype:9} {'+'.join(self.recipe):28} {self.way:9}"

    def request(self) -> Request:
        """The request of `thunder debug` for this combination."""
        model = ModelRequest(sample=SAMPLES[self.family], dtype=self.dtype, device="cpu")
        request = Request(self.recipe, model, force_slow=True)
        if self.way == "generate":
            return replace(request, model=replace(model, task="generate"), **LENGTHS)
        return replace(request, dynamic={"batch": (1, 4)}) if self.way == "dynamic" else request


def combinations(families: list[str], dtypes: list[str], ways: list[str]) -> Iterator[Combination]:
    """Every combination. Only decoders generate."""
    for family in families:
        for dtype in dtypes:
            for way in ways:
                if way != "generate" or family in WITH_CACHE:
                    yield from (Combination(family, dtype, recipe, way) for recipe in RECIPES)


def verdict(combination: Combination) -> tuple[str, bool]:
    """The findings in words, and whether they are wrong. Recipes may refuse a dtype or a task."""
    try:
        diagnosis = debug_model(combination.request(), DebugRequest())
    except ThunderError as error:
        return f"refused [{error.code}] {error.what}", error.status == Bug.status
    lines = "; ".join(f"{fault.kind} {fault.line}: {fault.difference}" for fault in diagnosis.faults)
    return (f"WRONG {lines}", True) if lines else ("clean", False)


def main() -> None:
    """Examine each combination, print a line for each, and exit with the number of wrong ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--only", default=",".join(WAYS))
    options = parser.parse_args()
    wrong = 0
    for combination in combinations(options.families, options.dtypes.split(","), options.only.split(",")):
        began = time.process_time()
        words, is_wrong = verdict(combination)
        wrong += is_wrong
        print(f"{combination} {time.process_time() - began:5.1f} s  {words}", flush=True)
    print(f"{wrong} wrong", flush=True)
    sys.exit(min(wrong, 100))


if __name__ == "__main__":
    main()
