/* Copy the spans of one batch into their final place, in one call.
 *
 * A source is one field of a data set: per shard a buffer of values and, where the field is ragged,
 * its extents: where the values of each sequence begin and end, two arrays of int64. Of Arrow's
 * large_list these are offsets[:-1] and offsets[1:]; of other files the bytes may lie anywhere, in
 * any order. Nothing in the buffers or arguments is trusted: every sequence number, start, stop,
 * extent and bound is checked against the real size of its buffer, once, and the checked copy is
 * what is used. `numpy_kernel.py` does the same in NumPy and passes the same tests.
 *
 * A source may have checksums: of each sequence, or of each block of a longer one. What a span
 * touches is then verified while it is hot from the copy, and marked by a bit, so that it is done
 * once; where there are no bits it is done each time.
 * POSIX only; elsewhere the build fails quietly and `numpy_kernel.py` is used.
 */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "_crc.h"
#include "_pack.h"

#define SOURCE "seqdata.kernel.source"
#define AHEAD 8          /* spans that are prefetched at most */
#define PREFETCHED 4096  /* bytes of each at most: a page, beyond it the processor does it */
#define EARLY 1024       /* bytes of each of the first spans, while the others are looked for */
#define ENOUGH 6144      /* bytes ahead of the copy from which on no more are prefetched */
#define FEW 256          /* spans whose places fit on the stack */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

typedef struct {
    Py_buffer values, begins, ends, sums, firsts;
    int64_t rows;  /* timesteps that `values` really holds */
    int64_t units; /* of extents, that `values` really holds */
    int64_t first; /* bit of the first checksum */
} Shard;

typedef struct {
    Py_ssize_t shards, width;
    Py_ssize_t unit; /* bytes that extents count by */
    int ragged;
    int64_t *starts; /* shards + 1 */
    Shard *shard;
    int checked, kind;
    size_t block;
    Py_buffer bits, lengths;
    Py_ssize_t length_width; /* 4 or 8; 0 where lengths are not looked at */
} Source;

typedef struct {
    const char *from;
    char *to; /* NULL: nothing is copied */
    size_t bytes, padding;
    size_t begin, whole; /* of the span in its sequence, and of that, in bytes */
    Py_ssize_t shard;
    int64_t number; /* inside the shard */
} Place;

static int64_t load(const char *from) {
    int64_t value; /* a recorded place need not be aligned */
    memcpy(&value, from, sizeof value);
    return value;
}

static void forget(Source *source) {
    for (Py_ssize_t i = 0; i < source->shards; i++) {
        if (source->shard[i].values.obj) PyBuffer_Release(&source->shard[i].values);
        if (source->shard[i].begins.obj) PyBuffer_Release(&source->shard[i].begins);
        if (source->shard[i].ends.obj) PyBuffer_Release(&source->shard[i].ends);
        if (source->shard[i].sums.obj) PyBuffer_Release(&source->shard[i].sums);
        if (source->shard[i].firsts.obj) PyBuffer_Release(&source->shard[i].firsts);
    }
    if (source->bits.obj) PyBuffer_Release(&source->bits);
    if (source->lengths.obj) PyBuffer_Release(&source->lengths);
    free(source->starts);
    free(source->shard);
    free(source);
}

static void forget_capsule(PyObject *capsule) {
    forget(PyCapsule_GetPointer(capsule, SOURCE));
}

static int open_shard(Source *source, Py_ssize_t i, PyObject *values, PyObject *extents) {
    Shard *shard = &source->shard[i];
    int64_t count = source->starts[i + 1] - source->starts[i];
    PyObject *one = PyTuple_GetItem(values, i);
    if (!one || PyObject_GetBuffer(one, &shard->values, PyBUF_SIMPLE)) return -1;
    shard->rows = shard->values.len / source->width;
    shard->units = shard->values.len / source->unit;
    if (!source->ragged) {
        if (shard->rows >= count) return 0;
        PyErr_Format(PyExc_ValueError, "source: `values` of shard %zd are too short", i);
        return -1;
    }
    one = PyTuple_GetItem(extents, i);
    if (!one) return -1;
    if (!PyTuple_Check(one) || PyTuple_Size(one) != 2) {
        PyErr_Format(PyExc_ValueError, "source: `extents` of shard %zd must be (begins, ends)", i);
        return -1;
    }
    if (PyObject_GetBuffer(PyTuple_GetItem(one, 0), &shard->begins, PyBUF_SIMPLE)) return -1;
    if (PyObject_GetBuffer(PyTuple_GetItem(one, 1), &shard->ends, PyBUF_SIMPLE)) return -1;
    if (shard->begins.len / 8 >= count && shard->ends.len / 8 >= count) return 0;
    PyErr_Format(PyExc_ValueError, "source: `extents` of shard %zd are too short", i);
    return -1;
}

