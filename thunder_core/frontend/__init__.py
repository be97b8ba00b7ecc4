"""From Python bytecode to traces: the interpreter, and what a program reads and writes outside of itself."""
