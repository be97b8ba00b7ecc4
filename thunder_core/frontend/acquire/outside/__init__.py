"""What a program reads and writes outside of itself: paths, guards, effects."""
