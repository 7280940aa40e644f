"""Declare the optional C kernel; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "seqdata.kernel._fill",
            ["seqdata/kernel/_fill.c", "seqdata/kernel/_crc.c", "seqdata/kernel/_pack.c"],
            depends=["seqdata/kernel/_crc.h", "seqdata/kernel/_pack.h"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O3"],
            py_limited_api=True,
            optional=True,  # no compiler, no failure: the NumPy twin does the same, slower
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