static int open_starts(Source *source, PyObject *starts) {
    Py_buffer view;
    if (PyObject_GetBuffer(starts, &view, PyBUF_SIMPLE)) return -1;
    int good = view.len == (source->shards + 1) * 8;
    source->starts = malloc((size_t)(source->shards + 1) * 8);
    if (good && source->starts) {
        memcpy(source->starts, view.buf, (size_t)view.len);
        good = source->starts[0] == 0;
        for (Py_ssize_t i = 0; i < source->shards; i++)
            good = good && source->starts[i] <= source->starts[i + 1];
    }
    PyBuffer_Release(&view);
    if (!source->starts) {
        PyErr_NoMemory();
        return -1;
    }
    if (good) return 0;
    PyErr_SetString(PyExc_ValueError, "source: `starts` must rise from 0, one more than shards");
    return -1;
}

/* Hold the checksums of one shard: as many as it has sequences, or as `firsts` may ask for. */
static int open_sums(Source *source, Py_ssize_t i, PyObject *sums, PyObject *firsts, int64_t bits) {
    Shard *shard = &source->shard[i];
    int64_t count = source->starts[i + 1] - source->starts[i];
    PyObject *one = PyTuple_GetItem(sums, i), *first = PyTuple_GetItem(firsts, i);
    if (!one || !first || PyObject_GetBuffer(one, &shard->sums, PyBUF_SIMPLE)) return -1;
    if (first != Py_None && PyObject_GetBuffer(first, &shard->firsts, PyBUF_SIMPLE)) return -1;
    int64_t have = shard->sums.len / 4;
    if (have < count || (first != Py_None && shard->firsts.len / 8 <= count)) {
        PyErr_Format(PyExc_ValueError, "source: checksums of shard %zd are too few", i);
        return -1;
    }
    if (bits < 0 || (shard->first >= 0 && have <= bits - shard->first)) return 0;
    PyErr_Format(PyExc_ValueError, "source: `bits` of shard %zd are too few", i);
    return -1;
}

/* Hold what is verified by: (algorithm, block, sums, firsts, bits or None, begins, lengths or None)
 * where sums, firsts and begins have an entry per shard. */
static int open_checks(Source *source, PyObject *checks) {
    PyObject *name, *sums, *firsts, *bits, *begins, *lengths;
    Py_ssize_t block, shards = source->shards;
    if (!PyArg_ParseTuple(checks, "UnO!O!OO!O", &name, &block, &PyTuple_Type, &sums, &PyTuple_Type,
                          &firsts, &bits, &PyTuple_Type, &begins, &lengths))
        return -1;
    PyObject *ascii = PyUnicode_AsASCIIString(name);
    source->kind = ascii ? crc_kind(PyBytes_AsString(ascii)) : -1;
    Py_XDECREF(ascii);
    PyErr_Clear();
    if (source->kind < 0 || block < 1 || PyTuple_Size(sums) != shards ||
        PyTuple_Size(firsts) != shards || PyTuple_Size(begins) != shards) {
        PyErr_SetString(PyExc_ValueError, "source: checks need a known algorithm, a block of at "
                                          "least 1 byte and an entry for each shard");
        return -1;
    }
    source->block = (size_t)block;
    if (bits != Py_None && PyObject_GetBuffer(bits, &source->bits, PyBUF_WRITABLE)) return -1;
    for (Py_ssize_t i = 0; i < shards; i++) {
        source->shard[i].first = PyLong_AsLongLong(PyTuple_GetItem(begins, i));
        if (source->shard[i].first == -1 && PyErr_Occurred()) return -1;
        if (open_sums(source, i, sums, firsts, bits == Py_None ? -1 : 8 * source->bits.len))
            return -1;
    }
    source->checked = 1;
    if (lengths == Py_None || !source->starts[shards]) return 0;
    if (PyObject_GetBuffer(lengths, &source->lengths, PyBUF_SIMPLE)) return -1;
    source->length_width = source->lengths.len / source->starts[shards];
    if (source->ragged && (source->length_width == 4 || source->length_width == 8)) return 0;
    PyErr_SetString(PyExc_ValueError, "source: `lengths` must be one uint32 or uint64 for each "
                                      "sequence of a ragged field");
    return -1;
}

