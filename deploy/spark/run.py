"""The command `tamis` as a file, which is what spark-submit runs:
`spark-submit ... local:///opt/tamis/run.py pipeline run FILE`."""

from tamis.cli.main import main

main()
