"""Drills that kill and break real processes, and the oracle that says whether the promise was kept."""
