"""Files of DICOM and NIfTI that tests write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

AFFINE = np.diag([-1.0, -1.0, 1.0, 1.0])  # left and posterior first, as scanners write


def write_nifti(path: Path, values: Any, affine: Any = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.asarray(values), affine), path)


def write_slice(path: Path, pixels: Any, *, place: int = 0, series: str = "1.2.3", **tags: Any) -> None:
    """A CT slice whose Hounsfield units are 2 p - 1000. tags: others by keyword; None: without it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    file.Modality, file.SeriesInstanceUID = "CT", series
    file.Rows, file.Columns = np.shape(pixels)
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.BitsAllocated = file.BitsStored = 16
    file.HighBit, file.PixelRepresentation = 15, 0
    file.PixelSpacing, file.SliceThickness = [1.0, 1.0], 1.0
    file.ImageOrientationPatient, file.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, place]
    file.InstanceNumber = place + 1
    file.RescaleSlope, file.RescaleIntercept = 2.0, -1000.0
    file.PixelData = np.asarray(pixels).astype(np.uint16).tobytes()  # two's complement
    for tag, value in tags.items():
        if value is None:
            delattr(file, tag)
        else:
            setattr(file, tag, value)
    pydicom.dcmwrite(path, file, enforce_file_format=True)
