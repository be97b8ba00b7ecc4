"""The commands, one in each file; `thunder_cli.app` finds them by listing this folder."""
