"""The page of differences says what the tests and the coverage say."""

from tests.differences import PAGE, failing, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run python -m tests.differences"


def test_every_difference_has_its_reason():
    assert not [row for row in failing() if "| not known |" in row]
