"""`python -m tests.fuzz [--programs N] [--seed N] [--save FILE | --replay FILE]`: many programs, new ones each time."""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.oracle import difference

BATCH = 500


def generated(count: int, seed: int, save: Path | None) -> int:
    """Generate programs and compare; the number of programs without a difference."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    from tests.fuzz.programs import programs

    tried, failed = 0, False
    kinds: Counter[str] = Counter()
    start = time.perf_counter()
    while tried < count:

        @seeded(seed)
        @settings(
            max_examples=min(BATCH, count - tried), deadline=None, database=None, derandomize=False,
            phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck), print_blob=False,
        )  # fmt: skip
        @given(programs())
        def batch(text: str) -> None:
            nonlocal tried, failed
            try:
                found = difference(text)
            except SyntaxError as error:
                kinds[f"no program: {error.msg}"] += 1
                return
            if found is not None:
                failed = True
                raise AssertionError(f"{text}\n{found}")
            tried += not failed
            if save is not None and not failed:
                with save.open("a") as lines:
                    lines.write(json.dumps(text) + "\n")

        try:
            batch()
        except AssertionError as error:
            print(f"seed {seed}, after {tried} programs:\n{error}")
            return 1
        seed += 1
        print(f"{tried} programs, {time.perf_counter() - start:.0f} s", *kinds.items(), file=sys.stderr, flush=True)
    print(f"{tried} programs without a difference in {time.perf_counter() - start:.0f} s")
    return 0


def replayed(path: Path) -> int:
    """Compare programs that were saved; needs no hypothesis."""
    different = 0
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            text = json.loads(line)
            found = difference(text)
            if found is not None:
                different += 1
                print(f"program {number}:\n{text}\n{found}")
    print(f"{number} programs, {different} of them different")
    return 1 if different else 0


def main() -> int:
    """Fuzz, or replay."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--save", type=Path, help="a file to add the programs to, one JSON string a line")
    parser.add_argument("--replay", type=Path, help="run the programs of such a file instead")
    options = parser.parse_args()
    if options.replay is not None:
        return replayed(options.replay)
    return generated(options.programs, options.seed, options.save)


if __name__ == "__main__":
    sys.exit(main())
