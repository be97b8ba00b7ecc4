"""The rows of tokens that a program reads, which programs compute without the rows of padding."""
