"""Types of all frames for type checkers, in the stub beside this file, generated from ``frame_schema``.

Import them only under ``if TYPE_CHECKING``. Names begin with the sender: ``ClientCall`` is a client's call. Received
frames have no type (``frame_codec.AnyHeader``). The handler of a kind declares its type, so type checkers detect
unknown
keys.
"""
