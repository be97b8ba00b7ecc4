"""Inspecting traces: the list of traces, the changes of each step, and any trace as text, from memory or disk.

Only the module `in_process` needs PyTorch. The other modules read listings, so that an artifact can be inspected
without PyTorch.
"""
