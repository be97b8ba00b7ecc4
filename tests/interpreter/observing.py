"""The example of docs/interpreter.md: an observer that lists the globals a function reads, and answers one."""

from thunder_core.interpreter import Observer, interpret

SCALE = 3


class Reads(Observer):
    """Remembers each global that is read; says that SCALE is 10."""

    def __init__(self):
        self.names = []

    def on_load_global(self, frame, name, value):
        self.names.append(name)
        return 10 if name == "SCALE" else value


def area(width, height):
    return abs(width) * height * SCALE


reads = Reads()
print(interpret(area, reads)(-2, 5))
print(reads.names)
