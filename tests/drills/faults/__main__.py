"""`python -m tests.drills.faults`: pairs of points, by hand; see `tests.drills.faults.pairs`."""

from tests.drills.faults.pairs import main

main()
