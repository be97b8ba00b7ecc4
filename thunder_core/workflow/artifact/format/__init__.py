"""The files of an artifact, and the values that they hold."""
