"""The runner of the test suite: `python -m tests.stages unit|integration|ci|nightly [part]`.

A run consists of stages. Each stage is a process of its own with a log and, where it is pytest, a JUnit file and a
record of the tests that it selected, all in `var/log` and new for each run. A run is good if every stage ended well
and every selected test has a result.
"""
