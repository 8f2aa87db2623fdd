"""A small ISO 9660 image with Rock Ridge and Joliet names. The same files give the same bytes.

The library writes the current time into every record; `without_dates` sets all times to one constant.

Source: ECMA-119 (8.4 primary and 8.5 supplementary volume descriptor, 9.1 directory record); IEEE P1282 4.1.6 (TF).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

SECTOR = 2048
_FIRST_DESCRIPTOR = 16
_PRIMARY, _SUPPLEMENTARY, _LAST = 1, 2, 255
_ROOT_RECORD = 156  # in a volume descriptor, 34 bytes
_VOLUME_DATES = range(813, 813 + 4 * 17, 17)  # creation, modification, expiration, effective
_DATE = bytes((80, 1, 1, 0, 0, 0, 0))  # 1980-01-01 00:00:00 UTC: years since 1900 … offset from GMT
_LONG_DATE = b"1980010100000000\0"
_NO_DATE = b"0" * 16 + b"\0"  # "not specified" (8.4.26.1)
_RECORD_DATE = 18


def make_image(volume: str, files: Mapping[str, bytes]) -> bytes:
    """Return an image with the volume id and, in its root directory, the read-only files.

    Names are lower case with hyphens. A reader that knows only plain ISO 9660 names sees upper case with underscores.
    """
    import pycdlib

    image = pycdlib.PyCdlib()
    image.new(interchange_level=3, vol_ident=volume, joliet=3, rock_ridge="1.09")
    for name, data in files.items():
        plain = f"/{name.replace('-', '_').upper()}.;1"
        image.add_fp(io.BytesIO(data), len(data), plain, rr_name=name, joliet_path=f"/{name}", file_mode=0o100444)
    out = io.BytesIO()
    image.write_fp(out)
    image.close()
    return without_dates(out.getvalue())


def without_dates(image: bytes) -> bytes:
    """Return the same image with all dates constant. Raises ValueError if the bytes are not an ISO 9660 image."""
    changed = bytearray(image)
    for descriptor in _descriptors(image):
        for at in _VOLUME_DATES:
            dated = image[descriptor + at : descriptor + at + 17] != _NO_DATE
            changed[descriptor + at : descriptor + at + 17] = _LONG_DATE if dated else _NO_DATE
        root = descriptor + _ROOT_RECORD
        for record in (root, *_records(image, root)):
            changed[record + _RECORD_DATE : record + _RECORD_DATE + 7] = _DATE
            for at, length in _time_stamps(image, record):
                changed[at : at + length] = _DATE * (length // 7)
    return bytes(changed)


def _descriptors(image: bytes) -> Iterator[int]:
    """Yield the offsets of the primary and supplementary volume descriptors."""
    for at in range(_FIRST_DESCRIPTOR * SECTOR, len(image), SECTOR):
        if image[at + 1 : at + 6] != b"CD001":
            break
        if image[at] == _LAST:
            return
        if image[at] in (_PRIMARY, _SUPPLEMENTARY):
            yield at
    raise ValueError("not an ISO 9660 image: its volume descriptors do not end")


def _records(image: bytes, root: int) -> Iterator[int]:
    """Yield the offsets of the root directory's records. Images made here have no other directory."""
    extent = int.from_bytes(image[root + 2 : root + 6], "little") * SECTOR
    end = extent + int.from_bytes(image[root + 10 : root + 14], "little")
    at = extent
    while at < end:
        length = image[at]
        if length:
            yield at
            at += length
        else:  # Records do not cross sectors: the rest of this sector is empty.
            at += SECTOR - at % SECTOR


def _time_stamps(image: bytes, record: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the dates in the record's Rock Ridge TF entries, each date 7 bytes long."""
    name = image[record + 32]
    at = record + 33 + name + (name + 1) % 2
    end = record + image[record]
    while at + 4 <= end and image[at + 2] >= 4:
        if image[at : at + 2] == b"TF":
            yield at + 5, image[at + 2] - 5
        at += image[at + 2]
