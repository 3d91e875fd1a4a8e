"""The durations of tests that one run keeps for the next."""

from pathlib import Path

from tests.stages.durations import measure, seconds_of

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_one[x]" time="2.04"/>
<testcase classname="tests.test_a" name="test_one[y]" time="7.06"/>
<testcase classname="tests.test_a" name="test_quick" time="0.5"/>
<testcase classname="tests.test_b" name="test_two@test_b.site" time="30.0"/>
<testcase classname="tests.test_b" name="test_three[here]@test_b.site" time="0.4"/>
</testsuite></testsuites>"""


def test_mean_of_variants_and_the_whole_of_a_group_are_kept(tmp_path: Path) -> None:
    junit = tmp_path / "real.xml"
    junit.write_text(JUNIT)
    durations = measure([junit])
    assert durations == {"tests.test_a::test_one": 4.5, "@test_b.site": 30.4}
    assert seconds_of("tests/test_a.py::test_one[z]", "", durations) == 4.5
    assert seconds_of("tests/test_b.py::test_two", "test_b.site", durations) == 30.4
    assert seconds_of("tests/test_a.py::test_quick", "", durations) == 0.0
