"""The files of an artifact, and the values in them."""
