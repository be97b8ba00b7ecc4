"""Inspect traces: list them, show the changes of each step, and print any trace, from memory or disk.

Only the module `in_process` needs PyTorch. The other modules read listings, so that an artifact can be inspected
without PyTorch.
"""
