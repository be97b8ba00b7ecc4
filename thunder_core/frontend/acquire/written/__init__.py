"""The statements that a trace's prologue and epilogue are written of."""
