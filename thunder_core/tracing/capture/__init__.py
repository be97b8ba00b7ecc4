"""Recording of torch operations on fake tensors, at the level of the user's calls and at the aten level."""
