"""Writes the report of attacks on isolation: `python -m tests.isolation`."""

from tests.isolation.report import PATH, make_report

if __name__ == "__main__":
    PATH.write_text(make_report())
    print(PATH)
