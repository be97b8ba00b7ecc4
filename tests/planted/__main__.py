"""`python -m tests.planted [--every N] [--kind KIND...] [FAMILY...]`: plant many faults and print a table."""

from __future__ import annotations

import argparse
import sys
import time

from tests.planted.faults import KINDS, outcomes
from tests.planted.report import missed_faults, table
from tests.planted.subject import FAMILIES


def main() -> int:
    """Plant each N-th fault of the families, print the outcomes, and fail if a fault was missed or misnamed."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS))
    parser.add_argument("families", nargs="*", metavar="FAMILY", default=[])
    options = parser.parse_args()
    start = time.perf_counter()
    found = list(outcomes(options.families or FAMILIES, options.kind or KINDS, every=options.every))
    print(missed_faults(found))
    print(table(found))
    print(f"{time.perf_counter() - start:.0f} s")
    return int(any(outcome.counts and not outcome.named for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