static PyObject *make_source(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    PyObject *checks = count > 4 ? args[4] : Py_None;
    if (count < 4 || count > 6 || !PyTuple_Check(args[0]) ||
        !(args[1] == Py_None || PyTuple_Check(args[1])) ||
        !(checks == Py_None || PyTuple_Check(checks))) {
        PyErr_SetString(PyExc_TypeError, "source: takes (values, extents or None, starts, width, "
                                         "checks or None, unit)");
        return NULL;
    }
    Py_ssize_t shards = PyTuple_Size(args[0]), width = PyLong_AsSsize_t(args[3]);
    Py_ssize_t unit = count == 6 ? PyLong_AsSsize_t(args[5]) : width;
    if ((width == -1 || unit == -1) && PyErr_Occurred()) return NULL;
    if (width < 1 || unit < 1 || (args[1] != Py_None && PyTuple_Size(args[1]) != shards)) {
        PyErr_SetString(PyExc_ValueError,
                        "source: needs `width` and `unit` >= 1, and one `extents` per shard");
        return NULL;
    }
    Source *source = calloc(1, sizeof *source);
    if (!source) return PyErr_NoMemory();
    source->width = width;
    source->unit = unit;
    source->ragged = args[1] != Py_None;
    source->shard = calloc((size_t)shards + 1, sizeof *source->shard);
    if (!source->shard) {
        free(source);
        return PyErr_NoMemory();
    }
    source->shards = shards;
    int bad = open_starts(source, args[2]);
    for (Py_ssize_t i = 0; i < shards && !bad; i++) bad = open_shard(source, i, args[0], args[1]);
    if (!bad && checks != Py_None) bad = open_checks(source, checks);
    PyObject *capsule = bad ? NULL : PyCapsule_New(source, SOURCE, forget_capsule);
    if (!capsule) forget(source);
    return capsule;
}

static unsigned char *digest_versions(const Source *s, int64_t bit) {
    return (unsigned char *)s->bits.buf + bit / 8;
}

static int is_marked(const Source *s, int64_t bit) {
    return s->bits.buf && __atomic_load_n(digest_versions(s, bit), __ATOMIC_RELAXED) >> bit % 8 & 1;
}

/* Find the shard of every span, and fetch its extents (ragged) into the cache. */
static Py_ssize_t find_shards(const Source *s, const char *spans, Py_ssize_t n, Place *places) {
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t id = load(spans + 24 * i);
        if (id < 0 || id >= s->starts[s->shards]) return i;
        if (id < s->starts[at] || id >= s->starts[at + 1]) {
            Py_ssize_t low = 0, high = s->shards; /* starts[low] <= id < starts[high] */
            while (high - low > 1) {
                Py_ssize_t middle = low + (high - low) / 2;
                if (s->starts[middle] <= id) low = middle;
                else high = middle;
            }
            at = low;
        }
        id -= s->starts[at];
        places[i].shard = at;
        places[i].number = id;
        const Shard *shard = &s->shard[at];
        if (s->ragged) {
            PREFETCH((const char *)shard->begins.buf + 8 * id);
            PREFETCH((const char *)shard->ends.buf + 8 * id);
        }
        if (shard->firsts.buf) PREFETCH((const char *)shard->firsts.buf + 8 * id);
        else if (s->bits.buf) PREFETCH(digest_versions(s, shard->first + id));
    }
    return -1;
}

