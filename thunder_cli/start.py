"""The script `thunder`: it imports the command line, and ends without a traceback if Ctrl-C interrupts the import."""

from __future__ import annotations

import os

INTERRUPTED = 130  # the status of a process that Ctrl-C has ended, as in a shell


def main() -> int:
    """Run `thunder` with the arguments of the process, and return the exit status."""
    try:
        from thunder_cli.main import main as run  # noqa: PLC0415
    except KeyboardInterrupt:
        os.write(2, b"error TH1301 interrupted; nothing was written\n  fix run the command again when you are ready\n")
        return INTERRUPTED
    return run()
