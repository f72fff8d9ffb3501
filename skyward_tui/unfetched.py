"""What nobody has fetched of a pool's files, and what a receipt has to say beside its proof, as styled lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from skyward_core.model.sizes import size_in_words
from skyward_core.wire.safe_text import field

from .words import clip, count

if TYPE_CHECKING:
    from skyward_core.front.history import Receipt
    from skyward_core.model.written_file import Unfetched, WrittenFile

NAMED = 3  # files of a pool that a question names
LONGEST = 50  # characters of a name
Line = tuple[str, str]
"""Text, and its style."""


def size_of(files: Sequence[WrittenFile]) -> str:
    """Of all of them, in words."""
    return size_in_words(float(sum(file.size for file in files)))


def lines_of(left: Unfetched) -> Iterator[Line]:
    """What a teardown would make of them."""
    if left.asked:
        yield f"{_many(left.asked, 'of the outputs', 'comes', 'come')} here first:", ""
        yield from _named(left.asked, "")
    if left.others:
        mark, verbs, where, style = "", ("stays", "stay"), "on the hosts", ""
        if left.is_too_much:
            mark, verbs, where, style = "! ", ("goes", "go"), "with the machines", "$text-warning"
        elif left.goes:
            verbs, where = ("comes", "come"), "here first"
        said = _many(left.others, "that nobody has fetched", *verbs)
        yield f"{mark}{said} {where}:", style
        yield from _named(left.others, style)
    if left.untold:
        yield f"! {count(left.untold, 'more file')} that the nodes do not name at once", "$text-warning"
    for node, why in left.failures.items():
        yield f"! node {node} cannot be asked what its ranks wrote: {field(why)}", "$text-warning"


def _many(files: Sequence[WrittenFile], which: str, one: str, more: str) -> str:
    return f"{count(len(files), 'file')} ({size_of(files)}) {which} {one if len(files) == 1 else more}"


def _named(files: Sequence[WrittenFile], style: str) -> Iterator[Line]:
    """The largest by name, a line each."""
    largest = sorted(files, key=lambda file: (-file.size, file.node, file.path))[:NAMED]
    for file in largest:
        yield f"{size_of([file]):>11}  {clip(field(file.path), LONGEST)}", style
    if len(files) > len(largest):
        yield f"{'':>11}  and {len(files) - len(largest):,} more", style


def receipt_lines(receipt: Receipt) -> Iterator[Line]:
    """The proof, then a line for each thing that is lost, or lies somewhere."""
    proof = replace(receipt, kept=(), lost=())
    good = receipt.ok
    style = "bold $text-success" if good else "bold $text-error"
    yield f"{'✓' if good else '✗'} {proof} ({receipt.seconds:.1f} s)", style
    yield from ((f"! lost: {field(each)}", "$text-warning") for each in receipt.lost)
    yield from ((f"kept: {field(each)}", "") for each in receipt.kept)
    yield from ((field(each), "$muted") for each in receipt.notes)


def receipt_line(receipt: Receipt) -> str:
    """All of it as one line."""
    return "; ".join([f"{receipt} ({receipt.seconds:.1f} s)", *receipt.notes])
