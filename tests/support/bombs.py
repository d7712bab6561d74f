"""Small files that declare far more than a job can use, one a format, and a process that loads them with
little memory: `python -m tests.support.bombs FOLDER` writes there what became of each."""

from __future__ import annotations

import gzip
import io
import json
import resource
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings
from tests.fuzz.data import PRIVACY
from tests.unit.data.loading import make_job

HEADROOM_BYTES = 256 << 20  # beyond what the process takes once everything is imported
MIB = 1 << 20
BECAME = "became.json"

Fields = dict[str, Any]


def _table() -> Fields:
    return {"shape": (1,), "columns": (ColumnSpec(name="age"),), "label_column": "y"}


def _labels(folder: Path, *names: str) -> None:
    (folder / "images").mkdir()
    rows = [f"{name},{number % 2}" for number, name in enumerate(names)]
    (folder / "labels.csv").write_text("\n".join(["image,y", *rows, ""]))


def nifti(folder: Path) -> Fields:
    """2.2 GB of zeros are declared."""
    import nibabel

    _labels(folder, "a.nii.gz", "b.nii.gz", "c.nii.gz")
    images = folder / "images"
    for name in ("b", "c"):
        nibabel.save(nibabel.Nifti1Image(np.ones((2, 2, 2), np.uint8), np.eye(4)), images / f"{name}.nii.gz")
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape((1500, 1500, 1000))
    header["vox_offset"] = 352
    with gzip.open(images / "a.nii.gz", "wb") as file:
        file.write(header.binaryblock + b"\0" * MIB)
    return {"path": folder}


def dicom(folder: Path) -> Fields:
    """A small run-length frame that is 60,000 by 60,000."""
    import pydicom
    from pydicom.encaps import encapsulate
    from pydicom.uid import ExplicitVRLittleEndian, RLELossless

    from tests.support.scan_files import write_slice

    _labels(folder, "a.dcm", "b.dcm", "c.dcm")
    for name in ("a", "b", "c"):
        write_slice(folder / "images" / f"{name}.dcm", np.ones((2, 2)))
    scan = pydicom.dcmread(folder / "images" / "a.dcm")
    assert scan.file_meta.TransferSyntaxUID == ExplicitVRLittleEndian
    scan.Rows = scan.Columns = 60_000
    scan.PixelData = encapsulate([struct.pack("<16I", 2, 64, 66, *[0] * 13) + b"\x81\0" * 2])
    scan["PixelData"].VR, scan.file_meta.TransferSyntaxUID = "OB", RLELossless
    scan.save_as(folder / "images" / "a.dcm")
    return {"path": folder}


def _image_folder(folder: Path, name: str, content: bytes) -> Fields:
    for label in ("0", "1"):
        (folder / label).mkdir()
        Image.new("RGB", (4, 4)).save(folder / label / "b.png")
    (folder / "0" / name).write_bytes(content)
    return {"path": folder}


def png(folder: Path) -> Fields:
    size = struct.pack(">2I5B", 12_000, 12_000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", size), (b"IDAT", zlib.compress(bytes(MIB))), (b"IEND", b""))
    )
    return _image_folder(folder, "a.png", content)


def jpeg(folder: Path) -> Fields:
    out = io.BytesIO()
    Image.new("RGB", (16, 16)).save(out, "JPEG")
    start = b"\xff\xc0\x00\x11\x08"  # of a frame, before its height and width
    before, after = out.getvalue().split(start)
    return _image_folder(folder, "a.jpg", before + start + struct.pack(">2H", 12_000, 12_000) + after[4:])


def npz(folder: Path) -> Fields:
    """A sample of 2^29 values, for a job of 64."""
    with zipfile.ZipFile(folder / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in (("x", (2, 1 << 28)), ("y", (2,))):
            with archive.open(f"{name}.npy", "w") as member:
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)
                member.write(bytes(MIB) if name == "x" else b"\0\1")
    return {"path": folder / "data.npz"}


def npz_beside(folder: Path) -> Fields:
    """Two members of one name, of which numpy reads the one without an ending."""
    np.savez(folder / "data.npz", x=np.zeros((2, 8, 8), np.uint8), y=np.array([0, 1]))
    with (
        zipfile.ZipFile(folder / "data.npz", "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x", "w") as member,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": (2, 1 << 28)}
        np.lib.format.write_array_header_1_0(member, header)
    return {"path": folder / "data.npz"}


def mnist(folder: Path) -> Fields:
    """300 MiB of zeros, as it declares."""
    count = 300 * MIB // 64
    for split, images in (("train", count), ("t10k", 1)):
        with gzip.open(folder / f"{split}-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
            file.write(struct.pack(">4I", 2051, images, 8, 8))
            for start in range(0, images * 64, MIB):
                file.write(bytes(min(MIB, images * 64 - start)))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, 1) + b"\0")
    return {"path": folder}


