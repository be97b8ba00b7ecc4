"""Views of what commands print: each turns plain data into something to look at."""
