"""The compiler (`jit`), its use by TorchDynamo, derivatives of functions, and the memory use of a program."""
