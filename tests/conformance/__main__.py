"""`python -m tests.conformance [--modules NAME ...] [--jobs N] [--why]`: print the table of conformance."""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.conformance.known import known_failures
from tests.conformance.modules import MODULES
from tests.conformance.runner import Result, compare


def report(results: list[Result], why: bool) -> bool:
    """Print the table; return whether exactly the known failures fail."""
    known = known_failures()
    good = True
    print(f"Python {sys.version_info.major}.{sys.version_info.minor}")
    print(f"{'module':28}{'native':>8}{'inside':>8}{'share':>9}")
    for result in results:
        share = result.passed / len(result.native) if result.native else 0.0
        print(f"{result.module:28}{len(result.native):8}{result.passed:8}{share:9.2%}")
        for name, reason in result.failures.items():
            good &= name in known
            print(f"    {'known' if name in known else 'NEW'}: {name}")
            if why and name not in known:
                print("        " + reason.replace("\n", "\n        "))
        for name in known.keys() & result.native - result.failures.keys():
            good = False
            print(f"    passes now, remove it from the list: {name}")
    native, inside = sum(len(result.native) for result in results), sum(result.passed for result in results)
    print(f"{'all':28}{native:8}{inside:8}{inside / max(native, 1):9.2%}")
    return good


def main() -> int:
    """Run the modules and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("--modules", nargs="*", default=MODULES)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--why", action="store_true", help="print the reason of each failure that is not known")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(compare, options.modules))
    return 0 if report(results, options.why) else 1


if __name__ == "__main__":
    sys.exit(main())
