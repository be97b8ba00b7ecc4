"""The commands, one file each; `thunder_cli.app` finds them by listing this folder."""