/* Fetch what an unmarked sequence is verified by into the cache. */
static void fetch_checks(const Source *s, const Place *place) {
    const Shard *shard = &s->shard[place->shard];
    int64_t first = place->number;
    if (!shard->firsts.buf && is_marked(s, shard->first + first)) return;
    if (shard->firsts.buf) first = load((const char *)shard->firsts.buf + 8 * first);
    PREFETCH((const char *)shard->sums.buf + 4 * first); /* never read if it is outside */
    if (s->length_width)
        PREFETCH((const char *)s->lengths.buf +
                 s->length_width * (s->starts[place->shard] + place->number));
}

/* Turn numbers into addresses; each value is read once, checked, and used from the copy. */
static Py_ssize_t find_bytes(const Source *s, const char *spans, Py_ssize_t n, Place *places) {
    for (Py_ssize_t i = 0; i < n; i++) {
        const Shard *shard = &s->shard[places[i].shard];
        int64_t first = places[i].number, last = first + 1, unit = s->width;
        int64_t start = load(spans + 24 * i + 8), stop = load(spans + 24 * i + 16);
        if (s->ragged) {
            unit = s->unit;
            last = load((const char *)shard->ends.buf + 8 * first);
            first = load((const char *)shard->begins.buf + 8 * first);
            if (last > shard->units) return i;
        }
        if (first < 0 || last < first) return i;
        if (start < 0 || stop < start || stop > shard->rows) return i; /* so no product overflows */
        places[i].whole = (size_t)(last - first) * (size_t)unit;
        places[i].begin = (size_t)start * (size_t)s->width;
        places[i].bytes = (size_t)stop * (size_t)s->width - places[i].begin;
        if (places[i].begin + places[i].bytes > places[i].whole) return i;
        places[i].from = (const char *)shard->values.buf + first * unit + places[i].begin;
        if (s->checked) fetch_checks(s, &places[i]);
        size_t soon = places[i].bytes < EARLY ? places[i].bytes : EARLY;
        if (i < AHEAD)
            for (size_t b = 0; b < soon; b += 64) PREFETCH(places[i].from + b);
    }
    return -1;
}

/* Give every span its part of `out`; false where bounds do not rise, do not fit, or are too near. */
static int find_room(const char *bounds, Py_ssize_t n, Py_ssize_t width, const Py_buffer *out,
                     Place *places) {
    int64_t rows = out->len / width, from = load(bounds);
    if (from < 0 || from > rows) return 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t to = load(bounds + 8 * (i + 1));
        if (to < from || to > rows) return 0;
        size_t room = (size_t)(to - from) * (size_t)width;
        if (places[i].bytes > room) return 0;
        places[i].to = (char *)out->buf + from * width;
        places[i].padding = room - places[i].bytes;
        from = to;
    }
    return 1;
}

static void pad(char *to, size_t bytes, const char *pattern, size_t size, int alike) {
    if (alike) {
        memset(to, pattern[0], bytes);
        return;
    }
    memcpy(to, pattern, size); /* bytes is a multiple of size */
    for (size_t done = size; done < bytes; done *= 2)
        memcpy(to + done, to, done < bytes - done ? done : bytes - done);
}

static int length_is_right(const Source *s, const Place *place) {
    if (!s->length_width) return 1;
    int64_t number = s->starts[place->shard] + place->number;
    const char *at = (const char *)s->lengths.buf + s->length_width * number;
    uint32_t narrow;
    memcpy(&narrow, at, sizeof narrow);
    uint64_t length = s->length_width == 4 ? narrow : (uint64_t)load(at);
    return place->whole / (size_t)s->width == length;
}

/* Copy the bytes `from..stop` of a sequence, which lie in one of its blocks; verify all of that,
 * whose checksum is the `at`-th of its shard, and mark it. */
static int copy_block(const Source *s, const Place *place, size_t from, size_t stop, size_t block,
                      int64_t at) {
    const Shard *shard = &s->shard[place->shard];
    const char *whole = place->from - place->begin;
    char *to = place->to ? place->to + (from - place->begin) : NULL;
    int64_t bit = shard->first + at;
    size_t begin = block * s->block, bytes = place->whole - begin;
    uint32_t must;
    if (to && from < stop) memcpy(to, whole + from, stop - from);
    if (is_marked(s, bit)) return 1;
    memcpy(&must, (const char *)shard->sums.buf + 4 * at, sizeof must);
    if (bytes > s->block) bytes = s->block;
    if (crc_of(s->kind, whole + begin, bytes) != must) return 0;
    if (!length_is_right(s, place)) return 0;
    if (s->bits.buf)
        __atomic_fetch_or(digest_versions(s, bit), (unsigned char)(1 << bit % 8), __ATOMIC_RELAXED);
    return 1;
}

