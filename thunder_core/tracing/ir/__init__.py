"""The program as data: proxies, symbols, bound symbols and traces, and how they print as Python."""
