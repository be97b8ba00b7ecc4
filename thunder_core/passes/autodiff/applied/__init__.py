"""A user's `torch.autograd.Function` as an operation of a trace: copies of its arguments, and connected results."""
