"""Run the examples of Thunder's Triton kernels once: `python -m tests.gpu.run_examples OPERATION...`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from tests.executors.triton.closeness import DTYPES
from tests.executors.triton.examples import EXAMPLES, random_tensors
from thunder_core.foundation import plugins


def run(names: Sequence[str], device: str) -> int:
    """Run the examples of operations in every dtype on a device, and return their number."""
    plugins.load("executors", "triton")
    from thunder_executors.triton.operations import OPERATORS

    count = 0
    for dtype in DTYPES:
        for name in names:
            for arguments in EXAMPLES[name](random_tensors(dtype, device)):
                OPERATORS[name](*arguments)
                if device != "cpu":
                    torch.cuda.synchronize()  # an error belongs to this example
                count += 1
    return count


def main() -> None:
    """Run the examples of the named operations on the GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=EXAMPLES, metavar="OPERATION")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    print(f"{run(options.names, options.device)} examples")


if __name__ == "__main__":
    main()