/* Copy one span block by block, each verified while it is hot; false where one is not right. */
static int copy_checked(const Source *s, const Place *place) {
    const Shard *shard = &s->shard[place->shard];
    size_t blocks = place->whole <= s->block ? 1 : (place->whole - 1) / s->block + 1;
    int64_t first = place->number;
    if (shard->firsts.buf) {
        const char *firsts = (const char *)shard->firsts.buf + 8 * first;
        first = load(firsts);
        int64_t next = load(firsts + 8);
        if (first < 0 || next < first || next > shard->sums.len / 4) return 0;
        if ((size_t)(next - first) != blocks) return 0;
    } else if (blocks != 1) return 0;
    if (!place->whole) return copy_block(s, place, 0, 0, 0, first);
    size_t at = place->begin, end = at + place->bytes;
    while (at < end) {
        size_t block = blocks == 1 ? 0 : at / s->block, stop = (block + 1) * s->block;
        if (stop > end) stop = end;
        if (!copy_block(s, place, at, stop, block, first + (int64_t)block)) return 0;
        at = stop;
    }
    return 1;
}

static size_t prefetched(const Place *place) {
    return place->bytes < PREFETCHED ? place->bytes : PREFETCHED;
}

static size_t prefetch(const Place *place) {
    size_t bytes = prefetched(place);
    for (size_t b = 0; b < bytes; b += 64) PREFETCH(place->from + b);
    return bytes;
}

/* Copy all spans and pad; gives the number of the first that is not right, or -1. */
static Py_ssize_t copy(const Source *s, const Place *places, Py_ssize_t n, const char *pattern,
                       size_t size, int alike) {
    Py_ssize_t next = 0; /* the first that is not prefetched */
    size_t ahead = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        for (; next < n && next <= i + AHEAD && (next <= i || ahead < ENOUGH); next++)
            ahead += prefetch(&places[next]);
        ahead -= prefetched(&places[i]);
        if (s->checked) {
            if (!copy_checked(s, &places[i])) return i;
        } else if (places[i].bytes && places[i].to) {
            memcpy(places[i].to, places[i].from, places[i].bytes);
        }
        if (places[i].padding)
            pad(places[i].to + places[i].bytes, places[i].padding, pattern, size, alike);
    }
    return -1;
}

/* The whole call, with its buffers held; without bounds and out nothing is copied. -1, the number i
 * of the first bad span, -2-i of the first whose checksum is another, or -1 and an exception. */
