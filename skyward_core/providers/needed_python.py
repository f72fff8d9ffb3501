"""What a plan says of the Python that machines need."""

from __future__ import annotations


def there(minor: str, machine: str, named: str | None, *, rented: bool = False) -> str:
    """In words.

    Args:
        minor: the version of the Python that loads the script.
        machine: what one of them is called.
        named: the interpreter that the person has named for them.
        rented: whether nobody is asked before something is installed there.
    """
    needed = f"Python {minor} on each {machine}"
    if named:
        return f"{needed}: {named}"
    if rented:
        return f"{needed}; where its image has another, the first login fetches uv, which brings it"
    return f"{needed}, or uv there, which fetches it"
