"""From Python bytecode to traces: the interpreter, and the tracing of reads and writes outside a program."""