static Py_ssize_t fill_held(const Source *source, const Py_buffer *spans, const Py_buffer *bounds,
                            const Py_buffer *out, const char *pattern, Py_ssize_t size) {
    Py_ssize_t n = spans->len / 24, bad;
    if (spans->len != 24 * n || (bounds && bounds->len != 8 * (n + 1))) {
        PyErr_SetString(PyExc_ValueError, "fill: needs `spans` int64 (n, 3), `bounds` int64 (n+1)");
        return -1;
    }
    if (size < 1 || source->width % size) {
        PyErr_SetString(PyExc_ValueError, "fill: `padding` must be one element of the field");
        return -1;
    }
    int alike = 1, fits = 1;
    for (Py_ssize_t i = 1; i < size; i++) alike = alike && pattern[i] == pattern[0];
    Place few[FEW], *places = n <= FEW ? few : malloc((size_t)n * sizeof *places);
    if (!places) {
        PyErr_NoMemory();
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    Py_ssize_t lost = find_shards(source, spans->buf, n, places);
    bad = find_bytes(source, spans->buf, lost < 0 ? n : lost, places);
    if (bad < 0) bad = lost;
    if (bad < 0) {
        if (out) fits = find_room(bounds->buf, n, source->width, out, places);
        else
            for (Py_ssize_t i = 0; i < n; i++) places[i].to = NULL, places[i].padding = 0;
        if (fits) bad = copy(source, places, n, pattern, (size_t)size, alike);
        if (bad >= 0) bad = -2 - bad;
    }
    Py_END_ALLOW_THREADS
    if (places != few) free(places);
    if (fits) return bad;
    PyErr_SetString(PyExc_ValueError, "fill: `bounds` must rise inside `out` and hold every span");
    return -1;
}

static PyObject *fill(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    char zero[] = "", *pattern = zero;
    Py_ssize_t size = 1, result = -1;
    if (count != 5 || !PyCapsule_IsValid(args[0], SOURCE)) {
        PyErr_SetString(PyExc_TypeError, "fill: takes (source, spans, bounds, out, padding)");
        return NULL;
    }
    const Source *source = PyCapsule_GetPointer(args[0], SOURCE);
    if (args[4] != Py_None && PyBytes_AsStringAndSize(args[4], &pattern, &size)) return NULL;
    Py_buffer spans, bounds, out;
    if (PyObject_GetBuffer(args[1], &spans, PyBUF_SIMPLE)) return NULL;
    if (!PyObject_GetBuffer(args[2], &bounds, PyBUF_SIMPLE)) {
        if (!PyObject_GetBuffer(args[3], &out, PyBUF_WRITABLE)) {
            result = fill_held(source, &spans, &bounds, &out, pattern, size);
            PyBuffer_Release(&out);
        }
        PyBuffer_Release(&bounds);
    }
    PyBuffer_Release(&spans);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(result);
}

static PyObject *verify(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 2 || !PyCapsule_IsValid(args[0], SOURCE)) {
        PyErr_SetString(PyExc_TypeError, "verify: takes (source, spans)");
        return NULL;
    }
    const Source *source = PyCapsule_GetPointer(args[0], SOURCE);
    Py_buffer spans;
    if (PyObject_GetBuffer(args[1], &spans, PyBUF_SIMPLE)) return NULL;
    Py_ssize_t result = fill_held(source, &spans, NULL, NULL, "", 1);
    PyBuffer_Release(&spans);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(result);
}

static PyObject *algorithms(PyObject *self, PyObject *nothing) {
    (void)self, (void)nothing;
    return Py_BuildValue("(ss)", "crc32c", "crc32");
}

/* The checksum of every run of bytes between two neighbouring bounds. */
static int sum_held(const Py_buffer *data, const Py_buffer *bounds, Py_buffer *out, int kind) {
    Py_ssize_t n = out->len / 4, done = 0;
    int good = out->len == 4 * n && bounds->len == 8 * (n + 1) && load(bounds->buf) >= 0;
    Py_BEGIN_ALLOW_THREADS
    for (const char *edge = bounds->buf; good && done < n; done++, edge += 8) {
        int64_t first = load(edge), last = load(edge + 8);
        good = first <= last && last <= data->len;
        uint32_t sum = good ? crc_of(kind, (const char *)data->buf + first, last - first) : 0;
        memcpy((char *)out->buf + 4 * done, &sum, sizeof sum);
    }
    Py_END_ALLOW_THREADS
    return good;
}

static PyObject *checksums(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    PyObject *name = count == 4 ? PyUnicode_AsASCIIString(args[3]) : NULL;
    int kind = name ? crc_kind(PyBytes_AsString(name)) : -1, good = 0;
    Py_XDECREF(name);
    if (kind < 0) {
        PyErr_SetString(PyExc_ValueError, "checksums: takes (data, bounds, out, algorithm)");
        return NULL;
    }
    Py_buffer data, bounds, out;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    if (!PyObject_GetBuffer(args[1], &bounds, PyBUF_SIMPLE)) {
        if (!PyObject_GetBuffer(args[2], &out, PyBUF_WRITABLE)) {
            good = sum_held(&data, &bounds, &out, kind);
            PyBuffer_Release(&out);
            if (!good)
                PyErr_SetString(PyExc_ValueError, "checksums: `bounds` must rise inside `data`, "
                                                  "one more than `out` has uint32");
        }
        PyBuffer_Release(&bounds);
    }
    PyBuffer_Release(&data);
    if (!good) return NULL;
    Py_RETURN_NONE;
}

/* A mapped file that keeps no descriptor: Python's own mmap keeps one per shard. */
typedef struct {
    PyObject_HEAD
    void *address;
    Py_ssize_t bytes;
} Mapping;

