"""The outcome of a stage: pytest's exit status, compared with the selected tests and their results."""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree as ET

# Pytest's exit statuses of a complete run: all passed, some failed.
PASSED, FAILED = 0, 1
# The suffix that xdist appends to the name of a test with a group.
GROUP = re.compile(r"@[^@\]]+$")
FIRST_LINES = 3


class Verdict(StrEnum):
    """The result of a test."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    ERROR = "errors"


@dataclass(frozen=True)
class Result:
    """A test's result in a JUnit file."""

    test: str
    verdict: Verdict
    seconds: float
    error: str = ""
    may_rerun: bool = True

    @property
    def is_bad(self) -> bool:
        """Whether the test or one of its fixtures failed."""
        return self.verdict in (Verdict.FAILED, Verdict.ERROR)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a stage."""

    stage: str
    seconds: float
    status: int
    results: tuple[Result, ...] = ()
    # The reasons why the results are not valid, or the failure of a program.
    problems: tuple[str, ...] = ()

    @property
    def failures(self) -> list[Result]:
        """The tests that failed."""
        return [result for result in self.results if result.is_bad]

    @property
    def is_complete(self) -> bool:
        """Whether every selected test ran, and pytest's status agrees with the results."""
        return not self.problems

    @property
    def is_good(self) -> bool:
        """Whether the stage is complete and no test failed."""
        return self.status == PASSED and self.is_complete and not self.failures

    def count(self) -> Counter[Verdict]:
        """The number of tests with each result."""
        return Counter(result.verdict for result in self.results)


def check_program(name: str, status: int, seconds: float) -> Outcome:
    """The outcome of a stage that is not pytest."""
    return Outcome(name, seconds, status, problems=() if status == 0 else (f"exit status {status}",))


def check_tests(name: str, status: int, seconds: float, *, record: Path, junit: Path) -> Outcome:
    """The outcome of a pytest process, from the files that it should have written."""
    try:
        recorded, results = json.loads(record.read_text()), read_results(junit)
    except (OSError, ValueError, ET.ParseError) as error:
        return Outcome(name, seconds, status, problems=(f"exit status {status}, and no results: {error}",))
    names = {as_reported(test): GROUP.sub("", test) for test in recorded["selected"]}
    problems = _compare(set(names), recorded["lost"], results, status)
    results = [replace(result, test=names.get(result.test, result.test)) for result in results]
    return Outcome(name, seconds, status, tuple(results), tuple(problems))


def _compare(expected: set[str], lost: list[str], results: list[Result], status: int) -> list[str]:
    ran = {result.test for result in results}
    failed = any(result.is_bad for result in results)
    problems = [f"lost a process: {process}" for process in lost]
    if status not in (PASSED, FAILED):
        problems.append(f"pytest did not complete: exit status {status}")
    elif (status == FAILED) != failed:
        problems.append(f"exit status {status}, but {'some' if failed else 'no'} results are failures")
    if not expected:
        problems.append("no tests were selected")
    if skipped := [result.test for result in results if result.verdict == Verdict.SKIPPED]:
        problems.append(f"{len(skipped)} tests were skipped, such as {skipped[0]}")
    if missing := expected - ran:
        problems.append(f"{len(missing)} selected tests did not run, such as {min(missing)}")
    if unexpected := ran - expected:
        problems.append(f"{len(unexpected)} results are of no selected test, such as {min(unexpected)}")
    return problems


def as_reported(test: str) -> str:
    """The name in JUnit files of the test that pytest calls `folder/file.py::Class::test[parameters]`."""
    name, bracket, parameters = test.partition("[")
    file, *parts = name.split("::")
    parts = [file.removesuffix(".py").replace("/", "."), *parts]
    return f"{'.'.join(parts[:-1])}::{parts[-1]}{bracket}{parameters}"


def read_results(junit: Path) -> list[Result]:
    """Read one result for each test of a JUnit file: the worse one, if the test and its fixtures have two.

    Raises:
        OSError, ParseError: the file is missing or incomplete.
    """
    found: dict[str, Result] = {}
    for case in ET.parse(junit).iter("testcase"):
        result = _read_result(case)
        if result.test not in found or result.is_bad:
            found[result.test] = result
    return list(found.values())


def _read_result(case: ET.Element) -> Result:
    verdicts = {"failure": Verdict.FAILED, "error": Verdict.ERROR, "skipped": Verdict.SKIPPED}
    parts = [part for part in case if part.tag in verdicts]
    properties = {found.get("name"): found.get("value") for found in case.iter("property")}
    return Result(
        test=f"{case.get('classname')}::{case.get('name')}",
        verdict=verdicts[parts[0].tag] if parts else Verdict.PASSED,
        seconds=float(case.get("time", 0)),
        error="\n".join((parts[0].get("message") or "").splitlines()[:FIRST_LINES]) if parts else "",
        may_rerun=properties.get("rerun") != "never",
    )
