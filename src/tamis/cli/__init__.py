"""The `tamis` command: arguments, files, environment and exit codes. Nothing imports it."""