static int mapping_buffer(PyObject *self, Py_buffer *view, int flags) {
    Mapping *mapping = (Mapping *)self;
    return PyBuffer_FillInfo(view, self, mapping->address, mapping->bytes, 1, flags);
}

static void mapping_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    munmap(((Mapping *)self)->address, (size_t)((Mapping *)self)->bytes);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot mapping_slots[] = {
    {Py_bf_getbuffer, mapping_buffer}, {Py_tp_dealloc, mapping_free}, {0, NULL}};
static PyType_Spec mapping_spec = {"seqdata.kernel._fill.Mapping", sizeof(Mapping), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                   mapping_slots};

static PyObject *map_file(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "map_file: takes (descriptor, bytes)");
        return NULL;
    }
    long descriptor = PyLong_AsLong(args[0]);
    Py_ssize_t bytes = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (bytes < 1) {
        PyErr_SetString(PyExc_ValueError, "map_file: `bytes` must be at least 1");
        return NULL;
    }
    PyTypeObject *type = *(PyTypeObject **)PyModule_GetState(module);
    void *address = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, (int)descriptor, 0);
    if (address == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
    Mapping *mapping = (Mapping *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!mapping) {
        munmap(address, (size_t)bytes);
        return NULL;
    }
    mapping->address = address;
    mapping->bytes = bytes;
    return (PyObject *)mapping;
}

static PyObject *populate(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "populate: takes (mapping, first, stop)");
        return NULL;
    }
    Py_ssize_t first = PyLong_AsSsize_t(args[1]), stop = PyLong_AsSsize_t(args[2]);
    Py_buffer view;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE)) return NULL;
    int failed = 0;
    if (first < 0) first = 0;
    if (stop > view.len) stop = view.len;
    if (first < stop) {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)view.buf;
        uintptr_t low = (base + (uintptr_t)first) & ~(page - 1);
        size_t bytes = base + (uintptr_t)stop - low;
        Py_BEGIN_ALLOW_THREADS
        failed = madvise((void *)low, bytes, MADV_POPULATE_READ);
        if (failed && errno == EINVAL) failed = madvise((void *)low, bytes, MADV_WILLNEED);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    return PyBool_FromLong(!failed);
}

static PyMethodDef methods[] = {
    {"source", (PyCFunction)(void (*)(void))make_source, METH_FASTCALL,
     "source(values, extents, starts, width, checks, unit)\n--\n\nHold the buffers of one field."},
    {"fill", (PyCFunction)(void (*)(void))fill, METH_FASTCALL,
     "fill(source, spans, bounds, out, padding)\n--\n\nCopy spans: -1, or the first bad one."},
    {"verify", (PyCFunction)(void (*)(void))verify, METH_FASTCALL,
     "verify(source, spans)\n--\n\nLook at spans as `fill` does; nothing is copied."},
    {"map_file", (PyCFunction)(void (*)(void))map_file, METH_FASTCALL,
     "map_file(descriptor, bytes)\n--\n\nMap a file for reading; the descriptor may be closed."},
    {"algorithms", algorithms, METH_NOARGS,
     "algorithms()\n--\n\nGive the names of the checksums that can be computed."},
    {"checksums", (PyCFunction)(void (*)(void))checksums, METH_FASTCALL,
     "checksums(data, bounds, out, algorithm)\n--\n\nCompute the checksum of every piece."},
    {"pack", (PyCFunction)(void (*)(void))pack_rows, METH_FASTCALL,
     "pack(rows, fields, array, most, stop)\n--\n\nCopy plain rows: how many, and what is left."},
    {"populate", (PyCFunction)(void (*)(void))populate, METH_FASTCALL,
     "populate(mapping, first, stop)\n--\n\nRead bytes ahead into memory; whether that worked."},
    {NULL, NULL, 0, NULL}};

static int make_types(PyObject *module) {
    crc_prepare();
    PyObject *type = PyType_FromModuleAndSpec(module, &mapping_spec, NULL);
    *(PyObject **)PyModule_GetState(module) = type; /* lives as long as the process */
    return type ? 0 : -1;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, make_types}, {0, NULL}};
static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "seqdata.kernel._fill", NULL, sizeof(PyObject *), methods,
    module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fill(void) { return PyModuleDef_Init(&module_def); }
