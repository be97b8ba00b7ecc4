"""Traces, the operations of PyTorch that they record, facts about them, and the functions that generated code calls."""
