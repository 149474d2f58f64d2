"""`python -m joinery_runtime` runs the `joinery` command where the script is not on the path."""

from joinery_runtime.cli import main

main()
