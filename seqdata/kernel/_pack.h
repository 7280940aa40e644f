/* Rows of plain values into buffers; see _pack.c. */
#ifndef SEQDATA_PACK_H
#define SEQDATA_PACK_H
#include <Python.h>

#define MAX_KEY_BYTES 1024 /* bytes of an id */

PyObject *pack_rows(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
