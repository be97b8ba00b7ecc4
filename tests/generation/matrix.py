"""Every family of models that generates in every mode of `generate`, beside eager PyTorch.

Usage: python -m tests.generation.matrix [FAMILY ...] [--modes MODE,MODE]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterable

import torch

import thunder_core as thunder
from tests.generation.models import MODELS, Uncompiled, model_of
from tests.generation.modes import MODES, Mode, assert_same, modes_with
from thunder_core.errors import RecompileWarning

# Of what transformers has for no models of a type, it says so: eager's `generate` raises one of these.
REFUSALS = (ValueError, NotImplementedError, TypeError, AttributeError)


def differing(family: str, modes: Iterable[str]) -> dict[str, str]:
    """The modes in which a compiled model of the family does otherwise than eager, each with how."""
    model = model_of(family)
    compiled, known = thunder.compile(model, Uncompiled), modes_with(model)
    found = {mode: difference(known[mode], model, compiled) for mode in modes}
    return {mode: told for mode, told in found.items() if told}


def difference(mode: Mode, model: torch.nn.Module, compiled: torch.nn.Module) -> str:
    """How the results of a mode differ in two calls, or that one of them raises; empty where eager does so too."""
    try:
        expected = mode(model)
    except REFUSALS as refusal:
        return "" if raises(mode, compiled, type(refusal)) else f"eager raises {type(refusal).__name__}: {refusal}"
    try:
        for _ in range(2):
            assert_same(mode(compiled), expected)
    except Exception as error:  # of whatever kind: the others are tried as well
        return f"{type(error).__name__}: {error}"
    return ""


def raises(mode: Mode, compiled: torch.nn.Module, kind: type[Exception]) -> bool:
    """Whether a mode raises an error of this class."""
    try:
        mode(compiled)
    except kind:
        return True
    return False


def main() -> int:
    """Tell of each family which modes differ; 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=[*MODELS])
    parser.add_argument("--modes", type=lambda names: names.split(","), default=[*MODES, "assisted"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RecompileWarning)
    failed = False
    for family in options.families:
        before = time.process_time()
        found = differing(family, options.modes)
        failed |= bool(found)
        print(f"{family:<12} {len(found)} of {len(options.modes)} differ, {time.process_time() - before:.0f} s")
        print("".join(f"  {mode}: {told}\n" for mode, told in found.items()), end="", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
