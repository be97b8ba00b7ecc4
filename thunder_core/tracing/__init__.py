"""Traces, the recording of PyTorch operations, facts about traces, and the functions that generated code calls."""
