"""`python -m tests.fuzz [--programs N] [--seed N]`: run many random programs, without extra packages."""

import argparse
import random
import sys
import time
from collections import Counter

from tests.fuzz.oracle import difference
from tests.fuzz.programs import write_program
from tests.fuzz.reduce import reduce_program


def fuzz(count: int, seed: int) -> int:
    """Compare this number of programs; stop at the first difference, and print the reduced program."""
    start = time.perf_counter()
    tried: set[int] = set()
    refused: Counter[str] = Counter()
    number = 0
    while len(tried) < count:
        number += 1
        text = write_program(random.Random(f"{seed}:{number}").randint)
        try:
            found = difference(text)
        except SyntaxError as error:
            refused[error.msg] += 1
            continue
        if found is not None:
            print(f"seed {seed}, program {number}, after {len(tried)}:\n{text}\n{found}\n\ncut down:", flush=True)
            text = reduce_program(text)
            print(f"{text}\n{difference(text)}")
            return 1
        tried.add(hash(text))
        if len(tried) % 1000 == 0 and len(tried) < count:
            print(f"{len(tried)} programs, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    print(f"{version}: {count} programs without a difference in {time.perf_counter() - start:.0f} s, seed {seed}")
    for why, times in refused.items():
        print(f"not counted, no program of {version}: {times} times {why}")
    return 0


def main() -> int:
    """Fuzz with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    return fuzz(options.programs, options.seed)


if __name__ == "__main__":
    sys.exit(main())
