import pytest

from tests.kernel.engines import get_compiled, numpy_kernel


@pytest.fixture(params=["c", "numpy"])
def engine(request):
    """Each kernel: the compiled one, if it is built, and its twin."""
    return numpy_kernel if request.param == "numpy" else get_compiled()
