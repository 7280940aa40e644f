"""What the tests of the core share holds here, too, where these are run alone."""

from tests.conftest import _folder_of_its_own, pytest_runtest_protocol  # noqa: F401
