"""Denoisers of diffusers with their training loss."""
