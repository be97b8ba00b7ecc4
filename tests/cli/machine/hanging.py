"""A process of a group that hangs, for the tests of the trial of process groups."""

import time

time.sleep(60)
