"""A user's `torch.autograd.Function` in a trace, which copies its arguments and connects its results.

Connecting a result makes it part of autograd's graph, so that the function's own backward computes its gradient.
"""
