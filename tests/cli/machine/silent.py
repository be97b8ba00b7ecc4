"""A process of a group that ends without a message, for the tests of the trial of process groups."""

import sys

sys.exit(3)
