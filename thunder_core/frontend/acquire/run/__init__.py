"""One run of a program under the interpreter: its options and inputs, and the observer of reads, writes and calls."""
