"""`python -m tests.drills.faults`: run pairs of kill points; see `tests.drills.faults.pairs`."""

from tests.drills.faults.pairs import main

main()
