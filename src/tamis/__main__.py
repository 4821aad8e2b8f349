"""`python -m tamis`: the command."""

from .cli.main import main

main()
