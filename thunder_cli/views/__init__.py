"""Views of the output of commands: each turns plain data into tables and text."""
