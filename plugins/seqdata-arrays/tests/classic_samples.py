"""Classic NetCDF files: by the library of NetCDF, and byte by byte by the specification."""

import math

import netCDF4
import numpy as np

FORMS = {"NETCDF3_CLASSIC": 1, "NETCDF3_64BIT_OFFSET": 2, "NETCDF3_64BIT_DATA": 5}
CODES = {"i1": 1, "S1": 2, "i2": 3, "i4": 4, "f4": 5, "f8": 6,
         "u1": 7, "u2": 8, "u4": 9, "i8": 10, "u8": 11}  # fmt: skip
CLASSIC = ("i1", "i2", "i4", "f4", "f8")
STREAMED = -1  # records, of a file that does not say how many there are


def bits(dtype, shape, seed=0):
    """Return numbers of any bits, infinities and NaNs of all kinds among them."""
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(seed).bytes(dtype.itemsize * int(np.prod(shape)))
    return np.frombuffer(raw, dtype).reshape(shape)


def recording(rows, *, types=CLASSIC, seed=0):
    """Return variables of one recording: name -> (dimensions, values)."""
    found = {f"x_{each}": (("time", "k"), bits(each, (rows, 3), seed + at))
             for at, each in enumerate(types)}  # fmt: skip
    found["flat"] = (("time",), bits("i2", rows, seed + 50))
    found["grid"] = (("lat", "k"), bits("f8", (4, 3), seed + 51))  # of an axis of its own
    found["time"] = (("time",), np.arange(rows) / 100)
    found["age"] = ((), np.int32(31))
    return found


def write_nc(path, variables, *, form, unlimited="time", attributes=(), of=()):
    """Write variables by the library of NetCDF.

    Args:
        path: The file.
        variables: Name -> (dimensions, values).
        form: ``NETCDF4``, or one of ``FORMS``.
        unlimited: Name of the dimension that counts records; None: there is none.
        attributes: Pairs of a name and a value, of the file.
        of: Triples of a variable, a name and a value.
    """
    with netCDF4.Dataset(path, "w", format=form) as file:
        for dimensions, values in variables.values():
            for name, size in zip(dimensions, np.shape(values), strict=True):
                if name not in file.dimensions:
                    file.createDimension(name, None if name == unlimited else size)
        for name, (dimensions, values) in variables.items():
            more = {key: value for variable, key, value in of if variable == name}
            fill = more.pop("_FillValue", None)
            made = file.createVariable(name, values.dtype, dimensions, fill_value=fill)
            made.set_auto_maskandscale(False)
            made.setncatts(more)
        for name, (_, values) in variables.items():
            file[name][...] = values
        for name, value in attributes:
            file.setncattr(name, value)
    return path


def chars(texts):
    """Return texts as NetCDF keeps them: rows of characters."""
    raw = np.array([text.encode() for text in texts])
    return raw.view("S1").reshape(len(texts), -1)


class ClassicBytes:
    """A classic NetCDF file by its specification.

    Args:
        version: 1, 2 or 5.
    """

    def __init__(self, version):
        self.version = version
        self.count_width = 8 if version == 5 else 4
        self.offset_width = 4 if version == 1 else 8

    def count(self, value):
        return (value % (1 << 8 * self.count_width)).to_bytes(self.count_width, "big")

    def name(self, text):
        raw = text if isinstance(text, bytes) else text.encode()
        return self.count(len(raw)) + padded(raw)

    def list(self, kind, items):
        tag = kind if items else 0
        return tag.to_bytes(4, "big") + self.count(len(items)) + b"".join(items)

    def attribute(self, name, code, raw, size=None):
        width = {1: 1, 2: 1, 7: 1, 3: 2, 8: 2, 4: 4, 5: 4, 9: 4}.get(code, 8)
        size = len(raw) // width if size is None else size
        return self.name(name) + code.to_bytes(4, "big") + self.count(size) + padded(raw)

    def variable(self, name, dimensions, code, begin, attributes=()):
        return (
            self.name(name) + self.count(len(dimensions)) + b"".join(map(self.count, dimensions))
            + self.list(12, list(attributes)) + code.to_bytes(4, "big") + self.count(0)
            + begin.to_bytes(self.offset_width, "big")
        )  # fmt: skip

    def header(self, records, dimensions, attributes, variables):
        """Return a header of finished lists."""
        dims = [self.name(name) + self.count(size) for name, size in dimensions]
        return (
            b"CDF" + bytes([self.version]) + self.count(records) + self.list(10, dims)
            + self.list(12, list(attributes)) + self.list(11, list(variables))
        )  # fmt: skip

    def file(self, variables, *, records=None, attributes=(), unlimited="time"):
        """Return a file of variables: name -> (dimensions, values)."""
        sizes = {}
        for dimensions, values in variables.values():
            sizes |= dict(zip(dimensions, np.shape(values), strict=True))
        rows = sizes.get(unlimited, 0)
        names = list(sizes)
        dims = [(name, 0 if name == unlimited else size) for name, size in sizes.items()]
        is_recorded = {name: unlimited in each[0] for name, each in variables.items()}
        fixed = [name for name in variables if not is_recorded[name]]
        recorded = [name for name in variables if is_recorded[name]]
        pad = padded if len(recorded) > 1 else bytes
        parts = {name: padded(stored(variables[name][1])) for name in fixed}
        rows_of = {name: [pad(stored(row)) for row in variables[name][1]] for name in recorded}
        empty_row = {
            name: bytes(math.prod(np.shape(values)[1:]) * values.dtype.itemsize)
            for name, (_, values) in variables.items()
        }

        def make(begins):
            made = [
                self.variable(
                    name, [names.index(each) for each in dimensions],
                    CODES[np.asarray(values).dtype.str[1:]], begins.get(name, 0),
                )
                for name, (dimensions, values) in variables.items()
            ]  # fmt: skip
            return self.header(rows if records is None else records, dims, attributes, made)

        at, begins = len(make({})), {}
        for name, size in [
            *((name, len(parts[name])) for name in fixed),
            *((name, len(pad(empty_row[name]))) for name in recorded),
        ]:
            begins[name] = at
            at += size
        body = [parts[name] for name in fixed]
        body += [rows_of[name][row] for row in range(rows) for name in recorded]
        return make(begins) + b"".join(body)


def padded(raw):
    return raw + bytes(-len(raw) % 4)


def stored(values):
    values = np.asarray(values)
    return values.astype(values.dtype.newbyteorder(">")).tobytes()
