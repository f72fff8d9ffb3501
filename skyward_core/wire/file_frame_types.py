"""What is said over lines for files, for type checkers; see :mod:`.frame_types`."""

# Without annotations from __future__, as in frame_types.
from typing import Literal, TypedDict

from .frame_types import OutputKeys


class FileBlob(TypedDict):
    t: Literal["blob"]
    name: str


class FilePut(TypedDict):
    t: Literal["put"]
    name: str
    size: int


class FileResult(TypedDict):
    t: Literal["result"]
    name: str
    at: int


class FileOutput(OutputKeys):
    t: Literal["output"]
    at: int


class FileWhole(TypedDict):
    t: Literal["whole"]
    sha256: str


class FileGo(TypedDict):
    t: Literal["go"]


class FileThere(TypedDict):
    t: Literal["there"]


class FileComes(TypedDict):
    t: Literal["comes"]
    size: int


class FileAnswer(TypedDict):
    t: Literal["answer"]
    error: str


FileAsked = FileBlob | FilePut | FileResult | FileOutput
OfFiles = FileAsked | FileGo | FileWhole | FileThere | FileComes | FileAnswer
