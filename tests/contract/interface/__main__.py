"""`python -m tests.contract.interface`: write the report."""

from tests.contract.interface.report import REPORT, render

REPORT.write_text(render())
