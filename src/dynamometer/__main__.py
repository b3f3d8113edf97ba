"""`python -m dynamometer` is `dyno`."""

from dynamometer.cli import main

main()
