/* Pack rows: pull dicts from an iterator and copy their values, while they are plain, into buffers.
 *
 * A row is plain where it is a dict of just the fields, and each value is what its field holds most
 * often: an array of its dtype and shape, C-contiguous; a number; a str; bytes. Whatever is not, or
 * does not fit any more, is given back with nothing of it packed, and the caller, who knows what to
 * say about it, goes on from there. Without this file every row goes that way.
 */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_pack.h"

#define MOST_DIMENSIONS 32
#define LONG (1 << 16) /* bytes from which on others may run meanwhile */

enum { RAGGED, FIXED, NUMBER, TEXT, KEY, BYTES, KINDS };

typedef struct {
    PyObject *name, *type, *dtype; /* borrowed: the caller's tuple holds them */
    int kind, dimensions, held;
    Py_ssize_t shape[MOST_DIMENSIONS];
    Py_ssize_t width;   /* bytes of a timestep, or of the value */
    Py_buffer to, ends; /* where values go, and where the end of each is noted, in timesteps */
    char *at;
    Py_ssize_t used, room; /* bytes */
    /* of the row that is looked at */
    PyObject *value;
    Py_buffer view;
    int viewed;
    const char *from;
    Py_ssize_t bytes;
    union {
        long long whole;
        double real;
        char flag;
    } number;
} Field;

typedef struct {
    Field *field;
    Py_ssize_t fields;
    PyObject *attribute, *array;
} Packing;

/* Take the arguments of one field:
 * (name, kind, type, dtype, shape, width, values, used bytes, ends or None). */
