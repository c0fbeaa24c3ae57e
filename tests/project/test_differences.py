"""The page of differences says what the tests and the coverage say."""

from tests.differences import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run python -m tests.differences"
