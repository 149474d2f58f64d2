"""`python -m joinery_runtime` is the `joinery` command, where the script is not on the path."""

from joinery_runtime.cli import main

main()
