"""The command line: typer commands, the live dashboard, plain lines and JSON lines.

Nothing here learns; the commands start or read a run and show the events that it yields. Heavy
imports stay inside the commands, so that `--help` and completion answer at once.
"""
