"""The gradients of parallel training: the hooks of parameters, and the refusal of sparse gradients."""
