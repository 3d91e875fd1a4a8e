"""The choice of tests that run on PostgreSQL for a change."""

from tests.stages.statements import choose, missed, normalize, runs_on_postgresql

SENT = {
    "tests/shared/db/test_a.py::test_store[]": {"SELECT 1", "SELECT 2"},
    "tests/api/test_b.py::test_known[]": {"SELECT 1"},
    "tests/api/test_b.py::test_some[]": {"SELECT 3"},
    "tests/api/test_b.py::test_more[]": {"SELECT 3", "SELECT 4"},
    "tests/worker/test_c.py::test_nothing[]": {"SELECT 2"},
}


def test_smallest_set_of_tests_that_sends_every_statement_is_chosen() -> None:
    assert choose(SENT) == {"tests/api/test_b.py": ["test_more[]"], "tests/worker/test_c.py": []}
    assert missed(SENT, choose(SENT)) == set()


def test_tests_are_added_to_an_earlier_choice() -> None:
    kept = {"tests/api/test_b.py": ["test_some[]"], "tests/api/test_d.py": ["test_other[]"]}
    sent = SENT | {"tests/worker/test_e.py::test_new[]": {"SELECT 3", "SELECT 5"}}
    assert choose(sent, kept) == kept | {
        "tests/api/test_b.py": ["test_some[]", "test_more[]"],
        "tests/worker/test_c.py": [],
        "tests/worker/test_e.py": ["test_new[]"],
    }


def test_statement_of_a_test_that_is_not_chosen_is_missed() -> None:
    assert missed(SENT, {"tests/api/test_b.py": ["test_some[]"], "tests/worker/test_c.py": []}) == {"SELECT 4"}


def test_tests_of_the_database_and_of_new_modules_run_on_postgresql() -> None:
    choice = choose(SENT)
    assert runs_on_postgresql("tests/shared/db/test_new.py::test_any[]", choice)
    assert runs_on_postgresql("tests/api/test_new.py::test_any[]", choice)
    assert runs_on_postgresql("tests/api/test_b.py::test_more[]", choice)
    assert not runs_on_postgresql("tests/api/test_b.py::test_some[]", choice)
    assert not runs_on_postgresql("tests/worker/test_c.py::test_nothing[]", choice)


def test_statements_that_differ_in_parameters_only_are_equal() -> None:
    first = "SELECT a_1.x FROM a AS a_1 WHERE id IN (%(id_1)s::VARCHAR, %(id_2)s::VARCHAR)"
    assert normalize(first) == normalize("SELECT a_2.x FROM a AS a_2 WHERE id IN (%(id_1)s::VARCHAR)")
    assert normalize(first) != normalize("SELECT a_1.y FROM a AS a_1 WHERE id IN (%(id_1)s::VARCHAR)")
