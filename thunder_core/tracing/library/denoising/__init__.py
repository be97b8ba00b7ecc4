"""Denoisers of diffusers with the loss of their training."""
