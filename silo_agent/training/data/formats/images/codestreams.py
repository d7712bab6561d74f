"""What a compressed picture of the JPEG family says of its own size, before anything decodes it.

A DICOM file declares its size outside of the compressed picture, and a decoder makes the one inside.
Sources: ITU-T T.81 B.2.2 (JPEG), T.87 C.2.2 (JPEG-LS), T.800 A.5.1 (JPEG 2000).
"""

from __future__ import annotations

# start of frame, of JPEG but for three markers that are none, and of JPEG-LS
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC} | {0xF7}
WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD9)}
START_OF_JPEG, START_OF_JPEG_2000 = b"\xff\xd8", b"\xff\x4f\xff\x51"
LONGEST_BOXES = 1 << 16  # bytes before the codestream of a JP2 file


def stated_pixels(frame: bytes) -> int | None:
    """Rows times columns; None where it does not say them."""
    if frame.startswith(START_OF_JPEG):
        return _of_jpeg(frame)
    start = frame.find(START_OF_JPEG_2000, 0, LONGEST_BOXES)
    if start < 0 or len(frame) < start + 24:
        return None
    sizes = (int.from_bytes(frame[at : at + 4], "big") for at in range(start + 8, start + 24, 4))
    columns, rows, left, above = sizes
    return (columns - left) * (rows - above) if columns > left and rows > above else None


def _of_jpeg(frame: bytes) -> int | None:
    place = len(START_OF_JPEG)
    while place + 9 <= len(frame) and frame[place] == 0xFF:
        marker = frame[place + 1]
        if marker in FRAMES:
            rows, columns = (int.from_bytes(frame[at : at + 2], "big") for at in (place + 5, place + 7))
            return rows * columns or None
        if marker == 0xFF:  # fill
            place += 1
        elif marker in WITHOUT_LENGTH:
            place += 2
        else:
            place += 2 + int.from_bytes(frame[place + 2 : place + 4], "big")
    return None
