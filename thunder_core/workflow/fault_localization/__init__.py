"""Fault localization: which line of a program computes something else than eager PyTorch, and who made it so."""