static int take_field(Field *field, PyObject *given, Py_ssize_t most) {
    PyObject *shape, *values, *ends;
    if (!PyArg_ParseTuple(given, "OiOOO!nOnO", &field->name, &field->kind, &field->type,
                          &field->dtype, &PyTuple_Type, &shape, &field->width, &values,
                          &field->used, &ends))
        return -1;
    field->dimensions = (int)PyTuple_Size(shape);
    if (field->kind < 0 || field->kind >= KINDS || field->dimensions >= MOST_DIMENSIONS ||
        field->width < 1) {
        PyErr_SetString(PyExc_ValueError, "pack: no such field");
        return -1;
    }
    for (int i = 0; i < field->dimensions; i++) {
        field->shape[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        if (field->shape[i] == -1 && PyErr_Occurred()) return -1;
    }
    if (PyObject_GetBuffer(values, &field->to, PyBUF_WRITABLE)) return -1;
    field->held = 1;
    if (ends != Py_None) {
        if (PyObject_GetBuffer(ends, &field->ends, PyBUF_WRITABLE)) return -1;
        field->held = 2;
    }
    int ended = field->kind != FIXED && field->kind != NUMBER;
    if (field->used < 0 || field->used > field->to.len || ended != (ends != Py_None) ||
        (ended && field->ends.len / 8 < most)) {
        PyErr_SetString(PyExc_ValueError, "pack: a buffer is too short");
        return -1;
    }
    field->at = field->to.buf;
    field->room = field->to.len;
    return 0;
}

static void release_lock(Packing *packing) {
    for (Py_ssize_t i = 0; i < packing->fields; i++) {
        Field *field = &packing->field[i];
        if (field->held > 1) PyBuffer_Release(&field->ends);
        if (field->held > 0) PyBuffer_Release(&field->to);
    }
    free(packing->field);
    Py_XDECREF(packing->attribute);
}

static int is_same(PyObject *mine, PyObject *other) {
    return mine == other ? 1 : PyObject_RichCompareBool(mine, other, Py_EQ);
}

/* Look at an array: 1 plain, 0 not, -1 error. */
static int look_at_array(Packing *packing, Field *field, PyObject *value) {
    if (Py_TYPE(value) != (PyTypeObject *)packing->array) return 0;
    PyObject *dtype = PyObject_GetAttr(value, packing->attribute);
    if (!dtype) return -1;
    int same = is_same(dtype, field->dtype);
    Py_DECREF(dtype);
    if (same < 1) return same;
    if (PyObject_GetBuffer(value, &field->view, PyBUF_ND)) { /* not contiguous */
        PyErr_Clear();
        return 0;
    }
    field->viewed = 1;
    int more = field->kind == RAGGED;
    if (field->view.ndim != more + field->dimensions) return 0;
    Py_ssize_t bytes = field->width;
    if (more) {
        Py_ssize_t length = field->view.shape[0];
        if (length < 0 || length > PY_SSIZE_T_MAX / field->width) return 0;
        bytes *= length;
    }
    for (int i = 0; i < field->dimensions; i++)
        if (field->view.shape[more + i] != field->shape[i]) return 0;
    if (field->view.len != bytes) return 0;
    field->from = field->view.buf;
    field->bytes = bytes;
    return 1;
}

/* Look at a number: of Python where the field's type is its own, or a scalar of NumPy. */
static int look_at_number(Field *field, PyObject *value) {
    PyObject *type = (PyObject *)Py_TYPE(value);
    field->bytes = field->width;
    if (type == field->dtype) { /* NumPy's own scalar type of the field */
        if (PyObject_GetBuffer(value, &field->view, PyBUF_SIMPLE)) {
            PyErr_Clear();
            return 0;
        }
        field->viewed = 1;
        field->from = field->view.buf;
        return field->view.len == field->width;
    }
    if (type != field->type) return 0;
    field->from = (const char *)&field->number;
    if (type == (PyObject *)&PyBool_Type) {
        field->number.flag = value == Py_True;
        return field->width == 1;
    }
    if (type == (PyObject *)&PyFloat_Type) {
        field->number.real = PyFloat_AsDouble(value);
        return field->width == sizeof(double);
    }
    if (type != (PyObject *)&PyLong_Type || field->width != sizeof(long long)) return 0;
    field->number.whole = PyLong_AsLongLong(value);
    if (field->number.whole == -1 && PyErr_Occurred()) { /* too large: said elsewhere */
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* Look at text or bytes. */
static int look_at_text(Field *field, PyObject *value) {
    if (field->kind == BYTES) {
        char *bytes;
        if (!PyBytes_CheckExact(value)) return 0;
        if (PyBytes_AsStringAndSize(value, &bytes, &field->bytes)) return -1;
        field->from = bytes;
        return 1;
    }
    if (!PyUnicode_CheckExact(value)) return 0;
    field->from = PyUnicode_AsUTF8AndSize(value, &field->bytes);
    if (!field->from) { /* no valid Unicode: said elsewhere */
        if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) return -1;
        PyErr_Clear();
        return 0;
    }
    return field->kind != KEY || (field->bytes <= MAX_KEY_BYTES && !memchr(field->from, 0, field->bytes));
}

/* Look at a row: 1 where it is plain and there is room, 0 where not, -1 error. Takes no copy. */
static int look(Packing *packing, PyObject *row) {
    if (!PyDict_CheckExact(row) || PyDict_Size(row) != packing->fields) return 0;
    for (Py_ssize_t i = 0; i < packing->fields; i++) {
        Field *field = &packing->field[i];
        PyObject *value = PyDict_GetItemWithError(row, field->name);
        if (!value) return PyErr_Occurred() ? -1 : 0;
        field->value = Py_NewRef(value); /* the row is anybody's while others run */
        int plain = field->kind <= FIXED   ? look_at_array(packing, field, value)
                    : field->kind == NUMBER ? look_at_number(field, value)
                                            : look_at_text(field, value);
        if (plain < 1) return plain;
        if (field->bytes > field->room - field->used) return 0;
    }
    return 1;
}

/* Copy a row that was looked at; gives the bytes that it takes. */
static Py_ssize_t copy(Packing *packing, Py_ssize_t number) {
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < packing->fields; i++) {
        Field *field = &packing->field[i];
        if (field->bytes >= LONG) {
            Py_BEGIN_ALLOW_THREADS
            memcpy(field->at + field->used, field->from, field->bytes);
            Py_END_ALLOW_THREADS
        } else {
            memcpy(field->at + field->used, field->from, field->bytes);
        }
        field->used += field->bytes;
        size += field->bytes;
        if (field->held > 1) {
            int64_t end = field->used / field->width;
            memcpy((char *)field->ends.buf + 8 * number, &end, 8);
            size += 8;
        }
    }
    return size;
}

static void forget(Packing *packing) {
    for (Py_ssize_t i = 0; i < packing->fields; i++) {
        Field *field = &packing->field[i];
        if (field->viewed) PyBuffer_Release(&field->view);
        field->viewed = 0;
        Py_CLEAR(field->value);
    }
}

static PyObject *used_of(Packing *packing) {
    PyObject *used = PyTuple_New(packing->fields);
    for (Py_ssize_t i = 0; used && i < packing->fields; i++) {
        PyObject *one = PyLong_FromSsize_t(packing->field[i].used);
        if (!one || PyTuple_SetItem(used, i, one)) Py_CLEAR(used);
    }
    return used;
}

/* pack(rows, fields, array, most, stop) -> (rows packed, bytes, used by field, what is left) */
PyObject *pack_rows(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 5 || !PyTuple_Check(args[1]) || !PyIter_Check(args[0]))
        return PyErr_SetString(PyExc_TypeError, "pack(rows, fields, array, most, stop)"), NULL;
    Py_ssize_t most = PyLong_AsSsize_t(args[3]), stop = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred()) return NULL;
    Packing packing = {NULL, PyTuple_Size(args[1]), NULL, args[2]};
    packing.field = calloc(packing.fields ? packing.fields : 1, sizeof(Field));
    if (!packing.field) return PyErr_NoMemory();
    packing.attribute = PyUnicode_InternFromString("dtype");
    PyObject *left = NULL, *used = NULL;
    Py_ssize_t count = 0, size = 0;
    int state = packing.attribute ? 1 : -1;
    for (Py_ssize_t i = 0; state > 0 && i < packing.fields; i++)
        if (take_field(&packing.field[i], PyTuple_GetItem(args[1], i), most)) state = -1;
    while (state > 0 && count < most && size < stop) {
        PyObject *row = PyIter_Next(args[0]);
        if (!row) {
            state = PyErr_Occurred() ? -1 : 0;
            if (!state) left = Py_NewRef(Py_None);
            break;
        }
        state = look(&packing, row);
        if (state > 0) size += copy(&packing, count++);
        forget(&packing);
        if (!state) left = PyTuple_Pack(1, row);
        Py_DECREF(row);
    }
    if (state >= 0 && !left && state > 0) left = PyTuple_New(0);
    if (state >= 0 && left) used = used_of(&packing);
    release_lock(&packing);
    if (!left || !used) {
        Py_XDECREF(left);
        Py_XDECREF(used);
        return NULL;
    }
    return Py_BuildValue("(nnNN)", count, size, used, left);
}
