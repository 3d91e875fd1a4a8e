"""`python -m tests.faults`: pairs of points, by hand; see `tests.faults.pairs`."""

from tests.faults.pairs import main

main()
