"""How a trace contains a user's `torch.autograd.Function`: it copies the arguments, and connects the results.

Connecting a result makes it part of autograd's graph, so that the function's own backward computes its gradient.
"""