def cifar10(folder: Path) -> Fields:
    """Files that are not official ones are never opened."""
    (folder / "cifar-10-batches-py").mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
        with (folder / "cifar-10-batches-py" / name).open("wb") as file:
            file.truncate(300 * MIB)
    return {"path": folder}


def csv(folder: Path) -> Fields:
    """A heading of 50,000 columns, and rows of one."""
    names = ["age", "y", *(f"c{number}" for number in range(50_000))]
    (folder / "data.csv").write_text(",".join(names) + "\n1" * 2_000 + "\n")
    return {"path": folder / "data.csv"}


def parquet(folder: Path) -> Fields:
    """40 million rows, all alike."""
    import pyarrow
    from pyarrow import parquet as files

    rows = pyarrow.table({"age": np.zeros(MIB), "y": np.zeros(MIB, np.int64)})
    with files.ParquetWriter(folder / "data.parquet", rows.schema) as writer:
        for _ in range(40):
            writer.write_table(rows)
    return {"path": folder / "data.parquet"}


def parquet_text(folder: Path) -> Fields:
    """A text of 1 MiB, once in the file and in each of 300 rows; the job reads it as a number."""
    import pyarrow
    from pyarrow import parquet as files

    place = pyarrow.array(np.zeros(300, np.int32))
    age = pyarrow.DictionaryArray.from_arrays(place, pyarrow.array(["x" * MIB]))
    files.write_table(pyarrow.table({"age": age, "y": np.zeros(300, np.int64)}), folder / "data.parquet")
    return {"path": folder / "data.parquet"}


def sql(folder: Path) -> Fields:
    """A query without an end."""
    (folder / "url").write_text("sqlite://")
    query = "WITH RECURSIVE r(age) AS (SELECT 1 UNION ALL SELECT age + 1 FROM r) SELECT age, 1 AS y FROM r"
    return {"database": {"url_file": folder / "url", "query": query}}


# by name: the format, how its file is made, the job's fields
BOMBS: dict[str, tuple[str, Callable[[Path], Fields], Fields]] = {
    "nifti": ("nifti", nifti, {"shape": (1, 2, 2, 2), "label_column": "y"}),
    "dicom": ("dicom", dicom, {"shape": (1, 2, 2), "label_column": "y"}),
    "png": ("image-folder", png, {"classes": ["0", "1"], "shape": (3, 4, 4)}),
    "jpeg": ("image-folder", jpeg, {"classes": ["0", "1"], "shape": (3, 4, 4)}),
    "npz": ("npz", npz, {}),
    "npz, two of a name": ("npz", npz_beside, {}),
    "mnist": ("mnist", mnist, {}),
    "cifar10": ("cifar10", cifar10, {"classes": 10, "shape": (3, 32, 32)}),
    "csv": ("csv", csv, _table()),
    "parquet": ("parquet", parquet, _table()),
    "parquet text": ("parquet", parquet_text, _table()),
    "sql": ("sql", sql, _table()),
}


def _became(settings: DataSettings, job: JobSpec) -> str:
    """The refusal, or how many records there are and what is wrong with the others."""
    problems = Problems()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    taken_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken_bytes + HEADROOM_BYTES, limits[1]))
    try:
        data = load_data(settings, job, problems=problems if job.privacy is not None else None)
        return f"{len(data.train) + len(data.holdout)} records; {'; '.join(problems.lines)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def main(root: Path) -> None:
    import monai.transforms  # noqa: F401  # what readers import takes no part of the limit
    import pyarrow.parquet  # noqa: F401
    import sqlalchemy  # noqa: F401

    import silo_agent.training.machine.torchvision_compat  # noqa: F401

    found: dict[str, list[str]] = {}
    for name, (form, make, fields) in BOMBS.items():
        folder = root / name
        folder.mkdir()
        settings = DataSettings.model_validate({"format": form, "holdout": 0.0, **make(folder)})
        job = {"classes": 2, **fields}
        found[name] = [_became(settings, make_job(**job, privacy=each)) for each in (None, PRIVACY)]
    (root / BECAME).write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
