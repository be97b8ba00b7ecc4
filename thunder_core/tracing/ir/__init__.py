"""The program as data: proxies, symbols, bound symbols and traces, and their printed form in Python."""
